"""Cells that several batches of a window hold, where a stratum has too few; compiled."""

from __future__ import annotations

import numpy as np

from cellcohort.compiled import compiled
from cellcohort.sampling.chunked.pool import CALLS, LAST_CALL, NO_LIMIT, TIMES_TAKEN, Pool, Request, choose
from cellcohort.sampling.drawing.cap import Cap
from cellcohort.sampling.rng import mix

_U = np.uint64


@compiled
def take_again(pool: Pool, of: Request, cap: Cap, key: np.uint64, out: np.ndarray) -> int:
    """Fill `out` with cells that batches of the window hold, those that the fewest do first; return how many."""
    n = 0
    while n < len(out):
        found = _least_taken(pool, of)
        if len(found) == 0:  # the batch holds every cell: it takes some of them again
            pool.counts[CALLS] += 1
            found = _least_taken(pool, of)
            if len(found) == 0:
                break
        rest, key = out[n:], mix(key, _U(0))
        more = choose(pool, found, 0, False, cap, mix(key, _U(1)), rest)
        if cap.most > 0:
            more = choose(pool, found, more, False, Cap(cap.label, NO_LIMIT, cap.tally), mix(key, _U(2)), rest)
        n += more
    return n


@compiled
def _least_taken(pool: Pool, of: Request) -> np.ndarray:
    """Return the rows of the requested cells that the fewest batches took, at least one, and this call did not."""
    taken = pool.listed[pool.begin[of.i] : pool.begin[of.i] + pool.taken[of.i]]
    cells, call, timed = pool.cells, pool.counts[CALLS], len(pool.time) > 0
    found, n, fewest = np.empty(len(taken), np.int32), 0, NO_LIMIT
    for row in taken:
        inside = timed and of.low <= pool.time[row] < of.high
        if cells[row, LAST_CALL] != call and inside == of.inside:
            if cells[row, TIMES_TAKEN] < fewest:
                fewest, n = cells[row, TIMES_TAKEN], 0
            if cells[row, TIMES_TAKEN] == fewest:
                found[n] = row
                n += 1
    return found[:n]
