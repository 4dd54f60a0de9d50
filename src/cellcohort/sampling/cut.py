"""Which chunks a window loads, and which cells of them each of its batches holds; compiled.

Strata that need the most chunks choose first, and what else these chunks hold counts for the others.
A stratum walks through its chunks in an order keyed by the epoch, each window from where the group's
last one is to have stopped; with a focal time, chunks that hold cells around it are looked for.
Where chunks hold several strata, these walk together.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from cellcohort.sampling.draw import tally
from cellcohort.sampling.keyed import bits_of, mix, permuted
from cellcohort.sampling.pool import (
    ANYWHERE,
    INSIDE,
    OUTSIDE,
    add_chunk,
    empty_pool,
    held_inside,
    is_chosen,
    lacking,
    n_chosen,
    take,
)
from cellcohort.sampling.windowed import TOLERANCE, first_from, least_and_most, share_out

LOOKED_AT = 32  # chunks around a focal time among which the one with most cells is chosen
_U = np.uint64


@njit(cache=True, nogil=True)
def cut_window(  # type: ignore[no-untyped-def]
    members, time, chunk_of, chunk_ptr, entry_stratum, first, walk_ptr, walk, place,
    start, group, knot, knot_start, knot_ptr, capped, most,
    ask_ptr, ask_stratum, ask_count, leaders, blocks, rate, passed_before,
    focal, half_width, inside, number, most_chunks, chunk_size, key, out,
):  # fmt: skip
    """Fill `out`, (n_batches, batch_size), with the positions of the cells of a window's batches.

    Returns
    -------
    chunks : int
        Chunks that the window loads, at most `most_chunks`.
    shared : int
        Places filled by a cell that another batch of the window holds too, as the store has no more.
    filled : int
        Cells of the batch with the fewest: less than it has places if `most_chunks` do not hold them.
    passed : float
        Share of its walk that a stratum walked along, at most.
    """
    n_batches, timed = len(ask_ptr) - 1, len(time) > 0
    census = (chunk_ptr, entry_stratum, first, members, time)
    strata = np.unique(ask_stratum)
    n_chunks = len(chunk_ptr) - 1
    most_chunks = min(n_chunks, most_chunks)
    pool = empty_pool(strata, start, n_chunks, most_chunks * chunk_size)
    local = np.searchsorted(strata, ask_stratum)
    within, begin, end = _inside(
        ask_ptr, ask_stratum, ask_count, start, knot, knot_start, knot_ptr, focal, half_width, inside, number, timed
    )
    wanted = np.zeros(len(strata), np.int64)
    walked = np.zeros(len(strata), np.int64)
    origin = np.empty(len(strata), np.int64)
    cost = np.empty(len(strata))
    by_stratum = np.argsort(local, kind="mergesort")
    for i in range(len(local)):
        wanted[local[i]] += ask_count[i]
    bounds = np.searchsorted(local[by_stratum], np.arange(len(strata) + 1))
    for u in range(len(strata)):
        s = strata[u]
        n_walk, size = walk_ptr[s + 1] - walk_ptr[s], start[s + 1] - start[s]
        cost[u] = min(wanted[u], size) * n_walk / size
        origin[u] = np.int64(mix(key, _U(s)) % _U(n_walk))
        for k in range(len(leaders)):
            if leaders[k] == group[s]:
                if passed_before[k] >= 0:
                    origin[u] = _from(place, walk[walk_ptr[s] : walk_ptr[s + 1]], passed_before[k] % 1.0)
                else:
                    origin[u] = np.int64(blocks[k] * rate[s]) % n_walk
                break
    hungriest = np.argsort(-cost)
    filled, shared = np.zeros(n_batches, np.int64), np.int64(0)
    batch_of = np.repeat(np.arange(n_batches), np.diff(ask_ptr))
    tallies = np.empty((n_batches, len(tally(out.shape[1] if most > 0 else 1)), 2), np.int64)
    tallies[:] = 0

    later = np.zeros(len(knot), np.int64)  # how many batches to come have each knot in their time window
    if timed:
        for v in hungriest:
            for i in by_stratum[bounds[v] : bounds[v + 1]]:
                if within[i] == 0:
                    continue
                j, need = batch_of[i], within[i]
                while lacking(pool, v, INSIDE, begin[i], end[i], need) and n_chosen(pool) < most_chunks:
                    near = _near(
                        pool, strata[v], begin[i], end[i], chunk_size, knot_start, chunk_of, census,
                        mix(key, _U(i)),
                    )  # fmt: skip
                    if near < 0:
                        break
                    add_chunk(pool, near, census)
                filled[j], more = take(
                    pool, v, INSIDE, begin[i], end[i], later, need, capped, most, tallies[j],
                    mix(mix(key, _U(j)), _U(2 * strata[v])), out[j], filled[j],
                )  # fmt: skip
                shared += more
    for v in hungriest:
        rest = 0
        for i in by_stratum[bounds[v] : bounds[v + 1]]:
            rest += ask_count[i] - within[i]
        while lacking(pool, v, ANYWHERE, 0, 0, rest) and n_chosen(pool) < most_chunks:
            if not _walk_on(pool, v, strata[v], walk_ptr, walk, walked, origin, census):
                break
    for v in hungriest:
        part = OUTSIDE if timed else ANYWHERE
        asks = by_stratum[bounds[v] : bounds[v + 1]]
        for i in asks:
            later[begin[i] : end[i]] += 1
        for i in asks:
            later[begin[i] : end[i]] -= 1
            j, need = batch_of[i], ask_count[i] - within[i]
            if need == 0:
                continue
            while lacking(pool, v, part, begin[i], end[i], need) and n_chosen(pool) < most_chunks:
                if not _walk_on(pool, v, strata[v], walk_ptr, walk, walked, origin, census):
                    break
            filled[j], more = take(
                pool, v, part, begin[i], end[i], later, need, capped, most, tallies[j],
                mix(mix(key, _U(j)), _U(2 * strata[v] + 1)), out[j], filled[j],
            )  # fmt: skip
            shared += more
    passed = 0.0
    for u in range(len(strata)):
        passed = max(passed, walked[u] / (walk_ptr[strata[u] + 1] - walk_ptr[strata[u]]))
    return n_chosen(pool), shared, filled.min(), passed


@njit(cache=True, nogil=True)
def _inside(  # type: ignore[no-untyped-def]
    ask_ptr, ask_stratum, ask_count, start, knot, knot_start, knot_ptr, focal, half_width, inside, number, timed
):  # fmt: skip
    """How many cells of each ask are to lie within its batch's time window, and the knots of that window."""
    n = len(ask_stratum)
    within, begin, end = np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64)
    if not timed:
        return within, begin, end
    low, high = np.empty(n, np.int64), np.empty(n, np.int64)
    for j in range(len(ask_ptr) - 1):
        asks = slice(ask_ptr[j], ask_ptr[j + 1])
        for i in range(ask_ptr[j], ask_ptr[j + 1]):
            s = ask_stratum[i]
            begin[i] = first_from(knot, knot_ptr[s], knot_ptr[s + 1], focal[j] - half_width - TOLERANCE)
            end[i] = first_from(knot, begin[i], knot_ptr[s + 1], focal[j] + half_width + TOLERANCE)
            within_window = knot_start[end[i]] - knot_start[begin[i]]
            low[i], high[i] = least_and_most(ask_count[i], start[s + 1] - start[s], within_window)
        within[asks] = share_out(ask_count[asks], low[asks], high[asks], inside[j], number + j)
    return within, begin, end


