"""Time-lapse microscopy: OME-Zarr plates with tracked cells, as a collection lists them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cellcohort.cells import CellTable
from cellcohort.datasets.images.collection import read_collection
from cellcohort.datasets.images.index import BlankFrames, Border, Index, make_index
from cellcohort.datasets.images.patches import Patches
from cellcohort.datasets.images.positives import Lineages, Positive, anchor_rows, check_positive
from cellcohort.datasets.images.scaling import Normalise, scaling
from cellcohort.datasets.positives import TrackCells
from cellcohort.datasets.protocol import Views
from cellcohort.messages import whole_number

__all__ = ["load_cells", "load_timelapse"]

PATCH = (1, 64, 64)
TAU_HOURS = (0.5, 6.0)


def load_timelapse(
    path: str | Path | None = None,
    experiments: Sequence[Mapping[str, Any]] | None = None,
    patch: Sequence[int] = PATCH,
    border: Border = "clamp",
    normalise: Normalise = "position",
    tau_hours: Sequence[float] = TAU_HOURS,
    tau_decay_hours: float = 2.0,
    positive: Positive = "lineage",
    positive_columns: Sequence[str] = (),
    augment: Views | None = None,
    cache: str | Path = "outputs/timelapse",
    cache_megabytes: int = 512,
    seed: int = 0,
    blank_frames: BlankFrames = "drop",
) -> Patches:
    """Read a collection of plates.

    A collection is a YAML file with a list ``experiments``; an entry has ``name``; ``plate``, an OME-Zarr
    HCS plate; ``tracks``, a table (columns ``track_id``, ``t`` in stored frames from 0, ``y`` and ``x`` in pixels,
    ``position`` such as "A/1/0", and optionally ``z`` and ``parent_track_id``) or a mapping of position to
    table; ``conditions``, wells by condition; ``interval_minutes``; ``channels``, names in the order in which
    the model is to see them; and optionally ``start_hours``, and positions to ``include`` or ``exclude``.
    Paths are relative to the file.

    Parameters
    ----------
    path : str or Path
        The collection; or a plate, with one entry without ``plate`` in `experiments`, whose
        other paths are then relative to the folder that the plate lies in.
    experiments : sequence of mapping, optional
        Entries, where `path` is no collection.
    patch : (int, int, int)
        Slices, lines and columns around a cell.
    border : {"clamp", "drop"}
        Whether a patch that would leave the image is moved inside, or its cell left out.
    normalise : {"position", "plate", "none"}
        Over what the pixels of a channel are brought to mean 0 and standard deviation 1.
    tau_hours : (float, float)
        Least and greatest time from anchor to positive, in hours, both inclusive.
    tau_decay_hours : float
        A time longer by this much is drawn 1/e times as often.
    positive : {"lineage", "columns", "self"}
        The same cell or one that descends from it, `tau_hours` later, and cells without one are no
        anchors; another cell with equal labels in `positive_columns`; or a second view of the anchor.
    positive_columns : sequence of str
        With ``positive="columns"`` only.
    augment : callable, optional
        ``augment(inputs, key)`` makes the views where the model is.
    cache : str or Path
        Directory of the index and of the brightness of every position, which are made again when
        the collection, its files or the options change.
    cache_megabytes : int
        Of decoded images, for each process that reads.
    seed : int
        Key of the positives.
    blank_frames : {"drop", "keep"}
        Whether cells are left out that lie in frames without an image (all zero, saturated, a copy of the frame
        before) or on padding of zeros. A warning gives the positions, channels, frames and the number of cells. Such
        frames are never part of the brightness that `normalise` measures.

    Returns
    -------
    Patches
        The columns of its `cells` are listed at :class:`cellcohort.datasets.images.index.Index`.

    Raises
    ------
    FileNotFoundError, ValueError
        The collection, a plate or a table of tracks is not there or not as it should be; an option
        is out of range; no cell has a positive.
    ReadError
        An image cannot be read.
    """
    if cache_megabytes < 0:
        raise ValueError(f"cache_megabytes={cache_megabytes} must be 0 or more.")
    whole_number("seed", seed, 0)
    if positive == "self" and not getattr(augment, "changes", augment is not None):
        raise ValueError(
            "positive='self' without augment, or with all of it turned off, would pair cells with themselves; turn "
            "some of data.augment on, or use another positive."
        )
    check_positive(positive, tau_hours, tau_decay_hours, positive_columns)
    index = make_index(read_collection(path, experiments), patch, border, cache, blank_frames)
    return Patches(
        _cells(index),
        index.fields,
        index.place,
        patch,
        scaling(index, normalise, cache),
        _lineages(index, tau_hours, tau_decay_hours),
        positive,
        positive_columns,
        augment,
        cache_megabytes * 2**20,
        seed,
        made_with={"normalise": normalise, "border": border},
    )


def load_cells(
    path: str | Path | None = None,
    experiments: Sequence[Mapping[str, Any]] | None = None,
    patch: Sequence[int] = PATCH,
    border: Border = "clamp",
    tau_hours: Sequence[float] = TAU_HOURS,
    tau_decay_hours: float = 2.0,
    positive: Positive = "lineage",
    positive_columns: Sequence[str] = (),
    cache: str | Path = "outputs/timelapse",
    also: Sequence[str] = (),
    blank_frames: BlankFrames = "drop",
) -> TrackCells:
    """The cells that :func:`load_timelapse` would give; images are only looked at for frames without one.

    Parameters
    ----------
    path, experiments, patch, border, tau_hours, tau_decay_hours, positive, positive_columns, cache, blank_frames
        As for :func:`load_timelapse`.
    also : sequence of str
        Columns that are needed; the index has all that there are.
    """
    check_positive(positive, tau_hours, tau_decay_hours, positive_columns)
    index = make_index(read_collection(path, experiments), patch, border, cache, blank_frames)
    cells = _cells(index)
    lineages = _lineages(index, tau_hours, tau_decay_hours)
    rows = anchor_rows(cells, positive, positive_columns, lineages)
    return TrackCells(cells if len(rows) == len(cells) else cells.take(rows), Patches.whole)


def _cells(index: Index) -> CellTable:
    return CellTable.from_frame(index.frame, hours="hours", track="track")


def _lineages(index: Index, tau_hours: Sequence[float], tau_decay_hours: float) -> Lineages:
    track = index.frame["track"].cat.codes.to_numpy().astype(np.int64)
    return Lineages(track, index.frame["hours"].to_numpy(), index.mother, tau_hours, tau_decay_hours)
