"""The single measurements that a `Meter` is made of.

Each measures the batches of all ranks in a step at once and writes one row per rank, then one for
the global batch. Counting is compiled, so that a step costs microseconds.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Protocol

import numpy as np
from numba import njit

from cellcohort.cells import Column
from cellcohort.sampling.batch import Asked
from cellcohort.sampling.windowed import TOLERANCE

MOST_LABELS = 20  # columns with more are summed up instead of told label by label
_ROUNDING = 1 + 1e-6  # cells by which a count may miss its target without being short


class Gauge(Protocol):
    """Some numbers on the batches of a step."""

    @property
    def names(self) -> Sequence[str]:
        """Their names."""
        ...

    @property
    def details(self) -> Sequence[str]:
        """Those names that a log can do without."""
        ...

    def measure(self, positions: np.ndarray, asked: Sequence[Asked], joint: bool, out: np.ndarray) -> None:
        """Write the numbers into `out`, float of shape (n_ranks + 1, n_names).

        Parameters
        ----------
        positions : numpy.ndarray of int64, shape (n_ranks, batch_size)
        asked : sequence of Asked, one per rank
        joint : bool
            Whether only the union of the ranks' batches was asked something.
        """
        ...


class Shares:
    """Shares of the labels of a column, and how far they are from those asked and the table's.

    `key` is what ``Asked.shares`` calls the column, if it is in there; `quota` says whether every
    label has a number of cells to be met, or only those of the leak together (see `Leak`).
    """

    def __init__(self, title: str, column: Column, key: Any = None, quota: bool = False) -> None:
        counts = column.counts()
        self._codes, self._key, self._table = column.codes, key, counts / counts.sum()
        self._present = np.flatnonzero(counts)
        labels = label_texts([column.labels[code] for code in self._present])
        self._each = len(labels) <= MOST_LABELS
        told = [f"share/{label}" for label in labels] if self._each else ["share_min", "share_max", "effective_labels"]
        asked = [f"asked/{label}" for label in labels] if self._each and key is not None else []
        last = ["present", "distance_to_table"] + ["distance"] * (key is not None) + ["shortfall"] * quota
        self.names = [f"{title}/{name}" for name in [*told, *asked, *last]]
        self.details = [f"{title}/{name}" for name in asked]
        if key is not None:
            self.details += [f"{title}/distance_to_table", f"{title}/shortfall"]
        self._told, self._last = len(told), len(last)

    def measure(self, positions: np.ndarray, asked: Sequence[Asked], joint: bool, out: np.ndarray) -> None:
        wanted = np.empty((len(positions), len(self._table)))
        for rank, one in enumerate(asked):
            wanted[rank] = self._table if self._key is None else one.shares[self._key]
        counts = _count(self._codes, positions, len(self._table))
        held, verdict = _judge(counts, wanted, self._table, positions.shape[1], joint)
        if self._each:
            out[:, : self._told] = held[:, self._present]
            out[:-1, self._told : -self._last] = wanted[:, self._present] if self._key is not None else 0
            out[-1, self._told : -self._last] = out[:-1, self._told : -self._last].mean(axis=0)
        else:
            out[:, : self._told] = _spread(held[:, self._present])
        out[:, -self._last :] = verdict[:, : self._last]


class Leak:
    """Share of cells that are not of the group the batch is built around."""

    names = ("leak/asked", "leak/held", "leak/shortfall")
    details = ("leak/shortfall",)

    def __init__(self, column: Column) -> None:
        self._codes = column.codes

    def measure(self, positions: np.ndarray, asked: Sequence[Asked], joint: bool, out: np.ndarray) -> None:
        group = np.array([one.experiment for one in asked])
        counts = _count_others(self._codes, positions, group)
        _against(np.array([one.leaky for one in asked]), counts, joint, out)


class Window:
    """Share of cells within the window around the focal time of the batch."""

    names = ("window/asked", "window/held", "window/shortfall", "window/focal_hours")
    details = ("window/shortfall", "window/focal_hours")

    def __init__(self, hours: np.ndarray) -> None:
        self._hours = hours

    def measure(self, positions: np.ndarray, asked: Sequence[Asked], joint: bool, out: np.ndarray) -> None:
        focal = np.array([one.focal_hours for one in asked])
        reach = np.array([one.window_hours + TOLERANCE for one in asked])
        _against(np.array([one.inside for one in asked]), _count_near(self._hours, positions, focal, reach), joint, out)
        out[:-1, 3] = focal
        out[-1, 3] = focal[0] if (focal == focal[0]).all() else np.nan


class Repeats:
    """Places filled by a cell that the batch holds already."""

    names: Sequence[str] = ("duplicates",)
    details: Sequence[str] = ()

    def measure(self, positions: np.ndarray, asked: Sequence[Asked], joint: bool, out: np.ndarray) -> None:
        out[:, 0] = _equals(positions)[:, 0]


class Tracks:
    """Pairs of places filled by cells of one track."""

    names: Sequence[str] = ("same_track_pairs",)
    details: Sequence[str] = ()

    def __init__(self, column: Column) -> None:
        self._codes = column.codes

    def measure(self, positions: np.ndarray, asked: Sequence[Asked], joint: bool, out: np.ndarray) -> None:
        out[:, 0] = _equals(self._codes[positions])[:, 1]


def label_texts(labels: Sequence[Hashable]) -> list[str]:
    """Labels as texts that differ wherever the labels differ."""
    texts = [" x ".join(map(str, label)) if isinstance(label, tuple) else str(label) for label in labels]
    return texts if len(set(texts)) == len(texts) and "" not in texts else [repr(label) for label in labels]


def _against(wanted: np.ndarray, counts: np.ndarray, joint: bool, out: np.ndarray) -> None:
    """Write the shares asked and held, and the shortfall, of cells of one kind against all others."""
    both = np.stack([wanted, 1 - wanted], axis=1)
    held, verdict = _judge(counts, both, np.zeros(2), int(counts[0].sum()), joint)
    out[:-1, 0], out[-1, 0] = wanted, wanted.mean()
    out[:, 1] = held[:, 0]
    out[:, 2] = verdict[:, 3]


def _spread(shares: np.ndarray) -> np.ndarray:
    """Least share, largest share and effective number of labels of every row."""
    entropy = -(shares * np.log(shares, out=np.zeros_like(shares), where=shares > 0)).sum(axis=1)
    return np.stack([shares.min(axis=1), shares.max(axis=1), np.exp(entropy)], axis=1)


@njit(cache=True, nogil=True)
def _count(codes, positions, n_labels):  # type: ignore[no-untyped-def]
    """Cells of each label, shape (n_ranks, n_labels)."""
    counts = np.zeros((len(positions), n_labels))
    for rank in range(len(positions)):
        for position in positions[rank]:
            counts[rank, codes[position]] += 1
    return counts


@njit(cache=True, nogil=True)
def _count_others(codes, positions, group):  # type: ignore[no-untyped-def]
    """Cells of other labels than the rank's, and of it, shape (n_ranks, 2)."""
    counts = np.zeros((len(positions), 2))
    for rank in range(len(positions)):
        for position in positions[rank]:
            counts[rank, int(codes[position] == group[rank])] += 1
    return counts


