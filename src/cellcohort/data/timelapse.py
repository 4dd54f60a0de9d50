"""Time-lapse microscopy: OME-Zarr plates with tracked cells, as a collection lists them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cellcohort.augment import made
from cellcohort.cells import CellTable
from cellcohort.datasets.images.collection import Experiment, read_collection
from cellcohort.datasets.images.faulty_cells import FaultyCells
from cellcohort.datasets.images.index import BlankFrames, Border, Index, make_index
from cellcohort.datasets.images.patches import Patches
from cellcohort.datasets.images.positives import Lineages, Positive, anchor_rows, check_positive
from cellcohort.datasets.images.scaling import Normalise, NormaliseBy, Statistics, scaling
from cellcohort.datasets.partners import PairRule, chosen
from cellcohort.datasets.protocol import LabelledCells, Views
from cellcohort.messages import whole_number

__all__ = ["PatchOptions", "Timelapse", "load_cells", "load_timelapse"]

PATCH = (1, 64, 64)
TAU_HOURS = (0.5, 6.0)
MADE_WITH = ("normalise", "normalise_by", "statistics", "border")  # options that change the pixels of patches


@dataclass(frozen=True, kw_only=True)
class PatchOptions:
    """Options of patches of images and of their positives.

    Attributes
    ----------
    patch : (int, int, int)
        Slices, lines and columns around a cell.
    border : {"clamp", "drop"}
        Whether a patch that would leave the image is moved inside, or its cell left out.
    blank_frames : {"drop", "keep"}
        Whether cells are left out that lie in frames without an image (all zero, saturated, a copy of the frame
        before) or on padding of zeros. A warning gives the positions, channels, frames and the number of cells. Such
        frames are never part of the brightness that `normalise` measures.
    faulty_cells : {"drop", "error"}
        Whether cells whose centre lies outside the image, and frames of a track in which its mother is still there,
        are left out, with a warning that gives their number and an example, or refused. Where they are more than half
        of an experiment, they are always refused.
    normalise : {"frame", "position", "plate", "none"}
        Over what the pixels of a channel are brought to one brightness and contrast.
    normalise_by : {"mean", "median", "percentiles"}
        To mean 0 and standard deviation 1; to median 0 and interquartile range 1; or the 5th percentile to 0 and the
        95th to 1.
    statistics : {"measured", "stored", "auto"}
        Measured from the images; those that ``viscy preprocess`` stored with the plate; or those where they are
        stored. Stored ones include frames without an image. A line tells which are used.
    tau_hours : (float, float)
        Least and greatest time from anchor to positive, in hours, both inclusive.
    tau_decay_hours : float
        A time longer by this much is drawn 1/e times as often.
    positive : {"lineage", "columns", "self"}
        The same cell or one that descends from it, `tau_hours` later, and cells without one are no
        anchors; another cell with equal labels in `positive_columns`; or a second view of the anchor.
    positive_columns : sequence of str
        With ``positive="columns"`` only.
    augment : callable or mapping, optional
        ``augment(inputs, key)`` makes the views where the model is; or its node of a config.
    cache_megabytes : int
        Of decoded images, for each process that reads.
    seed : int
        Key of the positives.
    """

    patch: Sequence[int] = PATCH
    border: Border = "clamp"
    blank_frames: BlankFrames = "drop"
    faulty_cells: FaultyCells = "drop"
    normalise: Normalise = "position"
    normalise_by: NormaliseBy = "mean"
    statistics: Statistics = "measured"
    tau_hours: Sequence[float] = TAU_HOURS
    tau_decay_hours: float = 2.0
    positive: Positive = "lineage"
    positive_columns: Sequence[str] = ()
    augment: Views | Mapping[str, Any] | None = None
    cache_megabytes: int = 512
    seed: int = 0

    def _cells_of(self, experiments: Sequence[Experiment], cache: str | Path, pairs: PairRule | None) -> LabelledCells:
        index = self._index(experiments, cache)
        cells = _cells(index)
        if rule := chosen(pairs):
            return LabelledCells(cells, Patches.whole, rule, index.remarks)
        rows = anchor_rows(cells, self.positive, self.positive_columns, self._lineages(index))
        some = cells if len(rows) == len(cells) else cells.take(rows)
        labelled = LabelledCells(some, Patches.whole, remarks=index.remarks)
        labelled.positive_columns = self.positive_columns
        return labelled

    def _patches_of(self, experiments: Sequence[Experiment], cache: str | Path, pairs: PairRule | None) -> Patches:
        if self.cache_megabytes < 0:
            raise ValueError(f"cache_megabytes={self.cache_megabytes} must be 0 or more.")
        whole_number("seed", self.seed, 0)
        views = made(self.augment)
        rule = chosen(pairs)
        itself = "positive='self'" if self.positive == "self" else ""
        if rule is not None:
            itself = "pairs.missing='view'" if rule.missing == "view" else ""
        if itself and not getattr(views, "changes", views is not None):
            raise ValueError(
                f"{itself} without augment, or with all of it turned off, would pair cells with themselves; turn some "
                "of data.augment on, or use another choice."
            )
        index = self._index(experiments, cache)
        return Patches(
            _cells(index),
            index.fields,
            index.place,
            self.patch,
            scaling(index, self.normalise, cache, self.normalise_by, self.statistics),
            self._lineages(index),
            self.positive,
            self.positive_columns,
            views,
            self.cache_megabytes * 2**20,
            self.seed,
            made_with={name: getattr(self, name) for name in MADE_WITH},
            pair_rule=rule,
        )

    def _index(self, experiments: Sequence[Experiment], cache: str | Path) -> Index:
        check_positive(self.positive, self.tau_hours, self.tau_decay_hours, self.positive_columns)
        return make_index(experiments, self.patch, self.border, cache, self.blank_frames, self.faulty_cells)

    def _lineages(self, index: Index) -> Lineages:
        track = index.frame["track"].cat.codes.to_numpy().astype(np.int64)
        return Lineages(track, index.frame["hours"].to_numpy(), index.mother, self.tau_hours, self.tau_decay_hours)


@dataclass(frozen=True)
class Timelapse(PatchOptions):
    """Tracked cells on plates that a collection lists.

    A collection is a YAML file with a list ``experiments``. An entry has

    - ``name``; ``plate``, an OME-Zarr HCS plate (0.4 or 0.5); ``conditions``, wells by condition; ``channels``, names
      in the order in which the model sees them, or numbers where the plate has no names;
    - ``tracks``, a table or a mapping of position to table, with columns ``track_id``, ``t`` in stored frames from 0,
      ``y`` and ``x``, ``position`` such as "A/1/0", and optionally ``z`` and ``parent_track_id``. Images with one frame
      need neither ``t`` nor ``track_id``;
    - ``interval_minutes`` between frames, or ``hours``, a column of real times in ``time_unit``; ``start_hours``;
    - optionally ``coordinates``, pixel or micrometer, which the plate's pixel size turns into pixels; and positions to
      ``include`` or ``exclude``.

    Paths are relative to the file, and names are what was typed.

    The columns of its cells are listed at :class:`cellcohort.datasets.images.index.Index`.

    Attributes
    ----------
    path : str or Path
        The collection; or a plate, with one entry without ``plate`` in `experiments`, whose
        other paths are then relative to the folder that the plate lies in.
    experiments : sequence of mapping, optional
        Entries, where `path` is no collection.
    cache : str or Path
        Directory of the index and of the brightness of every position, which are made again when
        the collection, its files or the options change.
    patch, border, blank_frames, faulty_cells, normalise, normalise_by, statistics, tau_hours, tau_decay_hours
        As for :class:`PatchOptions`.
    positive, positive_columns, augment, cache_megabytes, seed
        As for :class:`PatchOptions`.
    """

    path: str | Path | None = None
    experiments: Sequence[Mapping[str, Any]] | None = None
    cache: str | Path = "outputs/timelapse"

    def cells(self, also: Sequence[str] = (), pairs: PairRule | None = None) -> LabelledCells:  # noqa: ARG002
        """Read the cells; images are only looked at for frames without one.

        Parameters
        ----------
        also : sequence of str
            Columns that are needed; the index has all that there are.
        pairs : PairRule, optional
            Which cells may be pairs, instead of those that the options of this source make.

        Raises
        ------
        FileNotFoundError, ValueError
            As :meth:`dataset`.
        """
        return self._cells_of(read_collection(self.path, self.experiments), self.cache, pairs)

    def dataset(self, pairs: PairRule | None = None) -> Patches:
        """Read the index of the cells; their images are read batch by batch.

        Parameters
        ----------
        pairs : PairRule, optional
            Which cells may be pairs, instead of those that the options of this source make.

        Raises
        ------
        FileNotFoundError, ValueError
            The collection, a plate or a table of tracks is not there or not as it should be; an option
            is out of range; no cell has a positive.
        ReadError
            An image cannot be read.
        """
        return self._patches_of(read_collection(self.path, self.experiments), self.cache, pairs)


def load_timelapse(
    path: str | Path | None = None, experiments: Sequence[Mapping[str, Any]] | None = None, **options: Any
) -> Patches:
    """Read a collection of plates; the options are those of :class:`Timelapse`."""
    return Timelapse(path, experiments, **options).dataset()


def load_cells(
    path: str | Path | None = None,
    experiments: Sequence[Mapping[str, Any]] | None = None,
    also: Sequence[str] = (),
    **options: Any,
) -> LabelledCells:
    """Read the cells of a collection without their images; the options are those of :class:`Timelapse`."""
    return Timelapse(path, experiments, **options).cells(also)


def _cells(index: Index) -> CellTable:
    return CellTable.from_frame(index.frame, hours="hours", track="track")
