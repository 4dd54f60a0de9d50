"""annbatch's `ClassSampler`: chunks of one class make a batch."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, Literal, override

import annbatch.samplers
import numpy as np
import pandas as pd

from cellcohort.cells import CellTable
from cellcohort.sampling.axes.base import Axis
from cellcohort.sampling.axes.experiment_aware import ExperimentAware
from cellcohort.sampling.baselines.base import Baseline, refuse_axes, whole_batches
from cellcohort.sampling.chunked.sampler import ChunkSampler
from cellcohort.sampling.drawing.row_picker import RowPicker
from cellcohort.sampling.planning.plan import Plan


class ClassRuns(Baseline, ChunkSampler):
    """Batches of annbatch's samplers of classes, which are made of runs of neighbouring cells of one class.

    Attributes
    ----------
    kind : type
        The sampler of annbatch.
    """

    kind: type[annbatch.samplers.ClassSampler]
    _class_weights: np.ndarray

    @override
    def _make_picker(self, world_size: int) -> Any:
        whole = self.batch_size // math.gcd(self.chunk_size, self.batch_size)
        self.preload_nchunks = max(self.preload_nchunks // whole, 1) * whole
        return _Windows(
            Plan(self.cells, self.axes, self.batch_size, self.seed),
            self.chunk_size * self.preload_nchunks // self.batch_size,
        )

    def _made(self, key: int) -> Any:
        """Make annbatch's sampler of one epoch."""
        column = self.cells.column(self.options["column"])
        classes = pd.Categorical.from_codes(column.codes[self._in_order()], pd.RangeIndex(len(column.labels)))
        try:
            return self.kind(
                chunk_size=self.chunk_size,
                preload_nchunks=self.preload_nchunks,
                batch_size=self.batch_size,
                classes=classes,  # type: ignore[arg-type]  # of numbers, which tell classes apart as labels do
                num_samples=self.num_batches * self.batch_size,
                class_weights=self._class_weights,
                drop_last=True,
                rng=np.random.default_rng(key),
            )
        except ValueError as error:
            raise ValueError(
                f"annbatch's {self.kind.__name__} refuses the classes of {column.name}: {error} Prepare the store with "
                "prepare.group_by=[<the column>], or use a smaller batch_sampler.chunk_size."
            ) from error

    def _in_order(self) -> np.ndarray:
        """Positions of the cells in the order of the store."""
        return np.argsort(self.rows, kind="stable")

    @override
    def _epoch(self, key: int) -> np.ndarray:
        order, batches = self._in_order(), []
        for request in self._made(key).sample(len(order)):
            cells = np.concatenate([order[run] for run in request["requests"]])
            batches += [cells[split] for split in request["splits"]]
        return np.stack(batches).astype(np.int64)

    @override
    def requests(
        self, epoch: int, first: int = 0, worker: int = 0, num_workers: int = 1
    ) -> Iterator[tuple[int, list[np.ndarray]]]:
        for n, begin in enumerate(range(0, self.num_batches, self.per_window)):
            end = min(begin + self.per_window, self.num_batches)
            if first < end and n % num_workers == worker:
                yield begin, [self._draw(epoch, step) for step in range(begin, end)]


class ClassSampler(ClassRuns):
    """Draw batches of one class each, from runs of `chunk_size` neighbouring cells of it.

    Parameters
    ----------
    cells, axes, batch_size, seed, rank, world_size, num_batches : see `BatchSampler`
        As for :class:`~cellcohort.sampling.BatchSampler`; `axes` must be empty, and `num_batches` cannot be "cover".
    chunk_size : int, optional
        Neighbouring cells that are drawn together; by default those that the store holds together, or 64.
    preload_nchunks : int
        Chunks that a window loads at most; of these as many as fill whole batches.
    column : str or list of str
        The column (or columns, jointly) of the classes. Runs of one class must hold `chunk_size` cells or more, as in
        a store that was prepared with ``prepare.group_by``.
    weights : None, "uniform" or dict of label to float
        How often each class is drawn, as :class:`~cellcohort.sampling.ExperimentAware` takes it.

    Raises
    ------
    ValueError
        Axes are given, an option is out of range or does not fit the table, or a run of a class is too short.

    Notes
    -----
    annbatch draws among the training cells as they follow each other in the store, held-out cells left out. Its runs
    begin anywhere; the whole chunks in which they lie are read. Differs from ``ChunkedBatchSampler`` with the axis
    ``experiment_aware`` in that runs are drawn with replacement: cells of one run are together in a batch, some cells
    come often and others not at all, and a batch may hold a cell twice.
    """

    about = "Drawn by ClassSampler of annbatch: runs of neighbouring cells, with replacement."
    kind = annbatch.samplers.ClassSampler

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
        column: str | Sequence[str] = "experiment",
        weights: Literal["uniform"] | Mapping[Hashable, float] | None = "uniform",
    ) -> None:
        refuse_axes(axes, "ClassSampler")
        self.options = {"column": column, "weights": weights}
        axis = ExperimentAware(weights=weights, column=column)
        self._class_weights = axis.weights(cells.column(column))
        super().__init__(
            cells, {"class": axis}, batch_size, chunk_size, preload_nchunks, seed, rank, world_size,
            whole_batches(num_batches),
        )  # fmt: skip
        self._made(0)


class _Windows(RowPicker):
    """The plan of what is asked, and how many batches a chunk window holds."""

    least_amplification = 1.0

    def __init__(self, plan: Plan, per_window: int) -> None:
        super().__init__(plan)
        self.per_window = per_window

    def unreached(self, per_rank: int, world_size: int) -> tuple[str, ...]:  # noqa: ARG002
        """Return nothing: classes are drawn at random."""
        return ()
