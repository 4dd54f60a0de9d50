"""What the columns of a table of tracks are, and the cells that they make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from cellcohort.cells import CellTable
from cellcohort.datasets.tables.merge_labels import MergeLabels, merged
from cellcohort.messages import several
from cellcohort.missing_values import MISSING_LABEL, Missing, refuse_missing

COLUMNS: Mapping[str, Any] = MappingProxyType(
    {
        "experiment": "experiment",
        "condition": "condition",
        "time": "time",
        "track": "track",
        "lineage": None,
        "features": None,
    }
)


@dataclass(frozen=True)
class Roles:
    """Which column of a table is what.

    Attributes
    ----------
    named : dict of str to str
        Column by role: "experiment", "condition", "time", "track" and "lineage", those that there are.
    threshold : mapping or None
        Where the condition is whether a column is above a number.
    features : list of str
    """

    named: dict[str, str]
    threshold: Mapping[str, Any] | None
    features: list[str]

    @classmethod
    def of(cls, columns: Mapping[str, Any]) -> Roles:
        """Read a mapping as the config has it; what is not named keeps the value of `COLUMNS`.

        Raises
        ------
        ValueError
            An entry is unknown, or a threshold is none.
        """
        mapped = {**COLUMNS, **columns}
        if unknown := [key for key in columns if key not in COLUMNS]:
            raise ValueError(f"columns has no entry {', '.join(unknown)}; it has {', '.join(COLUMNS)}.")
        threshold = mapped["condition"] if isinstance(mapped["condition"], Mapping) else None
        if threshold is not None:
            mapped["condition"] = _threshold_column(threshold)
        features = list(mapped.pop("features") or ())
        return cls({key: name for key, name in mapped.items() if name is not None}, threshold, features)

    @property
    def derived(self) -> set[str]:
        """The columns that the cells have beside those of the table."""
        return {"hours", "track"} | ({"lineage"} & set(self.named)) | ({"condition"} if self.threshold else set())

    @property
    def whole(self) -> str:
        """The column whose groups no split cuts in two."""
        return "lineage" if "lineage" in self.named else "track"

    def check(self, table: pd.DataFrame, missing: Missing) -> None:
        """Raise ValueError where the table lacks a column or a value, or has a name twice."""
        named, features = self.named, self.features
        there = ", ".join(map(str, table.columns))
        if absent := [key for key in ("time", "track") if key not in named]:
            raise ValueError(f"columns.{absent[0]} is null; name the column that holds it: the table has {there}.")
        wanted = {**{f"{key}={name!r}": name for key, name in named.items()}, **{f"feature {f!r}": f for f in features}}
        if lacking := [what for what, name in wanted.items() if name not in table.columns]:
            raise ValueError(
                f"{', '.join(lacking)}: no such column; the table has {there}. Name these in data.columns."
            )
        if twice := sorted(
            {str(n) for n in wanted.values() if list(table.columns).count(n) > 1 or features.count(n) > 1}
        ):
            raise ValueError(f"{', '.join(twice)}: there twice; keep one.")
        if mapped := [name for name in features if name in named.values()]:
            raise ValueError(
                f"{', '.join(mapped)}: mapped in data.columns, so the model must not see it; take it out of "
                "the features."
            )
        labels = [named.get("experiment"), named.get("condition")]
        refuse_missing(
            table, [name for name in named.values() if name not in labels], labels, missing, "data.missing=label"
        )


def cells_of(
    table: pd.DataFrame,
    roles: Roles,
    interval_minutes: float | None,
    start_hours: float | Mapping[Any, float] = 0.0,
    merge_labels: MergeLabels = None,
    missing: Missing = "error",
) -> tuple[CellTable, np.ndarray]:
    """The cells of a table of tracks, and the row of the table that each comes from.

    Parameters
    ----------
    table : pandas.DataFrame
        With the columns that :meth:`Roles.check` wants; its feature columns are left out of the cells.
    interval_minutes, start_hours, merge_labels, missing
        As for :func:`cellcohort.data.tracks.load_tracks`.

    Returns
    -------
    cells : CellTable
        Sorted by experiment, track and time.
    rows : numpy.ndarray of int, shape (n_cells,)
    """
    roles.check(table, missing)
    named = roles.named
    if roles.threshold is not None and isinstance(merge_labels, Mapping) and "condition" in merge_labels:
        raise ValueError(
            "merge_labels renames conditions, but these come from a threshold, which names them; "
            "take 'condition' out of merge_labels."
        )
    table = merged(table, merge_labels, named, [*roles.features, named["time"]])
    hours = _hours(table, named, interval_minutes, start_hours)
    track = _told_apart(table, named.get("experiment"), named["track"], missing)
    derived: dict[str, Any] = {"hours": hours, "track": track}
    if "lineage" in named:
        derived["lineage"] = _told_apart(table, named.get("experiment"), named["lineage"], missing)
    condition = named.get("condition")
    if roles.threshold is not None:
        derived["condition"], condition = _above(table, roles.threshold), "condition"
    kept = {named.get("experiment"), None if roles.threshold is not None else condition}
    if taken := set(derived) & kept:
        raise ValueError(f"column {taken.pop()!r} is mapped, and the loader adds one of this name; rename yours.")
    rows = np.lexsort((hours, track.codes))
    frame = table.drop(columns=roles.features, errors="ignore").assign(**derived).iloc[rows].reset_index(drop=True)
    _check_rows(frame, named)
    cells = CellTable.from_frame(frame, named.get("experiment"), condition, "hours", "track", missing)
    return cells, rows


def _hours(
    table: pd.DataFrame, named: dict[str, str], interval_minutes: float | None, start_hours: float | Mapping[Any, float]
) -> np.ndarray:
    if interval_minutes is None or not isfinite(interval_minutes) or interval_minutes <= 0:
        raise ValueError(
            f"interval_minutes={interval_minutes}: say the minutes from one frame to the next, such as "
            f"data.interval_minutes=30, or 60 if {named['time']!r} holds hours."
        )
    time = numbers(table, named["time"])
    if not isinstance(start_hours, Mapping):
        return float(start_hours) + time * (interval_minutes / 60)
    if "experiment" not in named:
        raise ValueError("start_hours by experiment, but columns.experiment is null; give one number.")
    labels = table[named["experiment"]].astype(object)
    labels = labels.where(labels.notna(), MISSING_LABEL)
    present = labels.unique().tolist()
    if set(present) != set(start_hours):
        raise ValueError(
            f"start_hours is for {list(start_hours)}, the experiments of the table are {present}; give each one, once."
        )
    return labels.map(dict(start_hours)).to_numpy(np.float64) + time * (interval_minutes / 60)


def _told_apart(table: pd.DataFrame, experiment: str | None, name: str, missing: Missing) -> pd.Categorical:
    """Labels that differ between experiments, in the order of experiments and then of ids."""
    cells = CellTable.from_frame(table, experiment=experiment, condition=None, hours=None, missing=missing)
    column = cells.column([name] if experiment is None else [experiment, name])
    labels = ["/".join(map(str, parts)) for parts in column.labels]
    if len(set(labels)) < len(labels):
        raise ValueError(f"{name!r} holds ids that read alike but differ, such as 1 and '1'; make them one type.")
    return pd.Categorical.from_codes(column.codes, pd.Index(labels, dtype=object))


def _threshold_column(threshold: Mapping[str, Any]) -> str:
    if set(threshold) != {"column", "above", "labels"}:
        keys = ", ".join(map(str, threshold))
        raise ValueError(f"columns.condition has {keys}; a threshold has column, above and labels.")
    if len(set(threshold["labels"])) != 2 or not isfinite(threshold["above"]):
        raise ValueError(
            f"columns.condition has above={threshold['above']}, labels={list(threshold['labels'])}; give a number, "
            "and two labels: the one at or below it, and the one above."
        )
    return threshold["column"]


def _above(table: pd.DataFrame, threshold: Mapping[str, Any]) -> pd.Categorical:
    value = numbers(table, threshold["column"])
    code = np.where(np.isnan(value), -1, value > threshold["above"])  # -1 stands for a missing label
    return pd.Categorical.from_codes(code, pd.Index(list(threshold["labels"])))


def numbers(table: pd.DataFrame, name: str) -> np.ndarray:
    if not pd.api.types.is_numeric_dtype(table[name]):
        raise ValueError(f"{name!r} has type {table[name].dtype}, not numbers; convert it first.")
    return table[name].to_numpy(np.float64, na_value=np.nan)


def _check_rows(frame: pd.DataFrame, named: dict[str, str]) -> None:
    """Of the sorted table: one row per track and time, one lineage per track."""
    same = np.diff(frame["track"].cat.codes) == 0
    twice = np.flatnonzero(same & (np.diff(frame["hours"]) == 0))
    if len(twice):
        row = frame.iloc[twice[0]]
        raise ValueError(
            f"{several(len(twice), 'row')} of the same track and time as another row, such as track {row['track']} at "
            f"{named['time']}={row[named['time']]}. Keep one of each, or map the column that tells the tracks apart."
        )
    if "lineage" in named:
        split = np.flatnonzero(same & (np.diff(frame["lineage"].cat.codes) != 0))
        if len(split):
            raise ValueError(
                f"tracks with more than one {named['lineage']!r}, such as {frame['track'].iloc[split[0]]}; "
                "give each track one, or set columns.lineage=null."
            )
