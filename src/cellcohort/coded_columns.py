"""Label columns as small integers."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numba import njit

from cellcohort.labels import in_order
from cellcohort.mapped_arrays import ArrayFiles
from cellcohort.missing_values import MISSING_LABEL


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
    """

    name: str
    codes: np.ndarray
    labels: tuple[Any, ...]

    def counts(self) -> np.ndarray:
        """Cells per label, shape (n_labels,); not to be written to."""
        return self._counts

    @cached_property
    def _counts(self) -> np.ndarray:
        counts = _count(self.codes, np.zeros(len(self.labels), np.int64))
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
    if isinstance(values.dtype, pd.CategoricalDtype):
        codes, known = _writable(values.array.codes), values.dtype.categories.tolist()
        counts = _count(codes, np.zeros(len(known) + 1, np.int64))[:-1]  # the last is of missing values
    else:
        codes, uniques = factorized(values)
        known = uniques.tolist()
        counts = np.ones(len(known))
    there = np.flatnonzero(counts)
    order = there[in_order([known[code] for code in there])]
    if not np.array_equal(order, np.arange(len(known))) or codes.dtype != _smallest(len(known)):
        place = np.full(len(known) + 1, -1, _smallest(len(known)))
        place[order] = np.arange(len(order))
        codes = place[codes]
    return codes, [known[code] for code in order]


def _writable(codes: np.ndarray) -> np.ndarray:
    """Return codes that pandas gives read-only, as compiled functions would otherwise be compiled anew for them."""
    codes = codes.view()
    try:
        codes.flags.writeable = True
    except ValueError:  # of a file that is mapped read-only
        return codes.copy()
    return codes


def code_labels(values: pd.Series, missing: str, words: str) -> Column:
    """Codes by label, never by the category codes a file happened to have."""
    codes, labels = coded(values)
    holes = codes < 0
    if holes.any():
        if missing == "error":
            raise ValueError(
                f"missing values: {values.name!r} in {int(holes.sum())} of {len(values)} rows{words}. "
                "Fill or drop these rows, or make them a label of their own with data.missing=label, in code "
                "CellTable.from_frame(..., missing='label')."
            )
        if MISSING_LABEL in labels:
            raise ValueError(
                f"column {values.name!r} has missing values and a label {MISSING_LABEL!r}; rename that label "
                "or fill the missing values."
            )
        labels = [*labels, MISSING_LABEL]
        order = in_order(labels)
        place = np.empty(len(labels), _smallest(len(labels)))
        place[order] = np.arange(len(labels))
        codes, labels = place[codes], [labels[i] for i in order]
    return Column(str(values.name), codes, tuple(labels))


def joint_column(columns: list[Column], files: ArrayFiles) -> Column:
    """Return the column of labels that several have jointly; `files` are those of their table."""
    if not columns:
        raise ValueError("an empty list of columns; name at least one.")

    def joined() -> list[np.ndarray]:
        code = np.zeros(len(columns[0].codes), np.int64)
        for column in columns:
            code = code * len(column.labels) + column.codes
        present, codes = np.unique(code, return_inverse=True)
        return [present, codes.astype(_smallest(len(present)))]

    inputs = [each for column in columns for each in (column.codes, len(column.labels))]  # columns may share a name
    present, codes = files.of("joint", *inputs).arrays(joined)
    parts = np.unravel_index(present, [len(column.labels) for column in columns])
    labels = tuple(
        tuple(column.labels[i] for column, i in zip(columns, row, strict=True)) for row in zip(*parts, strict=True)
    )
    return Column(" x ".join(column.name for column in columns), codes, labels)


def of_one_experiment(track: Column, experiment: Column, files: ArrayFiles) -> Column:
    """Return the tracks; where experiments share some of their labels, as labels of both columns jointly."""

    def shared() -> list[np.ndarray]:
        pairs = track.codes.astype(np.int64) * len(experiment.labels) + experiment.codes
        return [np.array([len(pd.unique(pairs)) != len(track.present())])]

    if not files.of("tracks of several experiments").arrays(shared)[0][0]:
        return track
    joint = joint_column([experiment, track], files.of("tracks"))
    return Column(track.name, joint.codes, joint.labels)


@njit(cache=True)
def _count(codes: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Add the cells of each code to `counts`; numpy's bincount would take 8 bytes a cell."""
    for code in codes:
        counts[code] += 1
    return counts


def _smallest(n: int) -> np.dtype:
    return np.min_scalar_type(-max(n, 1))
