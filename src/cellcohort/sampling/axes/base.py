"""What an axis is: one rule for what a batch holds.

There are four kinds, and a sampler composes any of them. A `GroupAxis` builds each batch around
one label of a column, a `ShareAxis` gives every label of a column its share of the batch, a
`WindowAxis` gathers part of the batch around one value of a number, and a `CapAxis` keeps the cells
of any one label few. Write a new axis by deriving
from the kind that fits; nothing else needs to know of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from inspect import signature
from typing import Any, Self

import numpy as np

from cellcohort.cells import CellTable, Column
from cellcohort.labels import by_label
from cellcohort.messages import listed, meant


class Axis(ABC):
    """One rule for what a batch holds, on one column (or several, jointly) of the cell table."""

    column: str | Sequence[str]

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns: one, or several that are looked at jointly."""
        return (self.column,) if isinstance(self.column, str) else tuple(self.column)

    @property
    def key(self) -> Any:
        """The column, or several as a tuple, by which is kept what was asked and measured."""
        return self.column if isinstance(self.column, str) else tuple(self.column)

    def check(self, cells: CellTable) -> None:
        """Check the axis against a table.

        Parameters
        ----------
        cells : CellTable
            The table to draw from.

        Raises
        ------
        ValueError
            The table cannot satisfy the axis at all.
        """
        cells.column(self.column)

    def changed(self, **knobs: Any) -> Self:
        """Return this axis with other values of some options.

        Parameters
        ----------
        **knobs
            Arguments of its class.

        Returns
        -------
        Axis

        Raises
        ------
        ValueError
            There is no such option, or a value is not allowed.
        """
        names, own = list(signature(type(self)).parameters), vars(self)
        unknown = [name for name in knobs if name not in names]
        if unknown:
            there = f"{meant(unknown, names)}There are: {listed(names)}."
            raise ValueError(f"{type(self).__name__} has no option {listed(unknown)}. {there}")
        return type(self)(**{name: own[name] if name in own else own[f"_{name}"] for name in names} | knobs)

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in vars(self).items() if not name.startswith("_"))
        return f"{type(self).__name__}({options})"


class GroupAxis(Axis):
    """Each batch is built around one label of the column, or around several.

    Attributes
    ----------
    leaky : float
        Share of every batch that comes from the other labels.
    n_primary : int
        Labels that a batch is built around, each with an equal block of it.
    """

    leaky: float
    n_primary: int = 1

    @abstractmethod
    def weights(self, column: Column) -> np.ndarray:
        """Return how often each label is the primary one.

        Parameters
        ----------
        column : Column
            The column of the axis.

        Returns
        -------
        numpy.ndarray of float, shape (n_labels,)
            Non-negative, on any scale.
        """


class ShareAxis(Axis):
    """Each label of the column has its share of every batch."""

    @abstractmethod
    def shares(self, column: Column) -> np.ndarray:
        """Return the share of the batch asked of each label.

        Parameters
        ----------
        column : Column
            The column of the axis.

        Returns
        -------
        numpy.ndarray of float, shape (n_labels,)
            Non-negative, on any scale.
        """


class WindowAxis(Axis):
    """Part of every batch lies within a window around one focal value of the column."""

    @property
    @abstractmethod
    def half_width(self) -> float:
        """The window holds the cells whose value is at most this far from the focal value."""

    @property
    @abstractmethod
    def inside(self) -> float:
        """Share of the batch drawn inside the window."""

    def check(self, cells: CellTable) -> None:
        """Raise ValueError where the table has no such numbers."""
        self.values(cells)

    @abstractmethod
    def values(self, cells: CellTable) -> np.ndarray:
        """Return the numbers of the cells.

        Parameters
        ----------
        cells : CellTable
            The table to draw from.

        Returns
        -------
        numpy.ndarray of float64, shape (n_cells,)
            NaN where missing.
        """


class CapAxis(Axis):
    """A batch holds at most so many cells of any one label of the column, where there are enough labels."""

    @property
    @abstractmethod
    def most(self) -> int:
        """Cells of one label that a batch may hold."""


