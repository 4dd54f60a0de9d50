"""Cells of a store as anchors with a positive each, to be read in chunks."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from cellcohort.augment._crop import middle, seen
from cellcohort.cells import CellTable, Name, checked_positions
from cellcohort.datasets.partners import PairRule, chosen
from cellcohort.datasets.protocol import Paired, Views
from cellcohort.datasets.stored.pairs import Pairs
from cellcohort.datasets.stored.store import Store

STATISTICS_CELLS = 65536  # over which means and standard deviations are taken, where there are more
AT_ONCE = 8192  # rows read at a time for them


class StoredCells(Paired):
    """Cells of a store, which a :class:`~cellcohort.loading.chunks.ChunkedLoader` reads in runs of rows.

    It also gives batches of any cells, as other datasets do, by reading the rows of each; that is some
    ten times slower.

    Parameters
    ----------
    store : Store
    cells : CellTable
        One row per row of the store, in its order.
    whole : str
        Column of `cells` whose groups :func:`cellcohort.datasets.split.split` never cuts in two.
    views : callable, optional
        ``views(inputs, key)`` makes the views where the model is.
    pairs : Pairs, optional
        Draws positives among the cells that are in memory together; without, a cell is its own.
    pair_rule : PairRule, optional
        Draws them among those of the dataset, or of its part of a split, that are in memory together, instead of
        `pairs`.

    Raises
    ------
    ValueError
        Cells would be paired with themselves, without a view that could differ.
    """

    def __init__(
        self,
        store: Store,
        cells: CellTable,
        whole: Name,
        views: Views | None = None,
        pairs: Pairs | None = None,
        pair_rule: PairRule | None = None,
    ) -> None:
        if views is None or not getattr(views, "changes", True):
            raise ValueError(
                "cells without a positive of their own are paired with themselves, and no augmentation would make "
                "the two differ; turn up one of the options of data.augment."
            )
        self.store, self.whole, self.views, self.shape = store, whole, views, seen(store.shape, views)
        self.pair_rule = chosen(pair_rule)
        self._pairs, self._table, self._cells = (pairs if self.pair_rule is None else None), cells, cells

    @property
    def cells(self) -> CellTable:
        return self._cells

    @property
    def rows(self) -> np.ndarray:
        """Row of the store of every cell, int64 (n_cells,)."""
        return np.arange(len(self)) if self._cells.rows is None else self._cells.rows

    def __len__(self) -> int:
        return len(self._cells)

    def __repr__(self) -> str:
        return f"StoredCells({len(self):,} cells of shape {self.shape} in {self.store.path})"

    def subset(self, positions: np.ndarray) -> StoredCells:
        """Return the dataset of some cells, which become positions 0..n-1; chunks are read whole all the same."""
        part = copy.copy(self)
        part._cells, part._partners = self._cells.take(np.asarray(positions)), None
        return part

    def every_cell(self) -> StoredCells:
        """Return the dataset of all cells of the store, in its order."""
        whole = copy.copy(self)
        whole._cells, whole.pair_rule, whole._partners = self._table, None, None
        return whole

    def statistics(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of every feature or channel, float32 (shape[0],) each.

        Over the cells of this dataset; of more than 65,536, over so many in runs that are spread evenly.
        """
        rows, run = self.rows, self.store.chunk_rows
        if len(rows) > STATISTICS_CELLS:
            run = min(run, STATISTICS_CELLS)
            chosen = np.unique(np.linspace(0, len(rows) // run - 1, STATISTICS_CELLS // run).astype(int))
            rows = rows[(chosen[:, None] * run + np.arange(run)).ravel()]
        found = StandardScaler()
        for some in np.array_split(rows, -(-len(rows) // AT_ONCE)):
            values = self.store.take(some).reshape(len(some), self.shape[0], -1).astype(np.float64)
            found.partial_fit(values.swapaxes(1, 2).reshape(-1, self.shape[0]))
        return found.mean_.astype(np.float32), np.sqrt(found.var_).astype(np.float32)

    def recorded(self, positions: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the inputs of some cells as recorded, float32 (n, *shape); of larger patches the middle."""
        inputs = self.store.take(self.rows[checked_positions(positions, len(self))])
        return inputs if self.shape == self.store.shape else np.ascontiguousarray(middle(inputs, self.shape[2:]))

    @property
    def paired(self) -> bool:
        """Whether a positive can be another cell."""
        return self._pairs is not None or self.pair_rule is not None

    def positives(self, rows: np.ndarray, among: np.ndarray | None, epoch: int) -> np.ndarray:
        """Row of the positive of each row, drawn among the rows that are in memory; its own where there is none.

        Parameters
        ----------
        rows : numpy.ndarray of int, shape (n,)
            Rows of the store, of cells of this dataset.
        among : numpy.ndarray of int, optional
            The rows in memory, those of other cells among them; by default all.
        epoch : int
        """
        if self._pairs is not None:
            return self._pairs.draw(rows, np.arange(len(self._table)) if among is None else among, epoch)
        if self.partners is None:
            return rows
        if among is not None:
            there = np.minimum(np.searchsorted(self.rows, among), len(self) - 1)
            among = there[self.rows[there] == among]
        return self.rows[self.partners.draw(self._positions(rows), rows, epoch, among)]

    def _positions(self, rows: np.ndarray) -> np.ndarray:
        return rows if self._cells.rows is None else np.searchsorted(self._cells.rows, rows)

    def batch(self, rows: np.ndarray, later: np.ndarray, inputs: Tensor, epoch: int, step: int) -> dict[str, Any]:
        """Return a batch of what was read.

        Parameters
        ----------
        rows, later : numpy.ndarray of int, shape (n,)
            Rows of the store of the anchors and of their positives.
        inputs : torch.Tensor, shape (n or 2 n, *shape)
            Of the anchors, and behind them, where some positive is another cell, of the positives.

        Returns
        -------
        dict
            "anchor" and "positive", float32 (n, *shape); "meta", a dict of "position" (int64 (n,)),
            "epoch" and "step" (int), and where positives are other cells "tau_hours" (float32 (n,), NaN
            for those that are not) and "second_views" (int), how many are not; where a rule pairs cells, also
            "partner" (int64 (n,)), the position of the positive.
        """
        position = self._positions(rows)
        inputs = inputs.to(torch.float32)
        if not self.store.manifest and not inputs.isfinite().all():  # a preparation has seen to it
            raise ValueError(
                f"{self.store.path}: a batch has inputs that are missing or infinite. Fill or drop them, or prepare "
                "the store with scripts/prepare.py, which says where they are."
            )
        meta: dict[str, Any] = {"position": torch.from_numpy(position), "epoch": epoch, "step": step}
        if not self.paired:
            return {"anchor": inputs, "positive": inputs, "meta": meta}
        if self._pairs is not None:
            tau_hours = self._pairs.hours_between(rows, later)
        elif self.partners is not None:
            partner = self._positions(later)
            tau_hours, meta["partner"] = self.partners.hours_between(position, partner), torch.from_numpy(partner)
        meta |= {"tau_hours": torch.from_numpy(tau_hours), "second_views": int((later == rows).sum())}
        anchor, positive = inputs.split(len(rows))
        return {"anchor": anchor, "positive": positive, "meta": meta}

    def __getitems__(self, positions: Sequence[int] | np.ndarray) -> dict[str, Any]:
        """Return a batch of any cells, as :meth:`batch` describes it; a positive may be any cell of the store."""
        epoch, step = getattr(positions, "epoch", 0), getattr(positions, "step", 0)
        rows = self.rows[checked_positions(positions, len(self))]
        later = self.positives(rows, None, epoch)
        wanted = np.concatenate([rows, later]) if self.paired else rows
        return self.batch(rows, later, torch.from_numpy(self.store.take(wanted)), epoch, step)