@njit(cache=True, nogil=True)
def _from(place, walk, share):  # type: ignore[no-untyped-def]
    """Where in a stratum's walk the chunks begin that come after this share of all chunks."""
    low, high = 0, len(walk)
    while low < high:
        middle = (low + high) // 2
        if place[walk[middle]] < share * len(place):
            low = middle + 1
        else:
            high = middle
    return low % len(walk)


@njit(cache=True, nogil=True)
def _walk_on(pool, v, s, walk_ptr, walk, walked, origin, census):  # type: ignore[no-untyped-def]
    """Add the next chunk of a stratum's walk that is not in the window yet; False if all are."""
    n = walk_ptr[s + 1] - walk_ptr[s]
    while walked[v] < n:
        chunk = walk[walk_ptr[s] + (origin[v] + walked[v]) % n]
        walked[v] += 1
        if not is_chosen(pool, chunk):
            add_chunk(pool, chunk, census)
            return True
    return False


@njit(cache=True, nogil=True)
def _near(  # type: ignore[no-untyped-def]
    pool, stratum, begin, end, chunk_size, knot_start, chunk_of, census, key
):  # fmt: skip
    """A chunk not in the window yet that holds many cells of a stratum between two knots; -1 if there is none."""
    chunk_ptr, entry_stratum, first, _, time = census
    low, n = knot_start[begin], knot_start[end] - knot_start[begin]
    bits = bits_of(n)
    best, most, looked = -1, 0, 0
    for i in range(min(n, 8 * LOOKED_AT)):
        chunk = chunk_of[low + permuted(i, n, bits, key)]
        if is_chosen(pool, chunk):
            continue
        holds = held_inside(chunk, stratum, begin, end, chunk_ptr, entry_stratum, first, time)
        if holds > most:
            best, most = chunk, holds
        looked += 1
        if looked == LOOKED_AT or most == chunk_size:
            break
    return best
