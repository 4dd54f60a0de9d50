"""The batch sampler in flat form, for code that has a DataFrame in hand."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Literal

import numpy as np
import pandas as pd

from cellcohort.cells import CellTable
from cellcohort.sampling.axes.base import Axis
from cellcohort.sampling.axes.condition import ConditionBalanced
from cellcohort.sampling.axes.experiment_aware import ExperimentAware
from cellcohort.sampling.axes.temporal import TemporallyEnriched
from cellcohort.sampling.batch_sampler import BatchSampler

HOURS = ("hours_post_infection", "hours_post_perturbation")


class FlexibleBatchSampler(BatchSampler):
    """A :class:`BatchSampler` over the rows of a DataFrame, with one argument per option.

    Parameters
    ----------
    valid_anchors : pandas.DataFrame
        One row per cell. Of its columns "experiment", "condition" and "hours_post_infection" (or
        "hours_post_perturbation"), those that the chosen axes look at must be there. Batches hold
        row numbers 0..N-1, whatever the index.
    batch_size : int
        Cells per batch and rank.
    experiment_aware, leaky, experiment_weights
        Build each batch around one experiment: see :class:`ExperimentAware`.
    temporal_enrichment, temporal_window_hours, temporal_global_fraction
        Draw most of a batch around a focal time: see :class:`TemporallyEnriched`.
    condition_balanced, condition_ratio
        Give each condition its share: see :class:`ConditionBalanced`.
    num_replicas, rank : int
        Number of processes and the number of this one.
    seed : int
        Key of all randomness.
    drop_last : bool
        Whether an epoch ends before the cells run out (True) or after, with batches that are full
        all the same because the first cells come again (False).

    Raises
    ------
    ValueError
        As :class:`BatchSampler`; a column is missing; or an option is set whose axis is off.
    """

    def __init__(
        self,
        valid_anchors: pd.DataFrame,
        batch_size: int = 128,
        experiment_aware: bool = True,
        leaky: float = 0.0,
        experiment_weights: Literal["uniform"] | Mapping[Hashable, float] | None = None,
        temporal_enrichment: bool = False,
        temporal_window_hours: float = 2.0,
        temporal_global_fraction: float = 0.3,
        condition_balanced: bool = True,
        condition_ratio: Mapping[Hashable, float] | None = None,
        num_replicas: int = 1,
        rank: int = 0,
        seed: int = 0,
        drop_last: bool = True,
    ) -> None:
        _refuse_idle(
            "experiment_aware", experiment_aware, leaky=(leaky, 0.0), experiment_weights=(experiment_weights, None)
        )
        _refuse_idle("condition_balanced", condition_balanced, condition_ratio=(condition_ratio, None))
        _refuse_idle(
            "temporal_enrichment", temporal_enrichment,
            temporal_window_hours=(temporal_window_hours, 2.0),
            temporal_global_fraction=(temporal_global_fraction, 0.3),
        )  # fmt: skip
        axes: dict[str, Axis] = {}
        if experiment_aware:
            axes["experiment"] = ExperimentAware(leaky, experiment_weights)
        if condition_balanced:
            axes["condition"] = ConditionBalanced(condition_ratio)
        if temporal_enrichment:
            axes["temporal"] = TemporallyEnriched(temporal_window_hours, temporal_global_fraction)
        hours = next((name for name in HOURS if name in valid_anchors.columns), HOURS[0])
        cells = CellTable.from_frame(
            valid_anchors,
            experiment="experiment" if experiment_aware else None,
            condition="condition" if condition_balanced else None,
            hours=hours if temporal_enrichment else None,
        )
        num_batches = None
        if not drop_last and isinstance(batch_size, (int, np.integer)) and batch_size > 0 and num_replicas > 0:
            num_batches = -(-len(cells) // (batch_size * num_replicas))
        super().__init__(cells, axes, batch_size, seed, rank, num_replicas, num_batches=num_batches)


def _refuse_idle(axis: str, on: bool, **options: tuple[Any, Any]) -> None:
    """Refuse an option that differs from its default while its axis is off."""
    for name, (value, default) in options.items():
        if not on and value != default:
            raise ValueError(f"{name}={value!r} has no effect with {axis}=False; set {axis}=True or leave it out.")
