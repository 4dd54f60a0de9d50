"""The cells of a window's chunks by stratum; compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from cellcohort.sampling.drawing.time_window import first_from

INSIDE, OUTSIDE, ANYWHERE = np.arange(3)  # not whole numbers of Python: `take` would be compiled for each
CELL, USED, CALL, ODDS = 0, 1, 2, 3  # columns of `Pool.slots`
CHUNKS, CALLS, CELLS = 0, 1, 2  # of `Pool.counts`
EVEN = 1 << 30


class Pool(NamedTuple):
    """The cells of some strata in the chunks of a window.

    Attributes
    ----------
    strata : numpy.ndarray of int64, shape (n,)
        Sorted.
    place : numpy.ndarray of int32, shape (n_strata,)
        Which of them each stratum is; -1 if none.
    hunger : numpy.ndarray of float, shape (n,)
        Cells that the batches of the window want of each, per cell that it has, at most 1.
    slot, begin : numpy.ndarray of int, shape (n_listed,) and (n + 1,)
        Stratum `i` of the pool has the slots that are listed in `slot` from ``begin[i]`` on.
    taken, held : numpy.ndarray of int64, shape (n,)
        It holds ``held[i]`` cells: first the ``taken[i]`` that batches have taken, then the others, which are free.
    fair : numpy.ndarray of float, shape (n,)
        How many of them batches may take so that they come no more often than cells of other chunks.
    slots : numpy.ndarray of int, shape (n_slots, 4)
        Of each cell its position, how often it was taken, by which call last, and the hunger of its
        stratum over that of the hungriest in its chunk, times `EVEN`: chunks are read for their hungriest stratum.
    knot : numpy.ndarray of int32, shape (n_slots,)
        Of each cell too; empty without a window axis.
    chosen : numpy.ndarray of bool, shape (n_chunks,)
        The chunks whose cells these are.
    counts : numpy.ndarray of int64, shape (3,)
        Chunks, calls and cells so far.
    """

    strata: np.ndarray
    place: np.ndarray
    hunger: np.ndarray
    slot: np.ndarray
    begin: np.ndarray
    taken: np.ndarray
    held: np.ndarray
    fair: np.ndarray
    slots: np.ndarray
    knot: np.ndarray
    chosen: np.ndarray
    counts: np.ndarray


@njit(cache=True, nogil=True)
def empty_pool(strata, hunger, start, census, most_cells):  # type: ignore[no-untyped-def]
    """A pool for at most so many cells of some strata (sorted)."""
    n, place = len(strata), np.full(len(start) - 1, -1, np.int32)
    begin = np.zeros(n + 1, np.int64)
    for i in range(n):
        place[strata[i]] = i
        begin[i + 1] = begin[i] + min(start[strata[i] + 1] - start[strata[i]], most_cells)
    taken, held, chosen = np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(len(census.chunk_ptr) - 1, np.bool_)
    slot, slots = np.empty(begin[n], np.int32), np.empty((most_cells, 4), census.members.dtype)
    knot = np.empty(most_cells if len(census.time) else 0, np.int32)
    return Pool(
        strata, place, hunger, slot, begin, taken, held, np.zeros(n), slots, knot, chosen, np.zeros(3, np.int64)
    )


@njit(cache=True, nogil=True)
def add_chunk(pool, chunk, census):  # type: ignore[no-untyped-def]
    """Put the cells of a chunk into the pool."""
    pool.chosen[chunk] = True
    pool.counts[CHUNKS] += 1
    highest = 0.0
    for e in range(census.chunk_ptr[chunk], census.chunk_ptr[chunk + 1]):
        i = pool.place[census.stratum[e]]
        highest = max(highest, pool.hunger[i] if i >= 0 else 0.0)
    listed, slots, members, first = pool.slot, pool.slots, census.members, census.first
    for e in range(census.chunk_ptr[chunk], census.chunk_ptr[chunk + 1]):
        i = pool.place[census.stratum[e]]
        if i < 0:
            continue
        odds = pool.hunger[i] / highest
        new, at, n = pool.counts[CELLS], pool.begin[i] + pool.held[i], first[e + 1] - first[e]
        for k in range(n):
            listed[at + k] = new + k
            slots[new + k, CELL] = members[first[e] + k]
            slots[new + k, USED] = slots[new + k, CALL] = 0
            slots[new + k, ODDS] = np.int64(odds * EVEN)
        if len(census.time):
            pool.knot[new : new + n] = census.time[first[e] : first[e + 1]]
        pool.counts[CELLS] += n
        pool.held[i] += n
        pool.fair[i] += n * odds


@njit(cache=True, nogil=True)
def n_chosen(pool):  # type: ignore[no-untyped-def]
    """Chunks in the pool."""
    return pool.counts[CHUNKS]


@njit(cache=True, nogil=True)
def n_free(pool, i):  # type: ignore[no-untyped-def]
    """Cells of a stratum that no batch has taken."""
    return pool.held[i] - pool.taken[i]


@njit(cache=True, nogil=True)
def unfair(pool, i, need):  # type: ignore[no-untyped-def]
    """Whether `need` free cells of a stratum could be had only by taking some more often than cells of other chunks."""
    return need > pool.fair[i] - pool.taken[i]


@njit(cache=True, nogil=True)
def free_cells(pool, i):  # type: ignore[no-untyped-def]
    """The slots of the cells of a stratum that no batch has taken, as they are listed."""
    return pool.slot[pool.begin[i] + pool.taken[i] : pool.begin[i] + pool.held[i]]


@njit(cache=True, nogil=True)
def bring_forward(free, knot, part, low, high, seen, fit):  # type: ignore[no-untyped-def]
    """List those of some free cells first that are on the wanted side of a time window; how many there are.

    The first `seen` of them were looked at before, and `fit` came first.
    """
    if part == ANYWHERE:
        return len(free)
    for at in range(seen, len(free)):  # without branches, which would be guessed wrong too often
        slot = free[at]
        free[at] = free[fit]
        free[fit] = slot
        fit += wanted(knot[slot], part, low, high)
    return fit


@njit(cache=True, nogil=True)
def wanted(knot, part, low, high):  # type: ignore[no-untyped-def]
    """Whether a cell of a knot is on the wanted side of the time window ``low <= knot < high``."""
    return part == ANYWHERE or (low <= knot < high) == (part == INSIDE)


@njit(cache=True, nogil=True)
def held_inside(chunk, stratum, low, high, chunk_ptr, entry_stratum, first, time):  # type: ignore[no-untyped-def]
    """Cells of a stratum in a chunk that are inside a time window."""
    for e in range(chunk_ptr[chunk], chunk_ptr[chunk + 1]):
        if entry_stratum[e] == stratum:
            return first_from(time, first[e], first[e + 1], high) - first_from(time, first[e], first[e + 1], low)
    return 0
