"""Groups of cells that stay together, and which of them hold a share of every stratum."""

from __future__ import annotations

import numpy as np
import pandas as pd

from cellcohort.coded_columns import count

_NEAR = 0.05  # share of all cells by which those held out may miss the share asked for, so that each stratum has some
_FEW = 2  # units of a stratum to be held out, below which they are held out evenly over many strata


def numbered(group: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return first row of every group, number of the group of each row, and rows of each, in the order of groups.

    As of ``numpy.unique``, which would sort all rows, and so take several times the memory.
    """
    codes, found = pd.factorize(group)
    rank: np.ndarray = np.empty(len(found), np.int32 if len(found) < 2**31 else np.int64)
    rank[np.argsort(found)] = np.arange(len(found))
    number, first = rank[codes], np.empty(len(found), np.int64)
    first[number[::-1]] = np.arange(len(number) - 1, -1, -1)  # the last that is written is the first row
    return first, number, count(number, len(found))


def linked(group: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return groups joined where cells of two of them have the same number in `other`; 0 joins none."""
    rows = np.flatnonzero(other)
    if not len(rows):
        return group
    from scipy.sparse import coo_array  # here, since these take time and are seldom needed
    from scipy.sparse.csgraph import connected_components

    n = int(group.max()) + 1
    size = n + int(other.max()) + 1
    graph = coo_array((np.ones(len(rows), np.int8), (group[rows], other[rows] + n)), shape=(size, size))
    return connected_components(graph, directed=False)[1][group].astype(np.int64)


def in_several(unit: np.ndarray, group: np.ndarray) -> int:
    """Return how many units have cells in several groups."""
    n = int(group.max()) + 1
    pairs = np.unique(unit.astype(np.int64) * n + group)
    return int((np.bincount(pairs // n) > 1).sum())


def choose_groups(
    size: np.ndarray, stratum: np.ndarray, condition: np.ndarray, fraction: float, seed: int
) -> np.ndarray:
    """Choose groups that hold a share of the cells of every stratum, or of every condition if they are too few."""
    of_each, part = _of_each(size, stratum, fraction, seed), min(fraction, 1 - fraction)
    off = abs(float(np.average(of_each, weights=size)) - fraction)
    stratum = np.unique(stratum, return_inverse=True)[1].ravel()
    n, n_condition = np.bincount(stratum), np.bincount(condition)
    few = (n[stratum] * part < _FEW) & ((n[stratum] > 1) | (n_condition[condition] > 1))
    if off <= _NEAR or not few.any():
        return of_each
    evenly = of_each.copy()
    evenly[few] = choose_evenly(size[few], stratum[few], condition[few], fraction, seed)
    for group in (np.where(n[stratum] > 1, stratum, -1), condition):
        evenly[whole_groups(evenly, group)] = False
    better = evenly.any() and abs(float(np.average(evenly, weights=size)) - fraction) < off
    return evenly if better else of_each


def choose_evenly(
    size: np.ndarray, stratum: np.ndarray, condition: np.ndarray, fraction: float, seed: int
) -> np.ndarray:
    """Choose groups evenly along the list of all, in the order of conditions and strata."""
    rng = np.random.default_rng((seed, 2))
    order = np.lexsort((rng.random(len(size)), stratum, condition))
    start, held_out = rng.random(), np.zeros(len(size), bool)
    if (size == size[0]).all():
        held_out[order] = np.diff(np.floor(np.arange(len(size) + 1) * fraction + start)) > 0
        return held_out
    owed, left = (start - 0.5) * size.mean(), np.bincount(stratum)
    single = left == 1
    for one in order:
        owed += fraction * size[one]
        if owed >= size[one] / 2 and (left[stratum[one]] > 1 or single[stratum[one]]):
            held_out[one] = True
            owed -= size[one]
            left[stratum[one]] -= 1
    return held_out


def _of_each(size: np.ndarray, stratum: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """Choose groups that hold a share of the cells of every stratum, at least one and not all of several groups."""
    held_out = np.zeros(len(size), bool)
    stratum = np.unique(stratum, return_inverse=True)[1].ravel()
    alike = np.split(np.argsort(stratum, kind="stable"), np.cumsum(np.bincount(stratum))[:-1])
    for number, groups in enumerate(alike):
        if len(groups) == 1:
            continue
        order = np.random.default_rng((seed, 1, number)).permutation(groups)
        reached = np.cumsum(size[order])[:-1]
        n = 1 + int(np.argmin(np.abs(reached - fraction * size[groups].sum())))
        held_out[order[:n]] = True
    return held_out


def leads(copies: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Return the row that each row follows: itself, or of copies the first one with the least `size`."""
    lead = np.arange(len(copies))
    order = np.lexsort((lead, size, copies))
    order = order[copies[order] > 0]
    if len(order):
        starts = np.r_[True, np.diff(copies[order]) != 0]
        lead[order] = order[np.flatnonzero(starts)][np.cumsum(starts) - 1]
    return lead


def whole_groups(held_out: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Return a row of every group, other than -1, that is held out whole."""
    left = count(group[~held_out], int(group.max()) + 2) > 0
    gone = np.flatnonzero(held_out & (group >= 0) & ~left[group])
    return gone[np.unique(group[gone], return_index=True)[1]]
