"""The batch sampler whose cells are read in chunks, and what it is to annbatch's loader."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, override

import numpy as np

from cellcohort.cells import CellTable, table_of
from cellcohort.messages import whole_number
from cellcohort.sampling.axes.base import Axis, GroupAxis
from cellcohort.sampling.chunked.load_requests import LoadRequests
from cellcohort.sampling.chunked.options import chunks_of_window, refuse_options_of_rows
from cellcohort.sampling.chunked.picker import ChunkPicker
from cellcohort.sampling.chunked.rotation import place_of
from cellcohort.sampling.chunked.sequential import SequentialPicker
from cellcohort.sampling.planning.plan import Plan

if TYPE_CHECKING:
    from pydantic import NonNegativeInt, PositiveInt

CHUNK_SIZE = 64  # rows, where the cells are of no store that says


class ChunkSampler(LoadRequests):
    """A batch sampler whose batches are cut from chunk windows, for annbatch's `Loader` too.

    It is all that :class:`BatchSampler` is, a pure sequence of batches known by epoch and step. Besides, it gives the
    loader load requests: the chunks of one window after another, as aligned slices, and the batches that are cut from
    them. Ranks, and the worker processes of a rank, take windows in turn; each loads its own.

    Parameters
    ----------
    cells, axes, batch_size, seed, rank, world_size, fixed : see `BatchSampler`
        As for :class:`BatchSampler`.
    chunk_size : int, optional
        Rows that are read as one, from a multiple of `chunk_size` on; by default those that the store of the cells
        holds together, or 64.
    preload_nchunks : int
        Chunks that a window may load at once, hence ``chunk_size * preload_nchunks`` rows of memory; all that there
        are, if these are fewer.
    num_batches : int, optional
        Batches per epoch and rank. By default as many as the cells fill.
    scope : {"rank"}
        The axes rule each rank's batch by itself.
    schedule : None
        Must be None.
    index_cache : path, optional
        As for :class:`BatchSampler`; the cells sorted by chunk are kept there, too.

    Raises
    ------
    ValueError
        As for :class:`BatchSampler`, or a batch is larger than a window.
    """

    reads_chunks = True
    shuffle = True

    def __init__(
        self,
        cells: CellTable,
        axes: Mapping[str, Axis] | None = None,
        batch_size: PositiveInt = 256,
        chunk_size: PositiveInt | None = None,
        preload_nchunks: PositiveInt = 64,
        seed: NonNegativeInt = 0,
        rank: int = 0,
        world_size: int = 1,
        num_batches: PositiveInt | None = None,
        scope: str = "rank",
        fixed: bool = False,
        schedule: Mapping[str, Any] | None = None,
        index_cache: str | Path | None = None,
    ) -> None:
        refuse_options_of_rows(schedule, scope, num_batches)
        own = table_of(cells).chunk_rows or CHUNK_SIZE
        self.chunk_size = own if chunk_size is None else whole_number("chunk_size", chunk_size, 1)
        self.preload_nchunks, note = chunks_of_window(cells, batch_size, self.chunk_size, preload_nchunks)
        super().__init__(
            cells, axes, batch_size, seed, rank, world_size, "rank", num_batches, fixed, index_cache=index_cache
        )
        self.notes += note

    @property
    def rows(self) -> np.ndarray:
        """Row of the store that each cell is in, int (n_cells,)."""
        return np.arange(len(self.cells)) if self.cells.rows is None else self.cells.rows

    @property
    def least_amplification(self) -> float:
        """The least rows read per row used with which all cells of a stratum come equally often, none shared."""
        return self._picker.least_amplification

    @property
    def per_window(self) -> int:
        """Batches that are cut from one window."""
        return self._picker.per_window

    @property
    def unreached(self) -> tuple[str, ...]:
        """Say if windows are too few for every group to be primary in every epoch of each rank."""
        return self._picker.unreached(self.num_batches, self.world_size)

    @property
    def signature(self) -> dict[str, int | str]:
        """What the sequence of batches depends on, by option; the same on every rank."""
        return {**super().signature, "chunk_size": self.chunk_size, "preload_nchunks": self.preload_nchunks}

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({super().__repr__().partition('(')[2][:-1]}, chunk_size={self.chunk_size}, "
            f"preload_nchunks={self.preload_nchunks})"
        )

    def _shortfalls(self) -> tuple[str, ...]:
        return (*super()._shortfalls(), *self.unreached)

    def _number(self, step: int) -> int:
        return place_of(step, self.num_batches, self.per_window, self.rank, self.world_size)


class ChunkedBatchSampler(ChunkSampler):
    """Yield batches that hold what the axes ask, cut from chunk windows that are chosen to allow it.

    The quotas of every batch are those of :class:`~cellcohort.sampling.BatchSampler`. An index of the strata in every
    chunk decides which chunks are loaded together: chunks are added until every batch of the window can be filled,
    first for the strata whose cells lie in the most chunks. Each stratum goes through all of its chunks before it reads
    one again. Cells that a window loads and no batch takes are not kept for later windows, so that any process can plan
    any window at once. A store laid out for the axes makes them few; see
    :class:`~cellcohort.sampling.chunked.read_cost.Reading` for how many they are.

    Parameters
    ----------
    cells, axes, batch_size, chunk_size, preload_nchunks, seed : see `ChunkSampler`
        As for :class:`ChunkSampler`.
    rank, world_size, num_batches, scope, fixed, schedule, index_cache : see `ChunkSampler`
        As for :class:`ChunkSampler`.

    Notes
    -----
    Batches of one window share no cell, except where the whole store has fewer cells of a stratum (near the focal time)
    than they ask for. Windows of one group or several, and of fewer batches than their rows would fill, are tried when
    the sampler is made, and the ones that read least are used. Without axes every cell comes once, chunks and the cells
    of a window in random order.

    Where a chunk holds several strata, as all do in a store in random order, it is read as often as the most requested
    of them requires, and cells of the others are taken from it in proportion to their demand: all cells of a stratum
    come about equally often, those of a few cells among many less so, and all with a time window.

    Cells that leak into a batch come from the other experiments of its window, hence over an epoch in proportion to how
    often these are primary.
    """

    @override
    def _make_picker(self, world_size: int) -> ChunkPicker | SequentialPicker:
        for axis in self.axes.values():
            if isinstance(axis, GroupAxis) and axis.n_primary > 1:
                raise ValueError(
                    f"{axis!r} asks for batches of several blocks, which are not cut from chunk windows; use one block "
                    "(experiments=1), or read row by row (reading=rows)."
                )
        plan = Plan(self.cells, self.axes, self.batch_size, self.seed, self.index_cache)
        if not self.axes:
            return SequentialPicker(plan, self.cells, self.chunk_size, self.preload_nchunks, shuffle=True)
        return ChunkPicker(plan, self.cells, self.chunk_size, self.preload_nchunks)
