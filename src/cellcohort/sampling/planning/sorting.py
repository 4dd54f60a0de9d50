"""Counting sorts of many cells by a few columns of codes, and numbers for the combinations of codes that there are."""

from __future__ import annotations

import numpy as np
import pandas as pd

from cellcohort.compiled import compiled

CHUNK = 2**20  # cells looked at at a time where that keeps what is in between small
NEVER = np.inf  # the time of a cell whose time is missing: sorted last, in no window, never focal


def distinct_rows(rows: np.ndarray, widths: list[int]) -> tuple[np.ndarray, np.ndarray]:
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


def time_codes(hours: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
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


def combine(columns: list[tuple[np.ndarray, int]], positions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
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


@compiled
def _add_column(
    code: np.ndarray, width: int, codes: np.ndarray, positions: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    """Replace each code by that of its pair with a label; cells of each pair, added to `counts`."""
    for i in range(len(code)):
        pair = code[i] * np.int64(width) + codes[positions[i]]
        code[i] = pair
        counts[pair] += 1
    return counts


@compiled
def _recode(code: np.ndarray, new: np.ndarray) -> None:
    """Replace each code by the new one."""
    for i in range(len(code)):
        code[i] = new[code[i]]


@compiled
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
