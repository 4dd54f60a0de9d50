"""Which cells can be the positive of which, and the draw of one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch

from cellcohort.augment.features import draws
from cellcohort.cells import TICKS, CellTable
from cellcohort.datasets.positives import Clock, TauDraw, check_tau_hours, ranges

Positive = Literal["lineage", "columns", "self"]
PositiveChannel = Literal["same", "any", "other"]


def check_positive(positive: str, tau_hours: Sequence[float], positive_columns: Sequence[str]) -> None:
    """Raise ValueError where an option of the positives is no choice, or would be ignored."""
    if positive not in get_args(Positive):
        raise ValueError(f"positive={positive!r} is not a choice; use one of {', '.join(get_args(Positive))}.")
    if (positive == "columns") != bool(positive_columns):
        raise ValueError(
            f"positive={positive!r} with positive_columns={list(positive_columns)}: list columns with "
            "positive='columns', and none without."
        )
    check_tau_hours(tau_hours)


def check_positive_channel(positive_channel: str, channels: str, positive: str) -> None:
    """Raise ValueError where the channel of positives is no choice, or would be ignored."""
    if positive_channel not in get_args(PositiveChannel):
        raise ValueError(
            f"positive_channel={positive_channel!r} is not a choice; use one of {', '.join(get_args(PositiveChannel))}."
        )
    if positive_channel == "same":
        return
    if channels != "each":
        raise ValueError(
            f"positive_channel={positive_channel!r} needs samples of one channel: set data.channels=each, or leave it "
            "out."
        )
    if positive == "columns" and positive_channel == "other":
        raise ValueError(
            "positive_channel='other' does not go with positive='columns'; use pairs.same=[...] "
            "pairs.different=[channel] instead, or positive_channel=any."
        )


class Kin(NamedTuple):
    """The lines of each line's cell: its track as it is seen in every channel.

    Attributes
    ----------
    first : numpy.ndarray of int64, shape (n_lines + 1,)
    line : numpy.ndarray of int64
        Those of line `i` are ``line[first[i]:first[i + 1]]``.
    """

    first: np.ndarray
    line: np.ndarray

    @classmethod
    def of(cls, track: np.ndarray, itself: bool) -> Kin:
        """Find the lines with the same track.

        Parameters
        ----------
        track : numpy.ndarray of int, shape (n_lines,)
            Number of the track that each line is one channel of; -1 for lines without a cell, which are left out.
        itself : bool
            Whether a line is among its own.
        """
        order = np.argsort(track, kind="stable")
        order = order[track[order] >= 0]
        begin, end = (np.searchsorted(track[order], track, side) for side in ("left", "right"))
        n = np.where(track < 0, 0, end - begin)
        owner, line = np.repeat(np.arange(len(track)), n), order[ranges(begin, n)]
        kept = itself | (line != owner)
        return cls(np.r_[0, np.cumsum(np.bincount(owner[kept], minlength=len(track)))], line[kept])


class Lineages:
    """Later cells of the same track, or of the tracks that descend from it.

    Arrays are held as tensors, which go to worker processes through shared memory.

    Parameters
    ----------
    track : numpy.ndarray of int, shape (n_cells,)
        Number of the track of every row, rising; rows of a track are in the order of time.
    hours : numpy.ndarray of float, shape (n_cells,)
    mother : numpy.ndarray of int, shape (n_tracks,)
        Track that each track came from, -1 for none.
    tau_hours : (float, float)
        Least and greatest time from anchor to positive, both inclusive; a time of 0 is never one.
    how : TauDraw
        How the time is drawn.
    kin : Kin, optional
        Where each track is there once for every channel: those in which its positives are, with their descendants.
        By default the track itself.
    """

    def __init__(
        self,
        track: np.ndarray,
        hours: np.ndarray,
        mother: np.ndarray,
        tau_hours: Sequence[float],
        how: TauDraw,
        kin: Kin | None = None,
    ) -> None:
        clock = Clock.of(track, hours, tau_hours)
        self._apart, self._tau, self._tau_hours = clock.apart, clock.tau, tau_hours
        self._how = how
        order = np.argsort(mother, kind="stable")
        counts = np.bincount(mother[mother >= 0], minlength=len(mother))
        self._time, self._track = torch.from_numpy(clock.time), torch.from_numpy(track.astype(np.int64))
        self._daughters = torch.from_numpy(order[len(mother) - counts.sum() :])
        self._first = torch.from_numpy(np.r_[0, np.cumsum(counts)])
        self._kin = None if kin is None else tuple(map(torch.from_numpy, kin))

    def segments(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Where the possible positives of some rows lie.

        Returns
        -------
        owner, start, stop : numpy.ndarray of int
            The rows start..stop-1 are possible positives of ``rows[owner]``, one segment per track.
        """
        clock = Clock(self._time.numpy(), self._apart, self._tau)
        first, daughters = self._first.numpy(), self._daughters.numpy()
        owner, track, now = np.arange(len(rows)), self._track.numpy()[rows], self._hours_in_ticks(rows)
        if self._kin is not None:
            begin, kin = (values.numpy() for values in self._kin)
            n = begin[track + 1] - begin[track]
            owner, track = np.repeat(owner, n), kin[ranges(begin[track], n)]
        found = [(owner[:0],) * 3]
        while len(owner):
            start, stop = clock.later(track * clock.apart + now[owner])
            some = stop > start
            found.append((owner[some], start[some], stop[some]))
            n = first[track + 1] - first[track]
            owner, track = np.repeat(owner, n), daughters[ranges(first[track], n)]
            begin = clock.time[np.minimum(np.searchsorted(clock.time, track * clock.apart), len(clock.time) - 1)]
            near = begin - track * clock.apart <= now[owner] + clock.tau[1]  # else its own daughters are later still
            owner, track = owner[near], track[near]
        return tuple(np.concatenate(parts) for parts in zip(*found, strict=True))  # type: ignore[return-value]

    def anchors(self) -> np.ndarray:
        """Rows that have a positive, ascending."""
        some = np.zeros(len(self._track), bool)
        some[self.segments(np.arange(len(self._track)))[0]] = True
        return np.flatnonzero(some)

    def draw(self, rows: np.ndarray, key: tuple[int, ...]) -> np.ndarray:
        """Return a positive of each row, or the row itself where it has none.

        The time is drawn among those at which there is a cell, then one of the cells at that time, evenly. A draw
        depends on `key` and the row alone.
        """
        owner, start, stop = self.segments(rows)
        row, owner = ranges(start, stop - start), np.repeat(owner, stop - start)
        ticks = self._hours_in_ticks(row) - self._hours_in_ticks(rows)[owner]
        return self._how.draw(rows, owner, row, ticks, key)

    def lacking(self) -> str:
        """Return what no cell has, if :meth:`anchors` finds none."""
        steps = np.diff(self._time.numpy())[np.diff(self._track.numpy()) == 0] / TICKS
        apart = f"{np.median(steps):g} hours apart" if len(steps) else "one to a track"
        return (
            f"a cell of its lineage {self._tau_hours[0]:g} to {self._tau_hours[1]:g} hours later (data.tau_hours); "
            f"frames are {apart}. Widen data.tau_hours, or use data.positive=self."
        )

    def hours_between(self, rows: np.ndarray, later: np.ndarray) -> np.ndarray:
        """Time from some rows to others, in hours."""
        return (self._hours_in_ticks(later) - self._hours_in_ticks(rows)) / TICKS

    def _hours_in_ticks(self, rows: np.ndarray) -> np.ndarray:
        return self._time.numpy()[rows] - self._track.numpy()[rows] * self._apart


