"""annbatch's `WeightedClassSampler`: chunks of classes by weight, mixed in every batch."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import annbatch.samplers

from cellcohort.cells import CellTable
from cellcohort.sampling.axes.base import Axis
from cellcohort.sampling.axes.condition import ConditionBalanced
from cellcohort.sampling.baselines.annbatch_class import ClassRuns
from cellcohort.sampling.baselines.base import refuse_axes, whole_batches


class WeightedClassSampler(ClassRuns):
    """Draw runs of neighbouring cells of classes by weight, and mix those of a chunk window in its batches.

    Parameters
    ----------
    cells, axes, batch_size, chunk_size, preload_nchunks, seed : see `ClassSampler`
        As for :class:`~cellcohort.sampling.baselines.annbatch_class.ClassSampler`.
    rank, world_size, num_batches : see `ClassSampler`
        As for :class:`~cellcohort.sampling.baselines.annbatch_class.ClassSampler`.
    column : str or list of str
        The column (or columns, jointly) of the classes.
    ratio : None or dict of label to float
        Share of each class, as :class:`~cellcohort.sampling.ConditionBalanced` takes it; None gives all the same.

    Raises
    ------
    ValueError
        As for :class:`~cellcohort.sampling.baselines.annbatch_class.ClassSampler`.

    Notes
    -----
    Differs from ``ChunkedBatchSampler`` with the axis ``condition`` in that shares hold on average only, and that runs
    are drawn with replacement.
    """

    about = "Drawn by WeightedClassSampler of annbatch, with replacement: shares hold on average only."
    kind = annbatch.samplers.WeightedClassSampler

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
        column: str | Sequence[str] = "condition",
        ratio: Mapping[Hashable, float] | None = None,
    ) -> None:
        refuse_axes(axes, "WeightedClassSampler")
        self.options = {"column": column, "ratio": ratio}
        axis = ConditionBalanced(ratio, column)
        self._class_weights = axis.shares(cells.column(column))
        super().__init__(
            cells, {"classes": axis}, batch_size, chunk_size, preload_nchunks, seed, rank, world_size,
            whole_batches(num_batches),
        )  # fmt: skip
        self._made(0)
