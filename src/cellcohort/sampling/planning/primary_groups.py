"""Which group each batch is built around, and its focal time; compiled.

Batch `i` of all epochs end to end is built around the group in whose interval the fraction of ``i`` times the golden
section lies, where every group has an interval as long as its weight. Each run of `RUN` batches is put in random
order. The n-th batch of a group has as its focal time, if any, the one of its group whose turn it is.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from cellcohort.sampling.planning.rounding import GOLDEN
from cellcohort.sampling.rng import Whole, bits_of, key_of_three, mix, permuted

RUN = 16
WHOLE = 2**32
STEP = round(GOLDEN * WHOLE) | 1
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


@njit(cache=True, nogil=True)
def occurrences_before(groups: Groups, first: Whole, key: np.uint64) -> np.ndarray:
    """How many batches before number `first` are built around each group."""
    whole = first // RUN * RUN
    below = np.empty(len(groups.end) + 1, np.int64)  # batches in the intervals before that of each group
    for g in range(len(below)):
        low = 0 if g == 0 else groups.end[g - 1]
        below[g] = floor_sum(whole, WHOLE, STEP, groups.begin + WHOLE - low)
    out = below[:-1] - below[1:]
    for group in primary_groups(groups, whole, first - whole, key):
        out[group] += 1
    return out


@njit(cache=True, nogil=True)
def floor_sum(n: Whole, m: Whole, a: Whole, b: Whole) -> Whole:
    """Sum of ``(a * i + b) // m`` over i from 0 to n - 1, in steps like those of Euclid's algorithm."""
    total = 0
    while True:
        total += n * (n - 1) // 2 * (a // m) + n * (b // m)
        a, b = a % m, b % m
        top = a * n + b
        if top < m:
            return total
        n, b, m, a = top // m, top % m, a, m


@njit(cache=True, nogil=True)
def focal_times(
    times: np.ndarray, indptr: np.ndarray, sets: np.ndarray, occurrence: np.ndarray, seed: np.uint64, epoch: Whole
) -> np.ndarray:
    """For each batch, one of ``times[indptr[g]:indptr[g + 1]]``: each in turn, in a pseudo-random order.

    `g` is the primary group in ``sets[i]``, of several each in turn. A missing time passes its turn on to the next
    one; -inf if all are missing.
    """
    out, k = np.full(len(sets), -np.inf), sets.shape[1]
    for i in range(len(sets)):
        group, turn = sets[i, occurrence[i] % k], occurrence[i] // k
        first, n = indptr[group], indptr[group + 1] - indptr[group]
        at = permuted(turn % n, n, bits_of(n), mix(key_of_three(seed, _U(epoch), _U(group)), _U(turn // n)))
        for j in range(n):
            time = times[first + (at + j) % n]
            if np.isfinite(time):
                out[i] = time
                break
    return out
