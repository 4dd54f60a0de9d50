"""What an epoch that draws every cell would cost."""

from __future__ import annotations

import warnings

from cellcohort.messages import several
from cellcohort.sampling import BatchSampler, ShortfallWarning
from cellcohort.sampling.axes.base import WindowAxis
from cellcohort.sampling.chunked.read_cost import in_chunks


def cover(sampler: BatchSampler) -> str:
    """The length and the price of ``num_batches="cover"`` in words, or why it cannot be had."""
    if in_chunks(sampler):
        return (
            "batch_sampler.num_batches=cover cannot be had where cells are read in chunks, which leave rows over. "
            f"Set a number above {len(sampler)}, and see above what it covers."
        )
    if any(isinstance(axis, WindowAxis) for axis in sampler.axes.values()):
        return (
            "batch_sampler.num_batches=cover cannot be had with a time window, whose focal times decide what is drawn. "
            f"Set a number above {len(sampler)}, and see above what it covers."
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ShortfallWarning)
        covering = BatchSampler(
            sampler.cells, sampler.axes, sampler.batch_size, sampler.seed, world_size=sampler.world_size,
            scope=sampler.scope, num_batches="cover",
        )  # fmt: skip
    times = len(covering) / len(sampler)
    return (
        f"batch_sampler.num_batches=cover makes an epoch of {several(len(covering), 'batch')} per rank, "
        f"{times:.2f} times as long as now. {' '.join(covering.notes)}"
    )
