"""Batches of chunks as they come: in the order of the store, or in random order. No axis rules them."""

from __future__ import annotations

from cellcohort.messages import several
from cellcohort.sampling.chunked.sampler import ChunkSampler
from cellcohort.sampling.chunked.sequential_schedule import OneByOne


class ChunksInOrder(ChunkSampler):
    """Yield all cells in the order of their rows, as evaluation wants; an epoch is one pass over the store.

    Parameters
    ----------
    cells, batch_size, chunk_size, preload_nchunks, seed, rank, world_size, num_batches, scope, fixed
        As for :class:`~cellcohort.sampling.chunked.sampler.ChunkSampler`. Cells that do not fill a last batch
        of every rank are left out.
    axes : empty
        There are none: ``sampler=random``.

    Raises
    ------
    ValueError
        As for :class:`~cellcohort.sampling.chunked.sampler.ChunkSampler`; an axis is given, or `num_batches` are more
        than one pass has.
    """

    shuffle = False

    def _make_picker(self, world_size: int) -> OneByOne:
        if self.axes:
            raise ValueError(
                f"{type(self).__name__} draws without regard to axes, but was given {', '.join(sorted(self.axes))}; "
                "use ChunkedBatchSampler (reading=chunks), or no axes (sampler=random)."
            )
        return self._one_by_one(self.shuffle)

    def _take_place(self, rank: int, world_size: int) -> None:
        super()._take_place(rank, world_size)
        one_pass = self._picker.plan.n_batches // world_size
        if self.num_batches > one_pass:
            raise ValueError(
                f"num_batches={self.num_batches} is more than the {several(one_pass, 'batch')} per rank of one pass "
                f"over the {len(self.cells)} cells; use at most these."
            )


class ChunksShuffled(ChunksInOrder):
    """Yield all cells once per epoch: chunks in random order, and the cells of each window in random order.

    Parameters
    ----------
    cells, axes, batch_size, chunk_size, preload_nchunks, seed, rank, world_size, num_batches, scope, fixed
        As for :class:`ChunksInOrder`.
    """

    shuffle = True
