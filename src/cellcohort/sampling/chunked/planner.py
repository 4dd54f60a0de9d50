"""Which chunks a window loads, and which cells of them each of its batches holds; compiled.

Strata that need the most chunks choose first, and what else these chunks hold counts for the others.
A stratum walks through its chunks in an order keyed by the epoch, each window from where the group's
last one is to have stopped; with a focal time, chunks that hold cells around it are looked for.
Where chunks hold several strata, these walk together.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from cellcohort.sampling.chunked.demand import window_asks
from cellcohort.sampling.chunked.pool import (
    ANYWHERE,
    INSIDE,
    OUTSIDE,
    add_chunk,
    bring_forward,
    empty_pool,
    free_cells,
    held_inside,
    n_chosen,
    n_free,
    unfair,
)
from cellcohort.sampling.chunked.take import take
from cellcohort.sampling.chunked.wants import batches_want, hunger_of
from cellcohort.sampling.hash_table import empty_counts
from cellcohort.sampling.rng import bits_of, mix, permuted, unit

LOOKED_AT = 2  # chunks around a focal time of which the one with more cells is chosen; poor ones never were, of many
ANY = 2  # one in so many is that of any such cell, so that chunks with few come too
_U = np.uint64


@njit(cache=True, nogil=True)
def cut_window(  # type: ignore[no-untyped-def]
    census, walks, layers, turns, pace, heads, half_width, most, most_chunks, fullest, key, out
):
    """Fill `out`, (n_batches, batch_size), with the positions of the cells of a window's batches.

    A batch holds at most `most` cells (any number if 0) of one label of ``layers.capped``, if there are.
    `pace` is how many chunks of its walk each stratum uses up in a batch that its group leads. No chunk has more
    cells than `fullest`.

    Returns
    -------
    chunks : int
        Chunks that the window loads, at most `most_chunks`.
    filled : int
        Cells of the batch with the fewest: less than it has places if `most_chunks` do not hold them.
    passed : float
        Share of all chunks that strata passed together, at most.
    """
    n_batches, n_chunks = len(out), len(census.chunk_ptr) - 1
    most_chunks, timed = min(n_chunks, most_chunks), len(census.time) > 0
    n_turns = n_batches // len(heads.group)
    asks = window_asks(heads.group, heads.block, n_turns, turns, layers, key)
    strata = np.unique(asks.stratum)
    hunger = hunger_of(strata, layers, asks)
    pool = empty_pool(strata, hunger, layers.start, census, most_chunks * fullest)
    wants = batches_want(strata, hunger, census, layers, heads, asks, half_width)
    origin = _origins(strata, census, walks, layers, pace, n_turns, heads, key)
    walked = np.zeros(len(strata), np.int64)
    filled = np.zeros(n_batches, np.int64)
    tallies = np.zeros((n_batches, len(empty_counts(out.shape[1] if most > 0 else 1)), 2), np.int64)
    later = np.zeros(len(layers.times), np.int64)  # how many batches to come have each knot in their time window
    rest = np.zeros(len(strata), np.int64)

    for i in range(len(wants.cells)):
        u, j, need, low, high = wants.stratum[i], wants.batch[i], wants.within[i], wants.low[i], wants.high[i]
        later[low:high] += 1
        rest[u] += wants.cells[i] - need
        if need == 0:
            continue
        fit = bring_forward(free_cells(pool, u), pool.knot, INSIDE, low, high, 0, 0)
        while fit < need and n_chosen(pool) < most_chunks:
            seen, near_key = n_free(pool, u), mix(key, _U(i))
            near = _near(pool, strata[u], low, high, fullest, layers.times_start, census, near_key)
            if near < 0:
                break
            add_chunk(pool, near, census)
            fit = bring_forward(free_cells(pool, u), pool.knot, INSIDE, low, high, seen, fit)
        filled[j] = take(
            pool, u, fit, INSIDE, low, high, later, need, layers.capped, most, tallies[j],
            mix(mix(key, _U(j)), _U(2 * strata[u])), out[j], filled[j],
        )  # fmt: skip
    passed = _walk_together(pool, rest, census, walks, layers, heads, most_chunks, mix(key, _U(n_chunks)))
    for u in wants.stratum:
        while unfair(pool, u, rest[u]) and n_chosen(pool) < most_chunks:
            if not _walk_on(pool, u, census, walks, origin, walked):
                break
        rest[u] = 0
    part = OUTSIDE if timed else ANYWHERE
    for i in range(len(wants.cells)):
        u, j, low, high = wants.stratum[i], wants.batch[i], wants.low[i], wants.high[i]
        need = wants.cells[i] - wants.within[i]
        later[low:high] -= 1
        if need == 0:
            continue
        fit = bring_forward(free_cells(pool, u), pool.knot, part, low, high, 0, 0)
        while fit < need and n_chosen(pool) < most_chunks:
            seen = n_free(pool, u)
            if not _walk_on(pool, u, census, walks, origin, walked):
                break
            fit = bring_forward(free_cells(pool, u), pool.knot, part, low, high, seen, fit)
        filled[j] = take(
            pool, u, fit, part, low, high, later, need, layers.capped, most, tallies[j],
            mix(mix(key, _U(j)), _U(2 * strata[u] + 1)), out[j], filled[j],
        )  # fmt: skip
    return n_chosen(pool), filled.min(), passed


@njit(cache=True, nogil=True)
def _origins(strata, census, walks, layers, pace, n_turns, heads, key):  # type: ignore[no-untyped-def]
    """Where each stratum begins to walk: where its group is to have stopped, or anywhere if it does not lead."""
    origin = np.empty(len(strata), np.int64)
    for u in range(len(strata)):
        s = strata[u]
        first, last = census.walk_ptr[s], census.walk_ptr[s + 1]
        origin[u] = np.int64(mix(key, _U(s)) % _U(last - first))
        for k in range(len(heads.group)):
            if heads.group[k] == layers.group[s]:
                if heads.passed[k] >= 0:
                    origin[u] = _after(walks, first, last, heads.passed[k] % 1.0) - first
                else:
                    origin[u] = np.int64(heads.block[k] * pace[s] * n_turns + heads.elsewhere * len(walks.place))
                break
    return origin


@njit(cache=True, nogil=True)
def _after(walks, first, last, share):  # type: ignore[no-untyped-def]
    """The first chunk of the walk ``first:last`` that comes after this share of all chunks; `last` if none does."""
    while first < last:
        middle = (first + last) // 2
        if walks.place[walks.chunk[middle]] < share * len(walks.place):
            first = middle + 1
        else:
            last = middle
    return first


@njit(cache=True, nogil=True)
def _walk_on(pool, u, census, walks, origin, walked):  # type: ignore[no-untyped-def]
    """Add the next chunk of a stratum's walk that is not in the window yet; False if all are."""
    first = census.walk_ptr[pool.strata[u]]
    n = census.walk_ptr[pool.strata[u] + 1] - first
    while walked[u] < n:
        chunk = np.int64(walks.chunk[first + (origin[u] + walked[u]) % n])
        walked[u] += 1
        if not pool.chosen[chunk]:
            add_chunk(pool, chunk, census)
            return True
    return False


