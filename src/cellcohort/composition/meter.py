"""What a batch held against what was asked of it: pure functions from positions to numbers.

Training and preview both measure with it. The names of the numbers follow from the table and the axes
alone, so they are the same for every batch of a run:

``<column>/share/<label>``, ``<column>/asked/<label>``
    Share of the batch that this label had, and that was asked of it. A column of more than
    `MOST_LABELS` labels has instead of these ``share_min``, ``share_max`` and
    ``effective_labels`` (the exponential of the entropy of the shares).
``<column>/present``
    How many labels the batch holds.
``<column>/distance``, ``<column>/distance_to_table``
    Total variation (0 to 1) from the shares asked, and from those of the whole table.
``leak/asked``, ``leak/held``
    Share of cells that are not of the primary label of the batch, or of one of several.
``window/asked``, ``window/held``, ``window/focal_hours``
    Share of cells within the time window around the focal time (both ends included), and that time.
``<column>/shortfall``, ``leak/shortfall``, ``window/shortfall``, ``shortfall``
    Cells that were asked and could not be given: the whole cells by which a count misses its
    target by more than one, which is rounding. The last is the sum of the others. The column of the
    primary label has none of its own: only the leak can be short there.
``duplicates``
    Places filled by a cell that the batch holds already.
``same_track_pairs``
    Pairs of places filled by cells of one track, a repeated cell among them.
``pairs/second_views``, ``pairs/across_<column>``, ``pairs/hours``
    Where a rule pairs cells (``pairs.same`` and others): the share of anchors that are paired with themselves, the
    share of the other pairs whose cells have different labels, and the mean time between the two, as the loader
    delivered them; of rank 0 alone where there are several.

The columns are those that an axis governs, and the experiment and condition of the table in any
case. Only columns that an axis governs have ``asked`` and ``distance``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from cellcohort.cells import CellTable, Column
from cellcohort.composition.metrics import (
    MOST_LABELS,
    Duplicates,
    LabelMetrics,
    Leak,
    Metric,
    SameTrack,
    Steps,
    TimeWindow,
    label_texts,
)
from cellcohort.sampling.axes.base import Axis, GroupAxis, ShareAxis, WindowAxis
from cellcohort.sampling.batch import Asked
from cellcohort.sampling.coverage import DrawCounter
from cellcohort.sampling.protocol import Sampler

__all__ = ["MOST_LABELS", "Meter", "StepMeter", "describe", "title_of"]

_ENTRIES = 4_000_000  # of the arrays (steps, ranks, labels) that exist at a time


class Meter:
    """Measures what the batches of steps held, on every rank and together.

    Parameters
    ----------
    cells : CellTable
        The cells that positions refer to.
    axes : dict of str to Axis, optional
        The axes of the sampler that made the batches.
    scope : {"rank", "global"}
        Whether every rank's batch was asked something by itself, or only the union of them was. In
        the second case shortfall is a matter of the union and NaN for each rank.

    Attributes
    ----------
    names : tuple of str
        Names of the numbers, as the module lists them.
    details : frozenset of str
        Those names that a log can do without: what is asked of each label, which does not change or
        shows in the distance, the parts of the shortfall, and the focal time.
    columns : dict of str to Column
        The label columns that are measured, by the name they have in `names`.
    """

    def __init__(
        self, cells: CellTable, axes: Mapping[str, Axis] | None = None, scope: Literal["rank", "global"] = "rank"
    ) -> None:
        kinds = list((axes or {}).values())
        self.columns: dict[str, Column] = {}
        self._labels: dict[str, LabelMetrics] = {}
        for axis in kinds:
            if isinstance(axis, (GroupAxis, ShareAxis)):
                self._add(title_of(axis), cells.column(axis.column), axis.key, isinstance(axis, ShareAxis))
        for role in ("experiment", "condition"):
            if cells.has(role):
                self._add(role, cells.column(role))
        metrics: list[Metric] = list(self._labels.values())
        metrics += [Leak(cells.column(axis.column)) for axis in kinds if isinstance(axis, GroupAxis)]
        metrics += [TimeWindow(axis.values(cells)) for axis in kinds if isinstance(axis, WindowAxis)]
        metrics.append(Duplicates())
        if cells.has("track"):
            metrics.append(SameTrack(cells.column("track")))
        ends = np.cumsum([len(metric.names) for metric in metrics])
        self._metrics = [
            (metric, slice(end - len(metric.names), end)) for metric, end in zip(metrics, ends, strict=True)
        ]
        self._joint = scope == "global"
        names = [name for metric in metrics for name in metric.names]
        shortfalls = {f"{what}/shortfall" for what in (*self.columns, "leak", "window")}
        self._short = [i for i, name in enumerate(names) if name in shortfalls]
        self.names = (*names, "shortfall")
        self.details = frozenset(name for metric in metrics for name in metric.details)

    def _add(self, title: str, column: Column, key: Any = None, quota: bool = False) -> None:
        if column.name not in [known.name for known in self.columns.values()]:
            self.columns[title] = column
            self._labels[title] = LabelMetrics(title, column, key, quota)

    def steps_at_once(self, n_ranks: int) -> int:
        """Return how many steps to measure in one call, so that columns of many labels take little memory."""
        widest = max([len(column.labels) for column in self.columns.values()], default=1)
        return max(1, min(256, _ENTRIES // (widest * n_ranks)))

    def count(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        """Count the cells of each label.

        Parameters
        ----------
        positions : numpy.ndarray of int64, shape (n_steps, n_ranks, batch_size)
            What every rank's batch of every step holds.

        Returns
        -------
        dict of str to numpy.ndarray of float64, shape (n_steps, n_ranks, n_labels)
            For each of `columns` the cells of every label in every batch.
        """
        return {title: metric.count(positions) for title, metric in self._labels.items()}

    def measure(
        self,
        positions: np.ndarray,
        asked: Sequence[Sequence[Asked]],
        counts: Mapping[str, np.ndarray] | None = None,
    ) -> np.ndarray:
        """Measure the batches of some steps.

        Parameters
        ----------
        positions : numpy.ndarray of int64, shape (n_steps, n_ranks, batch_size)
            What every rank's batch of every step holds.
        asked : sequence over steps of sequence over ranks of Asked
            What was asked of each; with scope "global" the same for all ranks.
        counts : mapping, optional
            Result of :meth:`count` for these positions, where it is known already.

        Returns
        -------
        numpy.ndarray of float64, shape (n_steps, n_ranks + 1, n_names)
            For each step one row per rank, then one for the global batch. In it shares are of the
            union, leak and window are counted rank by rank, each by its own primary label and focal time
            (NaN where these differ), and with scope "rank" the shortfalls of the ranks are added up.
        """
        n_steps, n_ranks, _ = positions.shape
        steps = Steps(positions, asked, self._joint, self.count(positions) if counts is None else counts)
        numbers = np.empty((n_steps, n_ranks + 1, len(self.names)))
        for metric, places in self._metrics:
            metric.measure(steps, numbers[:, :, places])
        numbers[:, :, -1] = numbers[:, :, self._short].sum(axis=2)
        return numbers


def title_of(axis: Axis) -> str:
    """Return the column of an axis, or several joined by ``" x "``."""
    return " x ".join(axis.columns)


def describe(
    cells: CellTable, positions: np.ndarray, asked: Asked | None = None, axes: Mapping[str, Axis] | None = None
) -> dict[str, float]:
    """Measure one batch.

    Parameters
    ----------
    cells : CellTable
        The cells that positions refer to.
    positions : array of int, shape (batch_size,)
        The cells of the batch.
    asked : Asked, optional
        What was asked of it, ``sampler.asked(epoch, step)``; required with `axes`.
    axes : dict of str to Axis, optional
        The axes of the sampler, ``sampler.axes``.

    Returns
    -------
    dict of str to float
        The numbers, by the names that the module lists.

    Raises
    ------
    ValueError
        If `axes` are given without `asked`.
    """
    if axes and asked is None:
        raise ValueError("describe has axes but not what they asked; pass asked=sampler.asked(epoch, step).")
    meter = Meter(cells, axes)
    numbers = meter.measure(np.asarray(positions, np.int64)[None, None], [[asked or Asked()]])
    return dict(zip(meter.names, numbers[0, 0].tolist(), strict=True))


class StepMeter:
    """Measures the steps of a run from its sampler alone, whatever process this is.

    Parameters
    ----------
    sampler : Sampler
        The batch sampler of any rank.

    Attributes
    ----------
    meter : Meter
    names : tuple of str
        Those of the meter, then ``coverage``: the distinct cells that all ranks have seen since the
        epoch began, as a share of all cells (on the row of the global batch, else NaN).
    """

    def __init__(self, sampler: Sampler) -> None:
        self.meter = Meter(sampler.cells, sampler.axes, sampler.scope)
        self.names = (*self.meter.names, "coverage")
        self._ranks = [sampler.for_rank(rank, sampler.world_size) for rank in range(sampler.world_size)]
        group = next((axis for axis in sampler.axes.values() if isinstance(axis, GroupAxis)), None)
        self._groups = label_texts(sampler.cells.column(group.column).labels) if group else []
        self._draws, self._next = DrawCounter(len(sampler.cells)), (-1, 0)

    def positions(self, epoch: int, first: int, n_steps: int = 1) -> np.ndarray:
        """Return the cells that every rank's batch holds, int64 of shape (n_steps, world_size, batch_size)."""
        return np.array([[rank.batch(epoch, first + i) for rank in self._ranks] for i in range(n_steps)])

    def measure(self, epoch: int, first: int, positions: np.ndarray) -> tuple[np.ndarray, list[list[str | None]]]:
        """Measure the batches of steps that follow each other.

        Steps are cheap in their order. Where steps were skipped, as when a run resumes in mid-epoch,
        the earlier batches of the epoch are drawn once for the coverage.

        Parameters
        ----------
        epoch, first : int
            The epoch and the first of the steps.
        positions : numpy.ndarray
            Result of :meth:`positions` for these steps.

        Returns
        -------
        numpy.ndarray of float64, shape (n_steps, world_size + 1, n_names)
            For each step one row per rank, then one for the global batch.
        list of list of str or None, of the same shape as the rows
            Primary label of each batch, several joined by ``" + "``; None if there is none, or if ranks differ.
        """
        n_steps, n_ranks, _ = positions.shape
        asked = [[rank.asked(epoch, first + i) for rank in self._ranks] for i in range(n_steps)]
        numbers = np.full((n_steps, n_ranks + 1, len(self.names)), np.nan)
        at_once = self.meter.steps_at_once(n_ranks)
        for begin in range(0, n_steps, at_once):
            part = slice(begin, begin + at_once)
            numbers[part, :, :-1] = self.meter.measure(positions[part], asked[part])
        numbers[:, -1, -1] = self._coverage(epoch, first, positions)
        groups: list[list[str | None]] = []
        for ranks in asked:
            labels = [" + ".join(self._groups[code] for code in sorted(one.experiments)) or None for one in ranks]
            groups.append([*labels, labels[0] if len(set(labels)) == 1 else None])
        return numbers, groups

    def _coverage(self, epoch: int, first: int, positions: np.ndarray) -> np.ndarray:
        """Share of the cells drawn since the epoch began, after each of the steps."""
        if (epoch, first) != self._next:
            self._draws = DrawCounter(len(self._draws.draws))
            for earlier in range(first):
                self._draws.add(self.positions(epoch, earlier))
        self._next = epoch, first + len(positions)
        return self._draws.add(positions) / len(self._draws.draws)
