"""The index of a collection: one row per cell and frame, built once and kept as parquet."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pandas as pd

from cellcohort.datasets.images.blank_frames import blank_cells, describe
from cellcohort.datasets.images.blank_frames import blank_frames as find_blank_frames
from cellcohort.datasets.images.collection import Experiment, check_as_many_channels
from cellcohort.datasets.images.coordinates import first_pixels, warn_of_units
from cellcohort.datasets.images.descent import mothers_among
from cellcohort.datasets.images.faulty_cells import FaultyCells, faulty_cells
from cellcohort.datasets.images.focus import focus_slices
from cellcohort.datasets.images.index_table import CORNER, build_table, fingerprint_of
from cellcohort.datasets.images.parquet_cache import cached_table
from cellcohort.datasets.images.plates import ABSENT, Field, fields_of
from cellcohort.datasets.images.regions import Region
from cellcohort.datasets.protocol import Remark
from cellcohort.messages import listed, several

Border = Literal["clamp", "drop"]
BlankFrames = Literal["drop", "keep"]
Channels = Literal["together", "each"]
PLACE = ("_field", "t", *CORNER)


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
        of_each = list(pool.map(lambda experiment: fields_of(experiment, channels == "each"), experiments))
    listed_ones = list(zip(experiments, of_each, strict=True))
    if channels == "each":
        experiments, of_each = _one_channel_each(experiments, of_each)
    else:
        _check_alike(experiments, of_each)
    fields = [field for of_one in of_each for field in of_one]
    sizes = region.sizes(fields)
    file = Path(cache) / f"index-{fingerprint_of(experiments, fields, sizes)}.parquet"
    frame = cached_table(file, lambda: build_table(experiments, of_each, sizes)).to_pandas()
    mother = np.full(int(frame["_line"].max()) + 1, -1, np.int32)
    mother[frame["_line"]] = frame["_mother"]
    bad, remarks = faulty_cells(frame, frame["_field"].to_numpy(), experiments, of_each, faulty)
    remarks += [*region.remarks(fields), *_lacking_channels(frame, listed_ones)]
    frame = frame[~bad].reset_index(drop=True)
    place = frame[list(PLACE)].to_numpy(np.int32, copy=True)
    faults = find_blank_frames(fields, _used(place), cache)
    if region.z == "focus":
        place[:, 2] = _around_focus(fields, place, sizes, cache, faults)
    _warn_of_tracks(frame, place, experiments, of_each)
    inside = frame["_inside"].to_numpy()
    if region.z == "centre":  # else the slices are not those around the cell
        inside = inside & frame["_inside_z"].to_numpy()
    keep = inside | (border == "clamp")
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
    of_index = ["_field", "_line", "_mother", "_inside", "_inside_z", "_fault", *CORNER]
    line, frame = frame["_line"].to_numpy()[keep], frame[keep].reset_index(drop=True).drop(columns=of_index)
    left = np.unique(line)
    nearest = np.full_like(mother, -1)
    nearest[left] = mothers_among(mother, left)[left]
    return Index(frame, place[keep], line, nearest, fields, faults, remarks)


def _one_channel_each(
    experiments: Sequence[Experiment], of_each: Sequence[Sequence[Field]]
) -> tuple[list[Experiment], list[list[Field]]]:
    """Return every channel of every experiment as an experiment by itself, with its fields."""
    parts = []
    for experiment, fields in zip(experiments, of_each, strict=True):
        for number, channel in enumerate(experiment.channels):
            lacking = tuple(field.name for field in fields if field.channels[number] == ABSENT)
            one = experiment.with_channel(channel)
            one = replace(one, exclude=(*one.exclude, *lacking))
            parts.append((one, [field.with_channel(number) for field in fields if one.uses(field.name)]))
    return [experiment for experiment, _ in parts], [fields for _, fields in parts]


def _lacking_channels(frame: pd.DataFrame, of_each: Sequence[tuple[Experiment, Sequence[Field]]]) -> list[Remark]:
    """Return and warn which channels of a collection some positions lack, with the number of cells there."""
    remarks = []
    for experiment, fields in of_each:
        for number, channel in enumerate(experiment.channels):
            names = [field.name for field in fields if field.channels[number] == ABSENT]
            if not names or experiment.indexed:  # which has no row there
                continue
            here = frame[(frame["experiment"] == experiment.name) & frame["fov"].isin(names)]
            n = len(here[["track", "t"]].drop_duplicates())
            remarks.append(
                Remark(
                    f"{several(len(names), 'position')} of {experiment.name} without channel {channel}: "
                    f"{listed(names)}. {several(n, 'cell')} there {'is' if n == 1 else 'are'} no sample in it.",
                    "If they should have it, correct the names of their channels.",
                )
            )
            warnings.warn(" ".join(remarks[-1][:2]), stacklevel=3)
    return remarks


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


def _around_focus(
    fields: Sequence[Field], place: np.ndarray, sizes: np.ndarray, cache: str | Path, faults: pd.DataFrame
) -> np.ndarray:
    """First slice of each patch, around the slice in focus of its frame and inside the stack."""
    used = _used(place)
    focus = focus_slices(fields, used, cache, faults)
    frames = int(place[:, 1].max()) + 1
    of = np.searchsorted(used[:, 0] * frames + used[:, 1], place[:, 0].astype(np.int64) * frames + place[:, 1])
    stacks = np.array([field.shape[2] for field in fields])
    return first_pixels(focus[of], sizes[place[:, 0], 0], stacks[place[:, 0]])[0]


def _left_out(bad: np.ndarray, what: str, blank_frames: BlankFrames) -> np.ndarray:
    """Which cells in frames without an image are to be left out; a warning describes them."""
    if not bad.any():
        warnings.warn(f"there are frames without an image, or padding, but no cell lies there: {what}.", stacklevel=3)
        return bad
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
