"""Positions of cells, checked before they index anything."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def checked_positions(positions: Sequence[int] | np.ndarray, n: int) -> np.ndarray:
    """Positions among n cells, int64.

    Raises
    ------
    IndexError, TypeError
        A position is not in 0..n-1, or not a whole number.
    """
    position = np.array(positions)
    if position.size and position.dtype.kind not in "iu":
        raise TypeError(f"positions have type {position.dtype}; use whole numbers, np.flatnonzero(mask) for a mask.")
    if position.size and (position.min() < 0 or position.max() >= n):
        raise IndexError(f"positions reach from {position.min()} to {position.max()}; use 0 to {n - 1}.")
    return position.astype(np.int64, copy=False)
