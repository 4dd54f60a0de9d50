"""Which cells of tracks can be anchors, and where their positives lie; no features are needed for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal, NamedTuple, get_args

import numpy as np

from cellcohort.cells import TICKS, CellTable
from cellcohort.datasets.protocol import LabelledCells
from cellcohort.messages import several
from cellcohort.sampling.rng import key_of, uniform

Positive = Literal["track_or_view", "track", "view"]
Tau = Literal["uniform", "exponential", "fixed"]
DECAY_HOURS = 2.0


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


@dataclass(frozen=True)
class TauDraw:
    """How the time from an anchor to its positive is drawn, among the times at which there are possible positives.

    Attributes
    ----------
    tau : {"uniform", "exponential", "fixed"}
        Each time alike; longer times less often; or always the shortest.
    decay_hours : float, optional
        With ``tau="exponential"``: a time longer by this much is drawn 1/e times as often. None stands for 2 hours.

    Raises
    ------
    ValueError
        An option is no choice, out of range, or would be ignored.
    """

    tau: Tau = "uniform"
    decay_hours: float | None = None

    def __post_init__(self) -> None:
        if self.tau not in get_args(Tau):
            raise ValueError(f"tau={self.tau!r} is not a choice; use one of {', '.join(get_args(Tau))}.")
        if self.decay_hours is None:
            return
        if self.tau != "exponential":
            raise ValueError(
                f"tau={self.tau!r} takes no tau_decay_hours, which is {self.decay_hours}; leave it null, or set "
                "data.tau=exponential."
            )
        if not isfinite(self.decay_hours) or self.decay_hours <= 0:
            raise ValueError(f"tau_decay_hours={self.decay_hours} must be a number of hours above 0.")

    def draw(
        self, rows: np.ndarray, owner: np.ndarray, candidate: np.ndarray, ticks: np.ndarray, key: tuple[int, ...]
    ) -> np.ndarray:
        """Draw one of its candidates for each row: first a time, then one of the candidates at that time, evenly.

        A draw depends on `key`, the row and its candidates alone.

        Parameters
        ----------
        rows : numpy.ndarray of int, shape (n,)
        owner, candidate, ticks : numpy.ndarray of int, shape (m,)
            ``candidate[i]`` may be the positive of ``rows[owner[i]]``, and is so many ticks later.
        key : tuple of int

        Returns
        -------
        numpy.ndarray of int, shape (n,)
            Rows without a candidate stay as they are.
        """
        if not len(owner):
            return rows
        order = np.lexsort((candidate, ticks, owner))
        owner, candidate, ticks = owner[order], candidate[order], ticks[order]
        first = np.searchsorted(owner, np.arange(len(rows)))
        last = np.searchsorted(owner, np.arange(len(rows)), "right") - 1
        least = ticks[first[owner]]  # of each owner, lest all of its weights vanish
        weight = self._weights(ticks - least) / _n_alike(owner, ticks)
        total = np.cumsum(weight)
        before = np.r_[0.0, total]
        target = before[first] + uniform(key_of(*key), rows.astype(np.uint64)) * (before[last + 1] - before[first])
        chosen = np.clip(np.searchsorted(total, target, "right"), first, np.maximum(last, first))
        return np.where(last >= first, candidate[np.minimum(chosen, len(candidate) - 1)], rows)

    def _weights(self, longer: np.ndarray) -> np.ndarray:
        """Weights of times that are so many ticks longer than the shortest."""
        if self.tau == "fixed":
            return (longer == 0).astype(float)
        if self.tau == "uniform":
            return np.ones(len(longer))
        return np.exp(-longer / ((self.decay_hours or DECAY_HOURS) * TICKS))


UNIFORM = TauDraw()


def ranges(start: np.ndarray, n: np.ndarray) -> np.ndarray:
    """Return the numbers start..start+n-1 of every range, one after the other."""
    return np.repeat(start - np.cumsum(n) + n, n) + np.arange(n.sum())


def _n_alike(owner: np.ndarray, ticks: np.ndarray) -> np.ndarray:
    """How many candidates of the same owner are at the same time as each; both are sorted."""
    run = np.cumsum(np.r_[0, (np.diff(owner) != 0) | (np.diff(ticks) != 0)])
    return np.bincount(run)[run]


class Clock(NamedTuple):
    """Times of cells on one line, on which tracks lie end to end and further apart than any positive.

    Attributes
    ----------
    time : numpy.ndarray of int64, shape (n_cells,)
        In ticks, of which there are `TICKS` an hour. Track `g` begins at ``g * apart``.
    apart : int
    tau : (int, int)
        Least and greatest time from a cell to its positive, in ticks. A time of 0 is none.
    """

    time: np.ndarray
    apart: int
    tau: tuple[int, int]

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """All that it holds, as :meth:`from_arrays` takes it."""
        return self.time, np.array([self.apart, *self.tau])

    @classmethod
    def from_arrays(cls, time: np.ndarray, numbers: np.ndarray) -> Clock:
        """Return the clock of some arrays."""
        apart, low, high = numbers.tolist()
        return cls(time, apart, (low, high))

    @classmethod
    def of(cls, track: np.ndarray, hours: np.ndarray, tau_hours: Sequence[float]) -> Clock:
        """Lay the cells of tracks, or of any other groups, end to end.

        Parameters
        ----------
        track : numpy.ndarray of int, shape (n_cells,)
            Numbers from 0.
        hours : numpy.ndarray of float, shape (n_cells,)
        tau_hours : (float, float)
            Least and greatest time from a cell to its positive, both inclusive.

        Raises
        ------
        ValueError
            Hours are missing, or too far apart to be told by 64-bit integers.
        """
        if missing := int(np.isnan(hours).sum()):
            raise ValueError(f"hours are missing in {several(missing, 'row')}; fill or drop these rows.")
        begin, end = hours.min(), hours.max()
        if not (2 * (end - begin) * TICKS + 20) * (int(track.max()) + 1) < 2**62:
            raise ValueError(
                f"the hours of the cells reach from {begin:g} to {end:g}, which is too far apart; correct them, or for "
                "images start_hours and interval_minutes of the experiments."
            )
        ticks = np.rint((hours - begin) * TICKS).astype(np.int64)
        beyond = int(ticks.max()) + 2  # no cell is so much later than another
        low, high = (round(min(float(tau) * TICKS, beyond)) for tau in tau_hours)
        low, high = max(low - 1, 1), high + 1  # ticks are rounded, by less than one either way
        apart = beyond + high + 10
        return cls(track * np.int64(apart) + ticks, apart, (low, high))

    def later(self, now: np.ndarray, among: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Find the cells of a track that are as much later as a positive is.

        Parameters
        ----------
        now : numpy.ndarray of int64, shape (n,)
            Times on the line, such as ``time[rows]``.
        among : numpy.ndarray of int64, optional
            Rising times to search in; by default those of all cells, which must then rise.

        Returns
        -------
        start, stop : numpy.ndarray of int, shape (n,)
            Those found are ``among[start:stop]``; equal where there is none.
        """
        times = self.time if among is None else among
        start = np.searchsorted(times, now + self.tau[0])
        return start, np.maximum(start, np.searchsorted(times, now + self.tau[1], "right"))


