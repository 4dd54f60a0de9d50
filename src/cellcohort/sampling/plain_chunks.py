"""Batches of chunks as they come: in the order of the store, or in random order. No axis rules them."""

from __future__ import annotations

from collections.abc import Mapping

from cellcohort.cells import CellTable
from cellcohort.sampling.axis import Axis
from cellcohort.sampling.chunk_sampler import ChunkSampler
from cellcohort.sampling.one_by_one import OneByOne


class ChunksInOrder(ChunkSampler):
    """Yield all cells in the order of their rows, as evaluation wants; an epoch is one pass over the store.

    Parameters
    ----------
    cells, batch_size, chunk_size, preload_nchunks, seed, rank, world_size, num_batches, scope, fixed
        As for :class:`~cellcohort.sampling.chunk_sampler.ChunkSampler`. Cells that do not fill a last batch
        of every rank are left out.
    axes : empty
        There are none: ``sampler=random``.

    Raises
    ------
    ValueError
        As for :class:`~cellcohort.sampling.chunk_sampler.ChunkSampler`; an axis is given, or `num_batches` are more
        than one pass has.
    """

    shuffle = False

    def __init__(
        self,
        cells: CellTable,
        axes: Mapping[str, Axis] | None = None,
        batch_size: int = 256,
        chunk_size: int = 64,
        preload_nchunks: int = 64,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        num_batches: int | None = None,
        scope: str = "rank",
        fixed: bool = False,
    ) -> None:
        if axes:
            raise ValueError(
                f"{type(self).__name__} draws without regard to axes, but was given {', '.join(sorted(axes))}; use "
                "ChunkedBatchSampler (reading=chunks), or no axes (sampler=random)."
            )
        super().__init__(
            cells, axes, batch_size, chunk_size, preload_nchunks, seed, rank, world_size, num_batches, scope, fixed
        )
        one_pass = len(cells) // batch_size // world_size
        if self.num_batches > one_pass:
            raise ValueError(
                f"num_batches={num_batches} is more than the {one_pass} batches per rank of one pass over the "
                f"{len(cells)} cells; use at most these."
            )

    def _plan(self, world_size: int) -> OneByOne:
        per_window = self.chunk_size * self.preload_nchunks // self.batch_size
        return OneByOne(self.cells, self.batch_size, self.seed, self.chunk_size, per_window, self.shuffle)


class ChunksShuffled(ChunksInOrder):
    """Yield all cells once per epoch: chunks in random order, and the cells of each window in random order.

    Parameters
    ----------
    cells, axes, batch_size, chunk_size, preload_nchunks, seed, rank, world_size, num_batches, scope, fixed
        As for :class:`ChunksInOrder`.
    """

    shuffle = True
