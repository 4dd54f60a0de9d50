"""Which group each batch is built around.

Batch `i` of all epochs end to end is built around the group in whose interval the fraction of ``i`` times the golden
section lies, where every group has an interval as long as its weight. Each run of `RUN` batches is put in random order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cellcohort.compiled import compiled
from cellcohort.sampling.rng import STEP, WHOLE, Whole, floor_sum, mix, permuted

RUN = 16  # batches
SUMMED = 2**30  # numbers that are summed up at once, so that no sum exceeds 64 bits
_U = np.uint64


class Groups(NamedTuple):
    """Intervals of whole numbers below `WHOLE`: group `g` has ``end[g - 1]`` to ``end[g]``. Batch 0 is at `begin`."""

    end: np.ndarray
    begin: int

    @classmethod
    def of(cls, weights: np.ndarray, key: np.uint64) -> Groups:
        """Return the intervals of groups with these weights, on any scale."""
        end = np.rint(np.cumsum(weights) / weights.sum() * WHOLE).astype(np.int64)
        end[np.flatnonzero(weights)[-1] :] = WHOLE
        return cls(end, int(key >> np.uint64(32)))


@compiled
def primary_groups(groups: Groups, first: Whole, n: Whole, key: np.uint64) -> np.ndarray:
    """Return the groups that `n` batches from number `first` on, of all epochs end to end, are built around."""
    out = np.empty(n, np.int64)
    for i in range(n):
        run, place = (first + i) // RUN, (first + i) % RUN
        number = run * RUN + permuted(place, RUN, _U(4), mix(key, _U(run)))
        out[i] = np.searchsorted(groups.end, (groups.begin + number * STEP) % WHOLE, "right")
    return out


@compiled
def occurrences_before(groups: Groups, first: Whole, key: np.uint64) -> np.ndarray:
    """How many batches before number `first` are built around each group."""
    found, runs = np.zeros(len(groups.end), np.int64), first // RUN
    for group in primary_groups(groups, runs * RUN, first - runs * RUN, key):
        found[group] += 1
    laps, left = runs * RUN // WHOLE, runs * RUN % WHOLE  # in each lap every number lies at a place of its own
    for g in range(len(found)):
        found[g] += laps * (groups.end[g] - (groups.end[g - 1] if g > 0 else 0))
    for start in range(0, left, SUMMED):
        n, begin = min(SUMMED, left - start), (groups.begin + start * STEP) % WHOLE + WHOLE
        before = floor_sum(n, WHOLE, STEP, begin)
        for g in range(len(found)):  # of the numbers, those that do not lie before the end of the interval of the group
            after = floor_sum(n, WHOLE, STEP, begin - groups.end[g])
            found[g] += before - after
            before = after
    return found
