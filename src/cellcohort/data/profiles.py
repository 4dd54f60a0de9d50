"""Profiles from a table (parquet or CSV) with one row per well, field of view or image."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from cellcohort.augment import made
from cellcohort.augment.features import LIGHT, Augment
from cellcohort.cells import CellTable, names_of
from cellcohort.data.tracks import feature_values, tell_labels_among_features
from cellcohort.datasets.copies import with_copies
from cellcohort.datasets.held_out_cells import ROW
from cellcohort.datasets.partners import PairRule, chosen
from cellcohort.datasets.protocol import LabelledCells, Remark
from cellcohort.datasets.sample_columns import SAMPLE_COLUMNS
from cellcohort.datasets.tables.merge_labels import MergeLabels
from cellcohort.datasets.tables.read import has_columns, read_table
from cellcohort.datasets.tables.rows import cells_of_rows
from cellcohort.faults import Faults
from cellcohort.labels import by_label
from cellcohort.mapped_arrays import as_bytes, from_bytes
from cellcohort.mapped_cells import files_of_table, mapped_cells
from cellcohort.messages import listed, meant, several, spelled_plainly
from cellcohort.missing_values import Missing

if TYPE_CHECKING:
    from cellcohort.datasets.features.windows import TrackWindows

__all__ = ["COLUMNS", "Profiles"]

_NUMBERS = 0.5  # share of the values of a column that are numbers, from which other text is taken for a fault
_MARKS = r"[\s,'%$]"  # of thousands, percentages and money, beside the digits of a number
NO_FEATURES = ("Metadata_", "Unnamed: ")  # begin the names of labels, as pycytominer has them, and of a pandas index
_LABELS = {  # words in the names of columns that are seldom features
    *("hour", "hpi", "hpf", "dpi", "day", "minute", "time", "timepoint", "frame", "timestamp", "date"),
    *("id", "uid", "index", "idx", "row", "col", "column"),
}
COLUMNS: Mapping[str, Any] = MappingProxyType(
    {"experiment": "Metadata_Plate", "condition": "Metadata_Compound", "well": None, "hours": None, "features": None}
)


@dataclass(frozen=True)
class Profiles:
    """Profiles of wells, fields of view or images from a table with one row for each.

    A row is one cell of the table that samplers see. Its input is its features, of shape (n_features, 1). The
    positive is a second augmented view of it, or by a rule of pairs another row.

    Attributes
    ----------
    path : str or Path
        A ``.parquet``, ``.csv`` or ``.tsv`` file, see :func:`~cellcohort.datasets.tables.read.read_table`.
    columns : mapping
        Which column is what; what is not named keeps its default. ``experiment``, ``condition``, ``well`` (whose rows
        the split keeps together) and ``hours``, each None where there is none, or a list of columns that are a key
        jointly; ``features`` (a list), by default every other column of numbers whose name does not begin with
        ``Metadata_``. Wells of different experiments may have the same labels.
    scale_by : mapping, optional
        The control rows by which features are scaled: ``{"column": "Metadata_Compound", "label": "DMSO"}`` subtracts
        the mean of the controls of each experiment, and divides by their standard deviation. A feature that does not
        vary among them is only centred. ``"each": "Metadata_Plate"`` scales by plate instead, or by any other column;
        without ``column`` and ``label``, ``{"each": "experiment"}`` scales by all rows of each experiment.
        All controls count, those of the validation part too. In any case a model standardises what it is given
        over the training part.
    merge_labels : mapping of str to mapping of label to label, optional
        Other names for labels, by role or column: ``{"condition": {"dmso": "DMSO"}}``.
    missing : {"error", "label"}
        What rows without an experiment or a condition do: "error" refuses them and gives their number; "label" makes
        them an experiment or a condition of their own, named "missing".
    augment : Augment or mapping
        What makes two views of a row differ, or its node of a config.
    seed : int
        Key of the views.
    index_cache : path, optional
        Directory of a file of cells and features, which all processes of a machine then share, and which later runs
        find.
    """

    path: str | Path | None = None
    columns: Mapping[str, Any] = COLUMNS
    scale_by: Mapping[str, Any] | None = None
    merge_labels: MergeLabels = None
    missing: Missing = "error"
    augment: Augment | Mapping[str, Any] = LIGHT
    seed: int = 0
    index_cache: str | Path | None = None

    def cells(self, also: Sequence[str] = (), pairs: PairRule | None = None) -> LabelledCells:  # noqa: ARG002
        """Read the cells; they have all columns that are no features.

        Parameters
        ----------
        also : sequence of str
            Columns that are needed.
        pairs : PairRule, optional
            Which cells may be pairs, instead of two views of one.

        Raises
        ------
        FileNotFoundError, ValueError
            As :meth:`dataset`.
        """
        cells, _, names = self._read()
        labelled = LabelledCells(cells, self._whole, chosen(pairs), [*self._odd_features(names)])
        labelled.features = names
        return labelled

    def dataset(self, pairs: PairRule | None = None) -> TrackWindows:
        """Read the cells and their features.

        Parameters
        ----------
        pairs : PairRule, optional
            Which cells may be pairs, instead of two views of one.

        Raises
        ------
        FileNotFoundError, ValueError
            The file or a named column is not there; no column is a feature; labels or features are missing; an
            experiment has fewer than two controls.
        """
        from cellcohort.datasets.features.windows import TrackWindows  # here, since labels need no torch

        options = dict(self.columns), self.scale_by, self.merge_labels, self.missing
        files = files_of_table(self.index_cache, self.path, "profiles", *options)
        cells, values, of = mapped_cells(files, lambda: ((read := self._read())[0], read[1], as_bytes(read[2])))
        names = from_bytes(of)
        for odd in self._odd_features(names):
            warnings.warn(f"{odd.problem} {odd.change}", stacklevel=2)
        return TrackWindows(
            cells, values, names, frames=1, positive="view", augment=made(self.augment), seed=self.seed,
            whole=self._whole, pair_rule=pairs,
        )  # fmt: skip

    def check_columns(self) -> None:
        """Refuse what :meth:`dataset` refuses, where the header of the table lacks a column that is named."""
        roles = {**COLUMNS, **self.columns}
        if not has_columns(self.path, names_of([*roles.values()])):
            self._read()

    def _odd_features(self, names: Sequence[str]) -> Iterator[Remark]:
        """Describe features that nobody named, and whose names are those of times, samples or numbers of things."""
        odd = [] if self.columns.get("features") else [name for name in names if _is_label(name)]
        if odd:
            yield Remark(
                f"{listed(odd, 5, show=repr)} {'is a feature' if len(odd) == 1 else 'are features'} that the model "
                "sees, and by the name a time, a sample or a number of something.",
                "List the features in data.columns.features, or name such a column as what it is, with "
                "data.columns.hours or another role; let names of labels begin with Metadata_.",
            )

    @property
    def _whole(self) -> str:
        return ROW if self.columns.get("well") is None else "well"

    def _read(self) -> tuple[CellTable, np.ndarray, list[str]]:
        if unknown := [role for role in self.columns if role not in COLUMNS]:
            raise ValueError(f"data.columns has {unknown[0]!r}, which means nothing; use {', '.join(COLUMNS)}.")
        roles = {**COLUMNS, **self.columns}
        given = names_of([roles.pop("features")])
        mapped, hours = names_of(roles.values()), names_of([roles["hours"]])
        text = [name for name in mapped if name not in hours]
        table = read_table(self.path, [*mapped, *given], None, text, [*hours, *given])
        names = _features(table, mapped, given)
        labels = table.drop(columns=names)
        if lacking := [
            f"data.columns.{role}={name!r}" for role in roles for name in names_of([roles[role]]) if name not in labels
        ]:
            raise ValueError(
                f"{', '.join(lacking)}: no such column; the labels of the table are {listed(labels) or 'none'}. "
                f"{_hint(roles, labels)}Name these in data.columns, or say null there."
            )
        faults = Faults()
        cells = faults.of(cells_of_rows, labels, roles, self.merge_labels, self.missing)
        values = faults.of(feature_values, table, names)
        if cells is None or values is None:
            raise faults.error()
        tell_labels_among_features(cells, values, names)
        cells = with_copies(cells, values)
        if self.scale_by is not None:
            _scale(values, cells, **_controls(self.scale_by))
        return cells, values, names


def _hint(roles: Mapping[str, Any], labels: pd.DataFrame) -> str:
    return meant([name for name in names_of(roles.values()) if name not in labels], list(map(str, labels)))


def _features(table: pd.DataFrame, mapped: Sequence[str], given: Sequence[str]) -> list[str]:
    """Return the columns that are features: those that are given, or else those of numbers that are no labels."""
    numbers = [str(name) for name in table.select_dtypes("number").dropna(axis=1, how="all") if name not in mapped]
    index = (*table.attrs.get("index", ()), "")  # that of a text file has no name
    names = list(given) or [
        name
        for name in numbers
        if name not in index and not name.startswith(NO_FEATURES) and not _counts_rows(table[name])
    ]
    if not given:
        _tell_left_out(table, [str(name) for name in table if name not in {*names, *mapped, *index}])
    if not names:
        raise ValueError(
            f"no column is a feature: none holds numbers beside those of data.columns and those named Metadata_...; "
            f"list them in data.columns.features. The table has {listed(table)}."
        )
    if wrong := [name for name in names if name not in table or name in mapped or names.count(name) > 1]:
        raise ValueError(
            f"data.columns.features has {listed(dict.fromkeys(wrong), show=repr)}: not in the table, there twice, or "
            f"named in data.columns as something else. Other columns of numbers are {listed(numbers) or 'none'}."
        )
    return names


def _is_label(name: str) -> bool:
    """Whether the name of a column of numbers is that of a label, such as ``Time [hpi]``, ``cellID`` or ``Well``."""
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)
    return spelled_plainly(name) in SAMPLE_COLUMNS or any(word.lower().removesuffix("s") in _LABELS for word in words)


def _counts_rows(values: pd.Series) -> bool:
    """Whether a column holds the number of the row, as an index that was saved does."""
    return len(values) > 2 and pd.api.types.is_integer_dtype(values) and bool((values.diff().iloc[1:] == 1).all())


def _tell_left_out(table: pd.DataFrame, names: Sequence[str]) -> None:
    """Warn of columns that are no features, though they hold numbers in other text, that of the row, or nothing."""
    found = []
    for name in names:
        values = table[name].dropna()
        if (
            name.startswith(NO_FEATURES)
            or pd.api.types.is_bool_dtype(values)
            or isinstance(values.dtype, pd.CategoricalDtype)
        ):
            continue
        if _counts_rows(values):
            found.append(f"{name!r} (the number of the row)")
            continue
        texts = values.astype(str).str.replace(_MARKS, "", regex=True)
        numbers = pd.to_numeric(texts, errors="coerce").notna()
        if not len(values):
            found.append(f"{name!r} (no value in any row)")
        elif numbers.all():
            found.append(f"{name!r} (numbers with marks, in several ways or with leading zeros, {values.iloc[-1]!r})")
        elif numbers.mean() >= _NUMBERS:
            found.append(f"{name!r} ({values[~numbers].iloc[0]!r} in {several(int((~numbers).sum()), 'row')})")
    if found:
        warnings.warn(
            f"{several(len(found), 'column')} that may hold numbers {'is' if len(found) == 1 else 'are'} left out of "
            f"the features: {listed(found, 5)}. Correct the table, list the features in data.columns.features, or let "
            "names of labels begin with Metadata_.",
            stacklevel=5,
        )


def _controls(scale_by: Mapping[str, Any]) -> dict[str, Any]:
    if not ({"column", "label"} <= set(scale_by) <= {"column", "label", "each"} or set(scale_by) == {"each"}):
        raise ValueError(
            f"data.scale_by has {listed(scale_by) or 'nothing'}; it needs column and label, such as "
            "{column: Metadata_Compound, label: DMSO}, and may have each, the column whose groups are scaled; or each "
            "alone, which scales by all rows of a group."
        )
    return dict(scale_by)


def _scale(
    values: np.ndarray, cells: CellTable, column: str | None = None, label: Any = None, each: str = "experiment"
) -> None:
    """Scale the rows of each experiment, in place, by the mean and the standard deviation of its controls."""
    groups = cells.column(each)
    control = np.ones(len(cells), bool) if column is None else _are_controls(cells, column, label)
    counts = np.bincount(groups.codes[control], minlength=len(groups.labels))
    if few := [f"{one!r} has {n}" for one, n in zip(groups.labels, counts, strict=True) if n < 2]:
        rows = "rows" if column is None else f"rows with {column}={label!r}"
        raise ValueError(
            f"data.scale_by needs two or more {rows} in every {each}: {listed(few)}. Drop these, "
            "scale by a coarser data.scale_by.each, or leave data.scale_by out."
        )
    for code in range(len(groups.labels)):
        own = groups.codes == code
        of = values[own & control].astype(np.float64)
        mean, std = of.mean(0), of.std(0)
        values[own] = (values[own] - mean) / np.where(std <= 1e-6 * np.abs(mean), 1.0, std)


def _are_controls(cells: CellTable, column: str, label: Any) -> np.ndarray:
    labels = cells.column(column)
    found, unknown = by_label({label: True}, labels.present())
    if unknown:
        raise ValueError(
            f"data.scale_by.label={label!r} is no label of {column!r}, which has "
            f"{listed(labels.present(), show=repr)}; name that of the controls."
        )
    return np.isin(labels.codes, [code for code, one in enumerate(labels.labels) if one in found])
