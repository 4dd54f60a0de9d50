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
    leaders : numpy.ndarray of int, shape (n_batches,)
    focal : numpy.ndarray of float, shape (n_batches,)
        Focal times; NaN without a window axis, infinite where a group has no times.
    chunks : int
        Chunks that are loaded.
    shared : int
        Places filled by a cell that another of the batches holds too: the store has no more of its kind.
    passed : float
        Share of its chunks that a stratum walked along, at most.
    """

    positions: np.ndarray
    leaders: np.ndarray
    focal: np.ndarray
    chunks: int
    shared: int
    passed: float
