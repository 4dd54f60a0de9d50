"""The index of a collection: one row per cell and frame, built once and kept as parquet."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import pyarrow as pa

from cellcohort.datasets.images.blank_frames import blank_cells, describe
from cellcohort.datasets.images.blank_frames import blank_frames as find_blank_frames
from cellcohort.datasets.images.cell_index import rows_of_index
from cellcohort.datasets.images.collection import Experiment, check_as_many_channels
from cellcohort.datasets.images.coordinates import warn_of_units
from cellcohort.datasets.images.descent import descent, mothers_among
from cellcohort.datasets.images.faulty_cells import OVERLAP, FaultyCells, faulty_cells
from cellcohort.datasets.images.focus import focus_slices
from cellcohort.datasets.images.parquet_cache import cached_table
from cellcohort.datasets.images.plates import ABSENT, Field, fields_of, stamp
from cellcohort.datasets.images.regions import Region
from cellcohort.datasets.images.tracks import read_tracks
from cellcohort.datasets.protocol import Remark
from cellcohort.datasets.tables.columns import set_aside
from cellcohort.datasets.tables.times import Times, check_own_hours
from cellcohort.files import fingerprint
from cellcohort.messages import listed, several
from cellcohort.progress_bar import progress_bar

Border = Literal["clamp", "drop"]
BlankFrames = Literal["drop", "keep"]
Channels = Literal["together", "each"]
CORNER = ("_z0", "_y0", "_x0")
PLACE = ("_field", "t", *CORNER)
SOURCES = (
    "index",
    "tracks",
    "cell_index",
    "descent",
    "coordinates",
    "faulty_cells",
)  # modules whose code decides what is in the index


@dataclass(frozen=True)
class Index:
    """The cells of a collection and where their patches lie.

    Attributes
    ----------
    frame : pandas.DataFrame
        One row per cell (and channel, where each is a sample of its own), sorted by experiment, channel, field, track
        and time: "experiment", "condition", "hours", "track" and "lineage" (which differ between plates and
        positions), "well", "fov", "position" (which differs between plates), "plate", "t", "z", "y", "x" (the
        centroid, in pixels), "track_id", "parent_track_id", "channel" and "marker" (of one channel), the labels of
        the collection, and what else the files had.
    place : numpy.ndarray of int32, shape (n_cells, 5)
        The field, the frame, and the first slice, line and column of the patch, which is inside the image.
    line : numpy.ndarray of int32, shape (n_cells,)
        Number of the track of each row; that of a cell in one channel, where each is a sample of its own. Numbers rise.
    mother : numpy.ndarray of int32, shape (n_lines,)
        Number of the track that each track came from, -1 for none.
    fields : list of Field
    faults : pandas.DataFrame
        Frames without an image, see :func:`~cellcohort.datasets.images.blank_frames.blank_frames`.
    remarks : list of Remark
        What a preview reports.
    """

    frame: pd.DataFrame
    place: np.ndarray
    line: np.ndarray
    mother: np.ndarray
    fields: list[Field]
    faults: pd.DataFrame
    remarks: list[Remark]


def make_index(
    experiments: Sequence[Experiment],
    region: Region,
    border: Border,
    cache: str | Path,
    blank_frames: BlankFrames = "drop",
    faulty: FaultyCells = "drop",
    channels: Channels = "together",
) -> Index:
    """Return the index of a collection, read from `cache` where its inputs have not changed since it was built.

    Parameters
    ----------
    experiments : sequence of Experiment
    region : Region
        What a patch shows.
    border : {"clamp", "drop"}
        What happens to a cell whose patch would leave the image: the patch is moved inside, or the
        cell is left out, and a warning gives their number.
    cache : str or Path
        Directory of the built indices.
    blank_frames : {"drop", "keep"}
        What happens to cells in frames without an image, or whose patch reaches into padding: they are left out
        or kept. A warning gives the positions, channels, frames and the number of cells.
    faulty : {"drop", "error"}
        What happens to cells whose centre lies outside the image, and to those whose mother is still there: they are
        left out, and a warning gives their number and an example; or refused, as more than half always are.
    channels : {"together", "each"}
        Whether a row is a cell in all channels of its experiment, or in one of them.

    Returns
    -------
    Index

    Raises
    ------
    FileNotFoundError, ValueError
        An option is out of range, or plates or tracks contradict the collection.
    ReadError
        Frames that are used lack a stored chunk, or cannot be read.
    """
    for name, value, choices in (
        ("border", border, get_args(Border)),
        ("blank_frames", blank_frames, get_args(BlankFrames)),
        ("channels", channels, get_args(Channels)),
    ):
        if value not in choices:
            raise ValueError(f"{name}={value!r} is not a choice; use {' or '.join(choices)}.")
    if channels == "together":
        check_as_many_channels(experiments)
    with ThreadPoolExecutor() as pool:  # opening files is mostly waiting
        of_each = list(pool.map(fields_of, experiments))
    if channels == "each":
        experiments, of_each = _one_channel_each(experiments, of_each)
    else:
        _check_alike(experiments, of_each)
    fields = [field for of_one in of_each for field in of_one]
    sizes = region.sizes(fields)
    file = Path(cache) / f"index-{_fingerprint(experiments, fields, sizes)}.parquet"
    frame = cached_table(file, lambda: _build(experiments, of_each, sizes)).to_pandas()
    mother = np.full(int(frame["_line"].max()) + 1, -1, np.int32)
    mother[frame["_line"]] = frame["_mother"]
    bad, remarks = faulty_cells(frame, frame["_field"].to_numpy(), experiments, of_each, faulty)
    remarks += region.remarks(fields)
    frame = frame[~bad].reset_index(drop=True)
    place = frame[list(PLACE)].to_numpy(np.int32, copy=True)
    if region.z == "focus":
        place[:, 2] = _around_focus(fields, place, sizes, cache)
    _warn_of_tracks(frame, place, experiments, of_each)
    faults = find_blank_frames(fields, _used(place), cache)
    keep = frame["_inside"].to_numpy() | (border == "clamp")
    if not keep.any():
        raise ValueError(f"border='drop' leaves no cell: every patch of {list(region.patch)} would leave the image.")
    if not keep.all():
        warnings.warn(
            f"border='drop' left out {int((~keep).sum()):,} of {len(keep):,} cells, whose patch of "
            f"{list(region.patch)} would leave the image.",
            stacklevel=2,
        )
    if len(faults):
        axes = "zyx" if region.z in ("centre", "focus") else "yx"
        blank = blank_cells(faults, place, sizes[place[:, 0]], axes)
        keep &= ~_left_out(blank, describe(faults, fields, place, blank), blank_frames)
    of_index = ["_field", "_line", "_mother", "_inside", "_fault", *CORNER]
    line, frame = frame["_line"].to_numpy()[keep], frame[keep].reset_index(drop=True).drop(columns=of_index)
    left = np.unique(line)
    nearest = np.full_like(mother, -1)
    nearest[left] = mothers_among(mother, left)[left]
    return Index(frame, place[keep], line, nearest, fields, faults, remarks)


def _one_channel_each(
    experiments: Sequence[Experiment], of_each: Sequence[Sequence[Field]]
) -> tuple[list[Experiment], list[list[Field]]]:
    """Return every channel of every experiment as an experiment by itself, with its fields."""
    parts = [
        (one := experiment.with_channel(channel), [f.with_channel(number) for f in fields if one.uses(f.name)])
        for experiment, fields in zip(experiments, of_each, strict=True)
        for number, channel in enumerate(experiment.channels)
    ]
    return [experiment for experiment, _ in parts], [fields for _, fields in parts]


def _check_alike(experiments: Sequence[Experiment], of_each: Sequence[Sequence[Field]]) -> None:
    """Refuse positions of a cell index that lack a channel of the input, and tell of inputs of different channels."""
    if lacking := [field for of_one in of_each for field in of_one if ABSENT in field.channels]:
        one = lacking[0]
        raise ValueError(
            f"{several(len(lacking), 'position')} without a channel of {list(one.channel_names)}, such as {one.name} "
            f"of {one.experiment}: leave their rows out of the cell index, or make each channel a sample of its own by "
            "data.channels=each."
        )
    if any(one.indexed for one in experiments) and len({one.channels for one in experiments}) > 1:
        unlike = listed(f"{one.name} {list(one.channels)}" for one in experiments)
        warnings.warn(f"inputs have other channels in some experiments than in others: {unlike}.", stacklevel=3)


def images_of(index: Index) -> pd.DataFrame:
    """Return what a cell index says of the images of each row: their plate, and the sizes of pixels and arrays."""
    sizes = ("T_shape", "C_shape", "Z_shape", "Y_shape", "X_shape")
    about = [
        {
            "store_path": str(Path(field.store).resolve()),
            "pixel_size_xy_um": field.pixel_size[1],
            "pixel_size_z_um": field.pixel_size[0],
            **dict(zip(sizes, field.shape, strict=True)),
        }
        for field in index.fields
    ]
    return pd.DataFrame(about).iloc[index.place[:, 0]].reset_index(drop=True)


def _used(place: np.ndarray) -> np.ndarray:
    """Fields and frames that have cells, each once, (n, 2)."""
    frames = int(place[:, 1].max()) + 1
    used = np.flatnonzero(np.bincount(place[:, 0].astype(np.int64) * frames + place[:, 1]))
    return np.stack([used // frames, used % frames], axis=1)


def _around_focus(fields: Sequence[Field], place: np.ndarray, sizes: np.ndarray, cache: str | Path) -> np.ndarray:
    """First slice of each patch, around the slice in focus of its frame and inside the stack."""
    used = _used(place)
    focus = focus_slices(fields, used, cache)
    frames = int(place[:, 1].max()) + 1
    of = np.searchsorted(used[:, 0] * frames + used[:, 1], place[:, 0].astype(np.int64) * frames + place[:, 1])
    slices = sizes[place[:, 0], 0]
    wanted = np.floor(focus[of] + 0.5 - (slices - 1) / 2).astype(np.int64)
    return np.clip(wanted, 0, np.array([field.shape[2] for field in fields])[place[:, 0]] - slices)


def _left_out(bad: np.ndarray, what: str, blank_frames: BlankFrames) -> np.ndarray:
    """Which cells in frames without an image are to be left out; a warning describes them."""
    about = f"{int(bad.sum()):,} of {len(bad):,} cells lie in frames without an image or on padding"
    if blank_frames == "keep":
        warnings.warn(f"{about}, and are kept: {what}.", stacklevel=3)
        return np.zeros_like(bad)
    if bad.all():
        raise ValueError(
            f"blank_frames='drop' leaves no cell: {what}. Store these images again; data.blank_frames=keep keeps the "
            "cells as they are."
        )
    warnings.warn(f"{about}, and are left out: {what}. data.blank_frames=keep keeps them.", stacklevel=3)
    return bad


def _warn_of_tracks(
    frame: pd.DataFrame, place: np.ndarray, experiments: Sequence[Experiment], of_each: Sequence[Sequence[Field]]
) -> None:
    """Warn of coordinates that look like another unit, and of positions without a cell."""
    first, seen = 0, set[str]()
    for experiment, of_one in zip(experiments, of_each, strict=True):
        if experiment.name not in seen:  # else another channel of it
            rows = (place[:, 0] >= first) & (place[:, 0] < first + len(of_one))
            warn_of_units(frame[rows], place[rows, 0] - first, of_one, experiment)
        seen.add(experiment.name)
        first += len(of_one)
    fields = [f"{field.name} of {field.experiment}" for of_one in of_each for field in of_one]
    cells = np.bincount(place[:, 0], minlength=len(fields))
    there = {name for name, n in zip(fields, cells, strict=True) if n}
    if empty := [name for name in dict.fromkeys(fields) if name not in there]:
        warnings.warn(
            f"{len(empty)} of {len(set(fields))} positions have no tracked cell: {listed(empty)}. If they should have "
            "some, correct the tracks; otherwise add them to `exclude`.",
            stacklevel=3,
        )


def _build(experiments: Sequence[Experiment], of_each: Sequence[Sequence[Field]], sizes: np.ndarray) -> pa.Table:
    parts, families, mothers, tracks = [], [], [], []
    first_field = first_track = 0
    homes, plates = dict[Any, str](), _plate_names(experiments)
    for experiment, fields, read in zip(experiments, of_each, _tables(experiments, of_each), strict=True):
        rows = read.copy()
        found = descent(rows)
        # the same cells may be listed again, in another channel: one track has one name
        home = homes.setdefault((experiment.plate, repr(experiment.tracks)), experiment.name)
        positions = [f"{home}/{field.name}" for field in fields]
        tracks += [f"{positions[i]}/{n}" for i, n in zip(found["_field"], found["track_id"], strict=True)]
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
    names, code = np.unique(np.array(tracks, object), return_inverse=True)
    for name, codes in (("track", code[of]), ("lineage", code[family[of]])):
        kept, codes = np.unique(codes, return_inverse=True)
        rows[name] = pd.Categorical.from_codes(codes, pd.Index(names[kept]))
    texts = {"experiment", "condition", "well", "fov", "position", "plate"}
    if any(experiment.indexed for experiment in experiments):  # whose labels stand in every row
        texts |= {*rows.select_dtypes(["object", "string"]).columns}
    for name in texts.union(*(experiment.labels for experiment in experiments)) & {*rows.columns}:
        rows[name] = pd.Categorical(rows[name])
    all_fields = [field for of_one in of_each for field in of_one]
    rows["_inside"] = _place_patches(rows, all_fields, sizes)
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
    plates = {experiment.plate for experiment in experiments}
    names = [plate.stem for plate in plates]
    return {plate: plate.stem if names.count(plate.stem) == 1 else str(plate) for plate in plates}


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


def _place_patches(rows: pd.DataFrame, fields: Sequence[Field], sizes: np.ndarray) -> np.ndarray:
    """Add the corners of the patches to the rows; return which patches did not have to be moved inside."""
    shape, size = np.array([field.shape[2:] for field in fields])[rows["_field"]], sizes[rows["_field"]]
    inside = np.ones(len(rows), bool)
    for i, (axis, corner) in enumerate(zip("zyx", CORNER, strict=True)):
        wanted = np.floor(rows[axis].to_numpy() + 0.5 - (size[:, i] - 1) / 2).astype(np.int64)
        found = np.clip(wanted, 0, shape[:, i] - size[:, i])
        inside &= wanted == found
        rows[corner] = found.astype(np.int32)
    return inside


def _fingerprint(experiments: Sequence[Experiment], fields: Sequence[Field], sizes: np.ndarray) -> str:
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
