"""Which cells go into which batch."""

from cellcohort.sampling.batch import Asked, Batch
from cellcohort.sampling.batch_sampler import BatchSampler
from cellcohort.sampling.chunked import ChunkedBatchSampler
from cellcohort.sampling.condition import ConditionBalanced
from cellcohort.sampling.experiment_aware import ExperimentAware
from cellcohort.sampling.flexible import FlexibleBatchSampler
from cellcohort.sampling.plain_chunks import ChunksInOrder, ChunksShuffled
from cellcohort.sampling.shortfall import ShortfallWarning
from cellcohort.sampling.temporal import TemporallyEnriched
from cellcohort.sampling.track_capped import TrackCapped

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
