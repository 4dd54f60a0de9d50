"""What reading in chunks costs: rows read for every row that a batch holds."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import numpy as np

from cellcohort.sampling.protocol import ChunkedSampler


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
        one window share none, with any amount of memory: then a chunk is read as often as the cells of its most
        requested stratum are drawn. If a window needs more cells than a stratum has, `amplification` can be less.
    shared : float
        Share of the places of batches filled by a cell that another batch of the window holds too.
    """

    batches: float
    chunks: float
    most_rows: int
    amplification: float
    least: float
    shared: float


def reading(sampler: ChunkedSampler, windows: int = 50, epoch: int = 0) -> Reading:
    """Go through the first `windows` of an epoch, of all ranks together; `sampler` is that of any."""
    n_rows = int(sampler.rows.max()) + 1
    n_chunks, rows, batches, places, shared = [], [], 0, 0, 0
    for rank in range(sampler.world_size):
        of_rank = sampler.for_rank(rank, sampler.world_size)
        for _, positions in islice(of_rank.requests(epoch), max(1, windows // sampler.world_size)):
            slices = of_rank.load_request(positions, n_rows)["requests"]
            n_chunks.append(len(slices))
            rows.append(sum(run.stop - run.start for run in slices))
            every = np.concatenate(positions)
            batches, places = batches + len(positions), places + len(every)
            shared += sum(len(np.unique(batch)) for batch in positions) - len(np.unique(every))
    return Reading(
        batches / len(rows),
        float(np.mean(n_chunks)),
        max(rows),
        sum(rows) / places,
        sampler.least_amplification,
        shared / places,
    )
