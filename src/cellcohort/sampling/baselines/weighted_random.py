"""torch's `WeightedRandomSampler`: each cell drawn by itself, with weights."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import override

import numpy as np

from cellcohort.cells import CellTable
from cellcohort.extras import require
from cellcohort.sampling.axes.base import Axis
from cellcohort.sampling.axes.condition import ConditionBalanced
from cellcohort.sampling.baselines.base import Baseline, refuse_axes, whole_batches

MOST_CELLS = 2**24  # that torch.multinomial draws from


class WeightedRandom(Baseline):
    """Draw every cell by itself, with the weights that give each label its share on average.

    Parameters
    ----------
    cells, axes, batch_size, seed, rank, world_size, num_batches : see `BatchSampler`
        As for :class:`~cellcohort.sampling.BatchSampler`; `axes` must be empty, and `num_batches` cannot be "cover".
    column : str or list of str
        The column whose labels have shares: a condition, an experiment, or both jointly.
    ratio : None or dict of label to float
        Share of each label, as :class:`~cellcohort.sampling.ConditionBalanced` takes it; None gives all the same.

    Raises
    ------
    ValueError
        Axes are given, an option is out of range or does not fit the labels, or there are more than 2**24 cells.
    ModuleNotFoundError
        torch is not installed.

    Notes
    -----
    Differs from the axis ``condition`` in that shares hold on average only (the count of a label in a batch is
    binomial), and that cells are drawn with replacement: a batch may hold a cell twice, and an epoch leaves many out.
    """

    about = "Drawn by WeightedRandomSampler of torch, cell by cell with replacement: shares hold on average only."

    def __init__(
        self,
        cells: CellTable,
        axes: Mapping[str, Axis] | None = None,
        batch_size: int = 256,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        num_batches: int | None = None,
        column: str | Sequence[str] = "condition",
        ratio: Mapping[Hashable, float] | None = None,
    ) -> None:
        require("baselines", "torch")
        refuse_axes(axes, "WeightedRandomSampler")
        if len(cells) > MOST_CELLS:
            raise ValueError(
                f"torch's WeightedRandomSampler draws from at most {MOST_CELLS:,} cells, and there are {len(cells):,}; "
                "use batch_sampler=default sampler=condition."
            )
        self.options = {"column": column, "ratio": ratio}
        shares = ConditionBalanced(ratio, column)
        labels = cells.column(column)
        self._weights = (shares.shares(labels) / labels.counts().clip(min=1))[labels.codes]
        super().__init__(
            cells, {"shares": shares}, batch_size, seed, rank, world_size, num_batches=whole_batches(num_batches)
        )

    @override
    def _epoch(self, key: int) -> np.ndarray:
        import torch  # here, since it takes seconds and a wrong option is told before
        from torch.utils.data import WeightedRandomSampler

        generator = torch.Generator()
        generator.manual_seed(key)
        n = self.num_batches * self.batch_size
        sampler = WeightedRandomSampler(torch.from_numpy(self._weights), n, generator=generator)  # type: ignore[arg-type]
        return np.fromiter(sampler, np.int64, n).reshape(self.num_batches, self.batch_size)
