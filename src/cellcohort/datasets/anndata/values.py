"""What the values of a matrix look like: counts, logarithms or z-scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from cellcohort.messages import listed

COUNTS, LOGARITHMS, Z_SCORES, OTHER = "counts", "logarithms", "z-scores", "other numbers"
HIGHEST_LOGARITHM = 25.0  # log2 of 3 * 10^7
SHARE_NEGATIVE = 0.1  # of the values that are not 0, from which they are taken for z-scores


@dataclass(frozen=True)
class Values:
    """What a sample of rows looks like.

    Attributes
    ----------
    kind : str
        "counts" (whole numbers >= 0), "logarithms" (fractions from 0 to 25), "z-scores" (of the values that are not 0
        a tenth or more are negative) or "other numbers".
    low, high : float
        The least and the greatest value.
    """

    kind: str
    low: float
    high: float

    def __str__(self) -> str:
        whole = "whole numbers from " if self.kind == COUNTS else ""
        return f"{self.kind} ({whole}{self.low:.4g} to {self.high:.4g})"


def look_at(rows: Any) -> Values | None:
    """Return the kind of values in a sample of rows; None where all are 0 or missing.

    Parameters
    ----------
    rows : numpy.ndarray or scipy sparse matrix, shape (n, n_features)
    """
    stored = rows.data if sparse.issparse(rows) else np.asarray(rows)
    values = stored[np.isfinite(stored) & (stored != 0)].astype(np.float64)
    if not len(values):
        return None
    zeros = len(values) < rows.shape[0] * rows.shape[1]
    low, high = min(values.min(), 0) if zeros else values.min(), max(values.max(), 0) if zeros else values.max()
    if (values < 0).mean() >= SHARE_NEGATIVE:
        kind = Z_SCORES
    elif low >= 0 and (values == np.rint(values)).all():
        kind = COUNTS
    else:
        kind = LOGARITHMS if low >= 0 and high <= HIGHEST_LOGARITHM else OTHER
    return Values(kind, float(low), float(high))


def by_kind(found: Mapping[str, Values | None]) -> dict[str, dict[str, Values]]:
    """Files by the kind of their values; those without any value are left out."""
    kinds: dict[str, dict[str, Values]] = {}
    for path, values in found.items():
        if values is not None:
            kinds.setdefault(values.kind, {})[path] = values
    return kinds


def described(files: Mapping[str, Values]) -> str:
    """Return the values and names of files of one kind, such as ``counts (whole numbers from 0 to 218) in a.h5ad``."""
    kind = next(iter(files.values())).kind
    reach = Values(kind, min(one.low for one in files.values()), max(one.high for one in files.values()))
    return f"{reach} in {listed(files, 5)}"
