"""The validated cell index: one row per cell, label columns coded once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from cellcohort.coded_columns import Column, code_labels, count, joint_column, of_one_experiment
from cellcohort.mapped_arrays import NO_FILES, ArrayFiles
from cellcohort.messages import listed, meant, several
from cellcohort.missing_values import MISSING_LABEL, Missing, in_other_columns, refuse_missing, said_words

TICKS = 1_000_000  # per hour, of the clock that tells times apart
Name = str | Sequence[str]  # of a column, or of several that are a key jointly


class DefaultName(str):
    """A name that nobody gave: where the table has no such column, there is none."""


class CellTable:
    """The validated index of cells that every other part of cellcohort works on.

    A cell is known by its position 0..N-1, the order of the rows it was made from; the index of
    the DataFrame plays no part. Make one with :meth:`from_frame`.

    Attributes
    ----------
    hours : numpy.ndarray of float, shape (n_cells,), or None
    rows : numpy.ndarray of int, shape (n_cells,), or None
        Row of each cell in the table that this one was first taken from; None for that table itself.
    chunk_rows : int or None
        Rows of that table that are stored together, where it is one of a store.
    keys : tuple of str
        Columns by which a cell is found again in its source, beside its labels and hours.
    files : ArrayFiles
        Where the arrays are that are made of this table.
    """

    chunk_rows: int | None = None
    keys: tuple[str, ...] = ()
    files: ArrayFiles = NO_FILES

    def __init__(
        self,
        frame: pd.DataFrame,
        roles: dict[str, Name],
        columns: dict[str, Column],
        hours: np.ndarray | None,
        missing: Missing,
        rows: np.ndarray | None = None,
    ) -> None:
        self._frame, self._roles, self._columns, self._missing = frame, roles, columns, missing
        self.hours, self.rows = hours, rows
        self._places: np.ndarray | None = None  # in the frame, of which this table may have some cells only

    @classmethod
    def from_frame(
        cls,
        frame: pd.DataFrame,
        experiment: Name | None = DefaultName("experiment"),  # noqa: B008  # a constant
        condition: Name | None = DefaultName("condition"),  # noqa: B008
        hours: str | None = DefaultName("hours_post_infection"),
        track: Name | None = None,
        missing: Missing = "error",
    ) -> CellTable:
        """Validate a table with one row per cell.

        Parameters
        ----------
        frame : pandas.DataFrame
            One row per cell. Object, categorical, nullable and Arrow columns are equivalent.
        experiment, condition, track : str, list of str or None
            Names of the label columns; None where the table has none, and several that tell labels apart
            jointly. A track is of one experiment: tracks of the same label in two experiments are two, and the labels
            of the column "track" are then those of both, as tuples.
        hours : str or None
            Name of the numeric column of times, in hours.
        missing : {"error", "label"}
            What a missing value does: "error" refuses the table and gives the count per column;
            "label" makes missing experiments and conditions a label of their own, named "missing", and leaves
            missing hours out of every time window. Tracks may have none, since cells without one are not one track.

        Raises
        ------
        ValueError
            A named column is not there, has missing values, or hours are not finite numbers. A column of a
            default name need not be there.
        """
        _check_frame(frame)
        given = {"experiment": experiment, "condition": condition, "track": track, "hours": hours}
        for role, name in given.items():
            _check_name(role, name)
        named: dict[str, Name] = {
            role: name if isinstance(name, str) else list(name)
            for role, name in given.items()
            if name is not None and not (isinstance(name, DefaultName) and name not in frame.columns)
        }
        for role, name in named.items():
            for part in names_of([name]):
                _require(frame, role, part)
        needed = names_of([named.get("track"), named.get("hours") if missing == "error" else None])
        labels = names_of([named.get("experiment"), named.get("condition")])
        refuse_missing(frame, needed, labels, missing, "CellTable.from_frame(..., missing='label')")
        roles = {role: name for role, name in named.items() if role != "hours"}
        hours_of = _hours(frame[str(named["hours"])]) if "hours" in named else None
        return cls.of_validated(frame, roles, hours_of, missing, NO_FILES)

    @classmethod
    def of_validated(
        cls,
        frame: pd.DataFrame,
        roles: dict[str, Name],
        hours: np.ndarray | None,
        missing: Missing,
        files: ArrayFiles,
    ) -> CellTable:
        """Return the table of a frame that :meth:`from_frame` has validated."""
        table = cls(frame, roles, {}, hours, missing)
        table.files = files
        table._columns |= {role: table.column(name) for role, name in roles.items()}
        if {"experiment", "track"} <= set(roles):
            table._columns["track"] = of_one_experiment(table.column("track"), table.column("experiment"), files)
        return table

    def __len__(self) -> int:
        return len(self._frame if self._places is None else self._places)

    def __repr__(self) -> str:
        parts = [f"{len(column.present())} x {role}" for role, column in self._columns.items() if role in self._roles]
        if self.hours is not None:
            parts.append(f"{np.nanmin(self.hours):g} to {np.nanmax(self.hours):g} hours")
        return f"CellTable({len(self):,} cells: {', '.join(parts)})"

    @property
    def frame(self) -> pd.DataFrame:
        """The columns of all cells, one row each."""
        return self._frame if self._places is None else self._frame.iloc[self._places]

    @property
    def roles(self) -> dict[str, Name]:
        """Columns by role: "experiment", "condition" and "track", those that there are."""
        return dict(self._roles)

    @property
    def missing(self) -> Missing:
        """What a missing value does, as :meth:`from_frame` was told."""
        return self._missing

    @property
    def column_names(self) -> list[str]:
        """Names of all columns of the table."""
        return list(map(str, self._frame.columns))

    @property
    def in_channels(self) -> bool:
        """Whether a row is a cell in one of its channels, so that a cell can have several rows at one time.

        Such a table has the columns "channel" and "marker", what the channel shows.
        """
        return {"channel", "marker"} <= set(self._frame.columns)

    def has(self, name: str) -> bool:
        """Whether `name` is a role ("experiment", "condition", "track") or a column of this table."""
        return name in self._roles or name in self._frame.columns

    def column(self, name: str | Sequence[str]) -> Column:
        """Return the coded column of a role, of any column of the table, or of several jointly.

        Parameters
        ----------
        name : str or sequence of str
            A role ("experiment", "condition", "track"), a column name, or several of them; the
            labels of a joint column are tuples, so no separator can make two labels collide.

        Raises
        ------
        ValueError
            The table has no such column, or it has missing values.
        """
        if not isinstance(name, str):
            return joint_column([self.column(part) for part in name], self.files)
        if name not in self._columns:
            if not self.has(name):
                raise ValueError(self._unknown(name))
            words = said_words(self._frame.attrs.get("words", {}).get(name, {}))  # those that a text file had
            files = self.files.of("column", name, self._missing)
            values = _only(self._frame, name)
            others = partial(in_other_columns, self._frame, [name])
            self._columns[name] = code_labels(values, self._places, self._missing, words, files, others)
        return self._columns[name]

    def unlabelled(self, name: Name) -> np.ndarray:
        """Which cells have no label in a column (none in any of several), bool (n_cells,).

        There are such cells with ``missing="label"`` only, where they share the label "missing".
        """
        column = self.column(name)
        if self._missing == "error":
            return np.zeros(len(self), bool)
        parts = [label if isinstance(label, tuple) else str(label).split("/") for label in column.labels]
        return np.array([set(part) == {MISSING_LABEL} for part in parts], bool)[column.codes]

    def values(self, name: str) -> pd.Series:
        """Values of a column as the table holds them, one per cell; the index plays no part."""
        values = _only(self._frame, name)
        return values if self._places is None else values.iloc[self._places]

    def with_column(self, name: str, values: Any) -> CellTable:
        """Return the same cells with one more column, (n_cells,)."""
        frame = self.frame.assign(**{name: values})
        table = CellTable(frame, self._roles, dict(self._columns), self.hours, self._missing, self.rows)
        table.chunk_rows, table.keys = self.chunk_rows, self.keys
        return table

    def _unknown(self, name: str) -> str:
        columns = list(map(str, self._frame.columns))
        if name not in ("experiment", "condition", "track"):
            known = listed(dict.fromkeys([*self._roles, *columns]))
            hint = meant([name], [*self._roles, *columns])
            return f"the table has no column {name!r}; it has {known}. {hint}Name one of these."
        free = listed(column for column in columns if column not in {*names_of(self._roles.values()), "hours"})
        return (
            f"no {name} is named; name its column with data.columns.{name}, in code "
            f"CellTable.from_frame(..., {name}=...), or leave out what asks for it, such as the axis `{name}` of "
            f"sampler. Other columns of the table: {free or 'none'}."
        )

    def take(self, positions: np.ndarray) -> CellTable:
        """Return the table of some cells, with the same codes and labels.

        Parameters
        ----------
        positions : numpy.ndarray of int, shape (n,)
            Positions in this table, see :func:`~cellcohort.cells.checked_positions`; they become positions
            0..n-1 of the new one.
        """
        positions = np.asarray(positions)
        files, known = self.files.of("cells", positions), {role: self._columns[role] for role in self._roles}
        rows_differ = self.rows is not self._places

        def of_these() -> list[np.ndarray]:
            chosen = _checked(positions, len(self))
            found = [chosen.copy() if self._places is None else self._places[chosen]]
            if rows_differ:
                found.append(chosen if self.rows is None else self.rows[chosen])
            if self.hours is not None:
                found.append(self.hours[chosen])
            codes = [column.codes[chosen] for column in known.values()]
            counts = [count(of, len(column.labels)) for of, column in zip(codes, known.values(), strict=True)]
            return [*found, *codes, *counts]

        places, *others = files.arrays(of_these)
        rows = others.pop(0) if rows_differ else places
        hours = None if self.hours is None else others.pop(0)
        columns = {
            role: Column(column.name, codes, column.labels, counts)
            for (role, column), codes, counts in zip(
                known.items(), others[: len(known)], others[len(known) :], strict=True
            )
        }
        part = CellTable(self._frame, self._roles, columns, hours, self._missing, rows)
        part.chunk_rows, part.keys, part.files, part._places = self.chunk_rows, self.keys, files, places
        return part


def _check_frame(frame: Any) -> None:
    if not isinstance(frame, pd.DataFrame):
        raise ValueError(f"the table is a {type(frame).__name__}; give a pandas.DataFrame.")
    if isinstance(frame.columns, pd.MultiIndex):
        raise ValueError(
            f"the columns of the table have {frame.columns.nlevels} levels, such as {frame.columns[0]}; give each one "
            "name: frame.columns = ['_'.join(map(str, name)) for name in frame.columns]."
        )
    if len(frame) == 0:
        raise ValueError("the table has no rows, so there is no cell to sample.")


def _check_name(role: str, name: Any) -> None:
    """Raise ValueError where a role is given as something else than the name of a column, several of them or None."""
    parts = [name] if name is None or isinstance(name, str) else name
    of_one = role == "hours" and not (name is None or isinstance(name, str))
    if of_one or not isinstance(parts, Sequence) or not all(part is None or isinstance(part, str) for part in parts):
        may = "the name of one column, or None" if role == "hours" else "the name of a column, a list of names, or None"
        raise ValueError(f"{role}={name!r} must be {may}; columns that are named by numbers need texts as names.")


def _require(frame: pd.DataFrame, role: str, name: str) -> None:
    if name not in frame.columns:
        there = list(map(str, frame.columns))
        raise ValueError(
            f"{role}={name!r} is not a column; the table has {listed(there)}. {meant([name], there)}"
            f"Give {role} the name of one of these, or None where there is none; on the command line it is "
            f"data.columns.{role}, or null there."
        )
    _only(frame, name, f"{role}=")


def _only(frame: pd.DataFrame, name: str, role: str = "") -> pd.Series:
    """Return the column of a name; a table may have several of one name, as long as they are not used."""
    found: Any = frame[name]
    if isinstance(found, pd.DataFrame):
        raise ValueError(f"{role}{name!r} names {found.shape[1]} columns of the table; rename all but one.")
    return found


def table_of(cells: Any) -> CellTable:
    """Return cells as they are; raise ValueError for what is no :class:`CellTable`, such as a DataFrame."""
    if not isinstance(cells, CellTable):
        raise ValueError(
            f"cells must be a CellTable, got a {type(cells).__name__}. Make one of a DataFrame: "
            "CellTable.from_frame(frame, experiment=<column>, condition=<column>, hours=<column>, track=<column>)."
        )
    return cells


def names_of(names: Iterable[Name | None]) -> list[str]:
    """Return the columns in names, some of which may be several or none."""
    found: list[str] = []
    for name in names:
        if name is not None:
            found += [name] if isinstance(name, str) or not isinstance(name, Iterable) else [*name]
    if wrong := [name for name in found if not isinstance(name, str)]:
        raise ValueError(f"{wrong[0]!r} is no name of a column; names are texts, in quotes where they are numbers.")
    return found


def numeric_values(values: pd.Series, said: str) -> np.ndarray:
    """Return the numbers of a column, float64 (n_rows,); NaN where one is missing. Categories may be numbers.

    Parameters
    ----------
    values : pandas.Series
    said : str
        What a message calls the column.

    Raises
    ------
    ValueError
        The column holds something else.
    """
    kind = values.dtype
    if isinstance(kind, pd.CategoricalDtype):
        values = values.astype(kind.categories.dtype if len(kind.categories) else np.float64)
    if not pd.api.types.is_numeric_dtype(values) or pd.api.types.is_bool_dtype(values):
        texts = values[values.notna()].astype(object)
        wrong = texts[pd.to_numeric(texts, errors="coerce").isna()]
        such = f", such as {wrong.iloc[0]!r}" if len(wrong) else ""
        raise ValueError(f"{said} has type {kind}, not numbers{such}; convert it first.")
    return values.to_numpy(np.float64, na_value=np.nan)


def _hours(values: pd.Series) -> np.ndarray:
    hours = numeric_values(values, f"hours={values.name!r}")
    if np.isinf(hours).any():
        raise ValueError(
            f"hours={values.name!r} is infinite in {several(int(np.isinf(hours).sum()), 'row')}; correct or drop them."
        )
    if np.isnan(hours).all():
        raise ValueError(
            f"hours={values.name!r} is missing in every row; if there is no time, say data.columns.hours=null, in code "
            "hours=None."
        )
    return hours


def checked_positions(positions: Sequence[int] | np.ndarray, n: int) -> np.ndarray:
    """Positions among n cells, int64.

    Raises
    ------
    IndexError, TypeError
        A position is not in 0..n-1, or not an integer.
    """
    return _checked(np.array(positions), n)


def _checked(position: np.ndarray, n: int) -> np.ndarray:
    if position.size and position.dtype.kind not in "iu":
        raise TypeError(f"positions have type {position.dtype}; use integers, np.flatnonzero(mask) for a mask.")
    if position.size and (position.min() < 0 or position.max() >= n):
        raise IndexError(f"positions reach from {position.min()} to {position.max()}; use 0 to {n - 1}.")
    return position.astype(np.int64, copy=False)
