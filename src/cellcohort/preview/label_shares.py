"""How the labels of a column share the places of many batches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from cellcohort.cells import Column
from cellcohort.preview.describe import names

_MOST_PAIRS = 100_000  # of labels, for which each label is counted by the label that leads


@dataclass(frozen=True)
class Held:
    """The shares of a column's labels in batches. Arrays have one entry per label unless said otherwise.

    Attributes
    ----------
    title : str
        The column as axes and roles call it.
    column : Column
    rule : {"group", "share"} or None
        Whether batches are built around one label, each label has its share, or no axis looks at it.
    cells : numpy.ndarray of int
        Cells of the table.
    asked : numpy.ndarray or None
        Mean share asked; None where no axis looks at the column.
    mean, least, most : numpy.ndarray
        Mean, smallest and largest share held by a batch.
    absent : numpy.ndarray
        Share of batches that hold no cell of the label.
    by_rank : numpy.ndarray, shape (world_size, n_labels)
        Mean share in the batches of each rank.
    by_leader : numpy.ndarray, shape (n_groups, n_labels), or None
        Mean share in the batches that are built around each label of the group axis; NaN where there
        are none.
    """

    title: str
    column: Column
    rule: Literal["group", "share"] | None
    cells: np.ndarray
    asked: np.ndarray | None
    mean: np.ndarray
    least: np.ndarray
    most: np.ndarray
    absent: np.ndarray
    by_rank: np.ndarray
    by_leader: np.ndarray | None

    @cached_property
    def names(self) -> list[str]:
        """The labels as texts that differ."""
        return names(self.column)


class Sums:
    """Sums, least and most of the cells per label of one column."""

    def __init__(self, column: Column, n_ranks: int, n_groups: int) -> None:
        n = len(column.labels)
        self._column, self._asked = column, np.zeros(n)
        self._sum, self._absent = np.zeros((n_ranks, n)), np.zeros(n)
        self._least, self._most = np.full(n, np.inf), np.zeros(n)
        self._n_led = np.zeros(n_groups)
        self._led = np.zeros((n_groups, n)) if 0 < n_groups * n <= _MOST_PAIRS else None

    def add(
        self, batches: np.ndarray, by_rank: np.ndarray, leaders: np.ndarray | None, asked: np.ndarray | None
    ) -> None:
        counts = _count(self._column, batches)
        shares = counts / batches.shape[1]
        self._least, self._most = np.minimum(self._least, shares.min(0)), np.maximum(self._most, shares.max(0))
        self._absent += (counts == 0).sum(axis=0)
        for rank in range(by_rank.shape[1]):
            self._sum[rank] += np.bincount(self._column.codes[by_rank[:, rank].ravel()], minlength=len(self._most))
        if leaders is not None:
            np.add.at(self._n_led, leaders, 1)
            if self._led is not None:
                np.add.at(self._led, leaders, shares)
        if asked is not None:
            self._asked += asked

    def held(self, title: str, rule: Literal["group", "share"] | None, n_batches: int) -> Held:
        """What so many batches held."""
        by_rank = self._sum / self._sum.sum(axis=1, keepdims=True)
        led = None
        if self._led is not None:
            led = np.divide(
                self._led, self._n_led[:, None], np.full_like(self._led, np.nan), where=self._n_led[:, None] > 0
            )
        return Held(
            title, self._column, rule, self._column.counts(), self._asked / n_batches if rule else None,
            by_rank.mean(axis=0), self._least, self._most, self._absent / n_batches, by_rank, led,
        )  # fmt: skip


def _count(column: Column, batches: np.ndarray) -> np.ndarray:
    """Cells per batch and label, shape (n_batches, n_labels)."""
    n, width = len(batches), len(column.labels)
    code = column.codes[batches] + np.arange(0, n * width, width)[:, None]
    return np.bincount(code.ravel(), minlength=n * width).reshape(n, width)
