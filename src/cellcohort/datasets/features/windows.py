"""Windows of tracked features: the anchors, their positives in time, and the views of both."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from multiprocessing.context import get_spawning_popen
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from cellcohort.augment.features import LIGHT, Augment
from cellcohort.cells import TICKS, CellTable, checked_positions
from cellcohort.datasets.partners import PairRule, chosen
from cellcohort.datasets.positives import (
    UNIFORM,
    Clock,
    Positive,
    TauDraw,
    anchors,
    check_positive,
    ranges,
    rising_clock,
)
from cellcohort.datasets.protocol import Paired
from cellcohort.messages import listed, several, whole_number


class TrackWindows(Paired, Dataset[dict[str, Any]]):
    """Windows of the features of tracked cells, as anchors with a positive each.

    The anchor of a cell is the window of the last `frames` recorded frames of its track up to its
    own; a young track repeats its first frame at the front, and frames that were not recorded are
    skipped. The positive is the window at a later frame of the track, drawn among those recorded
    `tau_hours` later and never the anchor's own. Both are augmented, by draws of their own.

    Every draw is keyed by (seed, epoch, row of the whole table): a run repeats exactly whatever the
    workers and the batch, and a subset gives its cells the positives that they have in the whole.

    Parameters
    ----------
    cells : CellTable
        With hours and tracks, its rows in the order of tracks and, inside a track, of hours. Windows of one frame whose
        positives are views, or drawn by a rule, need none of these.
    features : numpy.ndarray of float32, shape (n_cells, n_features)
        In any unit; no missing values.
    names : sequence of str
        Names of the features.
    frames : int
        Frames in a window, K.
    tau_hours : (float, float)
        Least and greatest time from anchor to positive, in hours, both inclusive.
    positive : {"track_or_view", "track", "view"}
        "track_or_view" takes a second view of the anchor's own window where the track has no frame
        `tau_hours` later; "track" leaves such cells out of `cells`, so that they are no anchors;
        "view" always takes a second view, and needs no `tau_hours`.
    augment : Augment
        What makes two views of a window differ.
    seed : int
        Key of the positives and the views.
    whole : str
        Column of `cells` whose groups :func:`cellcohort.datasets.split.split` never cuts in two.
    pair_rule : PairRule, optional
        Draws positives among all cells of the dataset, or of its part of a split, instead of `positive`.
    how : TauDraw
        How the time to a later frame is drawn.

    Attributes
    ----------
    cells : CellTable
        The cells that can be anchors; positions 0..n-1 of the dataset.
    shape : (int, int)
        Features and frames of a window.
    views : None
        Batches come augmented.

    Raises
    ------
    ValueError
        An option is out of range, the table has no hours or tracks or is in another order, features
        are missing, or no cell at all has a positive `tau_hours` later.
    """

    views: None = None

    def __init__(
        self,
        cells: CellTable,
        features: np.ndarray,
        names: Sequence[str],
        frames: int = 6,
        tau_hours: Sequence[float] = (0.5, 2.0),
        positive: Positive = "track_or_view",
        augment: Augment = LIGHT,
        seed: int = 0,
        whole: str = "track",
        pair_rule: PairRule | None = None,
        how: TauDraw = UNIFORM,
    ) -> None:
        self.pair_rule = chosen(pair_rule)
        if self.pair_rule is not None:
            positive = "view"
        if self.pair_rule is None or self.pair_rule.missing == "view":
            _check_views(positive, augment)
        check_options(frames, tau_hours, positive, seed)
        if features.shape != (len(cells), len(names)) or not len(names):
            raise ValueError(
                f"features have shape {features.shape}; {len(cells)} cells and {len(names)} names need "
                f"({len(cells)}, {len(names)}), with at least one feature."
            )
        if (bad := ~np.isfinite(features).all(axis=1)).any():
            raise ValueError(
                f"features have missing or infinite values in {several(int(bad.sum()), 'row')} "
                f"(rows {listed(np.flatnonzero(bad), 10)}, counted from 0); fill or drop these rows."
            )
        if frames == 1 and positive == "view":  # whatever is before or after a row plays no part
            first = np.arange(len(cells))
            clock = Clock.of(first, np.zeros(len(cells)), tau_hours)
        else:
            clock, first = rising_clock(cells, tau_hours)
        rows = anchors(clock, first, tau_hours, positive)
        self.names, self.shape = tuple(names), (len(names), frames)
        self.positive, self.augment, self.seed, self.whole = positive, augment, seed, whole
        # tensors, because these are moved to shared memory when they are sent to a worker process
        self._features = torch.from_numpy(np.ascontiguousarray(features, np.float32))
        self._time, self._first = torch.from_numpy(clock.time), torch.from_numpy(first)
        self._apart, self._tau, self._how = clock.apart, clock.tau, how
        self._mean, self._spread = _moments(self._features.numpy())
        self._table: CellTable | None = cells
        self._cells: CellTable | None = cells if len(rows) == len(cells) else cells.take(rows)
        self._rows = torch.from_numpy(rows)

    @property
    def cells(self) -> CellTable:
        if self._cells is None:
            raise RuntimeError("a loader's worker process holds the features only; read `cells` in the main process.")
        return self._cells

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"TrackWindows({len(self):,} cells, {self.shape[0]} features x {self.shape[1]} frames)"

    def __getstate__(self) -> dict[str, Any]:
        """Without the table of cells where a process is being started: workers need features only."""
        if get_spawning_popen() is None:
            return self.__dict__.copy()
        return {**self.__dict__, "_partners": self.partners, "_cells": None, "_table": None}

    def subset(self, positions: np.ndarray) -> TrackWindows:
        """Return the dataset of some cells, which become positions 0..n-1.

        Windows and positives still come from the whole track, so keep tracks whole where that matters.
        """
        part = copy.copy(self)
        part._cells, part._partners = self.cells.take(positions), None
        whole = self._table is not None and self._table.rows is None
        part._rows = torch.from_numpy(part._cells.rows) if whole else self._rows[torch.as_tensor(positions)]
        return part

    def every_cell(self) -> TrackWindows:
        """Return the dataset of all cells of the table, those that can be no anchor among them, in its order."""
        if self._table is None:
            raise RuntimeError("a loader's worker process holds the features only; ask in the main process.")
        whole = copy.copy(self)
        whole._cells, whole._rows = self._table, torch.arange(len(self._table))
        whole.pair_rule = whole._partners = None
        return whole

    def statistics(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of every feature over the cells of this dataset, float32 (n_features,) each."""
        return _moments(self._features.numpy()[self._rows.numpy()])

    def recorded(self, positions: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the windows of some cells as recorded, without augmentation; float32 (n, n_features, n_frames)."""
        return self._windows(self._rows.numpy()[checked_positions(positions, len(self))])

    def __getitem__(self, position: int) -> dict[str, Any]:
        """One cell, as a batch of one."""
        return self.__getitems__([position])

    def __getitems__(self, positions: Sequence[int] | np.ndarray) -> dict[str, Any]:
        """Return the tensors of one batch.

        Parameters
        ----------
        positions : Batch or sequence of int
            A :class:`~cellcohort.sampling.batch.Batch` says its epoch and step; any other sequence
            stands for epoch 0, step 0.

        Returns
        -------
        dict
            "anchor" and "positive", float32 (n, n_features, n_frames); "meta", a dict of "position"
            (int64 (n,)), "epoch", "step" (int) and "tau_hours" (float32 (n,), NaN where the positive
            is a second view); where a rule pairs cells, also "partner" (int64 (n,)), the position of the positive.

        Raises
        ------
        IndexError, TypeError
            A position is not in 0..len-1, or not an integer.
        """
        epoch, step = getattr(positions, "epoch", 0), getattr(positions, "step", 0)
        position = checked_positions(positions, len(self))
        rows, clock = self._rows.numpy()[position], Clock(self._time.numpy(), self._apart, self._tau)
        meta: dict[str, Any] = {"position": torch.from_numpy(position), "epoch": epoch, "step": step}
        later, tau = rows, np.full(len(rows), np.nan, np.float32)
        if self.partners is not None:
            partner = self.partners.draw(position, rows, epoch)
            later, tau = self._rows.numpy()[partner], self.partners.hours_between(position, partner)
            meta["partner"] = torch.from_numpy(partner)
        elif self.positive != "view":
            start, stop = clock.later(clock.time[rows])
            owner, candidate = np.repeat(np.arange(len(rows)), stop - start), ranges(start, stop - start)
            ticks = clock.time[candidate] - clock.time[rows[owner]]
            later = self._how.draw(rows, owner, candidate, ticks, (self.seed, epoch, 0))
            tau = np.where(later > rows, (clock.time[later] - clock.time[rows]) / TICKS, np.nan).astype(np.float32)
        anchor, positive = (
            self.augment(self._windows(at), self._mean, self._spread, (self.seed, epoch, view), rows)
            for view, at in ((1, rows), (2, later))
        )
        meta["tau_hours"] = torch.from_numpy(tau)
        return {"anchor": torch.from_numpy(anchor), "positive": torch.from_numpy(positive), "meta": meta}

    def _windows(self, rows: np.ndarray) -> np.ndarray:
        back = rows[:, None] - np.arange(self.shape[1] - 1, -1, -1)
        recorded = np.maximum(back, self._first.numpy()[rows][:, None])
        return np.ascontiguousarray(self._features.numpy()[recorded].transpose(0, 2, 1))


def check_options(frames: int, tau_hours: Sequence[float], positive: str, seed: int) -> None:
    """Raise ValueError where an option of windows is out of range, or no choice."""
    if frames < 1:
        raise ValueError(f"frames={frames} leaves no frame in a window; use 1 or more.")
    whole_number("seed", seed, 0)
    check_positive(tau_hours, positive)


def _check_views(positive: str, augment: Augment) -> None:
    if not isinstance(augment, Augment):
        raise ValueError(f"augment={augment!r} is no Augment; leave data.augment as it is, and set its own options.")
    if positive != "track" and not augment.changes:
        raise ValueError(
            f"positive={positive!r} with noise, scaling and dropout all 0 would pair cells with themselves; "
            "turn one of them up, or use positive='track'."
        )


def _moments(features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean, std = features.mean(0, dtype=np.float64), features.std(0, dtype=np.float64)
    return mean.astype(np.float32), std.astype(np.float32)
