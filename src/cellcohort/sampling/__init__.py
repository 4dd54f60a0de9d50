"""Which cells go into which batch.

The samplers that read in chunks are loaded when they are first asked for, since annbatch, and torch with it, are
slow to load and of no use without a store.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cellcohort.sampling.batch import Asked, Batch
from cellcohort.sampling.batch_sampler import BatchSampler
from cellcohort.sampling.condition import ConditionBalanced
from cellcohort.sampling.experiment_aware import ExperimentAware
from cellcohort.sampling.flexible import FlexibleBatchSampler
from cellcohort.sampling.shortfall import ShortfallWarning
from cellcohort.sampling.temporal import TemporallyEnriched
from cellcohort.sampling.track_capped import TrackCapped

if TYPE_CHECKING:
    from cellcohort.sampling.chunked import ChunkedBatchSampler
    from cellcohort.sampling.plain_chunks import ChunksInOrder, ChunksShuffled

_CHUNKED = {"ChunkedBatchSampler": "chunked", "ChunksInOrder": "plain_chunks", "ChunksShuffled": "plain_chunks"}

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
    return getattr(import_module(f"{__name__}.{_CHUNKED[name]}"), name)
