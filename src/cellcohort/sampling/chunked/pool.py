"""The cells of the chunks of a window by stratum, and how batches take them; compiled.

Batches take free cells, all of which are equally likely, and share cells only where a stratum has no more. What runs
for every batch and stratum is inlined: otherwise numba counts the references to every array of a call, which takes
longer than the call.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cellcohort.compiled import compiled, inlined
from cellcohort.sampling.chunked.chunk_index import ChunkIndex
from cellcohort.sampling.drawing.cap import Cap, count_up_to
from cellcohort.sampling.rng import mix

POSITION, TIMES_TAKEN, LAST_CALL, ODDS = 0, 1, 2, 3  # columns of `Pool.cells`
CHUNKS, CALLS, CELLS = 0, 1, 2  # of `Pool.counts`
CERTAIN = 1 << 30  # odds of a cell that is taken whenever it is drawn
NO_LIMIT = 1 << 30
_U = np.uint64


class Pool(NamedTuple):
    """The cells of some strata in the chunks of a window.

    Attributes
    ----------
    strata : numpy.ndarray of int64, shape (n_pooled,)
        The strata, sorted.
    index_of : numpy.ndarray of int32, shape (n_strata,)
        Which of them each stratum is; -1 if none.
    demand : numpy.ndarray of float, shape (n_pooled,)
        Cells that the batches of the window request of each, over the cells that it has; at most 1.
    listed, begin : numpy.ndarray of int, shape (n_listed,) and (n_pooled + 1,)
        The rows of `cells` of stratum `i` of the pool are listed from ``listed[begin[i]]`` on.
    taken, loaded : numpy.ndarray of int64, shape (n_pooled,)
        It holds ``loaded[i]`` cells: first the ``taken[i]`` that batches have taken, then the others, which are free.
    fair : numpy.ndarray of float, shape (n_pooled,)
        How many of them batches may take so that they come no more often than cells of other chunks.
    cells : numpy.ndarray of int, shape (n_cells, 4)
        Of each cell its position, how many batches took it, the last call of `take` that did, and the demand for its
        stratum over the highest demand in its chunk, times `CERTAIN`: a chunk is read for its most requested stratum.
    time : numpy.ndarray of int32, shape (n_cells,)
        As in `ChunkIndex`, of each cell; empty without a time window.
    chosen : numpy.ndarray of bool, shape (n_chunks,)
        The chunks of the window.
    counts : numpy.ndarray of int64, shape (3,)
        Chunks, calls of `take`, and cells so far.
    """

    strata: np.ndarray
    index_of: np.ndarray
    demand: np.ndarray
    listed: np.ndarray
    begin: np.ndarray
    taken: np.ndarray
    loaded: np.ndarray
    fair: np.ndarray
    cells: np.ndarray
    time: np.ndarray
    chosen: np.ndarray
    counts: np.ndarray


class Request(NamedTuple):
    """Cells of stratum `i` of the pool, `inside` or outside the time window ``low <= time < high``."""

    i: int
    low: int
    high: int
    inside: bool


@compiled
def empty_pool(strata: np.ndarray, demand: np.ndarray, start: np.ndarray, index: ChunkIndex, n_cells: int) -> Pool:
    """Return a pool with room for `n_cells` cells of some strata, which are sorted."""
    n, index_of = len(strata), np.full(len(start) - 1, -1, np.int32)
    begin = np.zeros(n + 1, np.int64)
    for i in range(n):
        index_of[strata[i]] = i
        begin[i + 1] = begin[i] + min(start[strata[i] + 1] - start[strata[i]], n_cells)
    return Pool(
        strata,
        index_of,
        demand,
        np.empty(begin[n], np.int32),
        begin,
        np.zeros(n, np.int64),
        np.zeros(n, np.int64),
        np.zeros(n),
        np.empty((n_cells, 4), index.position.dtype),
        np.empty(n_cells if len(index.time) else 0, np.int32),
        np.zeros(len(index.chunk_indptr) - 1, np.bool_),
        np.zeros(3, np.int64),
    )


@compiled
def highest_in(chunk: int, demand: np.ndarray, index_of: np.ndarray, index: ChunkIndex) -> float:
    """Return the highest demand for a stratum of a chunk."""
    highest, stratum = 0.0, index.stratum
    for e in range(index.chunk_indptr[chunk], index.chunk_indptr[chunk + 1]):
        i = index_of[stratum[e]]
        highest = max(highest, demand[i] if i >= 0 else 0.0)
    return highest


@compiled
def add_chunk(pool: Pool, chunk: int, index: ChunkIndex) -> None:
    """Put the cells of a chunk into the pool."""
    _, index_of, demand, listed, begin, _, loaded, fair, cells, time, chosen, counts = pool
    position, time_of, stratum, indptr = index.position, index.time, index.stratum, index.cell_indptr
    chosen[chunk] = True
    counts[CHUNKS] += 1
    highest, new = highest_in(chunk, demand, index_of, index), counts[CELLS]
    for e in range(index.chunk_indptr[chunk], index.chunk_indptr[chunk + 1]):
        i = index_of[stratum[e]]
        if i < 0:
            continue
        odds, at = demand[i] / highest, begin[i] + loaded[i]
        for k in range(indptr[e], indptr[e + 1]):
            listed[at] = new
            cells[new, POSITION], cells[new, ODDS] = position[k], np.int64(odds * CERTAIN)
            cells[new, TIMES_TAKEN] = cells[new, LAST_CALL] = 0
            if len(time) > 0:
                time[new] = time_of[k]
            at, new = at + 1, new + 1
        loaded[i] += indptr[e + 1] - indptr[e]
        fair[i] += (indptr[e + 1] - indptr[e]) * odds
    counts[CELLS] = new


@inlined
def n_free(pool: Pool, i: int) -> int:
    """Return how many cells of a stratum no batch has taken."""
    return int(pool.loaded[i] - pool.taken[i])


@inlined
def bring_forward(pool: Pool, of: Request, seen: int, fit: int) -> int:
    """List the free cells on the requested side of the time window before the others; return how many there are.

    The first `seen` free cells were looked at before, and `fit` of these came first.
    """
    free = pool.listed[pool.begin[of.i] + pool.taken[of.i] : pool.begin[of.i] + pool.loaded[of.i]]
    if of.low == of.high:  # no cell is inside, and none is requested there
        return len(free)
    time, low, high, inside = pool.time, of.low, of.high, of.inside
    for at in range(seen, len(free)):  # without branches, which would often be mispredicted
        row = free[at]
        free[at] = free[fit]
        free[fit] = row
        fit += (low <= time[row] < high) == inside
    return fit


@inlined
def take(pool: Pool, of: Request, fit: int, cap: Cap, later: np.ndarray, key: np.uint64, out: np.ndarray) -> int:
    """Fill `out` with free cells of a stratum for one batch; return how many there were.

    The first `fit` of its free cells are on the requested side of the time window. Cells that the cap excludes come
    last. Outside the time window, cells at times that `later` counts come first, those in the time windows of later
    batches, since these cannot use them there.
    """
    pool.counts[CALLS] += 1
    found, n = pool.listed[pool.begin[of.i] + pool.taken[of.i] :][:fit], 0
    if not of.inside and len(pool.time) > 0:
        n = choose(pool, found[: _of_later(pool, found, later)], n, False, cap, mix(key, _U(0)), out)
    n = choose(pool, found, n, True, cap, mix(key, _U(1)), out)
    n = choose(pool, found, n, False, cap, mix(key, _U(2)), out)
    if cap.most > 0:
        n = choose(pool, found, n, False, Cap(cap.label, NO_LIMIT, cap.tally), mix(key, _U(3)), out)
    pool.taken[of.i] += n
    return n


@compiled
def _of_later(pool: Pool, found: np.ndarray, later: np.ndarray) -> int:
    """List the cells at times that `later` counts before the others; return how many there are."""
    n = 0
    for at in range(len(found)):
        row = found[at]
        found[at] = found[n]
        found[n] = row
        n += later[pool.time[row]] > 0
    return n


@inlined
def choose(pool: Pool, found: np.ndarray, n: int, by_odds: bool, cap: Cap, key: np.uint64, out: np.ndarray) -> int:
    """Fill `out` from `n` on with cells of the rows ``found[n:]`` in random order; return how many it holds then.

    The rows of the cells in `out` come first in `found` afterwards. The cap excludes cells; if `by_odds`, a cell is
    taken with its odds.
    """
    cells, call = pool.cells, pool.counts[CALLS]
    for at in range(n, len(found)):
        if n == len(out):
            break
        drawn = mix(key, _U(at))
        other = at + np.int64((drawn >> _U(32)) * _U(len(found) - at) >> _U(32))
        row = found[other]
        found[other] = found[at]
        found[at] = row
        if by_odds and np.int64(drawn & _U(CERTAIN - 1)) >= cells[row, ODDS]:
            continue
        if cap.most > 0 and not count_up_to(cap.tally, cap.label[cells[row, POSITION]], cap.most):
            continue
        found[at] = found[n]
        found[n] = row
        cells[row, TIMES_TAKEN] += 1
        cells[row, LAST_CALL] = call
        out[n] = cells[row, POSITION]
        n += 1
    return n