def by_kind(
    cells: CellTable, axes: Mapping[str, Axis]
) -> tuple[GroupAxis | None, list[ShareAxis], WindowAxis | None, CapAxis | None]:
    """Check the axes against the table and sort them by kind; the order of their names decides, not of typing."""
    kinds: dict[type[Axis], list[Any]] = {GroupAxis: [], ShareAxis: [], WindowAxis: [], CapAxis: []}
    for name, axis in sorted(axes.items()):
        kind = next((kind for kind in kinds if isinstance(axis, kind)), None)
        if kind is None:
            raise ValueError(f"axes[{name!r}]={axis!r} is no axis; use one such as ExperimentAware().")
        axis.check(cells)
        kinds[kind].append(axis)
    several = "name several columns in one axis, column=[a, b]"
    for kind, remedy in ((GroupAxis, several), (WindowAxis, "drop one"), (CapAxis, several)):
        if len(kinds[kind]) > 1:
            both = " and ".join(map(repr, kinds[kind]))
            raise ValueError(f"{both} are both a {kind.__name__}, and a batch has room for one; {remedy}.")
    ruling = [*kinds[GroupAxis], *kinds[ShareAxis]]
    columns = [cells.column(axis.column).name for axis in ruling]
    if len(set(columns)) < len(columns):
        twice = next(name for name in columns if columns.count(name) > 1)
        raise ValueError(
            f"two axes rule one column, {twice!r}: {', '.join(map(repr, ruling))}. Drop one of them, or name another "
            "column (column)."
        )
    group, window, cap = (next(iter(kinds[kind]), None) for kind in (GroupAxis, WindowAxis, CapAxis))
    return group, kinds[ShareAxis], window, cap


def weights_by_label(
    option: str, given: Mapping[Hashable, float], column: Column, *, share_rest: bool = False
) -> np.ndarray:
    """Turn ``{label: weight}`` into weights in the order of the column's labels.

    Parameters
    ----------
    option : str
        Name of the option, for messages.
    given : dict of label to float
        Finite weights >= 0, not all 0.
    column : Column
        The column whose labels are weighted.
    share_rest : bool
        Allow labels that are not named: the weights are then shares of 1, and these labels get equal parts of what
        the named ones leave.

    Returns
    -------
    numpy.ndarray of float, shape (n_labels,)
        A label that no cell has gets 0.

    Raises
    ------
    ValueError
        A label without cells is named, one with cells is not (unless `share_rest`), or a weight is not allowed.
    """
    present = column.present()
    given, unknown = by_label(given, present)
    if unknown:
        raise ValueError(
            f"{option} names {listed(unknown, show=repr)}, which no cell has. {meant(unknown, present)}"
            f"The labels of {column.name!r} are {listed(present, show=repr)}; correct the name."
        )
    wrong = {label: w for label, w in given.items() if not (_is_number(w) and np.isfinite(w) and w >= 0)}
    if wrong:
        raise ValueError(f"{option} must be finite numbers >= 0, but found {wrong!r}; correct these.")
    rest = [label for label in present if label not in given]
    left = 1.0 - float(sum(given.values()))
    if rest and not share_rest:
        raise ValueError(
            f"{option} does not name {listed(rest, show=repr)}; the labels of {column.name!r} are "
            f"{listed(present, show=repr)}. Give every label a value; 0 leaves its cells out."
        )
    if rest and left <= 0:
        raise ValueError(
            f"{option} gives {1.0 - left:g} to {listed(list(given), show=repr)} and does not name "
            f"{listed(rest, show=repr)}. Give shares that sum to less than 1, and the labels that are not named have "
            "equal parts of the rest; or give every label a value."
        )
    every = {**dict.fromkeys(rest, left / max(len(rest), 1)), **given}
    weights = np.array([float(every.get(label, 0.0)) for label in column.labels])
    if not weights.any():
        raise ValueError(f"{option} are all 0, so there is no cell to draw; give at least one label a positive value.")
    return weights


def check_fraction(option: str, value: Any, *, one_allowed: bool, what: str = "a share of the batch") -> float:
    """Return `value` as float if it lies in [0, 1] (or [0, 1)), else raise ValueError."""
    if not (_is_number(value) and 0 <= value <= 1 and (one_allowed or value < 1)):
        allowed = "[0, 1]" if one_allowed else "[0, 1)"
        raise ValueError(f"{option} must be a number in {allowed}, {what}; got {value!r}.")
    return float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
