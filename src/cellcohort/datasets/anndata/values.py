"""What the values of a matrix look like: counts, logarithms or z-scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from cellcohort.messages import listed

COUNTS, LOGARITHMS, LINEAR, Z_SCORES, OTHER = "counts", "logarithms", "linear values", "z-scores", "other numbers"
HIGHEST_LOGARITHM = 25.0  # log2 of 3 * 10^7
LEAST_VALUES = 5  # that are not 0, from which the kind of a row by itself is told
LEAST_ROWS = 2  # of a kind in a sample, from which a file has rows of two
SHARE_NEGATIVE = 0.1  # of the values that are not 0, from which they are taken for z-scores


@dataclass(frozen=True)
class Values:
    """What a sample of rows looks like.

    Attributes
    ----------
    kind : str
        "counts" (whole numbers >= 0), "logarithms" (fractions from 0 to 25), "linear values" (fractions from 0 to
        more), "z-scores" (of the values that are not 0 a tenth or more are negative) or "other numbers".
    low, high : float
        The least and the greatest value.
    """

    kind: str
    low: float
    high: float

    def __str__(self) -> str:
        whole = "whole numbers from " if self.kind == COUNTS else ""
        return f"{self.kind} ({whole}{self.low:.4g} to {self.high:.4g})"


def look_at(rows: Any) -> list[Values]:
    """Return the kinds of values in a sample of rows; none where all are 0 or missing.

    There are two kinds where some rows hold counts, and others logarithms or z-scores.

    Parameters
    ----------
    rows : numpy.ndarray or scipy sparse matrix, shape (n, n_features)
    """
    stored = sparse.csr_matrix(rows)
    n_rows, n_columns = stored.shape
    row = np.repeat(np.arange(n_rows), np.diff(stored.indptr))
    there = np.isfinite(stored.data) & (stored.data != 0)
    row, values = row[there], stored.data[there].astype(np.float64)
    whole = (values == np.rint(values)) & (values > 0)
    n_there, n_whole = (np.bincount(row[which], minlength=n_rows) for which in (slice(None), whole))
    of_counts = (n_whole == n_there) & (n_there >= LEAST_VALUES)
    others = (n_whole < n_there) & (n_there >= LEAST_VALUES)
    if not len(values):
        return []
    mixed = (
        min(of_counts.sum(), others.sum()) >= LEAST_ROWS
        and values[of_counts[row]].max() > 1
        and n_whole[others].sum() < n_there[others].sum() / 2
    )

    def seen(part: np.ndarray) -> Values:
        return _look_at(values[part[row]], n_there[part].sum() < part.sum() * n_columns)

    if mixed and (second := seen(others)).kind in (LOGARITHMS, Z_SCORES):
        return [seen(of_counts), second]
    return [seen(np.ones(n_rows, bool))]


def _look_at(values: np.ndarray, zeros: bool) -> Values:
    low, high = (min(values.min(), 0), max(values.max(), 0)) if zeros else (values.min(), values.max())
    if (values < 0).mean() >= SHARE_NEGATIVE:
        kind = Z_SCORES
    elif low < 0:
        kind = OTHER
    elif (values == np.rint(values)).all():
        kind = COUNTS
    else:
        kind = LOGARITHMS if high <= HIGHEST_LOGARITHM else LINEAR
    return Values(kind, float(low), float(high))


def by_kind(found: Mapping[str, Sequence[Values]]) -> dict[str, dict[str, Values]]:
    """Files by the kinds of their values; those without any value are left out."""
    kinds: dict[str, dict[str, Values]] = {}
    for path, some in found.items():
        for values in some:
            kinds.setdefault(values.kind, {})[path] = values
    return kinds


def described(files: Mapping[str, Values]) -> str:
    """Return the values and names of files of one kind, such as ``counts (whole numbers from 0 to 218) in a.h5ad``."""
    kind = next(iter(files.values())).kind
    reach = Values(kind, min(one.low for one in files.values()), max(one.high for one in files.values()))
    return f"{reach} in {listed(files, 5)}"
