"""Columns of samples, such as wells or animals, and whether a condition can be told apart from its samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from cellcohort.cells import CellTable, names_of
from cellcohort.coded_columns import factorized
from cellcohort.messages import spelled_plainly, typed_option

_KINDS = (
    *("well", "plate", "dish", "flask", "slide", "section", "chip", "lane", "fov", "position", "field", "site"),
    *("animal", "mouse", "rat", "fish", "embryo", "organoid", "litter", "cage"),
    *("patient", "donor", "subject", "participant", "sample", "biopsy", "replicate", "batch"),
)
# their names as `spelled_plainly` gives them
SAMPLE_COLUMNS = frozenset(
    f"{before}{kind}{after}"
    for kind in _KINDS
    for before in ("", "metadata_")
    for after in ("", "id", "_id", "name", "_name")
)


class Inseparable(NamedTuple):
    """A column of samples that a condition cannot be told apart from.

    Attributes
    ----------
    column : str
    option : str
        What holds out whole samples: ``split.by`` with the column, and with the experiment where experiments share
        labels of samples, as plates do names of wells.
    alone : list of str
        The conditions that have one sample.
    n_conditions : int
    """

    column: str
    option: str
    alone: list[str]
    n_conditions: int

    def __str__(self) -> str:
        return (
            f"condition and {self.column} cannot be told apart: each {self.column} has one condition, and cells on "
            "both sides of the split"
        )


def sample_columns(cells: CellTable) -> list[str]:
    """Return the columns of a table that name samples, other than its condition."""
    condition = names_of([cells.roles.get("condition")])
    return [name for name in cells.column_names if spelled_plainly(name) in SAMPLE_COLUMNS and name not in condition]


def samples(cells: CellTable) -> Iterator[tuple[str, np.ndarray]]:
    """Give the columns that name samples, each with what :func:`samples_of` says of it.

    Columns of lists, which are no labels, and columns of one name are left out: nobody asked for them.
    """
    for name in sample_columns(cells):
        try:
            found = samples_of(cells, name)
        except ValueError:
            continue
        yield name, found


def samples_of(cells: CellTable, name: str) -> np.ndarray:
    """Return the number of the sample of each cell, int64 (n_cells,); one without a label is a sample of its own.

    Samples of different experiments may have the same labels.
    """
    codes = _codes(cells, name)
    if cells.has("experiment"):
        codes += cells.column("experiment").codes * (codes.max() + 1)
    return codes


def _codes(cells: CellTable, name: str) -> np.ndarray:
    codes = factorized(cells.values(name))[0].astype(np.int64)
    without = np.flatnonzero(codes < 0)
    codes[without] = codes.max(initial=0) + 1 + np.arange(len(without))
    return codes


def inseparable(cells: CellTable, training: np.ndarray) -> Inseparable | None:
    """Find a column of which each sample has one condition, where samples have cells on both sides of a split.

    What a probe tells of a condition may then be what it knows of the sample. Of several such columns, as of wells and
    their fields, it is the one with the fewest samples.

    Parameters
    ----------
    cells : CellTable
        All of them, with a condition.
    training : numpy.ndarray of bool, shape (n_cells,)

    Returns
    -------
    Inseparable or None
        None where there is no such column.
    """
    known = ~cells.unlabelled("condition")
    condition, training = cells.column("condition").codes[known], training[known]
    found: dict[str, np.ndarray] = {}  # the condition of each sample
    for name, of_all in samples(cells):
        sample = of_all[known]
        both = np.intersect1d(sample[training], sample[~training])
        of, label = np.unique(np.stack([sample, condition]), axis=1)
        if len(both) and np.isin(of, both).sum() == len(both):
            found[name] = label
    if not found:
        return None
    name = min(found, key=lambda name: len(found[name]))
    n = np.bincount(found[name])
    labels = cells.column("condition").labels
    shared = len(np.unique(samples_of(cells, name))) > len(np.unique(_codes(cells, name)))
    typed = typed_option("split.by", ["experiment", name] if shared else name)
    return Inseparable(name, typed, [str(labels[code]) for code in np.flatnonzero(n == 1)], int((n > 0).sum()))
