"""Batches that hold what the axes ask, at the speed of reading in chunks."""

from __future__ import annotations

from cellcohort.sampling.chunked.sampler import ChunkSampler
from cellcohort.sampling.chunked.schedule import ChunkedSchedule
from cellcohort.sampling.chunked.sequential_schedule import OneByOne


class ChunkedBatchSampler(ChunkSampler):
    """Yield batches that hold what the axes ask, cut from windows of chunks that are chosen to allow it.

    The quotas of every batch are those of :class:`~cellcohort.sampling.BatchSampler`. Which chunks are loaded
    together is decided from a census of the strata in every chunk: chunks are added until every batch of the
    window can be filled, first for the strata whose cells lie in the most chunks. Each goes through all of its
    chunks before it reads one again.
    Cells that a window loads and no batch takes are read in vain; they are not kept for later windows, so
    that any window can be planned at once, by any process. A store laid out for the axes makes them few;
    see :class:`~cellcohort.sampling.chunked.read_cost.Reading` for how many they are.

    Parameters
    ----------
    cells, axes, batch_size, chunk_size, preload_nchunks, seed, rank, world_size, num_batches, scope, fixed
        As for :class:`~cellcohort.sampling.chunked.sampler.ChunkSampler`.

    Notes
    -----
    Batches of one window share no cell, except where the whole store has fewer cells of a stratum (near the
    focal time) than they ask for. Windows of one group or several, and of fewer batches than their rows would
    fill, are tried when the sampler is made, and the ones that read least are used. Without axes every cell comes
    once, chunks and the cells of a window in random order.

    Where a chunk holds several strata, as all do in a store in random order, it is read as often as the hungriest of
    them asks, and cells of the others are taken from it in proportion to what these ask: all cells of a stratum
    come about equally often, those of a few cells among many less so, and all with a time window.

    Cells that leak into a batch come from the other experiments of its window, hence over an epoch in
    proportion to how often these lead batches.
    """

    @property
    def unreached(self) -> tuple[str, ...]:
        """What to say where windows are too few for every group to lead in every epoch of each rank."""
        if isinstance(self._picker, OneByOne):
            return ()
        return self._picker.unreached(self.num_batches, self.world_size)

    def _shortfalls(self) -> tuple[str, ...]:
        return (*super()._shortfalls(), *self.unreached)

    def _make_picker(self, world_size: int) -> ChunkedSchedule | OneByOne:
        if not self.axes:
            return self._one_by_one(shuffle=True)
        return ChunkedSchedule(self.cells, self.axes, self.batch_size, self.seed, self.chunk_size, self.preload_nchunks)
