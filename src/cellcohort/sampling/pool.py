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
CELL, KNOT, USED, CALL, ODDS = 0, 1, 2, 3, 4  # rows of `Pool.slots`
CHUNKS, CALLS = 0, 1  # of `Pool.counts`
NO_CAP = 1 << 30
EVEN = 1 << 32
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
    begin : numpy.ndarray of int64, shape (n + 1,)
        Stratum `i` of the pool has the columns of `slots` from ``begin[i]`` on.
    taken, held : numpy.ndarray of int64, shape (n,)
        It holds ``held[i]`` cells: first the ``taken[i]`` that batches have taken, then the others.
    fair : numpy.ndarray of float, shape (n,)
        How many of them batches may take so that they come no more often than cells of other chunks.
    slots : numpy.ndarray of int64, shape (5, n_slots)
        Of each cell its position, its knot, how often it was taken, by which call last, and the hunger of its
        stratum over that of the hungriest in its chunk, times `EVEN`: chunks are read for their hungriest stratum.
    chosen : numpy.ndarray of bool, shape (n_chunks,)
        The chunks whose cells these are.
    counts : numpy.ndarray of int64, shape (2,)
        Chunks, and calls so far.
    """

    strata: np.ndarray
    place: np.ndarray
    hunger: np.ndarray
    begin: np.ndarray
    taken: np.ndarray
    held: np.ndarray
    fair: np.ndarray
    slots: np.ndarray
    chosen: np.ndarray
    counts: np.ndarray


@njit(cache=True, nogil=True)
def empty_pool(strata, hunger, start, n_chunks, most_cells):  # type: ignore[no-untyped-def]
    """A pool for the cells of some strata (sorted), with room for so many cells of each."""
    n, place = len(strata), np.full(len(start) - 1, -1, np.int32)
    begin = np.zeros(n + 1, np.int64)
    for i in range(n):
        place[strata[i]] = i
        begin[i + 1] = begin[i] + min(start[strata[i] + 1] - start[strata[i]], most_cells)
    taken, held, chosen = np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n_chunks, np.bool_)
    slots = np.empty((5, begin[n]), np.int64)
    return Pool(strata, place, hunger, begin, taken, held, np.zeros(n), slots, chosen, np.zeros(2, np.int64))


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
        at, n = pool.begin[i] + pool.held[i], first[e + 1] - first[e]
        slots[CELL, at : at + n] = census.members[first[e] : first[e + 1]]
        if len(census.time):
            slots[KNOT, at : at + n] = census.time[first[e] : first[e + 1]]
        slots[USED:ODDS, at : at + n] = 0
        slots[ODDS, at : at + n] = np.int64(pool.hunger[i] / highest * EVEN)
        pool.held[i] += n
        pool.fair[i] += n * pool.hunger[i] / highest


@njit(cache=True, nogil=True)
def n_chosen(pool):  # type: ignore[no-untyped-def]
    """Chunks in the pool."""
    return pool.counts[CHUNKS]


@njit(cache=True, nogil=True)
def lacking(pool, i, part, low, high, need):  # type: ignore[no-untyped-def]
    """How many of the `need` cells of a stratum on the wanted side of a time window are not there, free of batches."""
    if part == ANYWHERE:
        return max(need - pool.held[i] + pool.taken[i], 0)
    for knot in pool.slots[KNOT, pool.begin[i] + pool.taken[i] : pool.begin[i] + pool.held[i]]:
        need -= _wanted(knot, part, low, high)
    return max(need, 0)


@njit(cache=True, nogil=True)
def unfair(pool, i, need):  # type: ignore[no-untyped-def]
    """Whether `need` free cells of a stratum could be had only by taking some more often than cells of other chunks."""
    return need > pool.fair[i] - pool.taken[i]


@njit(cache=True, nogil=True)
def _wanted(knot, part, low, high):  # type: ignore[no-untyped-def]
    """Whether a cell of a knot is on the wanted side of the time window ``low <= knot < high``."""
    return part == ANYWHERE or (low <= knot < high) == (part == INSIDE)


@njit(cache=True, nogil=True)
def take(pool, i, part, low, high, later, need, capped, most, tally, key, out, filled):  # type: ignore[no-untyped-def]
    """Take `need` cells of a stratum for one batch; how many of the places of `out` are filled then.

    With `most` > 0, cells whose label of `capped` the batch already holds so often come last. Outside the
    batch's time window ``low:high``, cells within those of batches to come, for which these have no use, go
    first: cells of a knot that `later` counts.
    """
    pool.counts[CALLS] += 1
    out = out[filled : filled + need]
    got = _take_free(pool, i, part, low, high, later, capped, most, tally, mix(key, _U(0)), out)
    if got < need:
        got += _take_again(pool, i, part, low, high, capped, most, tally, mix(key, _U(1)), out[got:])
    return filled + got


@njit(cache=True, nogil=True)
def _take_free(pool, i, part, low, high, later, capped, most, tally, key, out):  # type: ignore[no-untyped-def]
    """Fill `out` with cells that no batch of the window holds; how many there were."""
    slots, call, any_knot = pool.slots, pool.counts[CALLS], later[:0]
    free = pool.begin[i] + pool.taken[i]
    found = _find(slots, free, pool.begin[i] + pool.held[i], part, low, high, call)
    got = 0
    if part == OUTSIDE:
        got = _choose(slots, found, got, later, False, capped, most, tally, call, mix(key, _U(0)), out)
    got = _choose(slots, found, got, any_knot, True, capped, most, tally, call, mix(key, _U(1)), out)
    got = _choose(slots, found, got, any_knot, False, capped, most, tally, call, mix(key, _U(2)), out)
    if most > 0:
        got = _choose(slots, found, got, any_knot, False, capped, NO_CAP, tally, call, mix(key, _U(3)), out)
    _set_apart(slots, free, free + got, found[:got])
    pool.taken[i] += got
    return got


@njit(cache=True, nogil=True)
def _take_again(pool, i, part, low, high, capped, most, tally, key, out):  # type: ignore[no-untyped-def]
    """Fill `out` with cells that batches of the window hold, those that the fewest do first; how many there were."""
    slots, begin, end = pool.slots, pool.begin[i], pool.begin[i] + pool.taken[i]
    any_knot, got = np.empty(0, np.int64), 0
    while got < len(out):
        found = _find(slots, begin, end, part, low, high, pool.counts[CALLS])
        if len(found) == 0:  # every cell is in the batch: now it holds some of them again
            pool.counts[CALLS] += 1
            found = _find(slots, begin, end, part, low, high, pool.counts[CALLS])
            if len(found) == 0:
                break
        call = pool.counts[CALLS]
        rest, key = out[got:], mix(key, _U(0))
        more = _choose(slots, found, 0, any_knot, False, capped, most, tally, call, mix(key, _U(1)), rest)
        if most > 0:
            more = _choose(slots, found, more, any_knot, False, capped, NO_CAP, tally, call, mix(key, _U(2)), rest)
        got += more
    return got


@njit(cache=True, nogil=True)
def _find(slots, begin, end, part, low, high, call):  # type: ignore[no-untyped-def]
    """Of the slots ``begin:end``, those of wanted cells that `call` has not taken and that the fewest batches hold."""
    knot, used, by = slots[KNOT, begin:end], slots[USED, begin:end], slots[CALL, begin:end]
    found, n, fewest = np.empty(end - begin, np.int64), 0, NO_CAP
    for at in range(end - begin):  # without branches, which would be guessed wrong too often
        fits = _wanted(knot[at], part, low, high) & (by[at] != call)
        fewest = min(fewest, used[at] if fits else NO_CAP)
    for at in range(end - begin):
        fits = _wanted(knot[at], part, low, high) & (by[at] != call)
        found[n] = begin + at
        n += fits & (used[at] == fewest)
    return found[:n]


@njit(cache=True, nogil=True)
def _choose(slots, found, got, knots, evenly, capped, most, tally, call, key, out):  # type: ignore[no-untyped-def]
    """Fill `out` from `got` on with cells of the slots ``found[got:]`` in random order; how many it holds then.

    The slots of the cells in `out` come first in `found` afterwards. Only cells of `knots` (all if empty) are
    taken, and at most `most` (any number if 0) of one label; if `evenly`, with their odds.
    """
    n = len(found)
    for turn in range(got, n):
        if got == len(out):
            break
        drawn = mix(key, _U(turn))
        other = turn + np.int64((drawn >> _U(32)) * _U(n - turn) >> _U(32))
        at = found[other]
        found[other] = found[turn]
        found[turn] = at
        cell = slots[CELL, at]
        if evenly and np.int64(drawn & _U(EVEN - 1)) >= slots[ODDS, at]:
            continue
        if (len(knots) and not knots[slots[KNOT, at]]) or (most > 0 and not admit(tally, capped[cell], most)):
            continue
        found[turn] = found[got]
        found[got] = at
        slots[USED, at] += 1
        slots[CALL, at] = call
        out[got] = cell
        got += 1
    return got


@njit(cache=True, nogil=True)
def _set_apart(slots, begin, end, got):  # type: ignore[no-untyped-def]
    """Swap slots so that those just `got` are ``begin:end``."""
    other = begin
    for at in got:
        if at >= end:
            while slots[USED, other]:
                other += 1
            for row in range(len(slots)):
                slots[row, at], slots[row, other] = slots[row, other], slots[row, at]


@njit(cache=True, nogil=True)
def held_inside(chunk, stratum, low, high, chunk_ptr, entry_stratum, first, time):  # type: ignore[no-untyped-def]
    """Cells of a stratum in a chunk that are inside a time window."""
    for e in range(chunk_ptr[chunk], chunk_ptr[chunk + 1]):
        if entry_stratum[e] == stratum:
            return first_from(time, first[e], first[e + 1], high) - first_from(time, first[e], first[e + 1], low)
    return 0
