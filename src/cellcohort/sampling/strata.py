"""The cells in one sorted order, in which every stratum and every time window is a slice."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from numba import njit

from cellcohort.cells import Column

NEVER = np.inf  # the time of a cell whose time is missing: sorted last, in no window, never focal


@dataclass(frozen=True)
class Strata:
    """Cells sorted by (group, shares label, time). A stratum is what no axis tells apart but time.

    Attributes
    ----------
    order : numpy.ndarray of int, shape (n_drawable,)
        Positions of the cells that may be drawn, in sorted order; stratum `s` is ``order[start[s]:start[s + 1]]``.
    start : numpy.ndarray of int64, shape (n_strata + 1,)
    group, label : numpy.ndarray of int, shape (n_strata,)
        Code of the group axis (0 without one) and row of `levels` of each stratum.
    levels : numpy.ndarray of int64, shape (n_labels, n_share_axes)
        The combinations of labels present, one code per share axis; sorted.
    knot, knot_start, knot_ptr : numpy.ndarray
        Times present: stratum `s` has the times ``knot[knot_ptr[s]:knot_ptr[s + 1]]``, and the
        cells of time `k` begin at ``order[knot_start[k]]``. Empty without a window axis.
    """

    order: np.ndarray
    start: np.ndarray
    group: np.ndarray
    label: np.ndarray
    levels: np.ndarray
    knot: np.ndarray
    knot_start: np.ndarray
    knot_ptr: np.ndarray

    @cached_property
    def size(self) -> np.ndarray:
        """Cells per stratum, shape (n_strata,)."""
        return np.diff(self.start)

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return sum(array.nbytes for array in vars(self).values())


def build_strata(
    group: Column | None,
    shares: list[Column],
    hours: np.ndarray | None,
    cap: Column | None,
    positions: np.ndarray | None,
    n_cells: int,
) -> Strata:
    """Sort cells by what the axes tell apart.

    Parameters
    ----------
    group, shares, hours, cap
        What the axes look at, of all cells. Cells that only `cap` tells apart are sorted by it.
    positions : numpy.ndarray of int or None
        The cells that may be drawn; None for all `n_cells`.
    """
    order: np.ndarray = np.arange(n_cells) if positions is None else positions
    order = order.astype(_index_type(n_cells))
    code, present = _combine(([group] if group else []) + shares, order)
    first = 1 if group else 0
    levels, label = np.unique(present[:, first:], axis=0, return_inverse=True)
    start = np.concatenate([[0], np.cumsum(np.bincount(code, minlength=len(present)))])
    knots: tuple[np.ndarray, ...] = (np.empty(0), np.empty(0, np.int64), np.zeros(len(start), np.int64))
    ranks = _count_up(order)
    if cap is not None:
        ranks = _stable_order(cap.codes[order], len(cap.labels), ranks)
    if hours is None:
        order = order[_stable_order(code, len(present), ranks)]
    else:
        known = hours if positions is None else hours[positions]
        time, times = pd.factorize(np.where(np.isnan(known), NEVER, known), sort=True)
        ranks = _stable_order(time, len(times), ranks)
        ranks = _stable_order(code, len(present), ranks)
        knots = _knots(time[ranks], times, start)
        order = order[ranks]
    return Strata(
        order, start, present[:, 0] if group else np.zeros(len(present), np.int64), label.reshape(-1), levels, *knots
    )


def _combine(columns: list[Column], positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Code of the combination of labels per cell, and the combinations present (sorted rows)."""
    n_cells = len(positions)
    code: np.ndarray = np.zeros(n_cells, np.int32)
    rows = np.zeros((1, 0), np.int64)
    for column in columns:
        width = len(column.labels)
        wide = code * np.int64(width) + column.codes[positions]
        if len(rows) * width <= 4 * n_cells + 1024:
            counts = np.bincount(wide, minlength=len(rows) * width)
            present = np.flatnonzero(counts)
            code = (np.cumsum(counts > 0) - 1).astype(np.int32)[wide]
        else:
            present, code = np.unique(wide, return_inverse=True)
        rows = np.column_stack([rows[present // width], present % width])
    return code, rows


def _index_type(n: int) -> type:
    return np.int32 if n < 2**31 else np.int64


def _count_up(like: np.ndarray) -> np.ndarray:
    return np.arange(len(like), dtype=like.dtype)


@njit(cache=True)
def _stable_order(code: np.ndarray, n_codes: int, order: np.ndarray) -> np.ndarray:
    """Sort `order` by ``code[order]``, keeping the order of equal codes (counting sort)."""
    place = np.zeros(n_codes + 1, np.int64)
    for c in code:
        place[c + 1] += 1
    for c in range(n_codes):
        place[c + 1] += place[c]
    out = np.empty_like(order)
    for position in order:
        c = code[position]
        out[place[c]] = position
        place[c] += 1
    return out


def _knots(time: np.ndarray, times: np.ndarray, start: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where a new time begins, given the time code of every cell in sorted order."""
    new = np.empty(len(time), bool)
    np.not_equal(time[1:], time[:-1], out=new[1:])
    new[start[:-1]] = True
    knot_start = np.flatnonzero(new)
    bounds: np.ndarray = np.append(knot_start, len(time)).astype(_index_type(len(time)))
    return times[time[knot_start]], bounds, np.searchsorted(knot_start, start)
