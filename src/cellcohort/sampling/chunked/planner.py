"""Which chunks a window loads, and which of their cells each of its batches holds.

Strata that need the most chunks choose first, and what else these chunks hold counts for the others. A stratum moves
through its chunks in their order; with a focal time, chunks that hold cells around it are looked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cellcohort.compiled import compiled
from cellcohort.mapped_arrays import cached_arrays
from cellcohort.sampling.chunked.chunk_index import ChunkIndex, build_chunk_index
from cellcohort.sampling.chunked.chunk_order import ChunkOrder, Cursor, add_in_common_order, next_chunk, origins
from cellcohort.sampling.chunked.demand import GroupBatches, WindowSpec, window_demand, window_spec
from cellcohort.sampling.chunked.pool import CHUNKS, Request, add_chunk, bring_forward, empty_pool, n_free, take
from cellcohort.sampling.chunked.repeats import take_again
from cellcohort.sampling.chunked.rotation import Rotation
from cellcohort.sampling.chunked.time_window import GroupTimes, chunk_around
from cellcohort.sampling.drawing.cap import Cap, empty_counts
from cellcohort.sampling.kept import Kept
from cellcohort.sampling.planning.plan import Plan
from cellcohort.sampling.planning.strata import Strata
from cellcohort.sampling.rng import key_of, mix, unit

PREFERRED_ATTEMPTS = 4  # attempts at a window that begin where the one before it stopped; later ones begin anywhere
MOST_ATTEMPTS = 32  # at a window before it may load more chunks than allowed
_U = np.uint64


@dataclass(frozen=True)
class ChunkWindow:
    """The batches cut from one load of chunks.

    Attributes
    ----------
    positions : numpy.ndarray of int64, shape (n_batches, batch_size)
    primary : numpy.ndarray of int64, shape (n_groups,)
        The primary groups; that of batch `j` is ``primary[j % n_groups]``.
    focal : numpy.ndarray of float, shape (n_batches,)
        Focal times in hours; NaN without a time window, infinite if the group has no times.
    chunks : int
        Chunks that are loaded.
    passed : float
        Share of all chunks that the window moved on in their common order.
    """

    positions: np.ndarray
    primary: np.ndarray
    focal: np.ndarray
    chunks: int
    passed: float


class Table(NamedTuple):
    """The cells as windows are cut from them.

    Attributes
    ----------
    chunks : ChunkIndex
    strata : Strata
    batches : GroupBatches
        What the batches of each group are to hold.
    pace : numpy.ndarray of float, shape (n_strata,)
        Chunks of each stratum that a batch of its group uses up.
    half_width : float
        Half-width in hours of the time window.
    cap : int
        A batch holds at most so many cells of one label of ``strata.capped``; any number if 0.
    largest : int
        Cells of the chunk that holds the most: more than it has rows if cells come twice in the table.
    """

    chunks: ChunkIndex
    strata: Strata
    batches: GroupBatches
    pace: np.ndarray
    half_width: float
    cap: int
    largest: int

    @classmethod
    def of(cls, plan: Plan, rows: np.ndarray | None, chunk_size: int) -> Table:
        """Sort the cells of a plan by chunk; `rows` are those of the store, None for the positions themselves."""
        strata, batches = plan.strata, plan.batches
        inputs = ["chunks", strata.order, strata.start, strata.times_start, rows, chunk_size]
        found = cached_arrays(plan.index_cache, inputs, lambda: build_chunk_index(strata, rows, chunk_size))
        chunks = ChunkIndex(*found)
        share = batches.share[strata.group]
        per_batch = drawn_per_batch(plan) / np.where(share > 0, share, 1.0)
        return cls(
            chunks,
            strata._replace(capped=strata.capped.astype(np.int32)),
            GroupBatches(batches.targets, batches.leaks, batches.key, batches.places),
            per_batch * np.diff(chunks.stratum_indptr) / strata.size,
            plan.half_width,
            plan.cap,
            int(np.diff(chunks.cell_indptr[chunks.chunk_indptr]).max()),
        )


def drawn_per_batch(plan: Plan) -> np.ndarray:
    """Return the cells of each stratum that a batch holds on average, float of shape (n_strata,)."""
    rates = plan.batches.rates()  # without leaks, which come from all groups in proportion
    return rates * plan.places / rates.sum()


class WindowPlanner:
    """Plan chunk windows of any rotation; a window is a function of its arguments and of nothing else.

    Parameters
    ----------
    plan : Plan
        What each batch is to hold.
    rows : numpy.ndarray of int, shape (n_cells,), or None
        Row of the store of each cell; None if these are the positions themselves.
    chunk_size : int
        Rows per chunk.

    Attributes
    ----------
    table : Table
        The cells as windows are cut from them.
    """

    def __init__(self, plan: Plan, rows: np.ndarray | None, chunk_size: int) -> None:
        self.plan, self.chunk_size = plan, chunk_size
        self.table = Table.of(plan, rows, chunk_size)
        self._times = GroupTimes.of(plan) if plan.timed else None
        self._orders = Kept[ChunkOrder](2)

    @property
    def n_chunks(self) -> int:
        """Chunks that the cells lie in."""
        return self.table.chunks.n_chunks

    def window(self, rotation: Rotation, epoch: int, number: int, attempt: int, most_chunks: int) -> ChunkWindow:
        """Return a window of an epoch that loads at most `most_chunks`.

        Attempts differ in their random choices. If the chunks do not fill its batches, `chunks` of the window is one
        more than there are.
        """
        key = key_of(self.plan.seed, epoch, 2, number, attempt)
        offset = unit(key, _U(1)) if attempt >= PREFERRED_ATTEMPTS else 0.0
        spec = window_spec(rotation, self._times, epoch, number, offset, key)
        positions = np.empty((len(spec.focal), self.plan.places), np.int64)
        order = self._orders.get(epoch, lambda: ChunkOrder.of(self.table.chunks, key_of(self.plan.seed, epoch, 3)))
        chunks, filled, passed = _fill(self.table, order, spec, most_chunks, key, positions)
        chunks = chunks if filled == self.plan.places else self.n_chunks + 1
        return ChunkWindow(positions, spec.primary, spec.focal, chunks, passed)


@compiled
def _fill(
    table: Table, order: ChunkOrder, spec: WindowSpec, most_chunks: int, key: np.uint64, out: np.ndarray
) -> tuple[int, int, float]:
    """Fill `out`, (n_batches, batch_size), with the positions of the batches of a window.

    Returns
    -------
    chunks : int
        Chunks that the window loads, at most `most_chunks`.
    filled : int
        Cells of the smallest batch: fewer than its places if `most_chunks` do not hold them.
    passed : float
        Share of all chunks that the window moved on in their common order.
    """
    index, strata, n_chunks = table.chunks, table.strata, len(order.chunk)
    most_chunks = min(n_chunks, most_chunks)
    needed, ratio, demand = window_demand(spec, table.batches, strata, index, table.half_width, key)
    pool = empty_pool(needed, ratio, strata.start, index, most_chunks * table.largest)
    cursor = Cursor(origins(needed, spec, table, order, key), np.zeros(len(needed), np.int64))
    filled, passed = np.zeros(len(out), np.int64), 0.0
    tallies = np.zeros((len(out), len(empty_counts(out.shape[1] if table.cap > 0 else 1)), 2), np.int64)
    later = np.zeros(len(strata.times), np.int64)  # how many of the batches to come have each time in their time window
    for inside in (True, False):
        if not inside:
            rest = np.zeros(len(needed), np.int64)
            for i in range(len(demand.cells)):
                rest[demand.stratum[i]] += demand.cells[i] - demand.inside[i]
            passed = add_in_common_order(pool, rest, spec, table, order, most_chunks, mix(key, _U(n_chunks)))
            for u in demand.stratum:  # as many as make its cells come no more often than those of other chunks
                while rest[u] > pool.fair[u] - pool.taken[u] and pool.counts[CHUNKS] < most_chunks:
                    chunk = next_chunk(u, needed[u], pool.chosen, cursor, index.stratum_indptr, order)
                    if chunk < 0:
                        break
                    add_chunk(pool, chunk, index)
        for i in range(len(demand.cells)):
            u, j, low, high = demand.stratum[i], demand.batch[i], demand.low[i], demand.high[i]
            later[low:high] += 1 if inside else -1
            cells = demand.inside[i] if inside else demand.cells[i] - demand.inside[i]
            if cells == 0:
                continue
            request = Request(u, low, high, inside)
            fit = bring_forward(pool, request, 0, 0)
            while fit < cells and pool.counts[CHUNKS] < most_chunks:
                if inside:
                    around = index.chunk_of[strata.times_start[low] : strata.times_start[high]]
                    of = needed[u], low, high
                    chunk = chunk_around(around, of, pool.chosen, index, table.largest, mix(key, _U(i)))
                else:
                    chunk = next_chunk(u, needed[u], pool.chosen, cursor, index.stratum_indptr, order)
                if chunk < 0:
                    break
                seen = n_free(pool, u)
                add_chunk(pool, chunk, index)
                fit = bring_forward(pool, request, seen, fit)
            cap = Cap(strata.capped, table.cap, tallies[j])
            take_key = mix(mix(key, _U(j)), _U(2 * needed[u] + (0 if inside else 1)))
            places = out[j, filled[j] : filled[j] + cells]
            n = take(pool, request, fit, cap, later, take_key, places)
            filled[j] += n + (take_again(pool, request, cap, mix(take_key, _U(4)), places[n:]) if n < cells else 0)
    return pool.counts[CHUNKS], int(filled.min()), passed
