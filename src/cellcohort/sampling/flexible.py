"""The batch sampler in flat form, for code that has a DataFrame in hand."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd

from cellcohort.cells import CellTable, Column
from cellcohort.messages import listed
from cellcohort.sampling.axes.base import Axis
from cellcohort.sampling.axes.condition import ConditionBalanced
from cellcohort.sampling.axes.experiment_aware import ExperimentAware
from cellcohort.sampling.axes.temporal import TemporallyEnriched
from cellcohort.sampling.batch_sampler import BatchSampler

HOURS = ("hours_post_infection", "hours_post_perturbation")


class FlexibleBatchSampler(BatchSampler):
    """A :class:`BatchSampler` over the rows of a DataFrame, with one argument per option.

    Takes the arguments of VisCy's ``FlexibleBatchSampler`` by both of its vocabularies.

    Parameters
    ----------
    valid_anchors : pandas.DataFrame
        One row per cell. The columns that the chosen axes look at must be there: by default "experiment"
        and "condition", with `temporal_enrichment` also "hours_post_infection" (or
        "hours_post_perturbation"). Batches hold row numbers 0..N-1, whatever the index.
    batch_size : int
        Cells per batch and rank.
    experiment_aware : bool
        Build each batch around one label of `batch_group_by`; see :class:`ExperimentAware`.
    leaky : float
        Share of every batch from other experiments, in [0, 1).
    experiment_weights : None, "uniform" or dict of label to float
        How often each experiment is primary.
    temporal_enrichment : bool
        Draw most of a batch around a focal time; see :class:`TemporallyEnriched`.
    temporal_window_hours : float
        Half-width of the time window, in hours.
    temporal_global_fraction : float
        Share of the batch drawn outside the time window.
    condition_balanced : bool
        Give each label of `stratify_by` its share; see :class:`ConditionBalanced`.
    condition_ratio : None or dict of label to float
        Share of each condition; None gives all the same.
    num_replicas, rank : int
        Number of processes and the number of this one.
    seed : int
        Key of all randomness.
    drop_last : bool
        Whether an epoch ends before the cells run out (True) or after, with batches that are full
        all the same because the first cells come again (False).
    batch_group_by : str, list of str or None
        The column (or columns, jointly) that batches are built around; None is ``experiment_aware=False``.
    stratify_by : str, list of str or None
        The column (or columns, jointly) to balance; None is ``condition_balanced=False``.
    group_weights : dict of str to float, optional
        `experiment_weights` as VisCy names labels: those of several columns are joined by "|", and a
        label that is not named has weight 0, so that its cells are not drawn.

    Raises
    ------
    ValueError
        As :class:`BatchSampler`; a column is missing; or an option is set whose axis is off.

    Notes
    -----
    Batches differ from those of VisCy in that quotas are exact in every batch, conditions are balanced
    inside the time window and among leaked cells too, no cell comes twice while there is another one, and
    all ranks have the same number of batches.
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
        batch_group_by: str | Sequence[str] | None = "experiment",
        stratify_by: str | Sequence[str] | None = "condition",
        group_weights: Mapping[str, float] | None = None,
    ) -> None:
        group = batch_group_by if experiment_aware else None
        strata = stratify_by if condition_balanced else None
        _refuse_idle(
            "experiment_aware=False" if not experiment_aware else "batch_group_by=None",
            group is not None,
            leaky=leaky != 0.0 and leaky,
            experiment_weights=experiment_weights,
            group_weights=group_weights,
            batch_group_by=batch_group_by not in ("experiment", None) and batch_group_by,
        )
        _refuse_idle(
            "condition_balanced=False" if not condition_balanced else "stratify_by=None",
            strata is not None,
            condition_ratio=condition_ratio,
            stratify_by=stratify_by not in ("condition", None) and stratify_by,
        )
        _refuse_idle(
            "temporal_enrichment=False",
            temporal_enrichment,
            temporal_window_hours=temporal_window_hours != 2.0 and temporal_window_hours,
            temporal_global_fraction=temporal_global_fraction != 0.3 and temporal_global_fraction,
        )
        if experiment_weights is not None and group_weights is not None:
            raise ValueError("experiment_weights and group_weights are two names of one option; set one of them.")
        hours = next((name for name in HOURS if name in getattr(valid_anchors, "columns", ())), HOURS[0])
        cells = CellTable.from_frame(
            valid_anchors,
            experiment="experiment" if "experiment" in columns_of(group) + columns_of(strata) else None,
            condition="condition" if "condition" in columns_of(group) + columns_of(strata) else None,
            hours=hours if temporal_enrichment else None,
        )
        axes: dict[str, Axis] = {}
        if group is not None:
            weights = (
                experiment_weights if group_weights is None else weights_by_name(group_weights, cells.column(group))
            )
            axes["experiment"] = ExperimentAware(leaky, weights, group)
        if strata is not None:
            axes["condition"] = ConditionBalanced(condition_ratio, strata)
        if temporal_enrichment:
            axes["temporal"] = TemporallyEnriched(temporal_window_hours, temporal_global_fraction)
        num_batches = None
        if not drop_last and isinstance(batch_size, (int, np.integer)) and batch_size > 0 and num_replicas > 0:
            num_batches = -(-len(cells) // (batch_size * num_replicas))
        super().__init__(cells, axes, batch_size, seed, rank, num_replicas, num_batches=num_batches)


def columns_of(columns: str | Sequence[str] | None) -> list[str]:
    """Return the names of columns that are given as one, several or None."""
    return [] if columns is None else [columns] if isinstance(columns, str) else list(columns)


def weights_by_name(weights: Mapping[str, float], column: Column) -> dict[Hashable, float]:
    """Return the weight of every label of a column from weights by name, such as "plate1|GFP"; 0 for the others."""
    if not isinstance(weights, Mapping | pd.Series):
        raise ValueError(
            "group_weights must map names of groups to weights, such as {'plate_1': 2.0}; got a "
            f"{type(weights).__name__}: {str(weights)[:60]!r}."
        )
    weights = dict(weights)
    labels = {
        "|".join(map(str, label)) if isinstance(label, tuple) else str(label): label for label in column.present()
    }
    unknown = [name for name in weights if str(name) not in labels]
    if unknown:
        raise ValueError(
            f"group_weights names {listed(unknown, show=repr)}, which no cell has; the groups are "
            f"{listed(labels, show=repr)}. Correct the name; labels of several columns are joined by '|'."
        )
    given = {str(name): weight for name, weight in weights.items()}
    return {label: given.get(name, 0.0) for name, label in labels.items()}


def _refuse_idle(off: str, on: bool, **options: Any) -> None:
    """Refuse an option that is set while its axis is off; one that has its default is None or False."""
    for name, value in options.items():
        if not on and value is not None and value is not False:
            raise ValueError(f"{name}={value!r} has no effect with {off}; leave one of the two out.")
