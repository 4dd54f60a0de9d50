"""What share axes ask of each label of their columns, and which cells may be drawn."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cellcohort.cells import CellTable, Column
from cellcohort.sampling.axes.base import GroupAxis, ShareAxis


class LabelShares(NamedTuple):
    """What a share axis asks of each label of its column.

    Attributes
    ----------
    column : Column
    share : numpy.ndarray of float, shape (n_labels,)
        Share of a batch.
    group : numpy.ndarray of int, shape (n_labels,), or None
        The group that each label lies in, if the column of the groups is part of `column`. A batch then cannot hold
        labels of other groups, save by leaks, and is not asked to.
    """

    column: Column
    share: np.ndarray
    group: np.ndarray | None

    @classmethod
    def of(cls, column: Column, share: np.ndarray, groups: Column | None) -> LabelShares:
        """Bring shares to a sum of 1, and look up the groups of labels where they are part of `column`."""
        if abs(share.sum() - 1) > 1e-9:
            share = share / share.sum()
        if groups is None:
            return cls(column, share, None)
        of: np.ndarray = np.zeros(len(share), np.int64)
        of[column.codes] = groups.codes
        return cls(column, share, of)

    def within(self, primary: int) -> np.ndarray:
        """Share of each label in the cells of a batch that come from its primary group."""
        return self.share if self.group is None else _scaled(np.where(self.group == primary, self.share, 0.0))

    def in_batch(self, primary: np.ndarray, leaky: float) -> np.ndarray:
        """Share of each label in a batch with these primary groups."""
        if self.group is None:
            return self.share
        others = _scaled(np.where(np.isin(self.group, primary), 0.0, self.share))
        own = sum(self.within(int(group)) for group in primary) / len(primary)
        return (1 - leaky * others.sum()) * own + leaky * others


def shares_and_cells(
    cells: CellTable, group: GroupAxis | None, shares: list[ShareAxis], places: int
) -> tuple[Column | None, np.ndarray, list[LabelShares], np.ndarray | None]:
    """Return the column of groups, their weights, what is asked of labels, and which cells may be drawn (None: all)."""
    column = cells.column(group.column) if group else None
    weights = group.weights(column) if group and column else np.ones(1)
    requested = [
        LabelShares.of(of, axis.shares(of), column if group and {*group.columns} <= {*axis.columns} else None)
        for axis in shares
        for of in [cells.column(axis.column)]
    ]
    drawable: np.ndarray | None = None
    for part, share in ([(column, weights)] if column else []) + [(one.column, one.share) for one in requested]:
        if not share[part.counts() > 0].all():
            some = (share > 0)[part.codes]
            drawable = some if drawable is None else drawable & some
    n = len(cells) if drawable is None else int(np.count_nonzero(drawable))
    if places > n:
        raise ValueError(
            f"a batch of {places} cells is larger than the number of cells that may be drawn, "
            f"{n} of {len(cells)}; use batch_sampler.batch_size={max(n, 1)} or less (with "
            "scope=global that of all ranks together)."
        )
    return column, weights, requested, drawable


def _scaled(share: np.ndarray) -> np.ndarray:
    return share / share.sum() if share.any() else share
