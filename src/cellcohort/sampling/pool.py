"""The cells of a window's chunks by stratum, and how batches take them; compiled.

A pool is a tuple of arrays (see `empty_pool`). Cells that fewer batches of the window hold are taken
first, so that batches share cells only where a stratum has no more; among these all are equally likely.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from cellcohort.sampling.draw import admit
from cellcohort.sampling.keyed import mix

INSIDE, OUTSIDE, ANYWHERE = 0, 1, 2
_U = np.uint64


@njit(cache=True, nogil=True)
def empty_pool(strata, n_chunks, most_chunks, most_cells):  # type: ignore[no-untyped-def]
    """A pool for the cells of some strata (sorted), with room for so many chunks and cells.

    Returns
    -------
    strata, head, next_entry, entry, place, used, stamp, sizes, chosen, state
        Entries of a stratum are a linked list: `entry` in the census, `place` of its first cell in
        `used` (how many times each cell was taken) and `stamp` (the last call that took it). `sizes`
        counts the cells of each stratum; `chosen` marks the chunks; `state` counts chunks, entries,
        cells and calls.
    """
    n = len(strata)
    return (
        strata, np.full(n, -1, np.int64), np.empty(n * most_chunks, np.int64), np.empty(n * most_chunks, np.int64),
        np.empty(n * most_chunks, np.int64), np.zeros(most_cells, np.int32), np.zeros(most_cells, np.int64),
        np.zeros(n, np.int64), np.zeros(n_chunks, np.bool_), np.zeros(4, np.int64),
    )  # fmt: skip


@njit(cache=True, nogil=True)
def add_chunk(pool, chunk, chunk_ptr, entry_stratum, first):  # type: ignore[no-untyped-def]
    """Put the cells of a chunk into the pool."""
    strata, head, next_entry, entry, place, _, _, sizes, chosen, state = pool
    chosen[chunk] = True
    state[0] += 1
    for e in range(chunk_ptr[chunk], chunk_ptr[chunk + 1]):
        local = np.searchsorted(strata, entry_stratum[e])
        if local == len(strata) or strata[local] != entry_stratum[e]:
            continue
        at = state[1]
        entry[at], place[at], next_entry[at] = e, state[2], head[local]
        head[local] = at
        state[1] += 1
        state[2] += first[e + 1] - first[e]
        sizes[local] += first[e + 1] - first[e]


@njit(cache=True, nogil=True)
def is_chosen(pool, chunk):  # type: ignore[no-untyped-def]
    """Whether a chunk is in the pool."""
    return pool[8][chunk]


@njit(cache=True, nogil=True)
def n_chosen(pool):  # type: ignore[no-untyped-def]
    """Chunks in the pool."""
    return pool[9][0]


@njit(cache=True, nogil=True)
def parts(part, time, low, high, begin, end):  # type: ignore[no-untyped-def]
    """The runs of members ``low:high``, an entry, on the wanted side of the time window ``begin <= knot < end``."""
    if part == ANYWHERE:
        return (low, high), (high, high)
    a = low + np.searchsorted(time[low:high], begin)
    b = low + np.searchsorted(time[low:high], end)
    return ((a, b), (high, high)) if part == INSIDE else ((low, a), (b, high))


@njit(cache=True, nogil=True)
def lacking(pool, local, part, begin, end, need, time, first):  # type: ignore[no-untyped-def]
    """How many of the `need` cells of a stratum on the wanted side of a time window are not there, free of batches."""
    _, head, next_entry, entry, place, used, _, _, _, _ = pool
    at = head[local]
    while at >= 0 and need > 0:
        e = entry[at]
        for a, b in parts(part, time, first[e], first[e + 1], begin, end):
            for member in range(a, b):
                need -= used[place[at] + member - first[e]] == 0
        at = next_entry[at]
    return max(need, 0)


@njit(cache=True, nogil=True)
def take(  # type: ignore[no-untyped-def]
    pool, local, part, begin, end, later, need, members, time, first, capped, most, held, key, out, filled
):  # fmt: skip
    """Take `need` cells of a stratum for one batch.

    Outside the batch's time window ``begin:end``, cells within those of batches to come go first, for which
    these have no use: cells of a knot that `later` counts. With
    `most` > 0, cells whose label of `capped` the batch already holds so often come last.

    Returns
    -------
    filled, shared : int
        How many places of `out` are filled now, and how many of the new ones another batch holds too.
    """
    _, head, next_entry, entry, place, used, stamp, sizes, _, state = pool
    state[3] += 1
    shared = 0
    candidates = np.empty((sizes[local], 2), np.int64)  # place in the pool, member
    wanted = filled + need
    level, choosy = 0, part == OUTSIDE
    while filled < wanted:
        n, deepest = 0, -1
        at = head[local]
        while at >= 0:
            e = entry[at]
            for a, b in parts(part, time, first[e], first[e + 1], begin, end):
                for member in range(a, b):
                    slot = place[at] + member - first[e]
                    deepest = max(deepest, used[slot])
                    free = used[slot] == level and stamp[slot] != state[3]
                    if free and (not choosy or later[time[member]] > 0):
                        candidates[n, 0], candidates[n, 1] = slot, member
                        n += 1
            at = next_entry[at]
        for force in range(2 if most > 0 else 1):
            left = 0
            for i in range(n):
                if filled == wanted:
                    break
                j = i + np.int64(mix(key, _U(state[2] * (level + 1) + i)) % _U(n - i))
                slot, member = candidates[j, 0], candidates[j, 1]
                candidates[j, 0], candidates[j, 1] = candidates[i, 0], candidates[i, 1]
                if most > 0 and not admit(held, capped[members[member]], most if force == 0 else 1 << 30):
                    candidates[left, 0], candidates[left, 1] = slot, member
                    left += 1
                    continue
                out[filled] = members[member]
                filled += 1
                used[slot] += 1
                stamp[slot] = state[3]
                shared += level > 0
            n = left
        if deepest < 0:
            break
        if choosy:
            choosy = False
            continue
        level += 1
        if level > deepest:  # every cell is in the batch: now it holds some of them again
            level = 0
            state[3] += 1
    return filled, shared


@njit(cache=True, nogil=True)
def held_inside(chunk, stratum, begin, end, chunk_ptr, entry_stratum, first, time):  # type: ignore[no-untyped-def]
    """Cells of a stratum in a chunk that are inside a time window."""
    for e in range(chunk_ptr[chunk], chunk_ptr[chunk + 1]):
        if entry_stratum[e] == stratum:
            (a, b), _ = parts(INSIDE, time, first[e], first[e + 1], begin, end)
            return b - a
    return 0
