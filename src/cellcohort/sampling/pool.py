"""The cells of a window's chunks by stratum, and how batches take them; compiled.

Cells that fewer batches of the window hold are taken first, so that batches share cells only where a
stratum has no more; among these all are equally likely.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from cellcohort.sampling.draw import admit
from cellcohort.sampling.keyed import mix
from cellcohort.sampling.windowed import first_from

INSIDE, OUTSIDE, ANYWHERE = np.arange(3)  # not whole numbers of Python: `take` would be compiled for each
CELL, USED, CALL, ODDS = 0, 1, 2, 3  # columns of `Pool.slots`
CHUNKS, CALLS, CELLS = 0, 1, 2  # of `Pool.counts`
NO_CAP = 1 << 30
EVEN = 1 << 30
_U = np.uint64


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
    slots, first, highest = pool.slots, census.first, 0.0
    pool.chosen[chunk] = True
    pool.counts[CHUNKS] += 1
    for e in range(census.chunk_ptr[chunk], census.chunk_ptr[chunk + 1]):
        i = pool.place[census.stratum[e]]
        highest = max(highest, pool.hunger[i] if i >= 0 else 0.0)
    for e in range(census.chunk_ptr[chunk], census.chunk_ptr[chunk + 1]):
        i = pool.place[census.stratum[e]]
        if i < 0:
            continue
        odds = pool.hunger[i] / highest
        new, at, n = pool.counts[CELLS], pool.begin[i] + pool.held[i], first[e + 1] - first[e]
        for k in range(n):
            pool.slot[at + k] = new + k
            slots[new + k, CELL] = census.members[first[e] + k]
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
def bring_forward(pool, i, part, low, high, seen, fit):  # type: ignore[no-untyped-def]
    """List those of a stratum's free cells first that are on the wanted side of a time window; how many there are.

    The first `seen` free cells were looked at before, and `fit` of them came first.
    """
    free, n = pool.slot[pool.begin[i] + pool.taken[i] : pool.begin[i] + pool.held[i]], n_free(pool, i)
    if part == ANYWHERE:
        return n
    for at in range(seen, n):  # without branches, which would be guessed wrong too often
        slot = free[at]
        free[at] = free[fit]
        free[fit] = slot
        fit += _wanted(pool.knot[slot], part, low, high)
    return fit


@njit(cache=True, nogil=True)
def _wanted(knot, part, low, high):  # type: ignore[no-untyped-def]
    """Whether a cell of a knot is on the wanted side of the time window ``low <= knot < high``."""
    return part == ANYWHERE or (low <= knot < high) == (part == INSIDE)


@njit(cache=True, nogil=True)
def take(pool, i, fit, part, low, high, later, need, capped, most, tally, key, out, filled):  # type: ignore[no-untyped-def]
    """Take `need` cells of a stratum for one batch; how many of the places of `out` are filled then.

    The first `fit` of its free cells are on the wanted `part` of the batch's time window ``low:high``. With
    `most` > 0, cells whose label of `capped` the batch already holds so often come last. Outside the
    window, cells within those of batches to come, for which these have no use, go first: cells of a
    knot that `later` counts.
    """
    pool.counts[CALLS] += 1
    out = out[filled : filled + need]
    got = _take_free(pool, i, fit, part, later, capped, most, tally, mix(key, _U(0)), out)
    if got < need:
        got += _take_again(pool, i, part, low, high, capped, most, tally, mix(key, _U(1)), out[got:])
    return filled + got


@njit(cache=True, nogil=True)
def _take_free(pool, i, fit, part, later, capped, most, tally, key, out):  # type: ignore[no-untyped-def]
    """Fill `out` with some of the first `fit` cells that no batch of the window holds; how many there were."""
    free, got = pool.begin[i] + pool.taken[i], 0
    found = pool.slot[free : free + fit]
    if part == OUTSIDE:
        first = 0
        for at in range(fit):
            slot = found[at]
            found[at] = found[first]
            found[first] = slot
            first += later[pool.knot[slot]] > 0
        got = _choose(pool, found[:first], got, False, capped, most, tally, mix(key, _U(0)), out)
    got = _choose(pool, found, got, True, capped, most, tally, mix(key, _U(1)), out)
    got = _choose(pool, found, got, False, capped, most, tally, mix(key, _U(2)), out)
    if most > 0:
        got = _choose(pool, found, got, False, capped, NO_CAP, tally, mix(key, _U(3)), out)
    pool.taken[i] += got
    return got


@njit(cache=True, nogil=True)
def _take_again(pool, i, part, low, high, capped, most, tally, key, out):  # type: ignore[no-untyped-def]
    """Fill `out` with cells that batches of the window hold, those that the fewest do first; how many there were."""
    got = 0
    while got < len(out):
        found = _find_taken(pool, i, part, low, high)
        if len(found) == 0:  # every cell is in the batch: now it holds some of them again
            pool.counts[CALLS] += 1
            found = _find_taken(pool, i, part, low, high)
            if len(found) == 0:
                break
        rest, key = out[got:], mix(key, _U(0))
        more = _choose(pool, found, 0, False, capped, most, tally, mix(key, _U(1)), rest)
        if most > 0:
            more = _choose(pool, found, more, False, capped, NO_CAP, tally, mix(key, _U(2)), rest)
        got += more
    return got


@njit(cache=True, nogil=True)
def _find_taken(pool, i, part, low, high):  # type: ignore[no-untyped-def]
    """The slots of wanted cells that this call has not taken and that the fewest batches hold, but at least one."""
    taken, slots, timed = pool.slot[pool.begin[i] : pool.begin[i] + pool.taken[i]], pool.slots, len(pool.knot) > 0
    found, n, fewest = np.empty(len(taken), np.int32), 0, NO_CAP
    for slot in taken:
        if slots[slot, CALL] != pool.counts[CALLS] and _wanted(pool.knot[slot] if timed else 0, part, low, high):
            if slots[slot, USED] < fewest:
                fewest, n = slots[slot, USED], 0
            if slots[slot, USED] == fewest:
                found[n] = slot
                n += 1
    return found[:n]


@njit(cache=True, nogil=True)
def _choose(pool, found, got, evenly, capped, most, tally, key, out):  # type: ignore[no-untyped-def]
    """Fill `out` from `got` on with cells of the slots ``found[got:]`` in random order; how many it holds then.

    The slots of the cells in `out` come first in `found` afterwards. At most `most` cells (any number if 0)
    of one label are taken; if `evenly`, cells are taken with their odds.
    """
    n, slots, call = len(found), pool.slots, pool.counts[CALLS]
    for turn in range(got, n):
        if got == len(out):
            break
        drawn = mix(key, _U(turn))
        other = turn + np.int64((drawn >> _U(32)) * _U(n - turn) >> _U(32))
        slot = found[other]
        found[other] = found[turn]
        found[turn] = slot
        cell = slots[slot, CELL]
        if evenly and np.int64(drawn & _U(EVEN - 1)) >= slots[slot, ODDS]:
            continue
        if most > 0 and not admit(tally, capped[cell], most):
            continue
        found[turn] = found[got]
        found[got] = slot
        slots[slot, USED] += 1
        slots[slot, CALL] = call
        out[got] = cell
        got += 1
    return got


@njit(cache=True, nogil=True)
def held_inside(chunk, stratum, low, high, chunk_ptr, entry_stratum, first, time):  # type: ignore[no-untyped-def]
    """Cells of a stratum in a chunk that are inside a time window."""
    for e in range(chunk_ptr[chunk], chunk_ptr[chunk + 1]):
        if entry_stratum[e] == stratum:
            return first_from(time, first[e], first[e + 1], high) - first_from(time, first[e], first[e + 1], low)
    return 0
