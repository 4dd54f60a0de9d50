"""Knobs of axes that change from epoch to epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from cellcohort.cells import CellTable
from cellcohort.coded_columns import count
from cellcohort.messages import listed, meant, whole_number
from cellcohort.sampling.axes.base import Axis, by_kind
from cellcohort.sampling.batch import Asked
from cellcohort.sampling.drawing.row_picker import RowPicker
from cellcohort.sampling.kept import Kept
from cellcohort.sampling.planning.label_shares import shares_and_cells
from cellcohort.sampling.planning.plan import Plan
from cellcohort.sampling.planning.primary_sets import check_blocks

INTEGERS = (int, "int", "PositiveInt", "NonNegativeInt")  # annotations of options
_KEPT = 2  # settings whose index is kept: that of the epoch in use, and that of the one loaded ahead


class Schedule:
    """Values of knobs by epoch.

    Parameters
    ----------
    given : dict of str to (sequence or dict)
        For each knob, ``<axis>.<knob>`` or ``sampler.<axis>.<knob>``, its value in epoch 0, 1, 2, ..., of which the
        last one stays; or ``{"from": a, "to": b, "epochs": n}``, evenly from a in epoch 0 to b in epoch n - 1, rounded
        where the knob is an integer.
    axes : dict of str to Axis
        The axes that have the knobs.

    Attributes
    ----------
    values : dict of str to tuple
        The values of each knob ``<axis>.<knob>``, epoch by epoch.
    n_epochs : int
        Epochs after which nothing changes.

    Raises
    ------
    ValueError
        There is no such axis or knob, the knob cannot change, or a value is not allowed.
    """

    def __init__(self, given: Mapping[str, Any], axes: Mapping[str, Axis]) -> None:
        self._axes = dict(axes)
        self.values: dict[str, tuple[Any, ...]] = {}
        for key, value in given.items():
            name = str(key).removeprefix("sampler.")
            if name in self.values:
                raise ValueError(f"schedule gives {name} twice, as {name} and sampler.{name}; leave one of them out.")
            axis, _, knob = name.rpartition(".")
            if axis not in axes:
                there = f"{meant([axis], list(axes))}There are: {listed(axes) or 'none'}."
                raise ValueError(f"schedule changes {name}, but there is no axis {axis!r}. {there}")
            if knob == "column":
                raise ValueError(f"schedule changes {name}, but an axis has one column in all epochs; leave it out.")
            option = signature(type(axes[axis])).parameters.get(knob)
            self.values[name] = _values(key, value, whole=option is not None and option.annotation in INTEGERS)
        self.n_epochs = max((len(values) for values in self.values.values()), default=1)
        for epoch in range(self.n_epochs):
            self.axes(epoch)

    def setting(self, epoch: int) -> tuple[tuple[str, Any], ...]:
        """Return the value of each knob in an epoch."""
        return tuple((key, values[min(epoch, len(values) - 1)]) for key, values in self.values.items())

    def axes(self, epoch: int) -> dict[str, Axis]:
        """Return the axes of an epoch."""
        axes = dict(self._axes)
        for key, value in self.setting(epoch):
            axis, _, knob = key.rpartition(".")
            axes[axis] = axes[axis].changed(**{knob: value})
        return axes

    def lines(self) -> list[str]:
        """Say what each knob is, in a sentence each."""
        texts = {
            key: listed((f"{value:.4g}" if isinstance(value, float) else value for value in values), 6)
            for key, values in self.values.items()
        }
        return [f"{key} is {text} from epoch 0 on, and then stays." for key, text in texts.items()]

    def __repr__(self) -> str:
        return repr({key: list(values) for key, values in self.values.items()})


class ScheduledPicker:
    """Choose the cells of each batch by the axes of its epoch.

    Parameters
    ----------
    schedule : Schedule
    cells : CellTable
    places, seed : int
        Cells of a batch, and key of all randomness.
    index_cache : path, optional
        As for `Plan`.

    Attributes
    ----------
    plan : Plan
        That of epoch 0.
    warnings : tuple of str
        What the table cannot give as asked, in the first epoch and after the last change.
    """

    def __init__(
        self, schedule: Schedule, cells: CellTable, places: int, seed: int, index_cache: str | Path | None = None
    ) -> None:
        self._schedule = schedule
        self._cells, self._places, self._seed, self._index_cache = cells, places, seed, index_cache
        for epoch in range(1, schedule.n_epochs - 1):  # cheaper than a plan of each
            refuse_axes(cells, schedule.axes(epoch), places)
        last, first = self._make(schedule.n_epochs - 1), self._make(0)
        self._pickers = Kept[RowPicker](_KEPT)
        self._pickers.get(schedule.setting(0), lambda: first)
        self.plan = first.plan
        self.warnings = tuple(dict.fromkeys((*first.warnings, *last.warnings)))

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return sum(picker.nbytes for _, picker in self._pickers.items)

    def pick(self, epoch: int, number: int) -> np.ndarray:
        """Return the positions of a batch, int64 of shape (places,)."""
        return self._of(epoch).pick(epoch, number)

    def asked(self, epoch: int, number: int) -> Asked:
        """Return what the axes ask of a batch."""
        return self._of(epoch).asked(epoch, number)

    def _make(self, epoch: int) -> RowPicker:
        axes = self._schedule.axes(epoch)
        return RowPicker(Plan(self._cells, axes, self._places, self._seed, self._index_cache))

    def _of(self, epoch: int) -> RowPicker:
        return self._pickers.get(self._schedule.setting(epoch), lambda: self._make(epoch))


def refuse_axes(cells: CellTable, axes: Mapping[str, Axis], places: int) -> None:
    """Raise ValueError for axes that a `Plan` of them would refuse, without the time and the memory of one."""
    group, shares, _, _ = by_kind(cells, axes)
    column, _, _, drawable = shares_and_cells(cells, group, shares, places)
    if group is not None and column is not None and group.n_primary > 1:
        cells_of = column.counts() if drawable is None else count(column.codes[drawable], len(column.labels))
        check_blocks(column, cells_of, group, places)


def _values(key: str, given: Any, whole: bool) -> tuple[Any, ...]:
    if isinstance(given, Mapping) and set(given) == {"from", "to", "epochs"}:
        n = whole_number(f"epochs of schedule {key}", given["epochs"], 2)
        ends = given["from"], given["to"]
        if not all(isinstance(end, (int, float)) and not isinstance(end, bool) for end in ends):
            raise ValueError(f"schedule goes from {ends[0]!r} to {ends[1]!r} in {key}; both must be numbers.")
        if whole and all(float(end).is_integer() for end in ends):
            return tuple(int(value) for value in np.linspace(*ends, n).round())
        return tuple(float(value) for value in np.linspace(*ends, n).round(12))
    if isinstance(given, Sequence) and not isinstance(given, str) and len(given):
        return tuple(given)
    raise ValueError(
        f"schedule of {key} must be a list of values, one per epoch, or {{from: a, to: b, epochs: n}}; got {given!r}."
    )
