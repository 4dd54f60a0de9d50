"""Which groups are primary in each chunk window, in rotation, and how windows are divided among ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from cellcohort.messages import several
from cellcohort.sampling.planning.epoch_plan import GOLDEN
from cellcohort.sampling.rng import key_of, uniform

SHORTEST_CYCLE = 1024  # times that the groups of a cycle are primary, at least
ALIKE = 1.03  # groups whose share differs by less from one batch in every window are primary once in every window
EPOCHS_CHECKED = 4  # whether ranks meet all groups is checked in so many epochs
BATCHES_CHECKED = 4096  # and in so many batches of an epoch of a rank


@dataclass(frozen=True)
class Rotation:
    """A cycle of chunk windows. Each window holds `batches_per_group` batches of each of its primary groups.

    Attributes
    ----------
    primary : numpy.ndarray of int, shape (n_windows, groups_per_window)
        The primary groups of each window.
    occurrence : numpy.ndarray of int, shape (n_windows, groups_per_window)
        How often each of them was primary in the windows of the cycle before.
    occurrences : numpy.ndarray of int, shape (n_groups,)
        How often each group is primary in the cycle.
    batches_per_group : int
        Batches of each of its primary groups that a window holds.
    stride : float
        Share of all chunks by which a window moves on, where groups read the chunks in one common order; 0 where each
        stratum moves through its own chunks by itself.
    """

    primary: np.ndarray
    occurrence: np.ndarray
    occurrences: np.ndarray
    batches_per_group: int
    stride: float = 0.0

    @property
    def groups_per_window(self) -> int:
        """Primary groups of one window."""
        return int(self.primary.shape[1])

    @property
    def batches_per_window(self) -> int:
        """Batches that are cut from one window."""
        return self.groups_per_window * self.batches_per_group

    @property
    def all_in_each(self) -> bool:
        """Whether every group is primary in every window."""
        return bool(self.groups_per_window >= np.count_nonzero(self.occurrences))

    def __len__(self) -> int:
        return len(self.primary)

    def groups_of(self, epoch: int, window: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the primary groups of a window, and how often each was primary before; an epoch counts as a cycle."""
        cycles, row = divmod(self._start(epoch) + window, len(self))
        first = int(self._first_group(epoch, np.array([window]))[0])
        primary = np.roll(self.primary[row], -first).astype(np.int64)
        return primary, np.roll(self.occurrence[row], -first) + (epoch + cycles) * self.occurrences[primary]

    def primary_of(self, epoch: int, batch: np.ndarray) -> np.ndarray:
        """Return the primary group of each of some batches of an epoch."""
        window, place = np.divmod(batch, self.batches_per_window)
        place = (place + self._first_group(epoch, window)) % self.groups_per_window
        primary: np.ndarray = self.primary[(self._start(epoch) + window) % len(self), place]
        return primary

    def _start(self, epoch: int) -> int:
        """Return the window of the cycle at which an epoch begins."""
        return epoch * golden_step(len(self)) % len(self)

    def _first_group(self, epoch: int, window: np.ndarray) -> np.ndarray:
        """Return which group of each window comes first; at random, as an epoch may end within a window."""
        return (uniform(key_of(epoch), window.astype(np.uint64)) * self.groups_per_window).astype(int)


