"""Batch samplers that read every cell once, chunk by chunk; no axis rules their batches."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, override

from cellcohort.cells import CellTable
from cellcohort.messages import several
from cellcohort.sampling.axes.base import Axis
from cellcohort.sampling.chunked.sampler import ChunkSampler
from cellcohort.sampling.chunked.sequential import SequentialPicker
from cellcohort.sampling.planning.plan import Plan


class ChunksInOrder(ChunkSampler):
    """Yield all cells in the order of their rows, for evaluation; an epoch is one pass over the store.

    Parameters
    ----------
    cells, axes, batch_size, chunk_size, preload_nchunks, seed : see `ChunkSampler`
        As for :class:`~cellcohort.sampling.chunked.sampler.ChunkSampler`; `axes` must be empty (``sampler=random``).
    rank, world_size, num_batches, scope, fixed : see `ChunkSampler`
        As for :class:`~cellcohort.sampling.chunked.sampler.ChunkSampler`.
    drop_last : bool
        Whether to leave out the cells that do not fill a last batch of every rank. If False, the last batch is short:
        for inference, with ``world_size=1``.
    schedule : None
        Must be None.
    index_cache : path, optional
        As for :class:`~cellcohort.sampling.chunked.sampler.ChunkSampler`.

    Raises
    ------
    ValueError
        As for :class:`~cellcohort.sampling.chunked.sampler.ChunkSampler`; an axis is given; `num_batches` are more than
        one pass has; or ``drop_last=False`` with several ranks.
    """

    shuffle = False
    _picker: SequentialPicker

    def __init__(
        self,
        cells: CellTable,
        axes: Mapping[str, Axis] | None = None,
        batch_size: int = 256,
        chunk_size: int | None = None,
        preload_nchunks: int = 64,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        num_batches: int | None = None,
        scope: str = "rank",
        fixed: bool = False,
        drop_last: bool = True,
        schedule: Mapping[str, Any] | None = None,
        index_cache: str | Path | None = None,
    ) -> None:
        if not isinstance(drop_last, bool):
            raise ValueError(f"drop_last={drop_last!r} is not a choice; use True or False.")
        self.drop_last = drop_last
        super().__init__(
            cells,
            axes,
            batch_size,
            chunk_size,
            preload_nchunks,
            seed,
            rank,
            world_size,
            num_batches,
            scope,
            fixed,
            schedule,
            index_cache,
        )

    @property
    def signature(self) -> dict[str, int | str]:
        """What the sequence of batches depends on, by option; the same on every rank."""
        return {**super().signature, **({} if self.drop_last else {"drop_last": False})}

    @override
    def _make_picker(self, world_size: int) -> SequentialPicker:
        if self.axes:
            raise ValueError(
                f"{type(self).__name__} draws without regard to axes, but was given {', '.join(sorted(self.axes))}; "
                "use ChunkedBatchSampler (reading=chunks), or no axes (sampler=random)."
            )
        places = self.batch_size if self.drop_last else min(self.batch_size, len(self.cells))
        plan = Plan(self.cells, {}, places, self.seed, self.index_cache)
        return SequentialPicker(
            plan, self.cells, self.chunk_size, self.preload_nchunks, self.shuffle, drop_last=self.drop_last
        )

    def _take_place(self, rank: int, world_size: int) -> None:
        if not self.drop_last and world_size > 1:
            raise ValueError(
                f"drop_last=False gives one rank a short last batch, and there are world_size={world_size}; use "
                "drop_last=True, or make a sampler with world_size=1 for each part of the cells, from cells.take."
            )
        super()._take_place(rank, world_size)
        one_pass = self._picker.n_batches // world_size
        if self._per_epoch is None:
            self.num_batches = one_pass
        if self.num_batches > one_pass:
            raise ValueError(
                f"num_batches={self.num_batches} is more than the {several(one_pass, 'batch')} per rank of one pass "
                f"over the {len(self.cells)} cells; use at most these."
            )


class ChunksShuffled(ChunksInOrder):
    """Yield all cells once per epoch: chunks in random order, and the cells of each window in random order.

    Parameters
    ----------
    cells, axes, batch_size, chunk_size, preload_nchunks, seed : see `ChunksInOrder`
        As for :class:`ChunksInOrder`.
    rank, world_size, num_batches, scope, fixed, drop_last, schedule, index_cache : see `ChunksInOrder`
        As for :class:`ChunksInOrder`.
    """

    shuffle = True
