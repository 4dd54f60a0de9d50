"""Whether every rank meets every group that leads, in every epoch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cellcohort.messages import several
from cellcohort.sampling.chunked.rotation import Rota

EPOCHS = 4  # that are looked at
BATCHES = 4096  # of an epoch of a rank that are looked at


def place_of[Step: (int, np.ndarray)](step: Step, per_rank: int, per_window: int, rank: int, world_size: int) -> Step:
    """The place of a rank's batches in the sequence that all ranks share.

    Windows are dealt out in turn, and the batches that are left in an epoch in equal parts.
    """
    windows, left = divmod(per_rank, per_window)
    window, place = divmod(step, per_window)
    dealt = (window * world_size + rank) * per_window + place
    rest = windows * per_window * (world_size - 1) + rank * left + step
    return dealt + (step >= windows * per_window) * (rest - dealt)


def due(weights: np.ndarray, n_batches: int) -> np.ndarray:
    """The groups that come once at least, on average, in so many batches."""
    return np.flatnonzero(weights / weights.sum() * min(n_batches, BATCHES) >= 1)


def missed(rota: Rota, groups: np.ndarray, per_rank: int, world_size: int) -> int:
    """In how many of the first epochs of every rank one of some groups leads none of its `per_rank` batches."""
    steps, n = np.arange(min(per_rank, BATCHES)), 0
    for rank in range(world_size):
        places = place_of(steps, per_rank, rota.n_batches, rank, world_size)
        n += sum(not np.isin(groups, rota.led(epoch, places)).all() for epoch in range(EPOCHS))
    return n


def unreached(
    rota: Rota, weights: np.ndarray, column: str | tuple[str, ...] | None, per_rank: int, world_size: int
) -> Iterator[str]:
    """A sentence if a rank meets too few groups in an epoch, although its batches are enough for all."""
    groups = due(weights, per_rank)
    if n := missed(rota, groups, per_rank, world_size):
        name = " x ".join([column] if isinstance(column, str) else column or ())
        yield (
            f"in {n} of {EPOCHS * world_size} epochs (the first {EPOCHS} of {several(world_size, 'rank')}) not each of "
            f"{len(groups)} labels of {name} leads a batch: a rank has {several(per_rank, 'batch')} an epoch, cut from "
            f"windows of {rota.n_batches} that are led by {rota.groups}. Over more epochs all lead in proportion; to "
            "have all in each, use fewer ranks, more batches (num_batches), or a smaller batch_size or preload_nchunks."
        )
