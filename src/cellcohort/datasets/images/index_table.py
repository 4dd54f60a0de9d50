"""The table of an index: the rows of all experiments, from their tracks and images."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from cellcohort.datasets.images.cell_index import rows_of_index
from cellcohort.datasets.images.collection import Experiment
from cellcohort.datasets.images.coordinates import first_pixels
from cellcohort.datasets.images.descent import descent
from cellcohort.datasets.images.faulty_cells import OVERLAP
from cellcohort.datasets.images.plates import Field
from cellcohort.datasets.images.tracks import read_tracks
from cellcohort.datasets.tables.columns import set_aside
from cellcohort.datasets.tables.times import Times, check_own_hours
from cellcohort.files import fingerprint, stamp
from cellcohort.messages import listed, several
from cellcohort.progress_bar import progress_bar

CORNER = ("_z0", "_y0", "_x0")
NEAR = 1.0  # pixels that one cell may be apart in two tables of its tracks
SOURCES = (  # modules whose code decides what is in the table
    "index_table",
    "tracks",
    "cell_index",
    "descent",
    "coordinates",
    "faulty_cells",
)


def build_table(experiments: Sequence[Experiment], of_each: Sequence[Sequence[Field]], sizes: np.ndarray) -> pa.Table:
    """Return the rows of all experiments, with the columns of the index and those that begin with "_" for its making.

    Parameters
    ----------
    experiments : sequence of Experiment
    of_each : sequence of sequence of Field
        The fields of each experiment.
    sizes : numpy.ndarray of int, shape (n_fields, 3)
        Slices, lines and columns of a patch of each field.
    """
    parts, families, mothers, tracks = [], [], [], []
    first_field = first_track = 0
    tables, plates = _tables(experiments, of_each), _plate_names(experiments)
    homes = _homes(experiments, tables)
    for experiment, fields, read, (home, home_of_tracks) in zip(experiments, of_each, tables, homes, strict=True):
        rows = read.copy()
        found = descent(rows)
        positions = [f"{home}/{field.name}" for field in fields]
        names = [f"{home_of_tracks}/{field.name}" for field in fields]
        tracks += [f"{names[i]}/{n}" for i, n in zip(found["_field"], found["track_id"], strict=True)]
        families.append(found["lineage"].to_numpy() + first_track)
        mothers.append(np.where(found["mother"] < 0, -1, found["mother"] + first_track))
        of = np.repeat(np.arange(len(found)), found["n"])
        rows.loc[(rows["_fault"] == 0) & (rows["t"] <= found["overlap"].to_numpy()[of]), "_fault"] = OVERLAP
        labels = {
            "experiment": [field.experiment for field in fields],
            **({} if experiment.indexed else {"condition": [field.condition for field in fields]}),
            "well": [field.well for field in fields],
            "fov": [field.name for field in fields],
            "plate": [plates[experiment.plate]] * len(fields),
            **{name: [label] * len(fields) for name, label in experiment.labels.items()},
        }
        derived = {name: _labelled(values, rows["_field"].to_numpy()) for name, values in labels.items()}
        own = np.array(tracks, object)
        whose = {"track": own[of + first_track], "lineage": own[families[-1][of]]}
        rows = _set_aside(rows, derived | whose, experiment)
        derived["position"] = _labelled(positions, rows["_field"].to_numpy())
        derived |= {"hours": _hours(rows, of, experiment, fields), "_line": (of + first_track).astype(np.int32)}
        derived["_field"] = rows["_field"].to_numpy() + np.int32(first_field)
        others = rows.columns.difference(["position", *CORNER, *derived, *whose], sort=False)
        parts.append(pd.DataFrame(derived).join(rows[others]))
        first_field, first_track = first_field + len(fields), first_track + len(found)
    rows = pd.concat(parts, ignore_index=True)
    of, family = rows["_line"].to_numpy(), np.concatenate(families)
    all_tracks, code = np.unique(np.array(tracks, object), return_inverse=True)
    for name, codes in (("track", code[of]), ("lineage", code[family[of]])):
        kept, codes = np.unique(codes, return_inverse=True)
        rows[name] = pd.Categorical.from_codes(codes, pd.Index(all_tracks[kept]))
    texts = {"experiment", "condition", "well", "fov", "position", "plate"}
    if any(experiment.indexed for experiment in experiments):  # whose labels stand in every row
        texts |= {*rows.select_dtypes(["object", "string"]).columns}
    for name in texts.union(*(experiment.labels for experiment in experiments)) & {*rows.columns}:
        rows[name] = pd.Categorical(rows[name])
    all_fields = [field for of_one in of_each for field in of_one]
    _place_patches(rows, all_fields, sizes)
    rows["_mother"] = np.concatenate(mothers)[of].astype(np.int32)
    try:
        return pa.Table.from_pandas(rows, preserve_index=False)
    except pa.ArrowException as error:
        raise ValueError(
            f"a column has values of several kinds in the tracks: {'; '.join(map(str, error.args))}. Give it one type "
            "in all tables of the collection, or leave it out."
        ) from error


def _tables(experiments: Sequence[Experiment], of_each: Sequence[Sequence[Field]]) -> list[pd.DataFrame]:
    """Read the tracks of each experiment, side by side; those of another channel of the same cells are read once."""
    keys = [
        repr(replace(experiment, channels=experiment.channels * experiment.indexed, labels={}, channel_labels={}))
        for experiment in experiments
    ]
    first = {key: number for number, key in reversed([*enumerate(keys)])}
    files = {one.tracks for one in experiments if one.indexed and isinstance(one.tracks, Path)}
    rows = {path: rows_of_index(path) for path in files}

    def read_one(number: int) -> pd.DataFrame:
        one = experiments[number]
        indexed = rows[one.tracks][one.name] if one.indexed and isinstance(one.tracks, Path) else None
        return read_tracks(one, of_each[number], indexed)

    with ThreadPoolExecutor() as pool:
        each = pool.map(read_one, sorted(first.values()))
        read = dict(zip(sorted(first.values()), progress_bar(each, "tracks", "experiment", len(first)), strict=True))
    return [read[first[key]] for key in keys]


def _plate_names(experiments: Sequence[Experiment]) -> dict[Path, str]:
    """Name every plate by its folder, or by its path where folders of one name are several plates."""
    plates = {experiment.plate.resolve(): experiment.plate for experiment in reversed(experiments)}
    names = [plate.stem for plate in plates.values()]
    called = {real: one.stem if names.count(one.stem) == 1 else str(one) for real, one in plates.items()}
    return {experiment.plate: called[experiment.plate.resolve()] for experiment in experiments}


def _homes(experiments: Sequence[Experiment], tables: Sequence[pd.DataFrame]) -> list[tuple[str, str]]:
    """Return the names that the positions and the tracks of each experiment begin with: those of an earlier one of it.

    One plate may be listed again, for another channel: a position has one name, and so has a track that both list.
    """
    plates, homes = [experiment.plate.resolve() for experiment in experiments], list[tuple[str, str]]()
    for number, experiment in enumerate(experiments):
        before = [i for i in range(number) if plates[i] == plates[number]]
        same = next((i for i in before if _same_cells(experiments, tables, i, number)), None)
        homes.append(
            (
                homes[before[0]][0] if before else experiment.name,
                experiment.name if same is None else homes[same][1],
            )
        )
        if not before or same is not None:
            continue
        earlier = pd.concat([tables[i]["position"] for i in before]).unique()
        if others := sorted({*tables[number]["position"].unique()} & {*earlier}):
            warnings.warn(
                f"{experiment.name} and {experiments[before[0]].name} are of the same plate with other tracks, in "
                f"{listed(others)}: a cell of one may be a cell of the other, and then be on both sides of a "
                "split. Hold out whole positions: split.by=position.",
                stacklevel=3,
            )
    return homes


def _same_cells(experiments: Sequence[Experiment], tables: Sequence[pd.DataFrame], one: int, other: int) -> bool:
    """Whether two experiments of a plate have one file of tracks, or most tracks that both name at one place."""
    if repr(experiments[one].tracks) == repr(experiments[other].tracks):
        return True
    key = ["position", "track_id", "t"]
    both = tables[one][[*key, "y", "x"]].merge(tables[other][[*key, "y", "x"]], on=key, suffixes=("", "_other"))
    near = ((both["y"] - both["y_other"]).abs() < NEAR) & ((both["x"] - both["x_other"]).abs() < NEAR)
    return bool(near.mean() > 0.5)


def _hours(rows: pd.DataFrame, track: np.ndarray, experiment: Experiment, fields: Sequence[Field]) -> np.ndarray:
    """Hours of the rows, which rise along a track."""
    frames, interval = max(field.shape[0] for field in fields), experiment.interval_minutes
    if interval is None and experiment.hours is None and frames == 1:
        return np.full(len(rows), experiment.start_hours)
    if interval is None and experiment.hours is None:
        raise ValueError(
            f"experiment {experiment.name} lacks interval_minutes, the time from one frame to the next, which its "
            f"images of {frames} frames need; or name the column of real times with hours."
        )
    times = Times(interval, experiment.start_hours, experiment.time_unit)
    try:
        hours = times.hours(rows, "t", experiment.hours, None)
        if experiment.hours is None:
            check_own_hours(rows, hours, "t x interval_minutes", "`hours: {name}` in its entry (no interval_minutes)")
    except (ValueError, KeyError) as error:
        raise ValueError(f"tracks of {experiment.name}: {error}") from error
    if bad := int((~(np.diff(hours)[np.diff(track) == 0] > 0)).sum() + np.isnan(hours).sum()):
        raise ValueError(
            f"{experiment.hours!r} of {experiment.name} is missing or does not rise from frame to frame of a track in "
            f"{several(bad, 'row')} of {len(rows):,}; correct these, or give interval_minutes instead."
        )
    return hours


def _set_aside(rows: pd.DataFrame, derived: dict[str, np.ndarray], experiment: Experiment) -> pd.DataFrame:
    rows, renamed = set_aside(rows, derived)
    if renamed:
        counts = ", ".join(f"{name!r} (in {several(n, 'row')})" for name, n in renamed.items())
        warnings.warn(
            f"the tracks of {experiment.name} have columns that differ from the collection: {counts} of "
            f"{len(rows):,}. They are now {listed(f'file_{name}' for name in renamed)}.",
            stacklevel=2,
        )
    return rows


def _labelled(labels: list[str], field: np.ndarray) -> np.ndarray:
    return np.array(labels, dtype=object)[field]


def _place_patches(rows: pd.DataFrame, fields: Sequence[Field], sizes: np.ndarray) -> None:
    """Add to the rows the corners of the patches, and which did not have to be moved inside, in a slice and across."""
    shape, size = np.array([field.shape[2:] for field in fields])[rows["_field"]], sizes[rows["_field"]]
    rows["_inside"] = True
    for i, (axis, corner) in enumerate(zip("zyx", CORNER, strict=True)):
        first, inside = first_pixels(rows[axis].to_numpy(), size[:, i], shape[:, i])
        rows[corner] = first.astype(np.int32)
        if axis == "z":
            rows["_inside_z"] = inside
        else:
            rows["_inside"] &= inside


def fingerprint_of(experiments: Sequence[Experiment], fields: Sequence[Field], sizes: np.ndarray) -> str:
    """Return a digest of what the index depends on: the collection, the files it names, the options and this code."""
    stamps = []
    for experiment in experiments:
        files = experiment.tracks.values() if isinstance(experiment.tracks, dict) else [experiment.tracks]
        for file in files:
            if not file.is_file():
                raise FileNotFoundError(f"tracks of {experiment.name}: no file {file} (seen from {Path.cwd()}).")
            stamps.append(stamp(file))
    code = [Path(__file__).with_name(f"{source}.py").read_bytes() for source in SOURCES]
    return fingerprint(sizes, list(experiments), stamps, list(fields), *code)
