"""What reading in chunks costs: rows read for every row that a batch holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeGuard

import numpy as np

from cellcohort.sampling.batch_sampler import BatchSampler

if TYPE_CHECKING:
    from cellcohort.sampling.chunked.sampler import ChunkSampler


def in_chunks(sampler: BatchSampler) -> TypeGuard[ChunkSampler]:
    """Whether a sampler is one that reads in chunks; loads none of what these need."""
    return hasattr(sampler, "preload_nchunks")


@dataclass(frozen=True)
class Reading:
    """What the first windows of an epoch load, over all ranks.

    Attributes
    ----------
    batches : float
        Batches cut from a window.
    chunks : float
        Chunks that a window loads.
    most_rows : int
        Rows of the largest window: those that memory must hold.
    amplification : float
        Rows read per row used, a row counted once for every batch that holds it.
    least : float
        The least that `amplification` can be if all cells of a stratum are to be drawn equally often and batches of
        one window share none, with any amount of memory: then a chunk is read as often as the cells of its hungriest
        stratum are drawn. Where a window asks for more cells than a stratum has, `amplification` can be less.
    shared : float
        Share of the places of batches filled by a cell that another batch of the window holds too.
    """

    batches: float
    chunks: float
    most_rows: int
    amplification: float
    least: float
    shared: float


def reading(sampler: ChunkSampler, windows: int = 50, epoch: int = 0) -> Reading:
    """Go through the first windows of an epoch.

    Parameters
    ----------
    sampler : ChunkSampler
        That of any rank.
    windows : int
        Windows to go through, of all ranks together.
    epoch : int
    """
    n_rows = int(sampler.rows.max()) + 1
    n_chunks, rows, batches, places, alone = [], [], 0, 0, 0
    for rank in range(sampler.world_size):
        twin = sampler.for_rank(rank, sampler.world_size)
        for number, (_, positions) in enumerate(twin.requests(epoch)):
            if number >= max(1, windows // sampler.world_size):
                break
            slices = twin.load_request(positions, n_rows)["requests"]
            n_chunks.append(len(slices))
            rows.append(sum(run.stop - run.start for run in slices))
            batches, places = batches + len(positions), places + positions.size
            alone += sum(len(np.unique(batch)) for batch in positions) - len(np.unique(positions))
    return Reading(
        batches / len(rows), float(np.mean(n_chunks)), max(rows), sum(rows) / places,
        sampler.least_amplification, alone / places,
    )  # fmt: skip
