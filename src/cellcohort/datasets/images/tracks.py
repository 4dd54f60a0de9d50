"""The tracks of an experiment, read from its files and checked against its images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from cellcohort.datasets.images.cell_index import tracks_of_index
from cellcohort.datasets.images.collection import Experiment
from cellcohort.datasets.images.coordinates import in_pixels
from cellcohort.datasets.images.faulty_cells import OUTSIDE, outside
from cellcohort.datasets.images.plates import Field
from cellcohort.datasets.tables.read import read_table
from cellcohort.messages import listed, several

NEEDED = ("track_id", "t", "y", "x")
SNAPSHOT = ("y", "x")  # of images with one frame, where each row may be a track of its own
COUNTED = {
    "t": "count stored frames from 0",
    "track_id": "number the tracks from 0 (as floats, up to 2^53), and leave out what is of no track",
    "parent_track_id": "give the number of the mother (as float, up to 2^53), and leave it empty for none",
}


def read_tracks(experiment: Experiment, fields: Sequence[Field], indexed: pa.Table | None = None) -> pd.DataFrame:
    """Return the rows of all tracks of the fields in use, sorted by field, track and frame.

    Parameters
    ----------
    experiment : Experiment
    fields : sequence of Field
        Those of the experiment that are in use.
    indexed : pyarrow.Table, optional
        Its rows, of an experiment of a cell index.

    Returns
    -------
    pandas.DataFrame
        The columns of the files, with "_field" (int32, index into `fields`), "track_id" and
        "parent_track_id" (int64; -1 where a track has no mother), "t" (int32), "y", "x" and "z"
        (float64; the middle slice where the files have no z), "_fault" (int8, see
        :mod:`~cellcohort.datasets.images.faulty_cells`) of centres outside the image. Of images with one frame, "t" is
        0 and each row is a track of its own where the files do not have these columns.

    Raises
    ------
    FileNotFoundError, ValueError
        A file or column is not there; rows are of a position that has no image, have no centroid, are of a frame
        that the image lacks, or are there twice.
    """
    snapshots = all(field.shape[0] == 1 for field in fields)
    needed = SNAPSHOT if snapshots else NEEDED
    if indexed is not None:
        table = tracks_of_index(experiment, indexed)
    else:
        table = _read(experiment, {field.name for field in fields}, needed)
    if snapshots:
        table = table.assign(
            **{name: table.get(name, made) for name, made in (("t", 0), ("track_id", range(len(table))))}
        )
    _check_columns(table, needed, experiment)
    if not len(table):
        raise ValueError(f"tracks of {experiment.name} have no rows; a row per cell and frame is needed.")
    table = table[_used(table, experiment, fields)].reset_index(drop=True)
    if not len(table):
        raise ValueError(f"no track of {experiment.name} is in a position that is used; see include and exclude.")
    number = {field.name: i for i, field in enumerate(fields)}
    field = table["position"].map(number).to_numpy(np.int32)
    shape = np.array([f.shape for f in fields])[field]
    whole = {name: _whole(table, name, experiment) for name in ("track_id", "t")}
    parent = _parents(table, whole["track_id"], field, experiment)
    place = {axis: _place(table, axis, experiment) for axis in "yxz" if axis in table}
    if experiment.coordinates == "micrometer":
        place = in_pixels(place, field, fields)
    place.setdefault("z", (shape[:, 2] - 1) // 2 * 1.0)
    if (late := (whole["t"] < 0) | (whole["t"] >= shape[:, 0])).any():
        raise _beyond(table, late, shape, experiment)
    fault = np.any(list(outside(place, shape).values()), axis=0) * np.int8(OUTSIDE)
    read = {"_field": field, "parent_track_id": parent, **place}
    read |= {"track_id": whole["track_id"], "t": whole["t"].astype(np.int32), "_fault": fault}
    rows = np.lexsort((whole["t"], whole["track_id"], field))
    table = table.assign(**read).iloc[rows].reset_index(drop=True)
    _check_once(table, experiment)
    return table


def _read(experiment: Experiment, names: set[str], needed: Sequence[str]) -> pd.DataFrame:
    files: Mapping[str, Path] = experiment.tracks if isinstance(experiment.tracks, dict) else {"": experiment.tracks}
    real = [] if experiment.hours is None or experiment.time_unit == "timestamps" else [experiment.hours]
    parts, numbers = [], [*needed, *real]
    for position, file in files.items():
        try:
            table = read_table(file, needed, numbers=numbers)
        except (FileNotFoundError, ValueError) as error:
            raise type(error)(f"tracks of {experiment.name}: {error}") from error
        if position and "position" in table:
            others = (names | set(files)) - {position}
            _check_only(position, others & set(table["position"].astype(str)), file, experiment)
        parts.append(table.assign(position=position) if position else table)
    return pd.concat(parts, ignore_index=True) if len(parts) > 1 else parts[0]


def _check_only(position: str, others: set[str], file: Path, experiment: Experiment) -> None:
    """Return a table of one position that names others would give their cells to it."""
    if others:
        raise ValueError(
            f"tracks of {experiment.name}: {file} is given for {position}, but its column `position` names "
            f"{listed(sorted(others))}. Give one table of all positions by itself: tracks: {file.name}"
        )


def _check_columns(table: pd.DataFrame, needed: Sequence[str], experiment: Experiment) -> None:
    if missing := [name for name in needed if name not in table]:
        raise ValueError(
            f"tracks of {experiment.name} have no column {', '.join(missing)}; they have "
            f"{', '.join(map(str, table.columns))}. Rename yours."
        )
    there = [*needed, *({"position"} & {*table})]
    if holes := {name: n for name in there if (n := int(table[name].isna().sum()))}:
        counts = ", ".join(f"{name} in {n}" for name, n in holes.items())
        raise ValueError(
            f"tracks of {experiment.name}: missing values: {counts} of {len(table)} rows. Fill or drop these rows."
        )


def _used(table: pd.DataFrame, experiment: Experiment, fields: Sequence[Field]) -> np.ndarray:
    """Which rows are in a field in use; a table without positions is of the only one."""
    if "position" not in table:
        if len(fields) != 1:
            raise ValueError(
                f"tracks of {experiment.name} have no column `position`, but {len(fields)} positions are in use; they "
                f"have {listed(map(str, table))}. Rename or add it, or give `tracks` as a mapping of position to file."
            )
        table["position"] = fields[0].name
    names = {field.name for field in fields}
    counts = table["position"].astype(str).value_counts()
    lost = {str(name): int(n) for name, n in counts.items() if name not in names and experiment.uses(str(name))}
    if lost:
        unlisted = {name for name in lost if (experiment.plate / name).is_dir()}
        lost_ones = listed(
            f"{name} ({several(n, 'row')}{', stored, but not listed by its plate or well' * (name in unlisted)})"
            for name, n in lost.items()
        )
        raise ValueError(
            f"tracks of {experiment.name} are in {several(len(lost), 'position')} without an image: {lost_ones}; "
            f"the plate has {listed(sorted(names))}. Correct the column `position`, or name those to use in `include`."
        )
    table["position"] = table["position"].astype(str)
    return table["position"].isin(names).to_numpy()


def _whole(table: pd.DataFrame, name: str, experiment: Experiment) -> np.ndarray:
    given = pd.to_numeric(table[name], errors="coerce")
    exact = pd.api.types.is_integer_dtype(given)
    values = given.to_numpy(np.int64) if exact else given.to_numpy(np.float64, na_value=np.nan)
    most = 2**62 if exact else 2**53  # greater floats do not tell whole numbers apart
    least = 0 if name == "track_id" else -most
    bad = ~((values >= least) & (values <= most) & (values == np.rint(values)))
    if bad.any():
        example = table[name].iloc[int(np.argmax(bad))]
        raise ValueError(
            f"{name} of {experiment.name} is no usable whole number in {int(bad.sum())} of {len(table)} rows, such as "
            f"{example}; {COUNTED[name]}."
        )
    return values.astype(np.int64)


def _place(table: pd.DataFrame, axis: str, experiment: Experiment) -> np.ndarray:
    values = pd.to_numeric(table[axis], errors="coerce").to_numpy(np.float64, na_value=np.nan)
    if (bad := ~np.isfinite(values)).any():
        raise ValueError(
            f"{axis} of {experiment.name} is no number in {int(bad.sum())} of {len(table)} rows, such as track "
            f"{table['track_id'].iloc[int(np.argmax(bad))]}; a centroid needs z, y and x in pixels."
        )
    return values


def _parents(table: pd.DataFrame, track: np.ndarray, field: np.ndarray, experiment: Experiment) -> np.ndarray:
    """Id of the mother; -1 for none. In files, none is empty, a negative number, or 0 where no track has the id 0."""
    if "parent_track_id" not in table:
        return np.full(len(table), -1)
    given, parent = table["parent_track_id"].notna().to_numpy(), np.full(len(table), -1)
    parent[given] = np.maximum(_whole(table[given], "parent_track_id", experiment), -1)
    return np.where((parent == 0) & ~np.isin(field, field[track == 0]), -1, parent)


def _beyond(table: pd.DataFrame, late: np.ndarray, shape: np.ndarray, experiment: Experiment) -> ValueError:
    row = int(np.argmax(late))
    return ValueError(
        f"tracks of {experiment.name} lie outside their movie: t in {int(late.sum())} of {len(table)} rows, such as "
        f"track {table['track_id'].iloc[row]} of {table['position'].iloc[row]} with t={table['t'].iloc[row]}, where "
        f"the image has {shape[row, 0]} frames. Give t in stored frames from 0."
    )


def _check_once(table: pd.DataFrame, experiment: Experiment) -> None:
    twice = table.duplicated(["_field", "track_id", "t"])
    if twice.any():
        row = table[twice].iloc[0]
        raise ValueError(
            f"{several(int(twice.sum()), 'row')} of {experiment.name} of the same track and frame as another row, such "
            f"as track {row['track_id']} of {row['position']} at t={row['t']}; keep one of each."
        )
