"""Whether every rank meets every group in each epoch, where ranks take whole chunk windows in turn."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cellcohort.messages import several
from cellcohort.sampling.chunked.rotation import RUN, Rotation, place_of, run_of_windows

EPOCHS_CHECKED = 4  # whether ranks meet all groups is checked in so many epochs
BATCHES_CHECKED = 4096  # and in so many batches of an epoch of a rank


def due(weights: np.ndarray, n_batches: int) -> np.ndarray:
    """Return the groups that are primary at least once, on average, in so many batches."""
    return np.flatnonzero(weights / weights.sum() * min(n_batches, BATCHES_CHECKED) >= 1)


def missed(rotation: Rotation, groups: np.ndarray, per_rank: int, world_size: int) -> int:
    """Count the first epochs of every rank, of `per_rank` batches, in which one of some groups is never primary."""
    steps, n = np.arange(min(per_rank, BATCHES_CHECKED)), 0
    for rank in range(world_size):
        places = place_of(steps, per_rank, rotation.batches_per_window, rank, world_size)
        n += sum(not np.isin(groups, _primary_of(rotation, epoch, places)).all() for epoch in range(EPOCHS_CHECKED))
    return n


def _primary_of(rotation: Rotation, epoch: int, batch: np.ndarray) -> np.ndarray:
    """Return the primary group of each of some batches of an epoch."""
    window, place = np.divmod(batch, rotation.batches_per_window)
    run, row = np.divmod(epoch * rotation.windows_per_epoch + window, RUN)
    runs, index = np.unique(run, return_inverse=True)
    primary = [run_of_windows(rotation.groups, rotation.groups_per_window, i, rotation.key)[0] for i in runs]
    found: np.ndarray = np.array(primary).reshape(-1, RUN, rotation.groups_per_window)[
        index, row, place % rotation.groups_per_window
    ]
    return found


def unreached(
    rotation: Rotation, weights: np.ndarray, column: str | tuple[str, ...] | None, per_rank: int, world_size: int
) -> Iterator[str]:
    """Yield a sentence if a rank meets too few groups in an epoch, although its batches are enough for all."""
    groups = due(weights, per_rank)
    if n := missed(rotation, groups, per_rank, world_size):
        name = " x ".join([column] if isinstance(column, str) else column or ())
        yield (
            f"in {n} of {EPOCHS_CHECKED * world_size} epochs (the first {EPOCHS_CHECKED} of "
            f"{several(world_size, 'rank')}) not each of {len(groups)} labels of {name} leads a batch: a rank has "
            f"{several(per_rank, 'batch')} an epoch, cut from windows of {rotation.batches_per_window} that are led by "
            f"{rotation.groups_per_window}. Over more epochs all lead in proportion; to have all in each, use fewer "
            "ranks, more batches (num_batches), or a smaller batch_size or preload_nchunks."
        )
