"""The shares of a column's labels in many batches: views of the counts that a `Meter` makes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from scipy import sparse

from cellcohort.cells import Column
from cellcohort.composition.metrics import label_texts

_MOST_PAIRS = 100_000  # of a primary label and a label, for which mean shares are given pair by pair


@dataclass(frozen=True)
class LabelShares:
    """The shares of a column's labels in batches. Arrays have one entry per label unless said otherwise.

    Attributes
    ----------
    title : str
        The column, as axes and roles call it.
    column : Column
    rule : {"group", "share"} or None
        Whether each batch has one primary label, each label has its share, or no axis governs the column.
    asked : numpy.ndarray or None
        Share asked over all batches of the training; None where no axis governs the column.
    asked_of : dict of int to numpy.ndarray
        Share asked in the batches of each primary label that some batch has; empty where no axis governs the column.
    counts : scipy.sparse.csr_array of int, shape (n_steps * world_size, n_labels)
        Cells in the batch of each rank, the ranks of a step in order.
    world_size : int
    joint : bool
        Whether a batch is the union over ranks (``scope="global"``).
    primary : numpy.ndarray of int, shape (n_batches,), or None
        Code of the primary label of each batch.
    n_groups : int
        Labels of the group axis.
    """

    title: str
    column: Column
    rule: Literal["group", "share"] | None
    asked: np.ndarray | None
    asked_of: dict[int, np.ndarray]
    counts: sparse.csr_array
    world_size: int
    joint: bool
    primary: np.ndarray | None
    n_groups: int

    @cached_property
    def names(self) -> list[str]:
        """The labels as texts that differ."""
        return label_texts(self.column.labels)

    @cached_property
    def cells(self) -> np.ndarray:
        """Cells of the table."""
        return self.column.counts()

    @cached_property
    def mean(self) -> np.ndarray:
        """Mean share of a batch."""
        return self.by_rank.mean(axis=0)

    @cached_property
    def least(self) -> np.ndarray:
        """Smallest share of a batch."""
        return self._batches.min(axis=0).toarray() / self._size

    @cached_property
    def most(self) -> np.ndarray:
        """Largest share of a batch."""
        return self._batches.max(axis=0).toarray() / self._size

    @cached_property
    def absent(self) -> np.ndarray:
        """Share of batches that hold no cell of the label."""
        held = np.bincount(self._batches.indices, minlength=self._batches.shape[1])
        return 1 - held / self._batches.shape[0]

    @cached_property
    def by_rank(self) -> np.ndarray:
        """Mean share in the batches of each rank, shape (world_size, n_labels)."""
        ranks = np.arange(self.counts.shape[0]) % self.world_size
        sums = _sum_rows(self.counts, ranks, self.world_size).toarray()
        return sums / sums.sum(axis=1, keepdims=True)

    @cached_property
    def by_primary(self) -> np.ndarray | None:
        """Mean share in the batches of each primary label, shape (n_groups, n_labels).

        NaN where no batch has that primary label. None without a group axis, or with too many labels.
        """
        if self.primary is None or not few_pairs(self.n_groups, self.column):
            return None
        sums = _sum_rows(self._batches, self.primary, self.n_groups).toarray()
        n_batches = np.bincount(self.primary, minlength=self.n_groups)[:, None] * self._size
        return np.divide(sums, n_batches, np.full(sums.shape, np.nan), where=n_batches > 0)

    @property
    def asked_by_primary(self) -> np.ndarray:
        """Share asked in the batches of each primary label, as `by_primary` gives the shares held."""
        asked = np.full((self.n_groups, len(self.column.labels)), np.nan)
        for primary, shares in self.asked_of.items():
            asked[primary] = shares
        return asked

    @cached_property
    def _batches(self) -> sparse.csr_array:
        if not self.joint:
            return self.counts
        n_steps = self.counts.shape[0] // self.world_size
        return _sum_rows(self.counts, np.repeat(np.arange(n_steps), self.world_size), n_steps)

    @property
    def _size(self) -> int:
        """Cells of a batch."""
        return int(self._batches[[0]].sum())


def few_pairs(n_groups: int, column: Column) -> bool:
    """Whether mean shares are given for each pair of a primary label and a label of the column."""
    return n_groups * len(column.labels) <= _MOST_PAIRS


def _sum_rows(counts: sparse.csr_array, group: np.ndarray, n_groups: int) -> sparse.csr_array:
    """Return sums of the rows of each group, shape (n_groups, n_labels)."""
    n = len(group)
    return sparse.csr_array((np.ones(n, np.int64), (group, np.arange(n))), (n_groups, n)) @ counts
