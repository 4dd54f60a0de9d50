"""The metrics that a `Meter` is made of.

Each measures the batches of several steps and all ranks at once: one row per step and rank, and one
for the global batch of the step behind those of its ranks. Counting is compiled.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from cellcohort.cells import CellTable, Column
from cellcohort.compiled import compiled
from cellcohort.sampling.batch import Asked
from cellcohort.sampling.drawing.time_window import TOLERANCE

MOST_LABELS = 20  # a column with more labels is summarized instead of reported label by label
_SUMMARY = ("share_min", "share_max", "effective_labels")
_ROUNDING = 1 + 1e-6  # cells by which a count may miss its target without being short


class Steps(NamedTuple):
    """The batches of some steps and what was asked of them.

    Attributes
    ----------
    positions : numpy.ndarray of int64, shape (n_steps, n_ranks, batch_size)
    asked : sequence over steps of sequence over ranks of Asked
    joint : bool
        Whether only the union of the ranks' batches was asked something (``scope="global"``).
    counts : mapping of str to numpy.ndarray, shape (n_steps, n_ranks, n_labels)
        Cells of each label, by the title of the column.
    """

    positions: np.ndarray
    asked: Sequence[Sequence[Asked]]
    joint: bool
    counts: Mapping[str, np.ndarray]


class Metric(Protocol):
    """Some numbers on batches."""

    @property
    def names(self) -> Sequence[str]:
        """Names of the numbers."""
        ...

    @property
    def details(self) -> Sequence[str]:
        """Those names that a log can do without."""
        ...

    def measure(self, steps: Steps, out: np.ndarray) -> None:
        """Write the numbers into `out`, float of shape (n_steps, n_ranks + 1, n_names), the global batch last."""
        ...


class PairMetrics:
    """What the pairs of a batch cross, where a rule makes them.

    Parameters
    ----------
    cells : CellTable
    columns : sequence of str
        The columns of the rule; the experiment and the condition of the table are measured in any case.
    """

    def __init__(self, cells: CellTable, columns: Sequence[str]) -> None:
        roles = [role for role in ("experiment", "condition") if cells.has(role)]
        self._codes = {name: cells.column(name).codes for name in dict.fromkeys([*roles, *columns])}
        self._hours = cells.hours
        across = [f"pairs/across_{name}" for name in self._codes]
        self.names = ("pairs/second_views", *across, *(["pairs/hours"] if cells.hours is not None else []))

    def measure(self, positions: np.ndarray, partners: np.ndarray) -> list[float]:
        """Return the numbers of one batch; NaN where all anchors are paired with themselves."""
        other = partners != positions
        if not other.any():
            return [1.0, *[np.nan] * (len(self.names) - 1)]
        one, two = positions[other], partners[other]
        numbers = [1 - float(other.mean())]
        numbers += [float((codes[one] != codes[two]).mean()) for codes in self._codes.values()]
        if self._hours is not None:
            numbers.append(float(np.abs(self._hours[one] - self._hours[two]).mean()))
        return numbers


class LabelMetrics:
    """Shares of the labels of a column, and how far they are from those asked and the table's.

    Parameters
    ----------
    title : str
        The column, as it is called in the names of the numbers.
    column : Column
    key : str or tuple of str, optional
        The column, as ``Asked.shares`` calls it, if an axis governs it.
    quota : bool
        Whether each label has a number of cells to be met, or only all labels but the primary one
        together (see `Leak`).
    """

    def __init__(self, title: str, column: Column, key: Any = None, quota: bool = False) -> None:
        counts = column.counts()
        self._title, self._codes, self._key, self._table = title, column.codes, key, counts / counts.sum()
        self._present = np.flatnonzero(counts)
        labels = label_texts([column.labels[code] for code in self._present])
        self._each = len(labels) <= MOST_LABELS
        shares = [f"share/{label}" for label in labels] if self._each else list(_SUMMARY)
        asked = [f"asked/{label}" for label in labels] if self._each and key is not None else []
        last = ["present", "distance_to_table"] + ["distance"] * (key is not None) + ["shortfall"] * quota
        self.names = [f"{title}/{name}" for name in [*shares, *asked, *last]]
        self.details = [f"{title}/{name}" for name in asked]
        if key is not None:
            self.details += [f"{title}/distance_to_table", f"{title}/shortfall"]
        self._n_shares, self._n_last = len(shares), len(last)

    def count(self, positions: np.ndarray) -> np.ndarray:
        """Cells of each label in each batch, float64 of shape (n_steps, n_ranks, n_labels)."""
        return _count(self._codes, positions, len(self._table))

    def measure(self, steps: Steps, out: np.ndarray) -> None:
        """Write the numbers into `out`, float of shape (n_steps, n_ranks + 1, n_names), the global batch last."""
        counts = steps.counts[self._title]
        if self._key is None:
            wanted = np.broadcast_to(self._table, counts.shape)
        else:
            wanted = np.array([[one.shares[self._key] for one in ranks] for ranks in steps.asked])
        held, verdict = _judge(counts, wanted, self._table, steps.positions.shape[2], steps.joint)
        shares = held[:, :, self._present]
        out[:, :, : self._n_shares] = shares if self._each else _summary(shares)
        if self._each and self._key is not None:
            of_ranks = wanted[:, :, self._present]
            out[:, :-1, self._n_shares : -self._n_last] = of_ranks
            out[:, -1, self._n_shares : -self._n_last] = of_ranks.mean(axis=1)
        out[:, :, -self._n_last :] = verdict[:, :, : self._n_last]


class Leak:
    """Share of cells that are not of a primary label of their batch."""

    names = ("leak/asked", "leak/held", "leak/shortfall")
    details = ("leak/shortfall",)

    def __init__(self, column: Column) -> None:
        self._codes = column.codes

    def measure(self, steps: Steps, out: np.ndarray) -> None:
        """Write the numbers into `out`, float of shape (n_steps, n_ranks + 1, n_names), the global batch last."""
        primary = np.array([[one.experiments for one in ranks] for ranks in steps.asked])
        counts = _count_others(self._codes, steps.positions, primary)
        _against(np.array([[one.leaky for one in ranks] for ranks in steps.asked]), counts, steps.joint, out)


class TimeWindow:
    """Share of cells within the time window around the focal time of the batch."""

    names = ("window/asked", "window/held", "window/shortfall", "window/focal_hours")
    details = ("window/shortfall", "window/focal_hours")

    def __init__(self, hours: np.ndarray) -> None:
        self._hours = hours

    def measure(self, steps: Steps, out: np.ndarray) -> None:
        """Write the numbers into `out`, float of shape (n_steps, n_ranks + 1, n_names), the global batch last."""
        asked = [[(one.inside, one.focal_hours, one.window_hours) for one in ranks] for ranks in steps.asked]
        inside, focal, width = np.moveaxis(np.array(asked), 2, 0)
        _against(inside, _count_near(self._hours, steps.positions, focal, width + TOLERANCE), steps.joint, out)
        out[:, :-1, 3] = focal
        out[:, -1, 3] = np.where((focal == focal[:, :1]).all(axis=1), focal[:, 0], np.nan)


class Duplicates:
    """Places filled by a cell that the batch holds already."""

    names: Sequence[str] = ("duplicates",)
    details: Sequence[str] = ()

    def measure(self, steps: Steps, out: np.ndarray) -> None:
        """Write the numbers into `out`, float of shape (n_steps, n_ranks + 1, n_names), the global batch last."""
        out[:, :, 0] = count_repeats(steps.positions)[:, :, 0]


class SameTrack:
    """Pairs of places filled by cells of one track."""

    names: Sequence[str] = ("same_track_pairs",)
    details: Sequence[str] = ()

    def __init__(self, column: Column) -> None:
        self._codes = column.codes

    def measure(self, steps: Steps, out: np.ndarray) -> None:
        """Write the numbers into `out`, float of shape (n_steps, n_ranks + 1, n_names), the global batch last."""
        out[:, :, 0] = count_repeats(self._codes[steps.positions])[:, :, 1]


def label_texts(labels: Sequence[Hashable]) -> list[str]:
    """Labels as texts that differ wherever the labels differ."""
    texts = [" x ".join(map(str, label)) if isinstance(label, tuple) else str(label) for label in labels]
    return texts if len(set(texts)) == len(texts) and "" not in texts else [repr(label) for label in labels]


def _against(wanted: np.ndarray, counts: np.ndarray, joint: bool, out: np.ndarray) -> None:
    """Write the shares asked and held, and the shortfall, of cells of one kind against all others."""
    both = np.stack([wanted, 1 - wanted], axis=2)
    held, verdict = _judge(counts, both, np.zeros(2), int(counts[0, 0].sum()), joint)
    out[:, :-1, 0], out[:, -1, 0] = wanted, wanted.mean(axis=1)
    out[:, :, 1] = held[:, :, 0]
    out[:, :, 2] = verdict[:, :, 3]


def _summary(shares: np.ndarray) -> np.ndarray:
    """Least share, largest share and effective number of labels of every row."""
    entropy = -(shares * np.log(shares, out=np.zeros_like(shares), where=shares > 0)).sum(axis=-1)
    return np.stack([shares.min(axis=-1), shares.max(axis=-1), np.exp(entropy)], axis=-1)


@compiled
def _count(codes, positions, n_labels):  # type: ignore[no-untyped-def]
    """Cells of each label, shape (n_steps, n_ranks, n_labels)."""
    n_steps, n_ranks, size = positions.shape
    counts = np.zeros((n_steps, n_ranks, n_labels))
    for step in range(n_steps):
        for rank in range(n_ranks):
            for i in range(size):
                counts[step, rank, codes[positions[step, rank, i]]] += 1
    return counts


@compiled
def _count_others(codes, positions, primary):  # type: ignore[no-untyped-def]
    """Cells of other labels than the primary ones of the batch, and of these, shape (n_steps, n_ranks, 2)."""
    n_steps, n_ranks, size = positions.shape
    counts = np.zeros((n_steps, n_ranks, 2))
    for step in range(n_steps):
        for rank in range(n_ranks):
            for i in range(size):
                code, own = codes[positions[step, rank, i]], 0
                for label in primary[step, rank]:
                    own = max(own, int(code == label))
                counts[step, rank, own] += 1
    return counts


@compiled
def _count_near(hours, positions, focal, reach):  # type: ignore[no-untyped-def]
    """Cells within reach of the batch's focal time, and others, shape (n_steps, n_ranks, 2); NaN is never within."""
    n_steps, n_ranks, size = positions.shape
    counts = np.zeros((n_steps, n_ranks, 2))
    for step in range(n_steps):
        for rank in range(n_ranks):
            for i in range(size):
                near = abs(hours[positions[step, rank, i]] - focal[step, rank]) <= reach[step, rank]
                counts[step, rank, 0 if near else 1] += 1
    return counts


