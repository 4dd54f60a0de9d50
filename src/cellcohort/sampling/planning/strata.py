"""The cells in one sorted order, in which every stratum and every time window is a slice."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
from numba import njit

from cellcohort.cells import Column

CHUNK = 2**20  # cells looked at at a time where that keeps what is in between small
NEVER = np.inf  # the time of a cell whose time is missing: sorted last, in no window, never focal


class Strata(NamedTuple):
    """Cells sorted by (group, shares label, time). A stratum is what no axis tells apart but time.

    Attributes
    ----------
    order : numpy.ndarray of int, shape (n_drawable,)
        Positions of the cells that may be drawn, in sorted order; stratum `s` is ``order[start[s]:start[s + 1]]``.
    start : numpy.ndarray of int, shape (n_strata + 1,)
    group, label : numpy.ndarray of int, shape (n_strata,)
        Code of the group axis (0 without one) and row of `levels` of each stratum.
    levels : numpy.ndarray of int64, shape (n_labels, n_share_axes)
        The combinations of labels present, one code per share axis; sorted.
    times, times_start, times_indptr : numpy.ndarray
        Times present: stratum `s` has the times ``times[times_indptr[s]:times_indptr[s + 1]]``, and the
        cells of time `k` begin at ``order[times_start[k]]``. Empty without a window axis.
    capped : numpy.ndarray of int, shape (n_cells,)
        Code of the capped label of every cell of the table; empty without a cap.
    """

    order: np.ndarray
    start: np.ndarray
    group: np.ndarray
    label: np.ndarray
    levels: np.ndarray
    times: np.ndarray
    times_start: np.ndarray
    times_indptr: np.ndarray
    capped: np.ndarray = np.empty(0, np.int8)

    @property
    def size(self) -> np.ndarray:
        """Cells per stratum, int64 of shape (n_strata,)."""
        return np.diff(self.start).astype(np.int64)

    @property
    def nbytes(self) -> int:
        """Bytes of memory held; `capped` belongs to the table."""
        return sum(array.nbytes for array in self[:-1])


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
    index = np.int32 if n_cells < 2**31 else np.int64
    order: np.ndarray = np.arange(n_cells, dtype=index) if positions is None else positions.astype(index)
    columns = [(column.codes, len(column.labels)) for column in ([group] if group else []) + shares]
    time, all_times = _time_codes(hours) if hours is not None else (np.empty(0), np.empty(0))
    code, present, counts = _combine(columns if hours is None else [*columns, (time, len(all_times))], order)
    bounds: np.ndarray = np.concatenate([[0], np.cumsum(counts)])
    ranks = np.arange(len(order), dtype=index) if positions is not None else order
    if cap is not None:
        ranks = stable_order(cap.codes[order], len(cap.labels), ranks)
    ranks = stable_order(code, len(present), ranks)
    order = order[ranks] if positions is not None else ranks
    start, by_time = bounds, (np.empty(0), np.empty(0, order.dtype), np.empty(0, np.int64))
    if hours is not None:
        times, present = all_times[present[:, -1]], present[:, :-1]
        first = np.concatenate([[True], (present[1:] != present[:-1]).any(axis=1)])
        times_indptr = np.append(np.flatnonzero(first), len(present))
        start, present = bounds[times_indptr], present[first]
        by_time = times, bounds.astype(order.dtype), times_indptr
    of_group = np.int16 if group is None or len(group.labels) < 2**15 else np.int32
    groups: np.ndarray = present[:, 0].astype(of_group) if group else np.zeros(len(present), of_group)
    levels, label = _distinct_rows(present[:, 1 if group else 0 :], [len(column.labels) for column in shares])
    return Strata(order, start.astype(order.dtype), groups, label, levels, *by_time)


def _distinct_rows(rows: np.ndarray, widths: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct rows, sorted, and which of them each row is; column `i` has numbers below ``widths[i]``."""
    code, of = np.zeros(1, np.int64), np.zeros(len(rows), np.int64)
    for column, width in zip(rows.T, widths, strict=True):  # the codes of a few columns at a time, lest they overflow
        pair = of * width + column
        if len(code) * width <= 4 * len(rows) + 1024:
            there = np.bincount(pair, minlength=len(code) * width) > 0
            code, of = np.flatnonzero(there), (np.cumsum(there) - 1)[pair]
        else:
            code, of = np.unique(pair, return_inverse=True)
    first = np.empty(len(code), np.int64)
    first[of] = np.arange(len(rows))
    return rows[first].astype(np.int32, order="C"), of.astype(np.int32)  # of one layout, for compiled functions


def _time_codes(hours: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rank of every cell's time among the times there are, and these; a missing time is the last, `NEVER`."""
    code: np.ndarray = np.empty(len(hours), np.int32)
    parts = [slice(i, i + CHUNK) for i in range(0, len(hours), CHUNK)]
    found = []
    for part in parts:
        code[part], times = pd.factorize(np.where(np.isnan(hours[part]), NEVER, hours[part]))
        found.append(times)
    times = np.unique(np.concatenate(found))
    for part, own in zip(parts, found, strict=True):
        code[part] = np.searchsorted(times, own)[code[part]]
    return code, times


def _combine(columns: list[tuple[np.ndarray, int]], positions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Code of the combination of labels per cell; the combinations present (sorted rows); cells of each.

    A column is the label code of every cell and the number of labels; `positions` are the cells to look at.
    """
    n_cells = len(positions)
    code: np.ndarray = np.zeros(n_cells, np.int32)
    rows, counts = np.zeros((1, 0), np.int64), np.array([n_cells])
    for codes, width in columns:
        if len(rows) * width <= min(4 * n_cells + 1024, 2**31):  # else counts or codes would be too large
            counts = _add_column(code, width, codes, positions, np.zeros(len(rows) * width, np.int64))
            present = np.flatnonzero(counts)
            if len(present) < len(counts):
                _recode(code, (np.cumsum(counts > 0) - 1).astype(np.int32))
            counts = counts[present]
        else:
            present, code, counts = np.unique(
                code * np.int64(width) + codes[positions], return_inverse=True, return_counts=True
            )
        rows = np.column_stack([rows[present // width], present % width])
    return code, rows, counts


@njit(cache=True)
def _add_column(
    code: np.ndarray, width: int, codes: np.ndarray, positions: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    """Replace each code by that of its pair with a label; cells of each pair, added to `counts`."""
    for i in range(len(code)):
        pair = code[i] * np.int64(width) + codes[positions[i]]
        code[i] = pair
        counts[pair] += 1
    return counts


@njit(cache=True)
def _recode(code: np.ndarray, new: np.ndarray) -> None:
    """Replace each code by the new one."""
    for i in range(len(code)):
        code[i] = new[code[i]]


@njit(cache=True)
def stable_order(code: np.ndarray, n_codes: int, order: np.ndarray) -> np.ndarray:
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