def rising_clock(cells: CellTable, tau_hours: Sequence[float]) -> tuple[Clock, np.ndarray]:
    """Return the clock of a table in the order of tracks and hours, and the first row of the track of every row.

    Raises
    ------
    ValueError
        The table has no hours or tracks, hours are missing, or rows are in another order.
    """
    if cells.hours is None or not cells.has("track"):
        raise ValueError("windows need the hours and the track of every cell; name both columns of the table.")
    hours, codes = cells.hours, cells.column("track").codes

    def made() -> list[np.ndarray]:
        starts = np.concatenate([[True], codes[1:] != codes[:-1]])
        falls = ~starts[1:] & (np.diff(hours) <= 0)
        if starts.sum() != len(np.unique(codes)) or falls.any():
            raise ValueError(
                "rows are not in the order of track and hours, with one row per time; sort the table first."
            )
        first = np.maximum.accumulate(np.where(starts, np.arange(len(cells)), 0))
        return [first, *Clock.of(np.cumsum(starts) - 1, hours, tau_hours).arrays()]

    first, *clock = cells.files.of("rising clock", list(tau_hours)).arrays(made)
    return Clock.from_arrays(*clock), first


def anchors(clock: Clock, first: np.ndarray, tau_hours: Sequence[float], positive: Positive) -> np.ndarray:
    """Return the rows that can be anchors, ascending.

    Raises
    ------
    ValueError
        No cell at all has a positive `tau_hours` later.
    """
    rows = np.arange(len(first))
    if positive == "view":
        return rows
    start, stop = clock.later(clock.time)
    if not (stop > start).any():
        steps = np.diff(clock.time)[first[1:] < rows[1:]] / TICKS
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
    labelled = LabelledCells(cells if len(rows) == len(cells) else cells.take(rows), whole)
    labelled.later_hours, labelled.n_without_positive = tau_hours, len(cells) - len(rows)
    return labelled
