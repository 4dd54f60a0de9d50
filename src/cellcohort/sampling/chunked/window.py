"""What is read at once, and the batches cut from it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Window:
    """The batches cut from one load of chunks.

    Attributes
    ----------
    positions : numpy.ndarray of int64, shape (n_batches, batch_size)
    group : numpy.ndarray of int64, shape (n_groups,)
        Those that lead; batch `j` is led by ``group[j % n_groups]``.
    focal : numpy.ndarray of float, shape (n_batches,)
        Focal times; NaN without a window axis, infinite where a group has no times.
    chunks : int
        Chunks that are loaded.
    passed : float
        Share of its chunks that a stratum walked along, at most.
    """

    positions: np.ndarray
    group: np.ndarray
    focal: np.ndarray
    chunks: int
    passed: float
