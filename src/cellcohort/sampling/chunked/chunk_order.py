"""In which order the strata of a window move through chunks: each through its own, or all in common; compiled.

Chunks have a random order, keyed by the epoch, in which a stratum goes on in each window where the last one of its
group is expected to have stopped. Where chunks hold several strata, all strata of a group first move together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cellcohort.compiled import compiled
from cellcohort.sampling.chunked.chunk_index import ChunkIndex
from cellcohort.sampling.chunked.demand import WindowSpec
from cellcohort.sampling.chunked.pool import CHUNKS, Pool, add_chunk, highest_in, n_free
from cellcohort.sampling.rng import mix, uniform, unit

if TYPE_CHECKING:
    from cellcohort.sampling.chunked.planner import Table

_U = np.uint64


class ChunkOrder(NamedTuple):
    """All chunks in a random order.

    Attributes
    ----------
    chunk : numpy.ndarray of int64, shape (n_chunks,)
        The chunks in that order.
    place : numpy.ndarray of int64, shape (n_entries,)
        Rising places in that order of the chunks of each stratum: stratum `s` is in the chunks
        ``chunk[place[indptr[s]:indptr[s + 1]]]``, where `indptr` is ``ChunkIndex.stratum_indptr``.
    """

    chunk: np.ndarray
    place: np.ndarray

    @classmethod
    def of(cls, index: ChunkIndex, key: np.uint64) -> ChunkOrder:
        """Return the random order of a key."""
        n_chunks = index.n_chunks
        chunk = np.argsort(uniform(key, np.arange(n_chunks, dtype=np.uint64)), kind="stable")
        place = np.empty_like(chunk)
        place[chunk] = np.arange(n_chunks)
        return cls(chunk, np.sort(index.stratum * np.int64(n_chunks) + place[index.chunk]) % n_chunks)


class Cursor(NamedTuple):
    """Where each stratum of a window begins in the order of its chunks, and how many it has looked at from there."""

    origin: np.ndarray
    seen: np.ndarray


@compiled
def origins(needed: np.ndarray, spec: WindowSpec, table: Table, order: ChunkOrder, key: np.uint64) -> np.ndarray:
    """Return where each stratum begins in its chunks: where its group stopped, or anywhere if that is not primary."""
    origin, n_chunks, indptr = np.empty(len(needed), np.int64), len(order.chunk), table.chunks.stratum_indptr
    for u in range(len(needed)):
        s = needed[u]
        places = order.place[indptr[s] : indptr[s + 1]]
        origin[u] = np.int64(mix(key, _U(s)) % _U(len(places)))
        for k in range(len(spec.primary)):
            if spec.primary[k] == table.strata.group[s]:
                if spec.passed[k] >= 0:
                    origin[u] = np.searchsorted(places, spec.passed[k] % 1.0 * n_chunks)
                else:
                    used = spec.occurrence[k] * table.pace[s] * (len(spec.focal) // len(spec.primary))
                    origin[u] = np.int64(used + spec.start_offset * n_chunks)
                break
    return origin


@compiled
def next_chunk(u: int, stratum: int, chosen: np.ndarray, cursor: Cursor, indptr: np.ndarray, order: ChunkOrder) -> int:
    """Return the next chunk of stratum number `u` of the window that is not `chosen` yet; -1 if all are."""
    first, last = indptr[stratum], indptr[stratum + 1]
    while cursor.seen[u] < last - first:
        chunk = int(order.chunk[order.place[first + (cursor.origin[u] + cursor.seen[u]) % (last - first)]])
        cursor.seen[u] += 1
        if not chosen[chunk]:
            return chunk
    return -1


@compiled
def add_in_common_order(
    pool: Pool,
    rest: np.ndarray,
    spec: WindowSpec,
    table: Table,
    order: ChunkOrder,
    most_chunks: int,
    key: np.uint64,
) -> float:
    """Add chunks in their common order until the most requested stratum has the `rest` that it needs.

    Groups that passed the same share of the chunks move together. A chunk is added with a probability: the highest
    demand for one of its strata over the highest of all. If only chunks of the most requested stratum were added,
    cells in other chunks would never come.

    Returns
    -------
    passed : float
        Share of all chunks that were looked at.
    """
    index, n_chunks, longest = table.chunks, len(order.chunk), 0
    for k in range(len(spec.primary)):
        passed = spec.passed[k]
        if passed < 0 or np.any(spec.passed[:k] == passed):
            continue
        demand = np.zeros(len(pool.strata))
        for u in range(len(demand)):
            if np.any((spec.primary == table.strata.group[pool.strata[u]]) & (spec.passed == passed)):
                demand[u] = pool.demand[u]
        first, begin, n_seen = int(np.argmax(demand)), int(passed % 1.0 * n_chunks), 0
        while (
            demand[first] > 0
            and n_seen < n_chunks
            and pool.counts[CHUNKS] < most_chunks
            and n_free(pool, first) < rest[first]
        ):
            chunk = order.chunk[(begin + n_seen) % n_chunks]
            probability = highest_in(chunk, demand, pool.index_of, index) / demand[first]
            if not pool.chosen[chunk] and unit(key, _U(chunk)) < probability:
                add_chunk(pool, chunk, index)
            n_seen += 1
        longest = max(longest, n_seen)
    return longest / n_chunks
