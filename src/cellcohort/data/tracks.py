"""Tracked cells from a table (parquet or CSV) with one row per cell and frame."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from cellcohort.augment import made
from cellcohort.augment.features import LIGHT, Augment
from cellcohort.cells import CellTable, numeric_values
from cellcohort.datasets.copies import COPIES, with_copies
from cellcohort.datasets.partners import PairRule, chosen
from cellcohort.datasets.positives import Positive, Tau, TauDraw, anchor_cells, check_positive
from cellcohort.datasets.protocol import LabelledCells
from cellcohort.datasets.sample_columns import SAMPLE_COLUMNS
from cellcohort.datasets.tables.columns import COLUMNS, Roles, cells_of
from cellcohort.datasets.tables.merge_labels import MergeLabels
from cellcohort.datasets.tables.read import has_columns, read_table
from cellcohort.datasets.tables.said_rows import said_rows
from cellcohort.datasets.tables.times import Times, TimeUnit
from cellcohort.faults import Faults
from cellcohort.mapped_cells import files_of_table, mapped_cells
from cellcohort.messages import listed
from cellcohort.missing_values import Missing, MissingValues, said_words
from cellcohort.mothers import PARENTS

if TYPE_CHECKING:
    from pydantic import PositiveInt

    from cellcohort.datasets.features.windows import TrackWindows

__all__ = ["COLUMNS", "Tracks", "Windows", "load_cells", "load_tracks"]


@dataclass(frozen=True, kw_only=True)
class Windows:
    """Options of windows of features, see :class:`~cellcohort.datasets.features.windows.TrackWindows`.

    Attributes
    ----------
    frames : int
        Frames in a window.
    tau_hours : (float, float)
        Least and greatest time from anchor to positive, in hours, both inclusive.
    tau : {"uniform", "exponential", "fixed"}
        How that time is drawn among those at which there are cells: each alike, longer ones less often, or always the
        shortest.
    tau_decay_hours : float, optional
        With ``tau="exponential"``: a time longer by this much is drawn 1/e times as often. None stands for 2 hours.
    positive : {"track_or_view", "track", "view"}
        A later window of the track, or a second view of the anchor.
    augment : Augment or mapping
        What makes two views of a window differ, or its node of a config.
    seed : int
        Key of positives and views.
    """

    frames: PositiveInt = 6
    tau_hours: Sequence[float] = (0.5, 2.0)
    tau: Tau = "uniform"
    tau_decay_hours: float | None = None
    positive: Positive = "track_or_view"
    augment: Augment | Mapping[str, Any] = LIGHT
    seed: int = 0


@dataclass(frozen=True)
class Tracks(Windows):
    """Tracked cells from a table with one row per cell and frame.

    The order of the rows plays no part, frames may be missing, and track ids may repeat between
    experiments: a track is known by its experiment and its id.

    The cells are sorted by experiment, track and time, and hold the columns of the file that are not features,
    beside "hours", "track", "lineage" where mapped, and "experiment" and "condition" where these are made of several
    columns or of a threshold. Labels of experiments and conditions are texts. A column of the file with the name of
    one that is made, but other labels, gets ``file_`` before its name. Rows of no track are left out, and a warning
    gives their number.

    Attributes
    ----------
    path : str or Path
        A ``.parquet``, ``.csv`` or ``.tsv`` file, the latter two perhaps compressed (``.csv.gz``); lines around the
        header, as tracking programs write them, are skipped, see
        :func:`~cellcohort.datasets.tables.delimited.read_delimited`.
    columns : mapping
        Which column is what; what is not named keeps its default. ``experiment``, ``condition``
        (None where there is none), ``time`` (a number of frames) or ``hours`` (real times in `time_unit`, which are
        then used instead), ``track``, ``lineage`` or ``parent`` (None, or what tells families of tracks, which no split
        cuts in two: a label of the family, or the id of the mother track) and ``features`` (a list). A list of columns
        is a key jointly: ``track: [file, TRACK_ID]``.
        ``condition`` may be a threshold: ``{"column": "dye", "above": 10, "labels": ["alive",
        "dead"]}`` labels rows "dead" where dye > 10. No column that is mapped may be a feature.
    interval_minutes : float
        Minutes from one frame to the next; None where real times are named.
    start_hours : float or mapping of experiment to float
        Hours at time 0: ``hours = start_hours + time * interval_minutes / 60``.
    time_unit : {"hours", "minutes", "days", "seconds", "timestamps"}
        Of the column of real times; those of timestamps count from the first one of each experiment.
    merge_labels : mapping of str to mapping of label to label, optional
        Other names for labels, by role or column, which merges spellings of one name:
        ``{"condition": {"GEM": "Gem"}}``.
    missing : {"error", "label"}
        What rows without an experiment or a condition do: "error" refuses them and gives their number; "label"
        makes them an experiment or a condition of their own, named "missing", also where a threshold has no value.
        Rows without an experiment are refused all the same where ids of tracks occur in several experiments.
    log1p : sequence of str
        Features to be read as log(1 + x), for those with a long tail.
    index_cache : path, optional
        Directory of a file of cells and features, which all processes of a machine then share, and which later runs
        find.
    frames, tau_hours, tau, tau_decay_hours, positive, augment, seed
        As for :class:`Windows`.
    """

    path: str | Path | None = None
    columns: Mapping[str, Any] = COLUMNS
    interval_minutes: float | None = None
    start_hours: float | Mapping[Any, float] = 0.0
    time_unit: TimeUnit = "hours"
    merge_labels: MergeLabels = None
    missing: Missing = "error"
    log1p: Sequence[str] = ()
    index_cache: str | Path | None = None

    def cells(self, also: Sequence[str] = (), pairs: PairRule | None = None) -> LabelledCells:
        """Read the cells without their features, which are only looked at for cells of the same values.

        Parameters
        ----------
        also : sequence of str
            Columns to read beside those that `columns` and `merge_labels` name.
        pairs : PairRule, optional
            Which cells may be pairs, instead of those that the options of this source make.

        Raises
        ------
        FileNotFoundError, ValueError
            As :meth:`dataset`, but for what concerns features.
        """
        self._how()
        also = [*also, *(pairs.columns if pairs else ())]
        roles = Roles.of(self.columns)
        beside = {*also, *(self.merge_labels or ())} - roles.derived - set(roles.named)
        only = {*roles.columns(), *beside}
        of_labels = replace(roles, features=[])
        cells, _ = self._cells(of_labels, self._table(of_labels, only, roles.compared | SAMPLE_COLUMNS | {*PARENTS}))
        if roles.features:
            with suppress(ValueError):  # which `check` raises
                known, _ = self._read(roles, {*roles.columns(), *roles.features})
                if known.has(COPIES):
                    cells = cells.with_column(COPIES, known.values(COPIES).to_numpy())
        rule = chosen(pairs)
        labelled = (
            LabelledCells(cells, roles.whole, rule)
            if rule
            else anchor_cells(cells, self.tau_hours, self.positive, roles.whole)
        )
        labelled.features = roles.features
        return labelled

    def dataset(self, pairs: PairRule | None = None) -> TrackWindows:
        """Read the cells and their features.

        Parameters
        ----------
        pairs : PairRule, optional
            Which cells may be pairs, instead of those that the options of this source make.

        Raises
        ------
        FileNotFoundError, ValueError
            The file or a mapped column is not there; rows have no time or lineage, or no experiment or condition with
            ``missing="error"``; a column "hours" that is not named has other times; features are not numbers or have
            missing values; a (track, time) is there twice.

        Warns
        -----
        UserWarning
            Rows are of no track, and left out; a file is not plain UTF-8 with commas and decimal points.
        """
        from cellcohort.datasets.features.windows import TrackWindows, check_options  # here, since labels need no torch

        check_options(self.frames, self.tau_hours, self.positive, self.seed)
        roles, how = Roles.of(self.columns), self._how()
        options = dict(self.columns), self._times, self.merge_labels, self.missing, [*self.log1p]
        files = files_of_table(self.index_cache, self.path, "tracks", *options)
        cells, values = mapped_cells(files, lambda: self._read(roles))
        return TrackWindows(
            cells, values, roles.features, self.frames, self.tau_hours, self.positive, made(self.augment), self.seed,
            roles.whole, pairs, how,
        )  # fmt: skip

    def check_columns(self) -> None:
        """Refuse what :meth:`check` refuses, where the header of the table lacks a column or no feature is named."""
        roles = Roles.of(self.columns)
        if not roles.features or not has_columns(
            self.path, {*roles.columns(), *roles.features}, self._numbers(roles)
        ):  # fmt: skip
            self._read(roles)

    def check(self) -> None:
        """Read the features, and refuse those that :meth:`dataset` refuses."""
        self._read(Roles.of(self.columns), note="To see what a sampler does to labels alone, use data=table.")

    def _table(self, roles: Roles, only: Collection[str] | None, besides: Collection[str] = ()) -> pd.DataFrame:
        wanted = {*roles.columns(), *roles.features}
        return read_table(self.path, wanted, only, text_columns(roles), self._numbers(roles), besides)

    def _cells(self, roles: Roles, table: pd.DataFrame) -> tuple[CellTable, np.ndarray]:
        """Return the cells, and the row of the table that each comes from."""
        return cells_of(table, roles, self._times, self.merge_labels, self.missing)

    def _read(self, roles: Roles, only: Collection[str] | None = None, note: str = "") -> tuple[CellTable, np.ndarray]:
        """Return the cells with what is known of copies, and their features; what is wrong with both is told at once.

        An error of features alone gets the `note`.
        """
        table = self._table(roles, only)
        roles.check(table)
        faults = Faults()
        read = faults.of(self._cells, roles, table)
        rows = np.flatnonzero(table[roles.columns("track")].notna().all(axis=1)) if read is None else read[1]
        values = faults.of(self._features, roles, table, rows)
        if read is None or values is None:
            error = faults.error()
            if read is not None and note:
                error.add_note(note)
            raise error
        tell_labels_among_features(read[0], values, roles.features)
        return with_copies(read[0], values, "track"), values

    def _features(self, roles: Roles, table: pd.DataFrame, rows: np.ndarray) -> np.ndarray:
        if not roles.features:
            named = table.select_dtypes("number").columns.difference(roles.columns(), sort=False)
            raise ValueError(
                "data.columns.features is empty; list what the model is to see, and no ids or positions on a plate. "
                f"Columns of numbers: {', '.join(named) or 'none'}."
            )
        return feature_values(table.iloc[rows], roles.features, self.log1p)

    def _how(self) -> TauDraw:
        """Return how times are drawn; options that are no choice are refused, before anything is read."""
        check_positive(self.tau_hours, self.positive)
        return TauDraw(self.tau, self.tau_decay_hours)

    def _numbers(self, roles: Roles) -> list[str]:
        return [*roles.numbers, *(roles.columns("hours") if self.time_unit != "timestamps" else [])]

    @property
    def _times(self) -> Times:
        return Times(self.interval_minutes, self.start_hours, self.time_unit)


def load_tracks(
    path: str | Path | None = None,
    columns: Mapping[str, Any] = COLUMNS,
    interval_minutes: float | None = None,
    start_hours: float | Mapping[Any, float] = 0.0,
    **options: Any,
) -> TrackWindows:
    """Read tracked cells and their features.

    Parameters
    ----------
    path, columns, interval_minutes, start_hours, **options
        Those of :class:`Tracks`.

    Raises
    ------
    FileNotFoundError, ValueError
        As :meth:`Tracks.dataset`.
    """
    return Tracks(path, columns, interval_minutes, start_hours, **options).dataset()


def load_cells(
    path: str | Path | None = None,
    columns: Mapping[str, Any] = COLUMNS,
    interval_minutes: float | None = None,
    start_hours: float | Mapping[Any, float] = 0.0,
    also: Sequence[str] = (),
    **options: Any,
) -> LabelledCells:
    """Read tracked cells without their features.

    Parameters
    ----------
    path, columns, interval_minutes, start_hours, **options
        Those of :class:`Tracks`.
    also : sequence of str
        Columns to read besides.

    Raises
    ------
    FileNotFoundError, ValueError
        As :meth:`Tracks.cells`.
    """
    return Tracks(path, columns, interval_minutes, start_hours, **options).cells(also)


def text_columns(roles: Roles) -> list[str]:
    """Return the columns that hold labels, which a text file gives as they were typed."""
    return [*roles.labels, *roles.columns("track", "lineage", "parent")]


def feature_values(table: pd.DataFrame, features: Sequence[str], log1p: Sequence[str] = ()) -> np.ndarray:
    """Return features as numbers, float32 (n_rows, n_features).

    Parameters
    ----------
    table : pandas.DataFrame
        Rows of a table that :func:`~cellcohort.datasets.tables.read.read_table` gave, with their index.
    features : sequence of str
    log1p : sequence of str
        Those to be read as log(1 + x).

    Raises
    ------
    ValueError
        A feature is not numbers, or has missing or infinite values, whose rows are named; `log1p` of what is no
        feature, or of -1 or less.
    """
    if unknown := [name for name in log1p if name not in features]:
        raise ValueError(f"log1p of {', '.join(unknown)}, not a feature; the features are {', '.join(features)}.")
    values, words = np.empty((len(table), len(features)), np.float32), table.attrs.get("words", {})
    holes, rows = {}, np.zeros(len(table), bool)
    for i, name in enumerate(features):
        column = numeric_values(table[name], repr(name))
        if name in log1p:
            if (column <= -1).any():
                raise ValueError(f"log1p of {name!r}, which goes down to {np.nanmin(column):g}; take it out of log1p.")
            column = np.log1p(column)
        with np.errstate(over="ignore"):
            values[:, i] = column
        if (bad := ~np.isfinite(values[:, i])).any():
            holes[name], rows = int(bad.sum()), rows | bad
    if holes:
        counts = listed(f"{name!r} in {n}{said_words(words.get(name, {}))}" for name, n in holes.items())
        raise MissingValues(
            f"missing, infinite or too large (above 3.4e38) features: {counts} of {len(table)} rows "
            f"({said_rows(table.attrs, sorted(table.index[rows]))}). Fill or drop these rows, or take the column out "
            "of data.columns.features.",
            table,
            features,
        )
    return values


def tell_labels_among_features(cells: CellTable, values: np.ndarray, names: Sequence[str]) -> None:
    """Warn of features that have one value in each condition, or in each experiment, and not the same in all.

    Parameters
    ----------
    cells : CellTable
    values : numpy.ndarray of float, shape (n_cells, n_features)
    names : sequence of str
        Of the features.
    """
    for role in ("condition", "experiment"):
        column = cells.column(role) if cells.has(role) else None
        if column is None or (counts := column.counts())[counts > 0].min() < 2:
            continue
        of = np.empty(len(counts), np.int64)
        of[column.codes] = np.arange(len(cells))  # a cell of each label
        one_each = [
            name
            for name, own in zip(names, values.T, strict=True)
            if (own == own[of[column.codes]]).all() and np.ptp(own[of[counts > 0]]) > 0
        ]
        if one_each:
            warnings.warn(
                f"{listed(one_each, 5, show=repr)} {'has' if len(one_each) == 1 else 'have'} one value in each "
                f"{role}: the model is told the {role}, and so are the scores. Take such columns out of "
                "data.columns.features.",
                stacklevel=4,
            )
