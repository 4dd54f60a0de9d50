"""Focal times of the batches of chunk windows, and the cells and chunks around them."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from cellcohort.compiled import compiled
from cellcohort.sampling.chunked.chunk_index import ChunkIndex
from cellcohort.sampling.drawing.time_window import TOLERANCE, first_from, least_and_most
from cellcohort.sampling.planning.plan import Plan
from cellcohort.sampling.planning.strata import Strata
from cellcohort.sampling.rng import bits_of, mix, permuted, permuted_each, unit

CANDIDATES = 2  # chunks around a focal time that are compared; the best of more would leave out sparse chunks
UNCOMPARED = 2  # one chunk in so many is taken without a comparison, so that sparse chunks are read too
_U = np.uint64


class GroupTimes(NamedTuple):
    """The times of each group, ``hours[indptr[g]:indptr[g + 1]]``, and the cells of a batch around its focal time."""

    hours: np.ndarray
    indptr: np.ndarray
    inside: float

    @classmethod
    def of(cls, plan: Plan) -> GroupTimes:
        """Return the times that are not missing; -inf alone if all of a group are."""
        times = [np.unique(plan.strata.times[a:b]) for a, b in pairwise(plan.batches.times_of_group)]
        known = [hours[np.isfinite(hours)] if np.isfinite(hours).any() else np.array([-np.inf]) for hours in times]
        return cls(np.concatenate(known), np.cumsum([0, *map(len, known)]), plan.places * plan.share_inside)

    def focal(self, primary: np.ndarray, n: int, key: np.uint64) -> np.ndarray:
        """Return the focal times of `n` batches of each primary group, which are spread evenly over its times."""
        order = permuted_each(np.arange(n), np.full(n, n), np.zeros(n, np.int64), key)
        begin, n_times = self.indptr[primary], (self.indptr[1:] - self.indptr[:-1])[primary]
        share = (order + unit(key, _U(0))) / n
        focal: np.ndarray = self.hours[begin + np.minimum(share[:, None] * n_times, n_times - 1).astype(np.int64)]
        return focal.ravel()


@compiled
def in_time_window(
    strata: Strata, stratum: np.ndarray, cells: np.ndarray, focal: float, half_width: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the times of some strata around a focal time, and how few and how many of `cells` can have them."""
    n, begin, end = len(stratum), focal - half_width - TOLERANCE, focal + half_width + TOLERANCE
    low, high, least, most = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    for i in range(n):
        s = stratum[i]
        low[i] = first_from(strata.times, strata.times_indptr[s], strata.times_indptr[s + 1], begin)
        high[i] = first_from(strata.times, low[i], strata.times_indptr[s + 1], end)
        available = strata.times_start[high[i]] - strata.times_start[low[i]]
        least[i], most[i] = least_and_most(cells[i], strata.start[s + 1] - strata.start[s], available)
    return low, high, least, most


@compiled
def chunk_around(
    chunk_of: np.ndarray, of: tuple[int, int, int], chosen: np.ndarray, index: ChunkIndex, largest: int, key: np.uint64
) -> int:
    """Return a chunk that is not `chosen` yet and holds many of some cells, which are in `chunk_of`; -1 if none.

    `of` are the stratum of these cells and the times that bound theirs. No chunk holds more than `largest`.
    """
    (stratum, low, high), n, time, indptr = of, len(chunk_of), index.time, index.cell_indptr
    bits, best, most = bits_of(n), -1, 0
    looked_at = CANDIDATES - 1 if mix(key, _U(UNCOMPARED)) % _U(UNCOMPARED) == 0 else 0
    for i in range(n):
        chunk = chunk_of[permuted(i, n, bits, key)]
        if chosen[chunk] or chunk == best:
            continue
        e = int(first_from(index.stratum, index.chunk_indptr[chunk], index.chunk_indptr[chunk + 1], stratum))
        begin = first_from(time, indptr[e], indptr[e + 1], low)
        n_cells = first_from(time, begin, indptr[e + 1], high) - begin
        if n_cells > most:
            best, most = chunk, n_cells
        looked_at += 1
        if looked_at == CANDIDATES or most == largest:
            break
    return best
