"""Tracked cells from a table (parquet or CSV) with one row per cell and frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from cellcohort.augment import Augment
from cellcohort.cells import CellTable
from cellcohort.table import read_table
from cellcohort.windows import LIGHT, Positive, TrackWindows

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


def load_tracks(
    path: str | Path | None = None,
    columns: Mapping[str, Any] = COLUMNS,
    interval_minutes: float | None = None,
    start_hours: float | Mapping[Any, float] = 0.0,
    log1p: Sequence[str] = (),
    frames: int = 6,
    tau_hours: Sequence[float] = (0.5, 2.0),
    positive: Positive = "track_or_view",
    augment: Augment = LIGHT,
    seed: int = 0,
) -> TrackWindows:
    """Read a table of tracked cells.

    The order of the rows plays no part, frames may be missing, and track ids may repeat between
    experiments: a track is known by its experiment and its id.

    Parameters
    ----------
    path : str or Path
        A ``.parquet``, ``.csv`` or ``.csv.gz`` file; lines before the header of a CSV are skipped,
        see :func:`~cellcohort.table.read_table`.
    columns : mapping
        Which column is what; what is not named keeps its default. ``experiment``, ``condition``
        (None where there is none), ``time`` (a number of frames), ``track``, ``lineage`` (None, or
        what tells families of tracks apart, which no split cuts in two) and ``features`` (a list).
        ``condition`` may be a threshold: ``{"column": "dye", "above": 10, "labels": ["alive",
        "dead"]}`` labels rows "dead" where dye > 10. No column that is mapped may be a feature.
    interval_minutes : float
        Minutes from one frame to the next; 60 where the column of times holds hours.
    start_hours : float or mapping of experiment to float
        Hours at time 0: ``hours = start_hours + time * interval_minutes / 60``.
    log1p : sequence of str
        Features to be read as log(1 + x), for those with a long tail.
    frames, tau_hours, positive, augment, seed
        The window, the positives and the views: see :class:`~cellcohort.windows.TrackWindows`.

    Returns
    -------
    TrackWindows
        Its `cells` are sorted by experiment, track and time, and hold the columns of the file that
        are not features, beside "hours", "track", "lineage" where mapped, and "condition" where it
        comes from a threshold; a column of the file with one of these names gives way to them.

    Raises
    ------
    FileNotFoundError, ValueError
        The file or a mapped column is not there; rows have no experiment, condition, time, track or
        lineage; features are not numbers or have missing values; a (track, time) is there twice.
    """
    mapped = {**COLUMNS, **columns}
    if unknown := [key for key in columns if key not in COLUMNS]:
        raise ValueError(f"columns has no entry {', '.join(unknown)}; it has {', '.join(COLUMNS)}.")
    threshold = mapped["condition"] if isinstance(mapped["condition"], Mapping) else None
    if threshold is not None:
        mapped["condition"] = _threshold_column(threshold)
    features = list(mapped.pop("features") or ())
    named: dict[str, str] = {key: name for key, name in mapped.items() if name is not None}
    table = read_table(path, {*named.values(), *features})
    _check_columns(table, named, features)
    hours = _hours(table, named, interval_minutes, start_hours)
    track = _told_apart(table, named.get("experiment"), named["track"])
    derived: dict[str, Any] = {"hours": hours, "track": track}
    if "lineage" in named:
        derived["lineage"] = _told_apart(table, named.get("experiment"), named["lineage"])
    if threshold is not None:
        derived["condition"] = _above(table, threshold)
    if taken := set(derived) & {named.get("experiment"), None if threshold is not None else named.get("condition")}:
        raise ValueError(f"column {taken.pop()!r} is mapped, and the loader adds one of this name; rename yours.")
    values = _features(table, features, log1p)
    order = np.lexsort((hours, track.codes))
    frame = table.drop(columns=features).assign(**derived).iloc[order].reset_index(drop=True)
    _check_rows(frame, named)
    cells = CellTable.from_frame(
        frame,
        experiment=named.get("experiment"),
        condition="condition" if threshold is not None else named.get("condition"),
        hours="hours",
        track="track",
    )
    whole = "lineage" if "lineage" in named else "track"
    return TrackWindows(cells, values[order], features, frames, tau_hours, positive, augment, seed, whole)


def _check_columns(table: pd.DataFrame, named: dict[str, str], features: list[str]) -> None:
    there = ", ".join(map(str, table.columns))
    if absent := [key for key in ("time", "track") if key not in named]:
        raise ValueError(f"columns.{absent[0]} is null; name the column that holds it: the table has {there}.")
    wanted = {**{f"{key}={name!r}": name for key, name in named.items()}, **{f"feature {f!r}": f for f in features}}
    if missing := [what for what, name in wanted.items() if name not in table.columns]:
        raise ValueError(f"{', '.join(missing)}: no such column; the table has {there}. Name these in data.columns.")
    if twice := sorted({str(n) for n in wanted.values() if list(table.columns).count(n) > 1 or features.count(n) > 1}):
        raise ValueError(f"{', '.join(twice)}: there twice; keep one.")
    if mapped := [name for name in features if name in named.values()]:
        raise ValueError(
            f"{', '.join(mapped)}: mapped in data.columns, so the model must not see it; take it out of the features."
        )
    if not features:
        numbers = ", ".join(table.select_dtypes("number").columns.difference(list(named.values()), sort=False))
        raise ValueError(
            f"data.columns.features is empty; list what the model is to see, and no ids or positions on a plate. "
            f"Columns of numbers: {numbers or 'none'}."
        )
    if holes := {name: n for name in named.values() if (n := int(table[name].isna().sum()))}:
        counts = ", ".join(f"{name!r} in {n} of {len(table)} rows" for name, n in holes.items())
        raise ValueError(f"missing values in mapped columns: {counts}. Fill or drop these rows.")


def _hours(
    table: pd.DataFrame, named: dict[str, str], interval_minutes: float | None, start_hours: float | Mapping[Any, float]
) -> np.ndarray:
    if interval_minutes is None or not isfinite(interval_minutes) or interval_minutes <= 0:
        raise ValueError(
            f"interval_minutes={interval_minutes}: say the minutes from one frame to the next, such as "
            f"data.interval_minutes=30, or 60 if {named['time']!r} holds hours."
        )
    time = _numbers(table, named["time"])
    if not isinstance(start_hours, Mapping):
        return float(start_hours) + time * (interval_minutes / 60)
    if "experiment" not in named:
        raise ValueError("start_hours by experiment, but columns.experiment is null; give one number.")
    labels = table[named["experiment"]]
    present = labels.unique().tolist()
    if set(present) != set(start_hours):
        raise ValueError(
            f"start_hours is for {list(start_hours)}, the experiments of the table are {present}; give each one, once."
        )
    return labels.map(dict(start_hours)).to_numpy(np.float64) + time * (interval_minutes / 60)


def _told_apart(table: pd.DataFrame, experiment: str | None, name: str) -> pd.Categorical:
    """Labels that differ between experiments, in the order of experiments and then of ids."""
    cells = CellTable.from_frame(table, experiment=experiment, condition=None, hours=None)
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
    above = _numbers(table, threshold["column"]) > threshold["above"]
    return pd.Categorical.from_codes(above.astype(np.int8), pd.Index(list(threshold["labels"])))


def _numbers(table: pd.DataFrame, name: str) -> np.ndarray:
    if not pd.api.types.is_numeric_dtype(table[name]):
        raise ValueError(f"{name!r} has type {table[name].dtype}, not numbers; convert it first.")
    return table[name].to_numpy(np.float64, na_value=np.nan)


def _features(table: pd.DataFrame, features: list[str], log1p: Sequence[str]) -> np.ndarray:
    if unknown := [name for name in log1p if name not in features]:
        raise ValueError(f"log1p of {', '.join(unknown)}, not a feature; the features are {', '.join(features)}.")
    values = np.empty((len(table), len(features)), np.float32)
    holes = {}
    for i, name in enumerate(features):
        column = _numbers(table, name)
        if name in log1p:
            if (column <= -1).any():
                raise ValueError(f"log1p of {name!r}, which goes down to {np.nanmin(column):g}; take it out of log1p.")
            column = np.log1p(column)
        with np.errstate(over="ignore"):
            values[:, i] = column
        if n := int((~np.isfinite(values[:, i])).sum()):
            holes[name] = n
    if holes:
        counts = ", ".join(f"{name!r} in {n}" for name, n in holes.items())
        raise ValueError(
            f"missing or infinite features: {counts} of {len(table)} rows. Fill or drop these rows, or take "
            "the column out of data.columns.features."
        )
    return values


def _check_rows(frame: pd.DataFrame, named: dict[str, str]) -> None:
    """Of the sorted table: one row per track and time, one lineage per track."""
    same = np.diff(frame["track"].cat.codes) == 0
    twice = np.flatnonzero(same & (np.diff(frame["hours"]) == 0))
    if len(twice):
        row = frame.iloc[twice[0]]
        raise ValueError(
            f"{len(twice)} rows repeat the track and time of another row, such as track {row['track']} at "
            f"{named['time']}={row[named['time']]}. Keep one of each, or map the column that tells the tracks apart."
        )
    if "lineage" in named:
        split = np.flatnonzero(same & (np.diff(frame["lineage"].cat.codes) != 0))
        if len(split):
            raise ValueError(
                f"tracks with more than one {named['lineage']!r}, such as {frame['track'].iloc[split[0]]}; "
                "give each track one, or set columns.lineage=null."
            )
