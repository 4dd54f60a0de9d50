"""Which cells of tracks can be anchors, and where their positives lie; no features are needed for it."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Literal, get_args

import numpy as np

from cellcohort.cells import CellTable
from cellcohort.datasets.protocol import LabelledCells
from cellcohort.messages import several

Positive = Literal["track_or_view", "track", "view"]
TICKS = 1_000_000  # per hour, of the clock that tells times apart
ANY_LATER = 1e6  # hours; a greater tau means no other cells, and its ticks might not fit into an integer


def check_positive(tau_hours: Sequence[float], positive: str) -> None:
    """Raise ValueError where one of the two is no choice."""
    if positive not in get_args(Positive):
        raise ValueError(f"positive={positive!r} is not a choice; use one of {', '.join(get_args(Positive))}.")
    check_tau_hours(tau_hours)


def check_tau_hours(tau_hours: Sequence[float]) -> None:
    """Raise ValueError where these are not a least and a greatest time."""
    if len(tau_hours) != 2 or not all(map(isfinite, tau_hours)) or not 0 <= tau_hours[0] <= tau_hours[1] > 0:
        raise ValueError(
            f"tau_hours={list(tau_hours)} must be two times in hours, 0 <= least <= greatest and greatest above 0, "
            "such as [0.5, 2.0]."
        )


def tau_ticks(tau_hours: Sequence[float]) -> tuple[int, int]:
    """Least and greatest time in ticks, 1 at least: the clock rounds, by less than one tick either way."""
    low, high = (min(float(tau), ANY_LATER) for tau in tau_hours)
    return max(round(low * TICKS) - 1, 1), round(high * TICKS) + 1


def rising_clock(cells: CellTable, tau_hours: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Return a time of every row that rises along the whole table, and the first row of its track.

    Tracks follow each other by more than the greatest `tau_hours`, so one binary search finds later
    frames of a track.

    Raises
    ------
    ValueError
        The table has no hours or tracks, hours are missing, or rows are in another order.
    """
    if cells.hours is None or not cells.has("track"):
        raise ValueError("windows need the hours and the track of every cell; name both columns of the table.")
    if np.isnan(cells.hours).any():
        raise ValueError(
            f"hours are missing in {several(int(np.isnan(cells.hours).sum()), 'row')}; fill or drop these rows."
        )
    codes = cells.column("track").codes
    starts = np.concatenate([[True], codes[1:] != codes[:-1]])
    falls = ~starts[1:] & (np.diff(cells.hours) <= 0)
    if starts.sum() != len(np.unique(codes)) or falls.any():
        raise ValueError("rows are not in the order of track and hours, with one row per time; sort the table first.")
    ticks = np.rint((cells.hours - cells.hours.min()) * TICKS).astype(np.int64)
    apart = int(ticks.max()) + tau_ticks(tau_hours)[1] + 10
    first = np.maximum.accumulate(np.where(starts, np.arange(len(cells)), 0))
    return ticks + (np.cumsum(starts) - 1) * apart, first


def later_rows(clock: np.ndarray, rows: np.ndarray, tau_hours: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """First and past-the-last row of the possible positives of some rows; equal where there is none."""
    low, high = tau_ticks(tau_hours)
    start = np.searchsorted(clock, clock[rows] + low, "left")
    stop = np.searchsorted(clock, clock[rows] + high, "right")
    return start, np.maximum(start, stop)


def anchors(clock: np.ndarray, first: np.ndarray, tau_hours: Sequence[float], positive: Positive) -> np.ndarray:
    """Return the rows that can be anchors, ascending.

    Raises
    ------
    ValueError
        No cell at all has a positive `tau_hours` later.
    """
    rows = np.arange(len(clock))
    if positive == "view":
        return rows
    start, stop = later_rows(clock, rows, tau_hours)
    if not (stop > start).any():
        steps = np.diff(clock)[first[1:] < rows[1:]] / TICKS
        apart = f"{np.median(steps):g} hours apart" if len(steps) else "one to a track"
        raise ValueError(
            f"no cell has a frame of its track {tau_hours[0]:g} to {tau_hours[1]:g} hours later (tau_hours); "
            f"frames are {apart}. Widen tau_hours, or use positive='view'."
        )
    return np.flatnonzero(stop > start) if positive == "track" else rows


def anchor_cells(
    cells: CellTable, tau_hours: Sequence[float], positive: Positive, whole: str = "track"
) -> LabelledCells:
    """Return the anchors of a table, as :class:`~cellcohort.datasets.features.windows.TrackWindows` has them.

    Parameters
    ----------
    cells, tau_hours, positive, whole
        As for :class:`~cellcohort.datasets.features.windows.TrackWindows`.
    """
    check_positive(tau_hours, positive)
    if positive == "view":
        return LabelledCells(cells, whole)
    rows = anchors(*rising_clock(cells, tau_hours), tau_hours, positive)
    return LabelledCells(cells if len(rows) == len(cells) else cells.take(rows), whole)
