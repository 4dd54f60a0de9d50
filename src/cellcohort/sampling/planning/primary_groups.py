"""Which group each batch is built around.

Batch `i` of all epochs end to end is built around the group in whose interval the fraction of ``i`` times the golden
section lies, where every group has an interval as long as its weight. Each run of `RUN` batches is put in random order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

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


@njit(cache=True, nogil=True)
def primary_groups(groups: Groups, first: Whole, n: Whole, key: np.uint64) -> np.ndarray:
    """Return the groups that `n` batches from number `first` on, of all epochs end to end, are built around."""
    out = np.empty(n, np.int64)
    for i in range(n):
        run, place = (first + i) // RUN, (first + i) % RUN
        number = run * RUN + permuted(place, RUN, _U(4), mix(key, _U(run)))
        out[i] = np.searchsorted(groups.end, (groups.begin + number * STEP) % WHOLE, "right")
    return out


def occurrences_before(groups: Groups, first: int, key: np.uint64) -> np.ndarray:
    """How many batches before number `first` are built around each group."""
    runs = first // RUN
    last = primary_groups(groups, runs * RUN, first - runs * RUN, key)
    laps, left = divmod(runs * RUN, WHOLE)  # in each of which every number lies at a place of its own
    found = laps * np.diff(groups.end, prepend=0) + np.bincount(last, minlength=len(groups.end))
    for start in range(0, left, SUMMED):
        part = groups._replace(begin=(groups.begin + start * STEP) % WHOLE)
        found += _numbers_within(part, min(SUMMED, left - start))
    return found


@njit(cache=True, nogil=True)
def _numbers_within(groups: Groups, n: Whole) -> np.ndarray:
    """How many of the first `n` numbers of the sequence lie in the interval of each group."""
    below = np.empty(len(groups.end) + 1, np.int64)  # numbers before each interval
    for g in range(len(below)):
        low = 0 if g == 0 else groups.end[g - 1]
        below[g] = floor_sum(n, WHOLE, STEP, groups.begin + WHOLE - low)
    return below[:-1] - below[1:]
