"""pytorch-metric-learning's `MPerClassSampler`: a few classes in every batch, the same number of cells of each."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping, Sequence
from typing import override

import numpy as np

from cellcohort.cells import CellTable
from cellcohort.extras import require
from cellcohort.messages import listed, whole_number
from cellcohort.sampling.axes.base import Axis
from cellcohort.sampling.axes.condition import ConditionBalanced
from cellcohort.sampling.baselines.base import Baseline, refuse_axes, whole_batches

_GENERATOR = threading.Lock()  # of the library, which it has one of


class MPerClass(Baseline):
    """Draw `m` cells of each of ``batch_size / m`` classes, which are chosen at random for every batch.

    Parameters
    ----------
    cells, axes, batch_size, seed, rank, world_size, num_batches : see `BatchSampler`
        As for :class:`~cellcohort.sampling.BatchSampler`; `axes` must be empty, and `num_batches` cannot be "cover".
    m : int, optional
        Cells of each class. It divides `batch_size`, and ``m`` of every class fill a batch; by default the least
        such number.
    column : str or list of str
        The column (or columns, jointly) of the classes.

    Raises
    ------
    ValueError
        Axes are given, or an option is out of range.
    ModuleNotFoundError
        pytorch-metric-learning is not installed.

    Notes
    -----
    Differs from the axis ``condition`` in that a batch holds whole sets of `m` of some classes and none of the others,
    so that shares hold on average only. Cells of a class are drawn anew for every batch, so that an epoch draws some
    often and others not at all, and with replacement where a class has fewer than `m`.
    """

    about = (
        "Drawn by MPerClassSampler of pytorch-metric-learning, m cells of each class that a batch holds: which classes "
        "these are is random."
    )

    def __init__(
        self,
        cells: CellTable,
        axes: Mapping[str, Axis] | None = None,
        batch_size: int = 256,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        num_batches: int | None = None,
        m: int | None = None,
        column: str | Sequence[str] = "condition",
    ) -> None:
        require("baselines", "pytorch_metric_learning")
        refuse_axes(axes, "MPerClassSampler")
        labels = cells.column(column)
        self.m = _fitting(m, whole_number("batch_size", batch_size, 1), len(labels.present()), labels.name)
        self.options = {"column": column, "m": self.m}
        super().__init__(
            cells,
            {"classes": ConditionBalanced(column=column)},
            batch_size,
            seed,
            rank,
            world_size,
            num_batches=whole_batches(num_batches),
        )

    @override
    def _epoch(self, key: int) -> np.ndarray:
        from pytorch_metric_learning.samplers import MPerClassSampler  # here, since it imports torch
        from pytorch_metric_learning.utils import common_functions

        if "_made" not in vars(self):
            self._made = MPerClassSampler(self.cells.column(self.options["column"]).codes, self.m, self.batch_size)
        n = self.num_batches * self.batch_size
        sampler = copy.copy(self._made)
        sampler.labels, sampler.list_size = sorted(self._made.labels), n  # it shuffles its list of labels
        with _GENERATOR:
            before = common_functions.NUMPY_RANDOM
            common_functions.NUMPY_RANDOM = np.random.RandomState(np.random.MT19937(key))
            try:
                drawn = np.fromiter(iter(sampler), np.int64, n)
            finally:
                common_functions.NUMPY_RANDOM = before
        return drawn.reshape(self.num_batches, self.batch_size)


def _fitting(m: int | None, batch_size: int, n_classes: int, column: str) -> int:
    """Return `m`, or the least one that fits; refuse one that does not."""
    fit = [k for k in range(1, batch_size + 1) if batch_size % k == 0 and k * n_classes >= batch_size]
    if m is None:
        return fit[0]
    if whole_number("m", m, 1) not in fit:
        raise ValueError(
            f"m={m} does not fit batch_size={batch_size} with the {n_classes} classes of {column}: it must divide the "
            f"batch, and as many cells of every class must fill it. Use m={listed(fit[:3], separator=' or m=')}"
            f"{' ...' if len(fit) > 3 else ''}."
        )
    return m
