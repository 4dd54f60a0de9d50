"""What the batches of a window of chunks are built around; compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from cellcohort.sampling.planning.rounding import inside_of
from cellcohort.sampling.rng import bits_of, mix, permuted, unit

_U = np.uint64


class Heads(NamedTuple):
    """What the batches of a window are built around; batch `j` is led by group ``j % n_groups`` of them.

    Attributes
    ----------
    group, block : numpy.ndarray of int64, shape (n_groups,)
        The groups that lead, and how many windows of the epoch's cycle each led before.
    passed : numpy.ndarray of float, shape (n_groups,)
        Share of all chunks that each passed before; negative where strata walk by themselves.
    focal : numpy.ndarray of float, shape (n_batches,)
        Focal times in hours; NaN without a window axis, infinite where a group has no times.
    inside : numpy.ndarray of int64, shape (n_batches,)
        Cells that each is to hold around its focal time.
    number : int
        Of the first batch.
    elsewhere : float
        Share of all chunks by which walks begin further on than they would; 0 but where chunks are sought elsewhere.
    """

    group: np.ndarray
    block: np.ndarray
    passed: np.ndarray
    focal: np.ndarray
    inside: np.ndarray
    number: int
    elsewhere: float


class Times(NamedTuple):
    """The times present in each group, and what is asked of them.

    Attributes
    ----------
    hours, start : numpy.ndarray
        Group `g` has the times ``hours[start[g]:start[g + 1]]``.
    asked : bool
        Whether there is a window axis.
    inside : float
        Cells of a batch that are to be around its focal time.
    """

    hours: np.ndarray
    start: np.ndarray
    asked: bool
    inside: float


@njit(cache=True, nogil=True)
def heads_of(leader, block, turns, number, shift, stride, everyone, elsewhere, times, key):  # type: ignore[no-untyped-def]
    """The heads of a window.

    Parameters
    ----------
    leader, block : numpy.ndarray of int64, shape (n_groups,)
        As in `Heads`, before they are moved on by `shift` places.
    turns, number : int
        Batches that each group leads, and the number of the window.
    stride : float
        Share of all chunks that a window passes; 0 where strata walk by themselves.
    everyone : bool
        Whether all groups lead in every window, so that they pass chunks together.
    elsewhere : float
        As in `Heads`.
    """
    n = len(leader)
    groups, blocks, passed = np.empty(n, np.int64), np.empty(n, np.int64), np.full(n, -1.0)
    focal, inside = np.full(turns * n, np.nan), np.empty(turns * n, np.int64)
    for k in range(n):
        group = groups[k] = leader[(k + shift) % n]
        blocks[k] = block[(k + shift) % n]
        if stride:
            passed[k] = (number if everyone else blocks[k]) * stride + elsewhere
        first, n_times = times.start[group], times.start[group + 1] - times.start[group]
        for turn in range(turns if times.asked else 0):
            when = (permuted(turn, turns, bits_of(turns), mix(key, _U(0))) + unit(key, _U(0))) / turns
            focal[turn * n + k] = times.hours[first + min(int(when * n_times), n_times - 1)] if n_times else -np.inf
    for j in range(turns * n):
        inside[j] = inside_of(times.inside, number * turns * n + j)
    return Heads(groups, blocks, passed, focal, inside, number * turns * n, elsewhere)