@compiled
def _judge(counts, wanted, table, size, joint):  # type: ignore[no-untyped-def]
    """Shares held, shape (n_steps, n_ranks + 1, n_labels), and a verdict, shape (n_steps, n_ranks + 1, 4).

    The verdict is: labels present, distance to the table's shares and to those wanted, shortfall.
    """
    n_steps, n_ranks, n_labels = counts.shape
    held, verdict = np.zeros((n_steps, n_ranks + 1, n_labels)), np.zeros((n_steps, n_ranks + 1, 4))
    for step in range(n_steps):
        for row in range(n_ranks + 1):
            for label in range(n_labels):
                if row < n_ranks:
                    share, target = counts[step, row, label] / size, wanted[step, row, label]
                else:
                    share, target = held[step, :-1, label].mean(), wanted[step, :, label].mean()
                held[step, row, label] = share
                verdict[step, row, 0] += share > 0
                verdict[step, row, 1] += abs(share - table[label]) / 2
                verdict[step, row, 2] += abs(share - target) / 2
                lacking = (target - share) * (size if row < n_ranks else size * n_ranks)
                if lacking > _ROUNDING:
                    verdict[step, row, 3] += np.floor(lacking + 1e-6)
        if joint:
            verdict[step, :-1, 3] = np.nan
        else:
            verdict[step, -1, 3] = verdict[step, :-1, 3].sum()
    return held, verdict


@compiled
def count_repeats(values):  # type: ignore[no-untyped-def]
    """Count equal entries in each batch and in each step as a whole, shape (n_steps, n_ranks + 1, 3).

    The counts are: entries equal to an earlier one, pairs of equal entries, entries equal to any other.
    """
    n_steps, n_ranks, _ = values.shape
    out = np.zeros((n_steps, n_ranks + 1, 3))
    for step in range(n_steps):
        for row in range(n_ranks + 1):
            entries = values[step, row] if row < n_ranks else values[step].ravel()
            bits = 1
            while 1 << bits < 2 * entries.size:
                bits += 1
            known, count = np.full(1 << bits, -1, np.int64), np.zeros(1 << bits, np.int64)
            for value in entries:
                slot = (np.uint64(value) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - bits)
                while known[slot] != value and known[slot] != -1:
                    slot = (slot + np.uint64(1)) & np.uint64((1 << bits) - 1)
                known[slot] = value
                out[step, row, 0] += count[slot] > 0
                out[step, row, 1] += count[slot]
                out[step, row, 2] += (0, 2, 1)[min(count[slot], 2)]
                count[slot] += 1
    return out
