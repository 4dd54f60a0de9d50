"""What share axes ask of each label of their columns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cellcohort.cells import Column


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


def _scaled(share: np.ndarray) -> np.ndarray:
    return share / share.sum() if share.any() else share
