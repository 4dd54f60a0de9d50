"""Label columns as small integers."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from cellcohort.compiled import compiled
from cellcohort.labels import in_order
from cellcohort.mapped_arrays import NO_FILES, ArrayFiles
from cellcohort.missing_values import MISSING_LABEL

FEW = 1024  # combinations of labels that are counted, however few cells there are


@dataclass(frozen=True)
class Column:
    """A label column as small integers.

    Attributes
    ----------
    name : str
        Name of the column, or names joined by ``" x "`` for a joint column.
    codes : numpy.ndarray of int, shape (n_cells,)
        Index into `labels` of every cell, in the smallest integer type that holds it.
    labels : tuple
        The labels in sorted order. A table made by :meth:`CellTable.take` keeps the labels of
        the table it came from, so some of them may have no cell.
    counted : numpy.ndarray of int, shape (n_labels,), optional
        Cells per label, where these are known.
    """

    name: str
    codes: np.ndarray
    labels: tuple[Any, ...]
    counted: np.ndarray | None = field(default=None, repr=False, compare=False)

    def counts(self) -> np.ndarray:
        """Cells per label, shape (n_labels,); not to be written to."""
        return self._counts

    @cached_property
    def _counts(self) -> np.ndarray:
        counts = count(self.codes, len(self.labels)) if self.counted is None else self.counted
        counts.flags.writeable = False
        return counts

    def present(self) -> list[Any]:
        """Return the labels that at least one cell has."""
        return [label for label, n in zip(self.labels, self.counts(), strict=True) if n]


def factorized(values: pd.Series) -> tuple[np.ndarray, Any]:
    """Return the codes of the values of a column, -1 for missing ones, and its labels in the order in which they come.

    Raises
    ------
    ValueError
        The column holds lists or other values that are no labels.
    """
    try:
        return pd.factorize(values)
    except TypeError:  # lists, arrays and mappings, which are not hashable
        odd = next(value for value in values if not isinstance(value, Hashable))
        raise ValueError(
            f"column {values.name!r} holds values that can be no labels, such as {odd!r}, a {type(odd).__name__}; make "
            "each of them a text or a number first."
        ) from None


def coded(values: pd.Series) -> tuple[np.ndarray, list[Any]]:
    """Return the codes of the values of a column, -1 for missing ones, and its labels in their order.

    Of a categorical column whose categories all occur, in their order, the codes are those of the column itself.
    """
    codes, known, order = _coded(values)
    labels = known.tolist()
    return codes, [labels[code] for code in order]


def _coded(values: pd.Series) -> tuple[np.ndarray, pd.Index, np.ndarray]:
    """Return codes as :func:`coded` does, an index that has all labels, and which of these each code stands for."""
    if isinstance(values.dtype, pd.CategoricalDtype):
        codes, known = _writable(values.array.codes), values.dtype.categories
        there = np.flatnonzero(count(codes, len(known) + 1)[:-1])  # the last is of missing values
    else:
        codes, known = factorized(values)
        there = np.arange(len(known))
    labels = known.tolist()
    order = there[in_order([labels[code] for code in there])]
    if not np.array_equal(order, np.arange(len(known))) or codes.dtype != _smallest(len(known)):
        place = np.full(len(known) + 1, -1, _smallest(len(known)))
        place[order] = np.arange(len(order))
        codes = place[codes]
    return codes, known, order


def _writable(codes: np.ndarray) -> np.ndarray:
    """Return codes that pandas gives read-only, as compiled functions would otherwise be compiled anew for them."""
    codes = codes.view()
    try:
        codes.flags.writeable = True
    except ValueError:  # of a file that is mapped read-only
        return codes.copy()
    return codes


def code_labels(
    column: pd.Series,
    places: np.ndarray | None,
    missing: str,
    words: str,
    files: ArrayFiles = NO_FILES,
    others: Callable[[], str] = str,
) -> Column:
    """Codes by label, never by the category codes a file happened to have.

    Parameters
    ----------
    column : pandas.Series
    places : numpy.ndarray of int, optional
        The rows that are cells; None for all.
    missing : {"error", "label"}
        As for :meth:`~cellcohort.cells.CellTable.from_frame`.
    words : str
        What a message says of words that were taken for missing values.
    files : ArrayFiles
        Those of the column.
    others : callable
        Gives what a message says of other columns with missing values.
    """
    categories = column.dtype.categories if isinstance(column.dtype, pd.CategoricalDtype) else None

    def of_cells() -> list[Any]:
        values = column if places is None else column.iloc[places]
        codes, known, order = _coded(values)
        holes = codes < 0
        if holes.any():
            if missing == "error":
                raise ValueError(
                    f"missing values: {column.name!r} in {int(holes.sum())} of {len(values)} rows{words}. "
                    "Fill or drop these rows, or make them a label of their own with data.missing=label, in code "
                    f"CellTable.from_frame(..., missing='label').{others()}"
                )
            names = known.tolist()
            labels = [names[code] for code in order]
            if MISSING_LABEL in labels:
                raise ValueError(
                    f"column {column.name!r} has missing values and a label {MISSING_LABEL!r}; rename that label "
                    "or fill the missing values."
                )
            sort = in_order([*labels, MISSING_LABEL])
            place = np.empty(len(sort), _smallest(len(sort)))
            place[sort] = np.arange(len(sort))
            codes, order = place[codes], np.append(order, len(known))[sort]
        return [codes, count(codes, len(order)), order, *([known.values] if categories is None else [])]

    codes, counts, order, *uniques = files.arrays(of_cells)
    known = categories if categories is not None else pd.Index(uniques[0], dtype=uniques[0].dtype)
    labels = [*known.tolist(), MISSING_LABEL]
    return Column(str(column.name), codes, tuple(labels[code] for code in order), counts)


def joint_column(columns: list[Column], files: ArrayFiles) -> Column:
    """Return the column of labels that several have jointly; `files` are those of their table."""
    if not columns:
        raise ValueError("an empty list of columns; name at least one.")
    widths = [len(column.labels) for column in columns]

    def joined() -> list[np.ndarray]:
        few = math.prod(widths) <= max(len(columns[0].codes), FEW)
        kind = _smallest(math.prod(widths) + 1) if few else np.int64  # holds a width, not only codes below it
        code = np.zeros(len(columns[0].codes), kind)
        for column, width in zip(columns, widths, strict=True):
            code *= width
            code += column.codes
        if not few:
            present, codes, counts = np.unique(code, return_inverse=True, return_counts=True)
            return [present, codes.astype(_smallest(len(present))), counts]
        counts = count(code, math.prod(widths))
        present = np.flatnonzero(counts)
        place = np.zeros(len(counts), _smallest(len(present)))
        place[present] = np.arange(len(present))
        return [present, place[code], counts[present]]

    inputs = [each for column in columns for each in (column.codes, len(column.labels))]  # columns may share a name
    present, codes, counts = files.of("joint", *inputs).arrays(joined)
    parts = np.unravel_index(present, widths)
    labels = tuple(
        tuple(column.labels[i] for column, i in zip(columns, row, strict=True)) for row in zip(*parts, strict=True)
    )
    return Column(" x ".join(column.name for column in columns), codes, labels, counts)


def of_one_experiment(track: Column, experiment: Column, files: ArrayFiles) -> Column:
    """Return the tracks; where experiments share some of their labels, as labels of both columns jointly."""

    def shared() -> list[np.ndarray]:
        pairs = track.codes.astype(np.int64) * len(experiment.labels) + experiment.codes
        return [np.array([len(pd.unique(pairs)) != len(track.present())])]

    if not files.of("tracks of several experiments").arrays(shared)[0][0]:
        return track
    joint = joint_column([experiment, track], files.of("tracks"))
    return Column(track.name, joint.codes, joint.labels, joint.counted)


def count(codes: np.ndarray, n: int) -> np.ndarray:
    """Return the cells of each of `n` codes; of code -1 last. numpy's bincount would take 8 bytes a cell."""
    return _add(codes, np.zeros(n, np.int64))


@compiled
def _add(codes: np.ndarray, counts: np.ndarray) -> np.ndarray:
    for code in codes:
        counts[code] += 1
    return counts


def _smallest(n: int) -> np.dtype:
    return np.min_scalar_type(-max(n, 1))
