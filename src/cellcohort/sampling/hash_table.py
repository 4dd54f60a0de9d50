"""Counts of labels in a hash table, by which a batch is capped; compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from cellcohort.sampling.rng import Whole, mix

_U = np.uint64


class Cap(NamedTuple):
    """A batch takes at most `most` cells of a label (any number if 0); `label` by position, `tally` of the batch."""

    label: np.ndarray
    most: int
    tally: np.ndarray


@njit(cache=True, nogil=True)
def empty_counts(n: Whole) -> np.ndarray:
    """Return an empty table of (label + 1, count), int64 of shape (n_slots, 2), with room for `n` labels."""
    size = 2
    while size < 2 * n:
        size *= 2
    return np.zeros((size, 2), np.int64)


@njit(cache=True, nogil=True)
def count_up_to(counts: np.ndarray, label: Whole, most: Whole) -> bool:
    """Count a cell of `label` and return True, or return False if `most` cells of it are counted already."""
    slot = np.int64(mix(_U(0), _U(label)) % _U(len(counts)))
    while counts[slot, 0] != 0 and counts[slot, 0] != label + 1:
        slot = (slot + 1) % len(counts)
    if counts[slot, 1] >= most:
        return False
    counts[slot, 0] = label + 1
    counts[slot, 1] += 1
    return True
