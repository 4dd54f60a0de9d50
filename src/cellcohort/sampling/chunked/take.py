"""How batches take the cells of a window's chunks; compiled.

Cells that fewer batches of the window hold are taken first, so that batches share cells only where a
stratum has no more; among these all are equally likely. What is called for every batch and stratum is
inlined: numba counts the references to each array that is handed over, which costs more than the work.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from cellcohort.sampling.chunked.pool import CALL, CALLS, CELL, EVEN, ODDS, OUTSIDE, USED, free_cells, wanted
from cellcohort.sampling.hash_table import count_up_to
from cellcohort.sampling.rng import mix

NO_CAP = 1 << 30
_U = np.uint64


@njit(cache=True, nogil=True, inline="always")
def take(pool, i, fit, part, low, high, later, need, capped, most, tally, key, out, filled):  # type: ignore[no-untyped-def]
    """Take `need` cells of a stratum for one batch; how many of the places of `out` are filled then.

    The first `fit` of its free cells are on the wanted `part` of the batch's time window ``low:high``. With
    `most` > 0, cells whose label of `capped` the batch already holds so often come last. Outside the
    window, cells within those of batches to come, for which these have no use, go first: cells of a
    knot that `later` counts.
    """
    pool.counts[CALLS] += 1
    slots, call, found, got = pool.slots, pool.counts[CALLS], free_cells(pool, i)[:fit], 0
    out = out[filled : filled + need]
    if part == OUTSIDE:
        of_later = found[: _of_later(found, pool.knot, later)]
        got = _choose(of_later, got, slots, call, False, capped, most, tally, mix(key, _U(0)), out)
    got = _choose(found, got, slots, call, True, capped, most, tally, mix(key, _U(1)), out)
    got = _choose(found, got, slots, call, False, capped, most, tally, mix(key, _U(2)), out)
    if most > 0:
        got = _choose(found, got, slots, call, False, capped, NO_CAP, tally, mix(key, _U(3)), out)
    pool.taken[i] += got
    if got < need:
        got += _take_again(pool, i, part, low, high, capped, most, tally, mix(key, _U(4)), out[got:])
    return filled + got


@njit(cache=True, nogil=True)
def _of_later(found, knot, later):  # type: ignore[no-untyped-def]
    """List those first that are of a knot that `later` counts; how many there are."""
    n = 0
    for at in range(len(found)):
        slot = found[at]
        found[at] = found[n]
        found[n] = slot
        n += later[knot[slot]] > 0
    return n


@njit(cache=True, nogil=True)
def _take_again(pool, i, part, low, high, capped, most, tally, key, out):  # type: ignore[no-untyped-def]
    """Fill `out` with cells that batches of the window hold, those that the fewest do first; how many there were."""
    slots, got = pool.slots, 0
    while got < len(out):
        found = _find_taken(pool, i, part, low, high)
        if len(found) == 0:  # every cell is in the batch: now it holds some of them again
            pool.counts[CALLS] += 1
            found = _find_taken(pool, i, part, low, high)
            if len(found) == 0:
                break
        call, rest, key = pool.counts[CALLS], out[got:], mix(key, _U(0))
        more = _choose(found, 0, slots, call, False, capped, most, tally, mix(key, _U(1)), rest)
        if most > 0:
            more = _choose(found, more, slots, call, False, capped, NO_CAP, tally, mix(key, _U(2)), rest)
        got += more
    return got


@njit(cache=True, nogil=True)
def _find_taken(pool, i, part, low, high):  # type: ignore[no-untyped-def]
    """The slots of wanted cells that this call has not taken and that the fewest batches hold, but at least one."""
    taken = pool.slot[pool.begin[i] : pool.begin[i] + pool.taken[i]]
    slots, knot, call, timed = pool.slots, pool.knot, pool.counts[CALLS], len(pool.knot) > 0
    found, n, fewest = np.empty(len(taken), np.int32), 0, NO_CAP
    for slot in taken:
        if slots[slot, CALL] != call and wanted(knot[slot] if timed else 0, part, low, high):
            if slots[slot, USED] < fewest:
                fewest, n = slots[slot, USED], 0
            if slots[slot, USED] == fewest:
                found[n] = slot
                n += 1
    return found[:n]


@njit(cache=True, nogil=True, inline="always")
def _choose(found, got, slots, call, evenly, capped, most, tally, key, out):  # type: ignore[no-untyped-def]
    """Fill `out` from `got` on with cells of the slots ``found[got:]`` in random order; how many it holds then.

    The slots of the cells in `out` come first in `found` afterwards. At most `most` cells (any number if 0)
    of one label are taken; if `evenly`, cells are taken with their odds.
    """
    n = len(found)
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
        if most > 0 and not count_up_to(tally, capped[cell], most):
            continue
        found[turn] = found[got]
        found[got] = slot
        slots[slot, USED] += 1
        slots[slot, CALL] = call
        out[got] = cell
        got += 1
    return got
