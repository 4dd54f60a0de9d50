"""Positives by labels and time: which cells may be the partner of which, and the draw of one of them.

A partner has the labels of the anchor in some columns, other labels in others, and is so many hours away. Cells are
sorted once by the labels that a pair shares and by time, so that the candidates of an anchor are one or two slices.
Those of them that a differing column rules out are counted by binary search, for every column and (to count none of
them twice) for every set of columns; a second binary search finds the candidate that was drawn. The time of a draw
grows with the logarithm of the number of cells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import inf, isfinite
from multiprocessing.context import get_spawning_popen
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from cellcohort.augment.features import draws
from cellcohort.cells import TICKS, CellTable, Name, names_of
from cellcohort.messages import joined, whole_number
from cellcohort.mothers import refuse_mothers_as_groups

MissingPartner = Literal["view", "leave_out"]


@dataclass(frozen=True)
class PairRule:
    """Which cells may be pairs; it takes the place of the pairs that a source of data makes by itself.

    Attributes
    ----------
    same : str or sequence of str, optional
        Columns in which a positive has the labels of its anchor, such as "condition".
    different : str or sequence of str, optional
        Columns in each of which it has another label, such as "experiment".
    hours_at_most, hours_at_least : float, optional
        The greatest and the least time between the two, both inclusive, whichever comes first.
    missing : {"view", "leave_out"}
        What a cell does that has no partner in its part of the split: it is paired with a second view of itself, or
        the split leaves it out.
    seed : int
        Key of the draws.

    Raises
    ------
    ValueError
        An option is out of range, or a column is both in `same` and in `different`.
    """

    same: Name | None = None
    different: Name | None = None
    hours_at_most: float | None = None
    hours_at_least: float | None = None
    missing: MissingPartner = "view"
    seed: int = 0

    def __post_init__(self) -> None:
        if both := set(names_of([self.same])) & set(names_of([self.different])):
            raise ValueError(
                f"pairs.same and pairs.different both name {joined(sorted(both))}, so no two cells would be a pair; "
                "leave it out of one of them."
            )
        if self.missing not in get_args(MissingPartner):
            raise ValueError(
                f"pairs.missing={self.missing!r} is not a choice; use {' or '.join(get_args(MissingPartner))}."
            )
        for name in ("hours_at_most", "hours_at_least"):
            hours = getattr(self, name)
            if hours is not None and not (isfinite(hours) and hours >= 0):
                raise ValueError(f"pairs.{name}={hours} must be a number of hours >= 0, or null.")
        if (self.hours_at_least or 0) > (inf if self.hours_at_most is None else self.hours_at_most):
            raise ValueError(
                f"pairs.hours_at_least={self.hours_at_least} is above pairs.hours_at_most={self.hours_at_most}, so no "
                "two cells would be a pair; exchange them."
            )
        whole_number("pairs.seed", self.seed, 0)

    @property
    def chosen(self) -> bool:
        """Whether it rules anything; if not, pairs are those of the source."""
        return bool(self.columns) or self.timed

    @property
    def columns(self) -> list[str]:
        """The columns that it names."""
        return names_of([self.same, self.different])

    @property
    def timed(self) -> bool:
        """Whether it limits the time between the two cells of a pair."""
        return self.hours_at_most is not None or self.hours_at_least is not None

    def __str__(self) -> str:
        parts = []
        if same := names_of([self.same]):
            parts.append(f"the same {joined(same)}")
        if different := names_of([self.different]):
            parts.append(f"another {joined(different)}")
        least, most = self.hours_at_least, self.hours_at_most
        if least is not None and most is not None:
            parts.append(f"{least:g} to {most:g} hours between them")
        elif self.timed:
            parts.append(f"{f'at most {most:g}' if least is None else f'at least {least:g}'} hours between them")
        return joined(parts)


def chosen(rule: PairRule | None) -> PairRule | None:
    """Return a rule, or None where it rules nothing."""
    return rule if rule is not None and rule.chosen else None


def pushed_apart(together: Sequence[str], objective: Mapping[str, Any]) -> str:
    """Say if an objective pushes apart cells that pairs pull together.

    Parameters
    ----------
    together : sequence of str
        Columns; cells with equal labels in all of them may be pairs.
    objective : mapping
        Its node of a config. One with a key ``exclude`` takes other cells as negatives.

    Returns
    -------
    str
        A sentence, and what to do about it; empty where the objective does not.
    """
    spared, same = set(names_of([objective.get("exclude")])), names_of([objective.get("same")])
    if not together or "exclude" not in objective or spared & set(together) or (same and set(same) <= set(together)):
        return ""
    columns = ",".join(together)
    return (
        f"cells of the same {joined(list(together))} are pulled together as pairs, and pushed apart as negatives where "
        f"they are of two pairs of one batch; set objective.exclude=[{columns}], or use objective=supcon "
        f"objective.same=[{columns}], or an objective without negatives (vicreg, barlow_twins)."
    )


class _Sorted(NamedTuple):
    """Some cells in the order of the labels that a pair shares, and of time.

    Attributes
    ----------
    cells : numpy.ndarray of int32, shape (n,)
        Positions of the cells; "place" below is one in this array.
    key : numpy.ndarray of int64, shape (n,)
        Group and time of every cell, rising.
    ruled_out : tuple of numpy.ndarray of int64, shape (n,)
        For every set of differing columns ``label * n + place`` of every cell, rising.
    """

    cells: np.ndarray
    key: np.ndarray
    ruled_out: tuple[np.ndarray, ...]


class Partners:
    """Draws the partners of cells.

    Parameters
    ----------
    cells : CellTable
        The cells of one part of a split; partners are among them.
    rule : PairRule

    Raises
    ------
    ValueError
        The table has no such column, or no hours where the rule limits time.
    """

    def __init__(self, cells: CellTable, rule: PairRule) -> None:
        if rule.timed and cells.hours is None:
            raise ValueError(
                "pairs.hours_at_most and pairs.hours_at_least need the time of every cell; name its column with "
                "data.columns.hours, in code CellTable.from_frame(..., hours=...), or set both to null, in code None."
            )
        n = len(cells)
        self.seed, self.hours = rule.seed, cells.hours
        group = _codes(cells, rule.same, "pairs.same")
        refuse_mothers_as_groups("pairs.same", cells, rule.same)
        different = _needed([_codes(cells, name, "pairs.different") for name in names_of([rule.different])])
        different = different or [np.arange(n)]  # at least another cell
        self._group = group.astype(np.int32)
        self._labels: list[np.ndarray] = []  # for every set of differing columns, their labels jointly
        self._signs: list[int] = []  # what is in two of them is counted once
        for size in range(1, len(different) + 1):
            for some in combinations(different, size):
                self._labels.append(_jointly([group, *some]).astype(np.int32))
                self._signs.append(1 if size % 2 else -1)
        ticks = np.zeros(n, np.int64)
        if rule.timed and cells.hours is not None:
            there = ~np.isnan(cells.hours)
            ticks[~there] = -1  # a cell without a time has no partner
            hours = cells.hours[there]
            ticks[there] = np.rint((hours - hours.min(initial=np.inf)) * TICKS).astype(np.int64)
        self._times, time = np.unique(ticks, return_inverse=True)
        self._time = time.ravel().astype(np.int32)
        beyond = int(self._times[-1]) + 1  # more than any two times are apart
        least, most = rule.hours_at_least or 0.0, inf if rule.hours_at_most is None else rule.hours_at_most
        # the clock rounds, by less than one tick either way
        self._least = max(round(min(least * TICKS, beyond + 1)) - 1, 0)
        self._most = round(min(most * TICKS, beyond)) + 1

    @cached_property
    def _every(self) -> _Sorted:
        return self._sorted(np.arange(len(self._group)))

    def _sorted(self, among: np.ndarray) -> _Sorted:
        among = np.sort(among[self._times[self._time[among]] >= 0])
        key = self._group[among].astype(np.int64) * len(self._times) + self._time[among]
        order, n = np.argsort(key, kind="stable"), len(among)
        cells = among[order].astype(np.int32)
        ruled_out = tuple(np.sort(labels[cells].astype(np.int64) * n + np.arange(n)) for labels in self._labels)
        return _Sorted(cells, key[order], ruled_out)

    def counts(self, positions: np.ndarray, among: np.ndarray | None = None) -> np.ndarray:
        """Count the possible partners of some cells, int64 (n,), among all cells or among some."""
        there = self._every if among is None else self._sorted(among)
        before, after = (self._allowed(positions, *slices, there) for slices in self._slices(positions, there))
        return before + after

    def draw(self, positions: np.ndarray, rows: np.ndarray, epoch: int, among: np.ndarray | None = None) -> np.ndarray:
        """Draw a partner of each cell, evenly, or the cell itself where there is none.

        Parameters
        ----------
        positions : numpy.ndarray of int64, shape (n,)
        rows : numpy.ndarray of int, shape (n,)
            Row of the whole table of each; a draw depends on the seed, the epoch, the row and its possible partners.
        epoch : int
        among : numpy.ndarray of int64, optional
            The cells that a partner can be, such as those in memory; by default all.

        Returns
        -------
        numpy.ndarray of int64, shape (n,)
        """
        there = self._every if among is None else self._sorted(among)
        before, after = self._slices(positions, there)
        n_before, n_after = (self._allowed(positions, *slices, there) for slices in (before, after))
        number = (draws((self.seed, epoch, 0), rows, 1)[:, 0] * (n_before + n_after)).astype(np.int64)
        late = number >= n_before
        start, stop = (np.where(late, a, b) for a, b in zip(after, before, strict=True))
        number -= np.where(late, n_before, 0)
        low, high = start.copy(), np.maximum(stop - 1, start)  # the least place up to which there are enough
        while (low < high).any():
            middle = (low + high) // 2
            enough = self._allowed(positions, start, middle + 1, there) > number
            low, high = np.where(enough, low, np.minimum(middle + 1, high)), np.where(enough, middle, high)
        if not len(there.cells):
            return positions
        return np.where(n_before + n_after > 0, there.cells[np.minimum(low, len(there.cells) - 1)], positions)

    def hours_between(self, positions: np.ndarray, partners: np.ndarray) -> np.ndarray:
        """Hours from each cell to its partner, float32; NaN where that is the cell itself, or a time is not known."""
        if self.hours is None:
            return np.full(len(positions), np.nan, np.float32)
        apart = self.hours[partners] - self.hours[positions]
        return np.where(partners == positions, np.nan, apart).astype(np.float32)

    def _slices(self, positions: np.ndarray, there: _Sorted) -> list[tuple[np.ndarray, np.ndarray]]:
        """First and past-the-last place of the candidates before and after some cells; of all together, no limits."""
        first = self._group[positions].astype(np.int64) * len(self._times)
        now = self._times[self._time[positions]]

        def place(ticks: np.ndarray, side: Literal["left", "right"]) -> np.ndarray:
            return np.searchsorted(there.key, first + np.searchsorted(self._times, ticks, side))

        begin, end = place(np.maximum(now - self._most, 0), "left"), place(now + self._most, "right")
        if self._least:
            slices = [(begin, place(np.maximum(now - self._least, -1), "right"))]
            slices.append((place(now + self._least, "left"), end))
        else:
            slices = [(begin, end), (end, end)]
        return [(start, np.where(now < 0, start, np.maximum(start, stop))) for start, stop in slices]

    def _allowed(self, positions: np.ndarray, start: np.ndarray, stop: np.ndarray, there: _Sorted) -> np.ndarray:
        """Count the cells of a slice of candidates that no differing column rules out."""
        found, n = stop - start, len(there.cells)
        for labels, sign, ruled_out in zip(self._labels, self._signs, there.ruled_out, strict=True):
            of = labels[positions].astype(np.int64) * n
            found = found - sign * (np.searchsorted(ruled_out, of + stop) - np.searchsorted(ruled_out, of + start))
        return found

    def __getstate__(self) -> dict[str, Any]:
        """With arrays as tensors where a process is being started, since these go through shared memory."""
        if get_spawning_popen() is None:
            return self.__dict__.copy()
        _ = self._every  # sorted once, for all processes
        return {name: _tensors(value) for name, value in self.__dict__.items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = {name: _arrays(value) for name, value in state.items()}


def _codes(cells: CellTable, name: Name | None, option: str) -> np.ndarray:
    """Return the labels in a column, or in several jointly, as numbers from 0."""
    if not names_of([name]):
        return np.zeros(len(cells), np.int64)
    try:
        return cells.column(names_of([name])).codes.astype(np.int64)
    except ValueError as error:
        raise ValueError(f"{option}={name!r}: {error}") from error


def _needed(columns: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Leave out columns in which labels differ wherever they do in another, as wells do in two plates."""
    kept: list[np.ndarray] = []
    for column in sorted(columns, key=lambda codes: len(np.unique(codes))):
        n = len(np.unique(column))
        if all(len(np.unique(_jointly([coarse, column]))) > n for coarse in kept):
            kept.append(column)
    return kept


def _jointly(columns: Sequence[np.ndarray]) -> np.ndarray:
    """Return the number of the combination of labels of each cell, from 0."""
    code = columns[0]
    for column in columns[1:]:
        code = np.unique(code * (column.max() + 1) + column, return_inverse=True)[1].astype(np.int64).ravel()
    return code


def _tensors(value: Any) -> Any:
    import torch  # here, since labels need no torch

    if isinstance(value, _Sorted):
        return _Sorted(*map(_tensors, value))
    if isinstance(value, (list, tuple)):
        return type(value)(map(_tensors, value))
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def _arrays(value: Any) -> Any:
    if isinstance(value, _Sorted):
        return _Sorted(*map(_arrays, value))
    if isinstance(value, (list, tuple)):
        return type(value)(map(_arrays, value))
    return value.numpy() if hasattr(value, "numpy") else value