def build_rotation(weights: np.ndarray, groups: int, batches_per_group: int, n_batches: int, seed: int) -> Rotation:
    """Plan a cycle of windows that holds about `n_batches` batches.

    Parameters
    ----------
    weights : numpy.ndarray of float, shape (n_groups,)
        How often each group is primary; those of weight 0 never are.
    groups, batches_per_group : int
        Primary groups of a window, and batches of each.
    n_batches : int
        Batches of an epoch.
    seed : int

    Notes
    -----
    The groups of a window differ wherever the weights allow it. A window of more groups than there are holds all of
    them, in proportion to their weights. Windows that follow each other are far apart in the list of windows sorted by
    their first group, so that every rank, whatever their number, meets all groups in few windows: multiples of the
    golden section, and multiples of these, fill a circle evenly.
    """
    share = weights / weights.sum()
    often = np.where(share > 0, np.maximum(1, np.rint(share * max(n_batches / batches_per_group, SHORTEST_CYCLE))), 0)
    often = often.astype(np.int64)
    once = often.sum() // groups
    often[(often * ALIKE > once) & (often < ALIKE * once)] = once  # so that none comes twice in a window
    often[share.argmax()] += -often.sum() % groups
    if groups > np.count_nonzero(share):
        primary = _spread(often, 0.5).reshape(-1, groups)
    else:
        primary = _without_repeats(
            _spread(often, uniform(key_of(seed), np.arange(often.sum(), dtype=np.uint64))).reshape(-1, groups)
        )
    n = len(primary)
    primary = primary[np.argsort(primary[:, 0], kind="stable")][np.arange(n) * golden_step(n) % n]
    order = np.argsort(primary, axis=None, kind="stable")
    occurrence = np.empty(primary.size, np.int64)
    occurrence[order] = np.arange(primary.size) - np.repeat(np.cumsum(often) - often, often)
    return Rotation(primary, occurrence.reshape(primary.shape), often, batches_per_group)


@lru_cache
def golden_step(n: int) -> int:
    """Return a number near the golden section of n that has no factor in common with it."""
    return next(a for a in range(max(1, round(n * GOLDEN)), 2 * n + 2) if math.gcd(a, n) == 1)


def _spread(often: np.ndarray, shift: np.ndarray | float) -> np.ndarray:
    """List every group so often, at equal distances, each place moved on by a share of the distance."""
    group = np.repeat(np.arange(len(often)), often)
    nth = np.arange(len(group)) - np.repeat(np.cumsum(often) - often, often)
    return group[np.argsort((nth + shift) / often[group], kind="stable")].astype(np.int32)


def _without_repeats(primary: np.ndarray) -> np.ndarray:
    """Exchange groups that come twice in a window for the next group that is not in it."""
    n, groups = primary.shape
    flat = primary.ravel().copy()
    for begin in range(0, n * groups if groups > 1 else 0, groups):
        for place in range(begin + 1, begin + groups):
            for other in range(place, min(place + 64 * groups, len(flat))):
                if flat[other] not in flat[begin:place]:
                    flat[place], flat[other] = flat[other], flat[place]
                    break
    return flat.reshape(n, groups)


def place_of[Step: (int, np.ndarray)](step: Step, per_rank: int, per_window: int, rank: int, world_size: int) -> Step:
    """Return the place of batches of a rank in the sequence that all ranks share.

    Ranks take whole windows in turn, and equal parts of the batches that remain at the end of an epoch.
    """
    windows, left = divmod(per_rank, per_window)
    window, within = divmod(step, per_window)
    whole = (window * world_size + rank) * per_window + within
    part = windows * per_window * (world_size - 1) + rank * left + step
    place: Step = whole + (step >= windows * per_window) * (part - whole)
    return place


def due(weights: np.ndarray, n_batches: int) -> np.ndarray:
    """Return the groups that are primary at least once, on average, in so many batches."""
    return np.flatnonzero(weights / weights.sum() * min(n_batches, BATCHES_CHECKED) >= 1)


def missed(rotation: Rotation, groups: np.ndarray, per_rank: int, world_size: int) -> int:
    """Count the first epochs of every rank, of `per_rank` batches, in which one of some groups is never primary."""
    steps, n = np.arange(min(per_rank, BATCHES_CHECKED)), 0
    for rank in range(world_size):
        places = place_of(steps, per_rank, rotation.batches_per_window, rank, world_size)
        n += sum(not np.isin(groups, rotation.primary_of(epoch, places)).all() for epoch in range(EPOCHS_CHECKED))
    return n


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
