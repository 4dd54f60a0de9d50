"""VisCy's `FlexibleBatchSampler`: groups, strata and focal times, drawn batch by batch."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from itertools import chain, islice, repeat
from typing import override

import numpy as np
import pandas as pd

from cellcohort.cells import CellTable
from cellcohort.extras import require
from cellcohort.messages import several
from cellcohort.sampling.axes.base import Axis
from cellcohort.sampling.axes.condition import ConditionBalanced
from cellcohort.sampling.axes.experiment_aware import ExperimentAware
from cellcohort.sampling.axes.temporal import TemporallyEnriched
from cellcohort.sampling.baselines.base import Baseline, module_of, refuse_axes, whole_batches
from cellcohort.sampling.flexible import columns_of, weights_by_name


class VisCyFlexible(Baseline):
    """Draw as viscy-data's ``FlexibleBatchSampler`` does; the options have its names and meanings.

    Parameters
    ----------
    cells, axes, batch_size, seed, rank, world_size, num_batches : see `BatchSampler`
        As for :class:`~cellcohort.sampling.BatchSampler`; `axes` must be empty, and `num_batches` cannot be "cover".
    batch_group_by : str, list of str or None
        The column (or columns, jointly) that batches are built around.
    leaky : float
        Share of every batch from other groups, in [0, 1).
    group_weights : dict of str to float, optional
        How often each group is chosen; by default in proportion to its cells. Labels of several columns are joined by
        "|"; a group that is not named has weight 0.
    stratify_by : str, list of str or None
        The column (or columns, jointly) to balance.
    temporal_enrichment : bool
        Draw most of a batch around a focal time. Strata are then not balanced.
    temporal_window_hours : float
        Half-width of the time window, in hours.
    temporal_global_fraction : float
        Share of the batch drawn outside the time window.

    Raises
    ------
    ValueError
        Axes are given, an option is out of range or does not fit the table, or the others have fewer cells than leak
        into a batch.
    ModuleNotFoundError
        viscy-data is not installed.

    Notes
    -----
    Differs from the axes in that groups are drawn at random with replacement; the last stratum takes what rounding
    leaves over; leaked cells are neither balanced nor in the time window; with a focal time nothing is balanced, and
    a missing time may be focal, which is then not known; and cells are drawn anew for every batch.
    """

    about = (
        "Drawn by FlexibleBatchSampler of viscy-data: leaked cells are not balanced, and with a focal time none are."
    )

    def __init__(
        self,
        cells: CellTable,
        axes: Mapping[str, Axis] | None = None,
        batch_size: int = 256,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        num_batches: int | None = None,
        batch_group_by: str | Sequence[str] | None = "experiment",
        leaky: float = 0.0,
        group_weights: Mapping[str, float] | None = None,
        stratify_by: str | Sequence[str] | None = "condition",
        temporal_enrichment: bool = False,
        temporal_window_hours: float = 2.0,
        temporal_global_fraction: float = 0.3,
    ) -> None:
        require("baselines", "viscy_data")
        refuse_axes(axes, "VisCy's FlexibleBatchSampler")
        if batch_group_by is None and (leaky or group_weights):
            raise ValueError("leaky and group_weights have no effect with batch_group_by=None; leave them out.")
        asked: dict[str, Axis] = {}
        if batch_group_by is not None:
            groups = cells.column(batch_group_by)
            weights = weights_by_name(group_weights, groups) if group_weights else None
            asked["group"] = ExperimentAware(leaky, weights, batch_group_by)
        if stratify_by is not None:
            asked["strata"] = ConditionBalanced(column=stratify_by)
        window = TemporallyEnriched(temporal_window_hours, temporal_global_fraction) if temporal_enrichment else None
        if window is not None:
            asked["temporal"] = window
        self.options = {
            "batch_group_by": batch_group_by and columns_of(batch_group_by),
            "leaky": leaky,
            "group_weights": group_weights and dict(group_weights),
            "stratify_by": stratify_by and columns_of(stratify_by),
            "temporal_enrichment": temporal_enrichment,
            "temporal_window_hours": temporal_window_hours,
            "temporal_global_fraction": temporal_global_fraction,
        }
        super().__init__(
            cells, asked, batch_size, seed, rank, world_size, num_batches=whole_batches(num_batches)
        )  # fmt: skip
        if batch_group_by is not None and (leaked := int(self.batch_size * leaky)):
            others = len(cells) - int(cells.column(batch_group_by).counts().max())
            if others < leaked:
                raise ValueError(
                    f"leaky={leaky} asks for {leaked} cells of other groups in each batch, and those beside the "
                    f"largest have {several(others, 'cell')}: VisCy's batches would be short. Use a smaller leaky."
                )
        frame = pd.DataFrame(
            {
                name: pd.Categorical.from_codes(column.codes, pd.Index(column.labels))
                for name in (*columns_of(batch_group_by), *columns_of(stratify_by))
                for column in [cells.column(name)]
            },
            index=pd.RangeIndex(len(cells)),
        )
        if window is not None:
            frame["hours_post_perturbation"] = hours = window.values(cells)
            self._times = np.unique(hours[np.isfinite(hours)])
        self._made = module_of("viscy_data", "sampler.py").FlexibleBatchSampler(frame, self.batch_size, **self.options)

    @override
    def _focal(self, hours: np.ndarray) -> float:
        n = self.batch_size - int(self.batch_size * self.options["leaky"])
        n -= int(n * self.options["temporal_global_fraction"])  # the cells inside the time window come first
        width = self.options["temporal_window_hours"]
        times = self._times[(self._times >= hours[:n].max() - width) & (self._times <= hours[:n].min() + width)]
        if not len(times):
            return np.nan
        outside = np.abs(hours[n:] - times[:, None]) > width
        return float(times[outside.sum(axis=1).argmax()])

    @override
    def _epoch(self, key: int) -> np.ndarray:
        sampler = copy.copy(self._made)
        sampler.seed, sampler.epoch = key, 0
        passes = chain.from_iterable(repeat(sampler))  # each of which moves on by one of its epochs
        return np.array(list(islice(passes, self.num_batches)), np.int64)