class Equals:
    """Other cells with the same label.

    Parameters
    ----------
    codes : numpy.ndarray of int, shape (n_cells,)
        Label of every cell.
    itself : bool
        Whether a cell may be drawn for itself.
    """

    def __init__(self, codes: np.ndarray, itself: bool = False) -> None:
        self._itself = itself
        codes = codes.astype(np.int64)
        order = np.argsort(codes, kind="stable")
        place = np.empty(len(codes), np.int64)
        place[order] = np.arange(len(codes))
        self._codes, self._order, self._place = (torch.from_numpy(values) for values in (codes, order, place))
        self._first = torch.from_numpy(np.r_[0, np.cumsum(np.bincount(codes))])

    def anchors(self) -> np.ndarray:
        """Positions that have a positive, ascending."""
        return np.flatnonzero(np.diff(self._first.numpy())[self._codes.numpy()] > 1 - self._itself)

    def draw(self, positions: np.ndarray, rows: np.ndarray, key: tuple[int, ...]) -> np.ndarray:
        """For each position, another with the same label; keyed by `key` and the rows they stand for."""
        first, codes = self._first.numpy(), self._codes.numpy()[positions]
        n, least = first[codes + 1] - first[codes], 1 - self._itself
        step = least + (draws(key, rows, 1)[:, 0] * (n - least)).astype(np.int64)
        place = self._place.numpy()[positions] - first[codes]
        return self._order.numpy()[first[codes] + (place + step) % n]


def anchor_rows(
    cells: CellTable,
    positive: Positive,
    positive_columns: Sequence[str],
    lineages: Lineages | None,
    itself: bool = False,
) -> np.ndarray:
    """Return the rows that can be anchors, ascending.

    Raises
    ------
    ValueError
        No cell at all has a positive.
    """
    if positive == "self":
        return np.arange(len(cells))
    if positive == "columns":
        rows = Equals(cells.column(list(positive_columns)).codes, itself).anchors()
        lacking = f"another cell with equal {', '.join(positive_columns)}; name other data.positive_columns."
    else:
        if lineages is None:
            raise ValueError("positive='lineage' needs the lineages of the cells.")
        rows, lacking = lineages.anchors(), lineages.lacking()
    if not len(rows):
        raise ValueError(f"no cell has {lacking}")
    return rows