@njit(cache=True, nogil=True)
def _walk_together(pool, rest, census, walks, layers, heads, most_chunks, key):  # type: ignore[no-untyped-def]
    """Walk along all chunks until the hungriest stratum has the `rest` it wants; the share of them that was passed.

    A chunk is added as often as its own hungriest stratum asks: the hunger of that over the highest one is the chance.
    If only those were added that the hungriest of all needs, cells in other chunks would never come.
    """
    n_chunks, longest = len(walks.place), 0
    for k in range(len(heads.group)):
        passed = heads.passed[k]
        if passed < 0 or np.any(heads.passed[:k] == passed):
            continue
        together, first = np.zeros(len(pool.strata), np.bool_), -1
        for u in range(len(pool.strata)):
            for other in range(len(heads.group)):
                same = heads.group[other] == layers.group[pool.strata[u]]
                together[u] |= same and heads.passed[other] == passed
            if together[u] and (first < 0 or pool.hunger[u] > pool.hunger[first]):
                first = u
        begin, step = np.int64(passed % 1.0 * n_chunks), 0
        if first < 0:
            continue
        while step < n_chunks and n_chosen(pool) < most_chunks and n_free(pool, first) < rest[first]:
            chunk, hunger = walks.order[(begin + step) % n_chunks], 0.0
            for e in range(census.chunk_ptr[chunk], census.chunk_ptr[chunk + 1]):
                u = pool.place[census.stratum[e]]
                hunger = max(hunger, pool.hunger[u] if u >= 0 and together[u] else 0.0)
            if not pool.chosen[chunk] and unit(key, _U(chunk)) < hunger / pool.hunger[first]:
                add_chunk(pool, chunk, census)
            step += 1
        longest = max(longest, step)
    return longest / n_chunks


@njit(cache=True, nogil=True)
def _near(pool, stratum, low, high, fullest, knot_start, census, key):  # type: ignore[no-untyped-def]
    """A chunk not in the window yet that holds many cells of a stratum between two knots; -1 if there is none."""
    begin, n = knot_start[low], knot_start[high] - knot_start[low]
    bits, chosen = bits_of(n), pool.chosen
    chunk_of, chunk_ptr, entry_stratum, first, time = (
        census.chunk_of, census.chunk_ptr, census.stratum, census.first, census.time
    )  # fmt: skip
    best, most, looked = -1, 0, LOOKED_AT - 1 if mix(key, _U(ANY)) % _U(ANY) == 0 else 0
    for i in range(n):
        chunk = chunk_of[begin + permuted(i, n, bits, key)]
        if chosen[chunk] or chunk == best:
            continue
        holds = held_inside(chunk, stratum, low, high, chunk_ptr, entry_stratum, first, time)
        if holds > most:
            best, most = chunk, holds
        looked += 1
        if looked == LOOKED_AT or most == fullest:
            break
    return best
