"""What the columns of a table of tracks are, and the cells that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from cellcohort.cells import CellTable, Name, names_of, numeric_values
from cellcohort.datasets.families import families, refuse_mothers, tell_mothers
from cellcohort.datasets.tables.ids_and_labels import (
    as_text,
    ids_of,
    on_tracks,
    refuse_tracks_of_no_experiment,
    told_apart,
)
from cellcohort.datasets.tables.merge_labels import MergeLabels, merged
from cellcohort.datasets.tables.read import unequal
from cellcohort.datasets.tables.times import HOURS, Times, check_own_hours
from cellcohort.faults import Faults
from cellcohort.messages import listed, meant, several
from cellcohort.missing_values import Missing, refuse_missing

COLUMNS: Mapping[str, Any] = MappingProxyType(
    {
        "experiment": "experiment",
        "condition": "condition",
        "time": "time",
        "hours": None,
        "track": "track",
        "lineage": None,
        "parent": None,
        "features": None,
    }
)


@dataclass(frozen=True)
class Roles:
    """Which column of a table is what.

    Attributes
    ----------
    named : dict of str to str or list of str
        Column by role: "experiment", "condition", "time" or "hours", "track", "lineage" and "parent", those that there
        are. Several columns are a key jointly.
    threshold : mapping or None
        Where the condition is whether a column is above a number.
    features : list of str
    """

    named: dict[str, Name]
    threshold: Mapping[str, Any] | None
    features: list[str]

    @classmethod
    def of(cls, columns: Mapping[str, Any]) -> Roles:
        """Read a mapping as the config has it; what is not named keeps the value of `COLUMNS`.

        Raises
        ------
        ValueError
            An entry is unknown, names several columns of times, or a threshold is none.
        """
        mapped = {**COLUMNS, **columns}
        if unknown := [key for key in columns if key not in COLUMNS]:
            raise ValueError(f"data.columns has no entry {', '.join(unknown)}; it has {', '.join(COLUMNS)}.")
        threshold = mapped["condition"] if isinstance(mapped["condition"], Mapping) else None
        if threshold is not None:
            mapped["condition"] = _threshold_column(threshold)
        features = names_of([mapped.pop("features")])
        for key, name in mapped.items():
            if not isinstance(name, str | Mapping) and name is not None and not len(name):
                raise ValueError(f"data.columns.{key}={name!r} names no column; use null where there is none.")
        if mapped["lineage"] is not None and mapped["parent"] is not None:
            raise ValueError(
                f"data.columns.lineage={mapped['lineage']!r} and data.columns.parent={mapped['parent']!r} both say "
                "which tracks are a family; set one of them to null."
            )
        for key in ("time", "hours", "parent"):
            if not (mapped[key] is None or isinstance(mapped[key], str)):
                raise ValueError(f"data.columns.{key}={mapped[key]!r} must be the name of one column.")
        if mapped["hours"] is not None:
            del mapped["time"]
        named: dict[str, Name] = {
            key: name if isinstance(name, str) else list(name) for key, name in mapped.items() if name is not None
        }
        return cls(named, threshold, features)

    def columns(self, *roles: str) -> list[str]:
        """Return the columns of some roles, of all if none is given."""
        return names_of(self.named.get(role) for role in roles or self.named)

    @property
    def labels(self) -> list[str]:
        """The columns that hold labels of experiments and conditions."""
        return self.columns("experiment", *(["condition"] if self.threshold is None else []))

    @property
    def numbers(self) -> list[str]:
        """The columns that hold numbers; those of real times may be timestamps instead."""
        return [*self.columns("time", *(["condition"] if self.threshold is not None else [])), *self.features]

    @property
    def derived(self) -> set[str]:
        """The columns that the cells have beside those of the table."""
        joint = {role for role in ("experiment", "condition") if not isinstance(self.named.get(role, ""), str)}
        joint |= {"condition"} if self.threshold is not None else set()
        return {"hours", "track"} | joint | ({"lineage"} if self.of_families else set())

    @property
    def compared(self) -> set[str]:
        """The columns that are compared with those derived, in any case, if the table has them."""
        return self.derived | set(HOURS)

    @property
    def of_families(self) -> bool:
        """Whether it is known which tracks are a family."""
        return bool({"lineage", "parent"} & set(self.named))

    @property
    def whole(self) -> str:
        """The column whose groups no split cuts in two."""
        return "lineage" if self.of_families else "track"

    def check(self, table: pd.DataFrame) -> None:
        """Raise ValueError where the table lacks a column, or a name is there twice."""
        features = self.features
        there = listed(name for name in table.columns if name != "")  # that of an index has no name
        if "track" not in self.named:
            raise ValueError(f"data.columns.track is null; name the column that holds it: the table has {there}.")
        if not {"time", "hours"} & set(self.named):
            raise ValueError(
                f"data.columns.time and data.columns.hours are null; name one of the two: the table has {there}."
            )
        wanted = {f"data.columns.{key}={name!r}": name for key in self.named for name in self.columns(key)}
        wanted |= {f"feature {f!r}": f for f in features}
        if lacking := {what: name for what, name in wanted.items() if name not in table.columns}:
            hint = meant(lacking.values(), list(map(str, table.columns)))
            absent = [
                role
                for role in ("experiment", "condition", "lineage", "parent")
                if {*self.columns(role)} & {*lacking.values()}
            ]
            none = f", or say data.columns.{absent[0]}=null where there is none" if absent else ""
            raise ValueError(
                f"{', '.join(lacking)}: no such column; the table has {there}. {hint}Name those that hold it{none}."
            )
        if twice := sorted(
            {str(n) for n in wanted.values() if list(table.columns).count(n) > 1 or features.count(n) > 1}
        ):
            raise ValueError(f"{', '.join(twice)}: there twice; keep one.")
        refuse_times_as_labels(self.named if self.threshold is None else {**self.named, "condition": None})
        if mapped := [name for name in features if name in self.columns()]:
            raise ValueError(
                f"{', '.join(mapped)}: mapped in data.columns, so the model must not see it; take it out of "
                "the features."
            )


def refuse_times_as_labels(named: Mapping[str, Name | None]) -> None:
    """Raise ValueError where one column is named as an experiment or a condition, which are texts, and as a time.

    Parameters
    ----------
    named : mapping of str to str, list of str or None
        Column by role.
    """
    for label in ("experiment", "condition"):
        for time in ("time", "hours"):
            if both := set(names_of([named.get(label)])) & set(names_of([named.get(time)])):
                raise ValueError(
                    f"data.columns.{label} and data.columns.{time} both name {both.pop()!r}, which cannot be labels "
                    "and numbers. Write a copy of the column under another name."
                )


def cells_of(
    table: pd.DataFrame, roles: Roles, times: Times, merge_labels: MergeLabels = None, missing: Missing = "error"
) -> tuple[CellTable, np.ndarray]:
    """Return the cells of a table of tracks, and the row of the table that each comes from.

    Parameters
    ----------
    table : pandas.DataFrame
        With the columns of :meth:`Roles.check`; its feature columns are left out of the cells.
    roles : Roles
    times : Times
    merge_labels, missing
        As for :class:`cellcohort.data.tracks.Tracks`.

    Returns
    -------
    cells : CellTable
        Sorted by experiment, track and time.
    rows : numpy.ndarray of int, shape (n_cells,)

    Warns
    -----
    UserWarning
        Rows are of no track, and left out.
    """
    roles.check(table)
    named, words, path = roles.named, table.attrs.get("words", {}), table.attrs.get("path")
    table, words = ids_of(table, roles.columns("lineage", "parent"), words)
    there = on_tracks(table, roles.columns("track"))
    whole = table.iloc[there]
    table = whole.drop(columns=roles.features, errors="ignore").reset_index(drop=True)
    table = table.assign(**{name: as_text(table[name]) for name in roles.labels})
    labels = roles.columns("experiment", "condition")
    needed = [name for name in roles.columns("time", "hours", "track") if name not in labels]
    faults = Faults()
    faults.of(refuse_missing, table, needed, labels, missing, "data.missing=label", words, whole)
    del whole  # the features need as much memory once more
    labelled = np.ones(len(table), bool)
    if faults.found:
        if table[[name for name in needed if name in table]].isna().any(axis=None):
            raise faults.error()
        labelled, missing = table[labels].notna().all(axis=1).to_numpy(), "label"  # to look for other faults
    if roles.threshold is not None and isinstance(merge_labels, Mapping) and "condition" in merge_labels:
        raise ValueError(
            "merge_labels renames conditions, but these come from a threshold, which names them; "
            "take 'condition' out of merge_labels."
        )
    renamed = faults.of(merged, table, merge_labels, named, [*roles.features, *roles.columns("time", "hours")])
    if renamed is None:
        raise faults.error()
    table = renamed
    derived: dict[str, Any] = {}
    of: dict[str, str | None] = {}  # the column of each of the two, in the end
    for role in ("experiment", "condition"):
        name = named.get(role)
        of[role] = name if isinstance(name, str) else None
        if role == "condition" and roles.threshold is not None:
            derived[role], of[role] = _above(table, roles.threshold), role
        elif name is not None and not isinstance(name, str):
            derived[role], of[role] = told_apart(table, name, missing), role
    experiment = of["experiment"]
    groups = None if experiment is None else pd.Series(derived.get("experiment", table.get(experiment)))
    frame_or_real = {key: ([*roles.columns(key), None])[0] for key in ("time", "hours")}
    hours = times.hours(table, frame_or_real["time"], frame_or_real["hours"], groups)
    remedy = "data.columns.hours={name} (and no data.interval_minutes)"
    of_labels = roles.columns("experiment", "condition", "track", "lineage", "parent")
    others = table[[name for name in table if name == "hours" or name not in of_labels]]
    check_own_hours(others, hours, "those of data.columns", remedy, frame_or_real["hours"])
    above = roles.columns("experiment")
    if missing == "label" and not faults.found:
        refuse_tracks_of_no_experiment(table, above, roles.columns("track"))
    derived["track"] = told_apart(table, [*above, *roles.columns("track")], missing)
    of_track = (table, above, roles.columns("track"), derived["track"], hours)
    if parent := roles.columns("parent"):
        derived["lineage"] = families(*of_track, parent[0])
    elif lineage := roles.columns("lineage"):
        for name in lineage:
            refuse_mothers(*of_track, name)
        refuse_missing(table, lineage, [], missing, "", words)
        derived["lineage"] = told_apart(table, [*above, *lineage], missing)
    else:
        tell_mothers(*of_track)
    if taken := {*derived, "hours"} & set(roles.labels):
        raise ValueError(f"column {taken.pop()!r} is mapped, and the loader adds one of this name; rename yours.")
    table, _ = set_aside(table, derived, roles.columns())
    rows = np.lexsort((hours, derived["track"].codes))
    frame = table.assign(hours=hours, **derived).iloc[rows].reset_index(drop=True)
    frame = from_file(frame, there[rows], path)
    faults.of(_check_rows, frame[labelled[rows]], named)
    if faults.found:
        raise faults.error()
    cells = CellTable.from_frame(frame, experiment, of["condition"], "hours", "track", missing)
    cells.keys = tuple(roles.columns())
    return cells, there[rows]


def from_file(frame: pd.DataFrame, rows: np.ndarray, file: str | None) -> pd.DataFrame:
    """Return a table with the columns "source_row" and "source_file", where it does not have "source_row".

    Parameters
    ----------
    frame : pandas.DataFrame
    rows : numpy.ndarray of int, shape (n_rows,)
        Of the file, from 0.
    file : str or None
        Its path, where it is known.
    """
    if "source_row" in frame:
        return frame
    path = (
        {}
        if file is None
        else {"source_file": pd.Categorical.from_codes(np.zeros(len(frame), np.int8), pd.Index([file]))}
    )
    return frame.drop(columns="source_file", errors="ignore").assign(**path, source_row=rows)


def set_aside(
    table: pd.DataFrame, derived: Mapping[str, Any], mapped: Sequence[str] = ()
) -> tuple[pd.DataFrame, dict[str, int]]:
    """Give "file_" before its name to a column that has the name of a derived one, but other labels.

    Parameters
    ----------
    table : pandas.DataFrame
    derived : mapping of str to array of labels
    mapped : sequence of str
        Columns that the derived ones are made of.

    Returns
    -------
    table : pandas.DataFrame
    renamed : dict of str to int
        In how many rows the columns that got another name differ from the derived ones.
    """
    others = {name: pd.Series(values) for name, values in derived.items() if name in table and name not in mapped}
    renamed = {name: n for name, values in others.items() if (n := unequal(table[name], values))}
    if taken := [name for name in renamed if f"file_{name}" in table]:
        raise ValueError(f"the table has columns {taken[0]!r}, which is made anew, and 'file_{taken[0]}'; rename them.")
    return table.rename(columns={name: f"file_{name}" for name in renamed}), renamed


def _threshold_column(threshold: Mapping[str, Any]) -> str:
    if set(threshold) != {"column", "above", "labels"}:
        keys = ", ".join(map(str, threshold))
        raise ValueError(f"data.columns.condition has {keys}; a threshold has column, above and labels.")
    if len(set(threshold["labels"])) != 2 or not isfinite(threshold["above"]):
        raise ValueError(
            f"data.columns.condition has above={threshold['above']}, labels={list(threshold['labels'])}; give a "
            "number, and two labels: the one at or below it, and the one above."
        )
    return threshold["column"]


def _above(table: pd.DataFrame, threshold: Mapping[str, Any]) -> pd.Categorical:
    value = numeric_values(table[threshold["column"]], repr(threshold["column"]))
    code = np.where(np.isnan(value), -1, value > threshold["above"])  # -1 stands for a missing label
    return pd.Categorical.from_codes(code, pd.Index(list(threshold["labels"])))


def _check_rows(frame: pd.DataFrame, named: Mapping[str, Name]) -> None:
    """Of the sorted table: one row per track and time, one lineage per track."""
    same = np.diff(frame["track"].cat.codes) == 0
    twice = np.flatnonzero(same & (np.diff(frame["hours"]) == 0))
    if len(twice):
        row, time = frame.iloc[twice[0]], named.get("time", "hours")
        raise ValueError(
            f"{several(len(twice), 'row')} of the same track and time as another row, such as track {row['track']} at "
            f"{time}={row[time]}. Keep one of each, or map the column that tells the tracks apart; where an "
            "id stands for no track, leave it empty."
        )
    if isinstance(lineage := named.get("lineage"), str | list):
        split = np.flatnonzero(same & (np.diff(frame["lineage"].cat.codes) != 0))
        if len(split):
            raise ValueError(
                f"tracks with more than one {lineage!r}, such as {frame['track'].iloc[split[0]]}; "
                "give each track one, or set data.columns.lineage=null."
            )
