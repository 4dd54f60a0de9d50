"""How many cells of each stratum the batches of a window want, and how many around their focal times; compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from cellcohort.sampling.drawing.time_window import TOLERANCE, first_from, least_and_most, share_out
from cellcohort.sampling.planning.strata import stable_order


class Wants(NamedTuple):
    """How many cells of a stratum (its place in the pool) each batch wants, and how many `within` its time window.

    The cells of the time window have the knots ``low`` to ``high - 1``. The strata that need most chunks come first.
    """

    stratum: np.ndarray
    batch: np.ndarray
    cells: np.ndarray
    within: np.ndarray
    low: np.ndarray
    high: np.ndarray


@njit(cache=True, nogil=True)
def batches_want(strata, hunger, census, layers, heads, asks, half_width):  # type: ignore[no-untyped-def]
    """What the batches of a window want of the cells of some strata."""
    n, local = len(asks.cells), np.searchsorted(strata, asks.stratum)
    batch, within = np.zeros(n, np.int64), np.zeros(n, np.int64)
    low, high = np.zeros(n, np.int64), np.zeros(n, np.int64)
    least, most = np.empty(n, np.int64), np.empty(n, np.int64)
    for j in range(len(asks.ptr) - 1):
        first, last = asks.ptr[j], asks.ptr[j + 1]
        batch[first:last] = j
        if len(census.time) == 0:
            continue
        begin, end = heads.focal[j] - half_width - TOLERANCE, heads.focal[j] + half_width + TOLERANCE
        for i in range(first, last):
            s = asks.stratum[i]
            low[i] = first_from(layers.times, layers.times_indptr[s], layers.times_indptr[s + 1], begin)
            high[i] = first_from(layers.times, low[i], layers.times_indptr[s + 1], end)
            held = layers.times_start[high[i]] - layers.times_start[low[i]]
            least[i], most[i] = least_and_most(asks.cells[i], layers.start[s + 1] - layers.start[s], held)
        own = asks.cells[first:last]
        within[first:last] = share_out(own, least[first:last], most[first:last], heads.inside[j], heads.number + j)
    rank = np.empty(len(strata), np.int64)  # strata whose cells lie in the most chunks come first
    rank[np.argsort(-hunger * np.diff(census.walk_ptr)[strata])] = np.arange(len(strata))
    order = stable_order(rank[local], len(strata), np.arange(n))
    return Wants(local[order], batch[order], asks.cells[order], within[order], low[order], high[order])


@njit(cache=True, nogil=True)
def hunger_of(strata, layers, asks):  # type: ignore[no-untyped-def]
    """How many cells of each stratum are asked for, per cell that it has; at most 1, since a chunk is read once."""
    hunger = np.zeros(len(strata))
    for i in range(len(asks.cells)):
        s = asks.stratum[i]
        hunger[np.searchsorted(strata, s)] += asks.cells[i] / (layers.start[s + 1] - layers.start[s])
    return np.minimum(hunger, 1.0)
