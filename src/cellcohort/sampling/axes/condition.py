"""Every condition has its share of every batch."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import override

import numpy as np

from cellcohort.cells import CellTable, Column
from cellcohort.sampling.axes.base import ShareAxis, weights_by_label


class ConditionBalanced(ShareAxis):
    """Give every condition its share of the batch, so that a rare one is in every batch.

    Parameters
    ----------
    ratio : None or dict of label to float
        Share of each condition, on any scale; None gives all the same. Ratio 0 leaves the cells
        of a condition out altogether. Where some conditions are not named, the numbers are shares of
        the batch, and the others have equal parts of the rest: ``{"DMSO": 0.3}``.
    column : str or list of str
        The column (or columns, jointly) to balance.

    Raises
    ------
    ValueError
        `ratio` is no mapping, or (by the sampler) does not fit the labels of the table.

    Notes
    -----
    Where the cells that a batch may come from lack a condition, or have fewer than its share, the
    other conditions take the places over in proportion to their ratio.
    """

    def __init__(
        self, ratio: Mapping[Hashable, float] | None = None, column: str | Sequence[str] = "condition"
    ) -> None:
        if not (ratio is None or isinstance(ratio, Mapping)):
            raise ValueError(f"ratio={ratio!r} is not a choice; use None or {{condition: share}}.")
        self.ratio, self.column = ratio, column

    @override
    def check(self, cells: CellTable) -> None:
        """Raise ValueError where the column or a named label is not there."""
        self.shares(cells.column(self.column))

    @override
    def shares(self, column: Column) -> np.ndarray:
        """Share of the batch asked of each condition, shape (n_labels,), summing to 1."""
        if self.ratio is None:
            shares = (column.counts() > 0).astype(float)
        else:
            shares = weights_by_label("ratio", self.ratio, column, share_rest=True)
        return shares / shares.sum()
