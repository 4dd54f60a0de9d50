"""The cells in one sorted order, in which every stratum and every time window is a slice."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cellcohort.cells import Column
from cellcohort.sampling.planning.sorting import combine, distinct_rows, stable_order, time_codes


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
    time, all_times = time_codes(hours) if hours is not None else (np.empty(0), np.empty(0))
    code, present, counts = combine(columns if hours is None else [*columns, (time, len(all_times))], order)
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
    levels, label = distinct_rows(present[:, 1 if group else 0 :], [len(column.labels) for column in shares])
    return Strata(order, start.astype(order.dtype), groups, label, levels, *by_time)
