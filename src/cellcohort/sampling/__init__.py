"""Which cells go into which batch.

The samplers that read in chunks are loaded when they are first asked for, since annbatch, and torch with it, are
slow to load and of no use without a store.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cellcohort.extras import require
from cellcohort.sampling.axes.condition import ConditionBalanced
from cellcohort.sampling.axes.experiment_aware import ExperimentAware
from cellcohort.sampling.axes.temporal import TemporallyEnriched
from cellcohort.sampling.axes.track_capped import TrackCapped
from cellcohort.sampling.batch import Asked, Batch
from cellcohort.sampling.batch_sampler import BatchSampler
from cellcohort.sampling.flexible import FlexibleBatchSampler
from cellcohort.sampling.planning.shortfalls import ShortfallWarning

if TYPE_CHECKING:
    from cellcohort.sampling.chunked.sampler import ChunkedBatchSampler
    from cellcohort.sampling.chunked.unweighted import ChunksInOrder, ChunksShuffled

_CHUNKED = {"ChunkedBatchSampler": "sampler", "ChunksInOrder": "unweighted", "ChunksShuffled": "unweighted"}

__all__ = [
    "Asked",
    "Batch",
    "BatchSampler",
    "ChunkedBatchSampler",
    "ChunksInOrder",
    "ChunksShuffled",
    "ConditionBalanced",
    "ExperimentAware",
    "FlexibleBatchSampler",
    "ShortfallWarning",
    "TemporallyEnriched",
    "TrackCapped",
]


def __getattr__(name: str) -> Any:
    if name not in _CHUNKED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require("stores")
    return getattr(import_module(f"{__name__}.chunked.{_CHUNKED[name]}"), name)
