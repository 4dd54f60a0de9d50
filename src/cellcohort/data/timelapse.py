"""Time-lapse microscopy: OME-Zarr plates with tracked cells, as a collection lists them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cellcohort.augment import made
from cellcohort.cells import CellTable
from cellcohort.datasets.images.cell_index import read_cell_index, write_cell_index
from cellcohort.datasets.images.collection import Experiment, read_collection
from cellcohort.datasets.images.faulty_cells import FaultyCells
from cellcohort.datasets.images.index import BlankFrames, Border, Channels, Index, images_of, make_index
from cellcohort.datasets.images.intensity import Normalise, NormaliseBy, Statistics, check_options, scaling
from cellcohort.datasets.images.patches import Patches
from cellcohort.datasets.images.positives import (
    Kin,
    Lineages,
    Positive,
    PositiveChannel,
    anchor_rows,
    check_positive,
    check_positive_channel,
)
from cellcohort.datasets.images.regions import Region, Slab
from cellcohort.datasets.partners import PairRule, chosen
from cellcohort.datasets.positives import Tau, TauDraw
from cellcohort.datasets.protocol import LabelledCells, Views
from cellcohort.messages import whole_number
from cellcohort.missing_values import Missing, refuse_missing

__all__ = ["PatchOptions", "Timelapse", "load_cells", "load_timelapse"]

PATCH = (1, 64, 64)
TAU_HOURS = (0.5, 6.0)
MADE_WITH = ("pixel_size", "z", "normalise", "normalise_by", "statistics", "border")  # what changes pixels of patches


@dataclass(frozen=True, kw_only=True)
class PatchOptions:
    """Options of patches of images and of their positives.

    Attributes
    ----------
    patch : (int, int, int)
        Slices, lines and columns around a cell.
    channels : {"together", "each"}
        Whether a sample is a cell in all channels of its experiment, or in one of them: the table then has a row for
        each cell, time and channel, with columns "channel" and "marker", and experiments may differ in their channels.
    pixel_size : float, optional
        Micrometers along y and x that a pixel of a patch covers on every plate: as much is read as covers the patch,
        and interpolated linearly. None reads pixels as they are.
    z : {"centre", "random", "focus", "max"}
        Slices around the cell (the middle of the stack, where the tracks have no z); drawn for every anchor and
        positive, with those around the cell for evaluation; around the slice in focus, as VisCy stored it or as
        measured, see :func:`~cellcohort.datasets.images.focus.focus_slices`; or the greatest value of all slices, as
        one.
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
    missing : {"error", "label"}
        Whether cells that lack a label by which they are drawn, split or scored, such as a well without a condition or
        a channel without an organelle, are refused, or are a label of their own, "missing".
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
    tau : {"uniform", "exponential", "fixed"}
        How that time is drawn among those at which there are cells: each alike, longer ones less often, or always the
        shortest.
    tau_decay_hours : float, optional
        With ``tau="exponential"``: a time longer by this much is drawn 1/e times as often. None stands for 2 hours.
    positive : {"lineage", "columns", "self"}
        The same cell or one that descends from it, `tau_hours` later, and cells without one are no
        anchors; another cell with equal labels in `positive_columns`; or a second view of the anchor.
    positive_columns : sequence of str
        With ``positive="columns"`` only.
    positive_channel : {"same", "any", "other"}
        With ``channels="each"``, the channel of the positive: that of the anchor (with ``positive="columns"`` one of
        its marker), any of those that the cell was seen in, or another one. With ``positive="self"`` and a channel
        other than the same, the positive is the same cell at the same time.
    augment : callable or mapping, optional
        ``augment(inputs, key)`` makes the views where the model is; or its node of a config.
    cache_megabytes : int
        Of decoded images, for each process that reads.
    seed : int
        Key of the positives.
    """

    patch: Sequence[int] = PATCH
    channels: Channels = "together"
    pixel_size: float | None = None
    z: Slab = "centre"
    border: Border = "clamp"
    blank_frames: BlankFrames = "drop"
    faulty_cells: FaultyCells = "drop"
    missing: Missing = "error"
    normalise: Normalise = "position"
    normalise_by: NormaliseBy = "mean"
    statistics: Statistics = "measured"
    tau_hours: Sequence[float] = TAU_HOURS
    tau: Tau = "exponential"
    tau_decay_hours: float | None = None
    positive: Positive = "lineage"
    positive_columns: Sequence[str] = ()
    positive_channel: PositiveChannel = "same"
    augment: Views | Mapping[str, Any] | None = None
    cache_megabytes: int = 512
    seed: int = 0

    def _cells_of(self, experiments: Sequence[Experiment], cache: str | Path, pairs: PairRule | None) -> LabelledCells:
        index = self._index(experiments, cache)
        cells = self._table(index)
        if rule := chosen(pairs):
            return LabelledCells(cells, Patches.whole, rule, index.remarks)
        positive, columns, itself = self._by()
        rows = anchor_rows(cells, positive, columns, self._lineages(index), itself)
        some = cells if len(rows) == len(cells) else cells.take(rows)
        labelled = LabelledCells(some, Patches.whole, remarks=index.remarks)
        labelled.positive_columns, labelled.n_without_positive = columns, len(cells) - len(rows)
        labelled.later_hours = self.tau_hours if positive == "lineage" else None
        return labelled

    def _patches_of(self, experiments: Sequence[Experiment], cache: str | Path, pairs: PairRule | None) -> Patches:
        if self.cache_megabytes < 0:
            raise ValueError(f"cache_megabytes={self.cache_megabytes} must be 0 or more.")
        whole_number("seed", self.seed, 0)
        views = made(self.augment)
        rule = chosen(pairs)
        itself = "positive='self'" if self.positive == "self" and self.positive_channel != "other" else ""
        if rule is not None:
            itself = "pairs.missing='view'" if rule.missing == "view" else ""
        if itself and not getattr(views, "changes", views is not None):
            raise ValueError(
                f"{itself} without augment, or with all of it turned off, would pair cells with themselves; turn some "
                "of data.augment on, or use another choice."
            )
        index, (positive, columns, may_be_itself) = self._index(experiments, cache), self._by()
        return Patches(
            self._table(index),
            index.fields,
            index.place,
            self._region,
            scaling(index, self.normalise, cache, self.normalise_by, self.statistics),
            self._lineages(index),
            positive,
            columns,
            views,
            self.cache_megabytes * 2**20,
            self.seed,
            made_with={name: getattr(self, name) for name in MADE_WITH},
            pair_rule=rule,
            itself=may_be_itself,
        )

    def _by(self) -> tuple[Positive, Sequence[str], bool]:
        """Return what positives are chosen by, the columns that say it, and whether a cell may be its own."""
        if self.positive == "self" and self.positive_channel != "same":
            return "columns", ["track", "t"], self.positive_channel == "any"
        if self.positive == "columns" and self.channels == "each" and self.positive_channel == "same":
            return "columns", [*self.positive_columns, *({"marker"} - set(self.positive_columns))], False
        return self.positive, self.positive_columns, False

    def _index(self, experiments: Sequence[Experiment], cache: str | Path) -> Index:
        check_positive(self.positive, self.tau_hours, self.positive_columns)
        TauDraw(self.tau, self.tau_decay_hours)  # refuses options before anything is read
        check_positive_channel(self.positive_channel, self.channels, self.positive)
        check_options(self.normalise, self.normalise_by, self.statistics)
        options = (self.border, cache, self.blank_frames, self.faulty_cells, self.channels)
        return make_index(experiments, self._region, *options)

    def _table(self, index: Index) -> CellTable:
        refuse_missing(index.frame, (), ("experiment", "condition"), self.missing, "data.missing=label")
        return CellTable.from_frame(index.frame, hours="hours", track="track", missing=self.missing)

    @property
    def _region(self) -> Region:
        return Region(self.patch, self.pixel_size, self.z)

    def _lineages(self, index: Index) -> Lineages:
        hours, kin = index.frame["hours"].to_numpy(), None
        if self.positive_channel != "same":
            track = np.full(len(index.mother), -1)
            track[index.line] = index.frame["track"].cat.codes
            kin = Kin.of(track, itself=self.positive_channel == "any")
        how = TauDraw(self.tau, self.tau_decay_hours)
        return Lineages(index.line, hours, index.mother, self.tau_hours, how, kin)


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
    - optionally ``coordinates``, pixel or micrometer, which the plate's pixel size turns into pixels; positions to
      ``include`` or ``exclude``; and ``labels``, which become columns of the cell table: ``{cell_line: A549}``.

    For samples of one channel, ``channels`` may be a mapping of channel to what it shows: ``{GFP: viral_sensor}``, or
    of channel to several labels: ``{GFP: {marker: TOMM20, organelle: mitochondria}}``.

    Paths are relative to the file, and names are what was typed.

    The columns of its cells are listed at :class:`cellcohort.datasets.images.index.Index`.

    Attributes
    ----------
    path : str or Path
        The collection; or a plate, with one entry without ``plate`` in `experiments`, whose
        other paths are then relative to the folder that the plate lies in.
    experiments : sequence of mapping, optional
        Entries, where `path` is no collection.
    index : str or Path, optional
        A cell index of VisCy instead of both: a parquet file with one row per cell, time and channel.
    cache : str or Path
        Directory of the index and of the brightness of every position, which are made again when
        the collection, its files or the options change.
    patch, channels, pixel_size, z, border, blank_frames, faulty_cells, missing, normalise, normalise_by, statistics
        As for :class:`PatchOptions`.
    tau_hours, tau, tau_decay_hours, positive, positive_columns, positive_channel, augment, cache_megabytes, seed
        As for :class:`PatchOptions`.
    """

    path: str | Path | None = None
    experiments: Sequence[Mapping[str, Any]] | None = None
    index: str | Path | None = None
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
        return self._cells_of(self._experiments(), self.cache, pairs)

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
        return self._patches_of(self._experiments(), self.cache, pairs)

    def write_index(self, path: str | Path) -> Path:
        """Write the cells as a cell index of VisCy: one row per cell, time and channel.

        Cells that `border` or `blank_frames` leave out are not in it.

        Parameters
        ----------
        path : str or Path
            The ``.parquet`` file to write.

        Returns
        -------
        pathlib.Path
            The file.

        Raises
        ------
        FileNotFoundError, ValueError
            As :meth:`dataset`; or the name does not end in ``.parquet``.
        """
        path = Path(path)
        if path.suffix != ".parquet":
            raise ValueError(f"a cell index is a parquet file; call {path} {path.stem}.parquet.")
        experiments = self._experiments()
        index = replace(self, channels="each")._index(experiments, self.cache)
        write_cell_index(index.frame, experiments, images_of(index), path)
        return path

    def _experiments(self) -> list[Experiment]:
        if self.index is None:
            return read_collection(self.path, self.experiments)
        if self.path is not None or self.experiments is not None:
            other = "path" if self.path is not None else "experiments"
            raise ValueError(
                f"data.index={self.index} lists the plates, and data.{other} does too; give one of the two."
            )
        return read_cell_index(self.index)


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
