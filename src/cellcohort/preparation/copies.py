"""Cells with the same values: a digest of each row, and which rows share one."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import numpy as np
from scipy import sparse

from cellcohort.messages import listed, several

DIGEST_BYTES = 8
EMPTY = 0  # digest of rows that are all zero, which are no copies of each other


def digests(rows: Any) -> np.ndarray:
    """Return a digest of each row, which is the same for rows of the same values.

    Parameters
    ----------
    rows : numpy.ndarray, shape (n, ...), or scipy CSR matrix

    Returns
    -------
    numpy.ndarray of uint64, shape (n,)
        0 for rows that are all zero.
    """
    if sparse.issparse(rows):
        rows = rows.copy()
        rows.sum_duplicates()
        rows.eliminate_zeros()
        index = rows.indices.astype(np.int64)
        spans = list(zip(rows.indptr[:-1], rows.indptr[1:], strict=True))
        found = [_digest(index[a:b], rows.data[a:b]) if b > a else EMPTY for a, b in spans]
    else:
        rows = rows.reshape(len(rows), -1) + 0.0  # which makes -0.0 a 0.0
        found = [_digest(row) if row.any() else EMPTY for row in rows]
    return np.array(found, np.uint64)


def _digest(*parts: np.ndarray) -> int:
    found = blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        found.update(np.ascontiguousarray(part))
    return int.from_bytes(found.digest(), "little") or 1


def copy_groups(found: np.ndarray) -> np.ndarray:
    """Return number of the group of equal rows that each row is in, int32 (n,); 0 for rows that have no copy.

    Parameters
    ----------
    found : numpy.ndarray of uint64, shape (n,)
        What :func:`digests` gives.
    """
    _, of, counts = np.unique(found, return_inverse=True, return_counts=True)
    copied = (counts[of] > 1) & (found != EMPTY)
    groups = np.zeros(len(found), np.int32)
    groups[copied] = np.unique(of[copied], return_inverse=True)[1] + 1
    return groups


def described(groups: np.ndarray, strata: dict[str, int]) -> str:
    """How many cells have a copy, by stratum; empty where none has.

    Parameters
    ----------
    groups : numpy.ndarray of int, shape (n,)
        What :func:`copy_groups` gives, in the order of the store.
    strata : dict of str to int
        Cells of each stratum, in this order.
    """
    if not groups.any():
        return ""
    counts = np.add.reduceat(groups > 0, np.cumsum([0, *strata.values()])[:-1])
    most = sorted(zip(counts, strata, strict=True), key=lambda item: -item[0])
    where = listed((f"{n:,} in {name}" for n, name in most if n), 5)
    return (
        f"{several(int(counts.sum()), 'cell')} in {several(int(groups.max()), 'group')} of the same values: {where}. "
        "Training and validation share none of these."
    )
