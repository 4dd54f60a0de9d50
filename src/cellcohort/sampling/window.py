"""What is read at once, and the batches cut from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

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
    passed : float
        Share of its chunks that a stratum walked along, at most.
    """

    positions: np.ndarray
    leaders: np.ndarray
    focal: np.ndarray
    chunks: int
    passed: float


class Heads(NamedTuple):
    """What the batches of a window are built around; batch `j` is led by group ``j % n_groups`` of them.

    Attributes
    ----------
    group, block : numpy.ndarray of int64, shape (n_groups,)
        The groups that lead, and how many windows of the epoch's cycle each led before.
    passed : numpy.ndarray of float, shape (n_groups,)
        Share of all chunks that each passed before; negative where strata walk by themselves.
    focal : numpy.ndarray of float, shape (n_batches,)
        Focal times in hours; NaN without a window axis.
    inside : numpy.ndarray of int64, shape (n_batches,)
        Cells that each is to hold around its focal time.
    number : int
        Of the first batch.
    """

    group: np.ndarray
    block: np.ndarray
    passed: np.ndarray
    focal: np.ndarray
    inside: np.ndarray
    number: int