@njit(cache=True, nogil=True)
def _count_near(hours, positions, focal, reach):  # type: ignore[no-untyped-def]
    """Cells within reach of the rank's focal time, and the others, shape (n_ranks, 2); NaN is never within."""
    counts = np.zeros((len(positions), 2))
    for rank in range(len(positions)):
        for position in positions[rank]:
            counts[rank, 0 if abs(hours[position] - focal[rank]) <= reach[rank] else 1] += 1
    return counts


@njit(cache=True, nogil=True)
def _judge(counts, wanted, table, size, joint):  # type: ignore[no-untyped-def]
    """Shares held, shape (n_ranks + 1, n_labels), and a verdict on them, shape (n_ranks + 1, 4).

    The verdict is: labels present, distance to the table's shares and to those wanted, shortfall.
    """
    n_ranks, n_labels = counts.shape
    held, verdict = np.zeros((n_ranks + 1, n_labels)), np.zeros((n_ranks + 1, 4))
    for row in range(n_ranks + 1):
        for label in range(n_labels):
            if row < n_ranks:
                share, target, cells = counts[row, label] / size, wanted[row, label], size
            else:
                share, target, cells = held[:-1, label].mean(), wanted[:, label].mean(), size * n_ranks
            held[row, label] = share
            verdict[row, 0] += share > 0
            verdict[row, 1] += abs(share - table[label]) / 2
            verdict[row, 2] += abs(share - target) / 2
            lacking = (target - share) * cells
            if lacking > _ROUNDING:
                verdict[row, 3] += np.floor(lacking + 1e-6)
    if joint:
        verdict[:-1, 3] = np.nan
    else:
        verdict[-1, 3] = verdict[:-1, 3].sum()
    return held, verdict


@njit(cache=True, nogil=True)
def _equals(values):  # type: ignore[no-untyped-def]
    """Per row of values, and for all together: entries that came before, and pairs of equal entries."""
    out = np.zeros((len(values) + 1, 2))
    for row in range(len(values) + 1):
        entries = values[row : row + 1] if row < len(values) else values
        bits = 1
        while 1 << bits < 2 * entries.size:
            bits += 1
        known, count = np.full(1 << bits, -1, np.int64), np.zeros(1 << bits, np.int64)
        for value in entries.flat:
            slot = (np.uint64(value) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - bits)
            while known[slot] != value and known[slot] != -1:
                slot = (slot + np.uint64(1)) & np.uint64((1 << bits) - 1)
            known[slot] = value
            out[row, 0] += count[slot] > 0
            out[row, 1] += count[slot]
            count[slot] += 1
    return out
