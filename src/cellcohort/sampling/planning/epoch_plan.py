"""What each batch of an epoch holds: its primary group, its focal time, and cells of every stratum.

Batches are planned some at a time, in their order, and what they take from each stratum is counted. So the next batch
takes cells that none of its epoch before it took. A jump counts the cells of the batches that it passes over.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cellcohort.compiled import compiled
from cellcohort.sampling.planning.focal_times import focal_times
from cellcohort.sampling.planning.jumps import count_cells
from cellcohort.sampling.planning.leaks import Leaks, add_leaks
from cellcohort.sampling.planning.primary_groups import Groups, occurrences_before, primary_groups
from cellcohort.sampling.planning.quotas import Targets, offset_of, round_group
from cellcohort.sampling.planning.strata import Strata
from cellcohort.sampling.rng import Whole, key_of, mix

CELLS_PLANNED = 2**14  # of the batches that are planned together, a stretch of the sequence
STRETCHES_KEPT = 4
_U = np.uint64


class BatchSpec(NamedTuple):
    """What a batch is to hold.

    Attributes
    ----------
    primary : int or numpy.ndarray of int
        Code of the group that the batch is built around, or of several; 0 without a group axis.
    occurrence : int
        How many batches of all epochs before had the same primary group; with several, how many there were.
    focal : float
        Focal time in hours; -inf where all times of the primary group are missing, NaN without a window axis.
    stratum, n_cells : numpy.ndarray of int, shape (n_entries,)
        ``n_cells[i]`` cells of ``stratum[i]``.
    before : numpy.ndarray of int, shape (n_entries,)
        Cells of the stratum that earlier batches of the epoch hold. Of no meaning with a window axis.
    """

    primary: int | np.ndarray
    occurrence: int
    focal: float
    stratum: np.ndarray
    n_cells: np.ndarray
    before: np.ndarray


class Stretch(NamedTuple):
    """Batches from number `first` of an epoch on, as in `BatchSpec`: the i-th has the entries ``ptr[i]:ptr[i + 1]``."""

    first: int
    primary: list[Any]
    occurrence: list[int]
    focal: list[float]
    ptr: list[int]
    stratum: np.ndarray
    n_cells: np.ndarray
    before: np.ndarray

    @property
    def end(self) -> int:
        """Number after that of the last batch."""
        return self.first + len(self.primary)


class Progress(NamedTuple):
    """What batches of an epoch before its number `end` hold.

    `begun` is how many of all epochs were built around each group, `taken` the cells of each stratum in this epoch.
    """

    epoch: int
    end: int
    begun: np.ndarray
    taken: np.ndarray


class EpochPlan:
    """What each batch of each epoch takes from every stratum.

    Without times, the cells that earlier batches of the epoch took are counted.

    Parameters
    ----------
    strata : Strata
    targets : Targets
    leaks : Leaks
    weights : numpy.ndarray of float, shape (n_groups,)
        How often each group is the primary one; 0 for groups without strata.
    places, seed : int
        Cells of a batch, and key of all randomness.
    per_epoch : int
        Batches by which epochs follow each other in the endless sequence.
    """

    def __init__(
        self,
        strata: Strata,
        targets: Targets,
        leaks: Leaks,
        weights: np.ndarray,
        places: int,
        seed: int,
        per_epoch: int,
    ) -> None:
        self.targets, self.leaks, self.places = targets, leaks, places
        self._per_epoch, self._seed, self.key = per_epoch, _U(seed), key_of(seed, 1)
        self.share = weights / weights.sum()
        self.groups = Groups.of(weights, self.key)
        self._times, timed = strata.times, len(strata.times) > 0
        self.times_of_group = strata.times_indptr[targets.first] if timed else np.zeros_like(targets.first)
        self._counted = not timed
        self._by_steps = self._counted and bool(leaks.cells.any())  # whether a jump must plan what it passes over
        self._counter_type = strata.order.dtype
        self.per_stretch = max(1, min(64, CELLS_PLANNED // places))
        self._kept: tuple[tuple[int, Stretch], ...] = ()  # the epoch of each, the last one first
        self._progress: Progress | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        kept = sum(array.nbytes for _, one in self._kept for array in (one.stratum, one.n_cells, one.before))
        return self.targets.nbytes + self.leaks.nbytes + kept + (self._progress.taken.nbytes if self._progress else 0)

    def spec(self, epoch: int, number: int) -> BatchSpec:
        """Return what batch `number` of an epoch is to hold."""
        first, primary, occurrence, focal, ptr, stratum, n_cells, before = self.stretch(epoch, number)
        i = number - first
        entries = slice(ptr[i], ptr[i + 1])
        return BatchSpec(primary[i], occurrence[i], focal[i], stratum[entries], n_cells[entries], before[entries])

    def stretch(self, epoch: int, number: int) -> Stretch:
        """Return the batches planned together with one: it alone after a jump, then more and more."""
        near: Stretch | None = None  # of those that end shortly before it, the last one
        for of, kept in self._kept:
            if of == epoch and kept.first <= number < kept.end + self.per_stretch:
                if number < kept.end:
                    return kept
                near = kept if near is None or near.end < kept.end else near
        first, n = (near.end, min(2 * len(near.primary), self.per_stretch)) if near else (number, 1)
        n = max(n, number + 1 - first)
        progress = self._before(epoch, first)
        primary, occurrence, ptr, *entries = self._plan(epoch * self._per_epoch + first, n, progress)
        focal = self._focal_times(epoch, primary, occurrence)
        each = primary.tolist() if primary.ndim == 1 else list(primary)
        stretch = Stretch(first, each, occurrence.tolist(), focal, ptr.tolist(), *entries)
        self._kept = ((epoch, stretch), *self._kept[: STRETCHES_KEPT - 1])
        self._progress = Progress(epoch, first + n, progress.begun, progress.taken)
        return stretch

    def _before(self, epoch: int, first: int) -> Progress:
        """Return the progress before number `first`, from the progress made or from none."""
        start, known = epoch * self._per_epoch, self._progress
        if known is None or known.epoch != epoch or known.end > first:
            none = np.zeros(self.targets.first[-1], self._counter_type)
            known = Progress(epoch, 0, occurrences_before(self.groups, start, self.key), none)
        progress = Progress(epoch, first, known.begun.copy(), known.taken.copy())
        if self._by_steps:
            for number in range(start + known.end, start + first, self.per_stretch):
                self._plan(number, min(self.per_stretch, start + first - number), progress)
        elif known.end < first:
            progress.begun[:] = occurrences_before(self.groups, start + first, self.key)
            if self._counted:
                count_cells(self.targets, known.begun, progress.begun, progress.taken, self.key)
        return progress

    def _plan(self, first: int, n: int, progress: Progress) -> tuple[np.ndarray, ...]:
        """Return the fields of `n` batches from number `first` of all epochs on; counts these in `progress`."""
        return _plan_batches(self.groups, self.targets, self.leaks, first, n, progress, self.key)

    def _focal_times(self, epoch: int, primary: np.ndarray, occurrence: np.ndarray) -> list[float]:
        """Focal times of batches: each time of the primary group in turn, and of several groups each in turn."""
        if self._counted:
            return [np.nan] * len(primary)
        sets = primary.reshape(len(primary), -1)
        return focal_times(self._times, self.times_of_group, sets, occurrence, self._seed, epoch).tolist()

    def rates(self) -> np.ndarray:
        """Cells that a batch takes from each stratum on average for its own group, float of shape (n_strata,)."""
        own = np.where(self.leaks.joint, 1 - self.leaks.cells / self.places, 1.0) * self.share
        return self.targets.cells() * np.repeat(own, np.diff(self.targets.first))


@compiled
def _plan_batches(
    groups: Groups, targets: Targets, leaks: Leaks, first: Whole, n: Whole, progress: Progress, key: np.uint64
) -> tuple[np.ndarray, ...]:
    """Return the fields of a `Stretch` but for focal times; counts its batches in `progress`."""
    primary, begun, filled = primary_groups(groups, first, n, key), progress.begun, 0
    most = n * min(np.int64(targets.places), targets.first[-1])  # entries, as a batch takes from each stratum once
    turn, ptr = np.empty(n, np.int64), np.zeros(n + 1, np.int64)
    stratum, n_cells = np.empty(most, np.int32), np.empty(most, np.int32)
    for i in range(n):
        turn[i] = begun[primary[i]]
        begun[primary[i]] += 1
        filled += round_batch(targets, leaks, primary[i], turn[i], key, stratum[filled:], n_cells[filled:])
        ptr[i + 1] = filled
    stratum, n_cells = stratum[:filled].copy(), n_cells[:filled].copy()
    return primary, turn, ptr, stratum, n_cells, count(stratum, n_cells, progress.taken)


@compiled
def count(stratum: np.ndarray, n_cells: np.ndarray, taken: np.ndarray) -> np.ndarray:
    """Add the entries of batches to the cells `taken` of each stratum; return what was taken before each entry."""
    before = np.empty(len(stratum), taken.dtype)
    for j in range(len(stratum)):
        before[j] = taken[stratum[j]]
        taken[stratum[j]] += n_cells[j]
    return before


@compiled
def round_batch(
    targets: Targets,
    leaks: Leaks,
    group: Whole,
    occurrence: Whole,
    key: np.uint64,
    stratum: np.ndarray,
    n_cells: np.ndarray,
) -> Whole:
    """Write the strata of a group's n-th batch and the cells of each, by label; return how many entries there are."""
    places, first, group_key = np.int64(np.rint(targets.places)), targets.first[group], mix(key, _U(group))
    if leaks.cells[group] > 0:  # each group begins elsewhere, so that not all leak the same labels at the same time
        occurrence += np.int64(group_key >> _U(44))
    rounded = round_group(targets, group, occurrence, offset_of(occurrence), places, group_key)
    if leaks.cells[group] > 0:
        return add_leaks(leaks, targets, group, occurrence, rounded, stratum, n_cells)
    for i in range(len(rounded.stratum)):
        stratum[i], n_cells[i] = first + rounded.stratum[i], rounded.cells[i]
    return len(rounded.stratum)
