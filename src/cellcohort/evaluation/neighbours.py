"""How well the nearest neighbours in one description of cells are recovered by another."""

from __future__ import annotations

import numpy as np
from sklearn.metrics import pairwise_distances_chunked
from sklearn.preprocessing import StandardScaler


def knn_recovery(
    embedding: np.ndarray, features: np.ndarray, k: int = 15, groups: np.ndarray | None = None
) -> tuple[float, float]:
    """Share of each cell's k nearest cells in the features that are among its k nearest in the embedding.

    Both are standardised, column by column; distances are Euclidean.

    Parameters
    ----------
    embedding, features : numpy.ndarray of float, shape (n, dim) each
        The same cells.
    k : int
        Neighbours of a cell.
    groups : numpy.ndarray of int, shape (n,), optional
        Cells of one group, such as a track, are no neighbours of each other: they are alike
        whatever was learned.

    Returns
    -------
    recovery, chance : float
        Mean over cells, 0 to 1; and what cells in random order would give.

    Raises
    ------
    ValueError
        The two have other cells, are not finite, or a cell has fewer than k + 1 possible neighbours.
    """
    n = len(embedding)
    groups = np.arange(n) if groups is None else groups
    if len(features) != n or len(groups) != n:
        raise ValueError(
            f"{n} embeddings, {len(features)} rows of features, {len(groups)} groups: give as many of each."
        )
    if bad := int(sum((~np.isfinite(values)).any(axis=1).sum() for values in (embedding, features))):
        raise ValueError(f"{bad} rows have values that are not finite; drop these cells.")
    _, code = np.unique(groups, return_inverse=True)
    others = n - np.bincount(code)[code]
    if not 1 <= k < others.min():
        raise ValueError(
            f"k={k} must be at least 1 and below {others.min()}, the fewest possible neighbours of a cell."
        )
    near, wanted = (_nearest(StandardScaler().fit_transform(values), k, code) for values in (embedding, features))
    shared = [len(np.intersect1d(one, other, assume_unique=True)) for one, other in zip(near, wanted, strict=True)]
    return float(np.mean(shared)) / k, float(np.mean(k / others))


def _nearest(points: np.ndarray, k: int, code: np.ndarray) -> np.ndarray:
    """Positions of the k nearest of every point that are of no group of its own, (n, k)."""

    def of_chunk(distances: np.ndarray, start: int) -> np.ndarray:
        own = code[start : start + len(distances), None] == code
        return np.argpartition(np.where(own, np.inf, distances), k - 1, axis=1)[:, :k]

    return np.concatenate(list(pairwise_distances_chunked(points, reduce_func=of_chunk)))
