"""What each batch of an epoch holds: its primary group, its focal time, and cells of every stratum.

Batches are planned some at a time, in their order, and what they take from each stratum is counted. So the next batch
takes cells that none of its epoch before it took. A jump counts the cells of the batches that it passes over.

Batch `i` of all epochs end to end is built around the group in whose interval the fraction of ``i`` times the golden
section lies, where every group has an interval as long as its weight. Each run of `RUN` batches is put in random order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from cellcohort.sampling.planning.focal_times import focal_times
from cellcohort.sampling.planning.leaks import Leaks, add_leaks
from cellcohort.sampling.planning.quotas import GOLDEN, OFFSET_STEP, PARTS, Targets, offset_of, period_of, round_group
from cellcohort.sampling.planning.strata import Strata
from cellcohort.sampling.rng import Whole, key_of, mix, permuted

CELLS_PLANNED = 2**14  # of the batches that are planned together, a stretch of the sequence
STRETCHES_KEPT = 4
SUMMED = 2**26  # batches whose cells are summed up at once, so that no sum exceeds 64 bits
RUN = 16  # batches
WHOLE = 2**32  # length of the intervals of all groups
STEP = round(GOLDEN * WHOLE) | 1
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


class Progress(NamedTuple):
    """What batches of an epoch before its number `end` hold.

    `begun` is how many of all epochs were built around each group, `taken` the cells of each stratum in this epoch.
    """

    epoch: int
    end: int
    begun: np.ndarray
    taken: np.ndarray


class Groups(NamedTuple):
    """Intervals of whole numbers below `WHOLE`: group `g` has ``end[g - 1]`` to ``end[g]``. Batch 0 is at `begin`."""

    end: np.ndarray
    begin: int

    @classmethod
    def of(cls, weights: np.ndarray, key: np.uint64) -> Groups:
        """Return the intervals of groups with these weights, on any scale."""
        end = np.rint(np.cumsum(weights) / weights.sum() * WHOLE).astype(np.int64)
        end[np.flatnonzero(weights)[-1] :] = WHOLE
        return cls(end, int(key >> np.uint64(32)))


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
        self._counter_type = strata.order.dtype
        self.per_stretch = max(1, min(64, CELLS_PLANNED // places))
        self._kept: tuple[tuple[tuple[int, int], Stretch], ...] = ()
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
        """Return the batches of an epoch that are planned together with one of them."""
        first, end = self._ends(number)
        for place, stretch in self._kept:
            if place == (epoch, first):
                return stretch
        start, progress = epoch * self._per_epoch, self._progress
        if progress is None or progress.epoch != epoch or progress.end > first:
            progress = Progress(epoch, 0, self._begin(start), np.zeros(self.targets.first[-1], self._counter_type))
        begun, taken = progress.begun.copy(), progress.taken.copy()
        if progress.end < first:
            begun = self._pass_over(begun, start + first, taken)
        primary, occurrence, ptr, *entries = self._plan(start + first, end - first, begun, taken)
        focal = self._focal_times(epoch, primary, occurrence).tolist()
        each = primary.tolist() if primary.ndim == 1 else list(primary)
        stretch = Stretch(first, each, occurrence.tolist(), focal, ptr.tolist(), *entries)
        self._kept = (((epoch, first), stretch), *self._kept[: STRETCHES_KEPT - 1])
        self._progress = Progress(epoch, end, begun, taken)
        return stretch

    def _ends(self, number: int) -> tuple[int, int]:
        """First and end of the batches planned together with one: few where an epoch begins, lest the first wait."""
        n = self.per_stretch
        first = number // n * n if number >= n else 1 << number.bit_length() >> 1
        return first, first + n if number >= n else min(max(2 * first, 1), n)

    def _begin(self, first: int) -> np.ndarray:
        """How many batches before number `first` of all epochs are built around each group, int64 (n_groups,)."""
        return occurrences_before(self.groups, first, self.key)

    def _pass_over(self, begun: np.ndarray, first: int, taken: np.ndarray) -> np.ndarray:
        """Count the cells of batches up to number `first` of all epochs in `taken`; return how many are begun then."""
        end = self._begin(first)
        if self._counted:
            count_cells(self.targets, self.leaks, begun, end, taken, self.places, self.key)
        return end

    def _plan(self, first: int, n: int, begun: np.ndarray, taken: np.ndarray) -> tuple[np.ndarray, ...]:
        """Plan `n` batches from number `first` of all epochs on; counts batches in `begun` and cells in `taken`."""
        primary = primary_groups(self.groups, first, n, self.key)
        return _plan_stretch(primary, begun, self.targets, self.leaks, taken, self.places, self.key)

    def _focal_times(self, epoch: int, primary: np.ndarray, occurrence: np.ndarray) -> np.ndarray:
        """Focal times of batches: each time of the primary group in turn, and of several groups each in turn."""
        if self._counted:
            return np.full(len(primary), np.nan)
        sets = primary.reshape(len(primary), -1)
        return focal_times(self._times, self.times_of_group, sets, occurrence, self._seed, epoch)

    def rates(self) -> np.ndarray:
        """Cells that a batch takes from each stratum on average for its own group, float of shape (n_strata,)."""
        own = np.where(self.leaks.joint, 1 - self.leaks.cells / self.places, 1.0) * self.share
        return self.targets.cells() * np.repeat(own, np.diff(self.targets.first))


@njit(cache=True, nogil=True)
def primary_groups(groups: Groups, first: Whole, n: Whole, key: np.uint64) -> np.ndarray:
    """Return the groups that `n` batches from number `first` on, of all epochs end to end, are built around."""
    out = np.empty(n, np.int64)
    for i in range(n):
        run, place = (first + i) // RUN, (first + i) % RUN
        number = run * RUN + permuted(place, RUN, _U(4), mix(key, _U(run)))
        out[i] = np.searchsorted(groups.end, (groups.begin + number * STEP) % WHOLE, "right")
    return out


@njit(cache=True, nogil=True)
def occurrences_before(groups: Groups, first: Whole, key: np.uint64) -> np.ndarray:
    """How many batches before number `first` are built around each group."""
    whole = first // RUN * RUN
    below = np.empty(len(groups.end) + 1, np.int64)  # batches in the intervals before that of each group
    for g in range(len(below)):
        low = 0 if g == 0 else groups.end[g - 1]
        below[g] = floor_sum(whole, WHOLE, STEP, groups.begin + WHOLE - low)
    out = below[:-1] - below[1:]
    for group in primary_groups(groups, whole, first - whole, key):
        out[group] += 1
    return out


@njit(cache=True, nogil=True)
def floor_sum(n: Whole, m: Whole, a: Whole, b: Whole) -> Whole:
    """Sum of ``(a * i + b) // m`` over i from 0 to n - 1, in steps like those of Euclid's algorithm."""
    total = 0
    while True:
        total += n * (n - 1) // 2 * (a // m) + n * (b // m)
        a, b = a % m, b % m
        top = a * n + b
        if top < m:
            return total
        n, b, m, a = top // m, top % m, a, m


@njit(cache=True, nogil=True)
def count_cells(
    targets: Targets,
    leaks: Leaks,
    begin: np.ndarray,
    end: np.ndarray,
    taken: np.ndarray,
    places: Whole,
    key: np.uint64,
) -> None:
    """Add to `taken` what batches ``begin[g]`` to ``end[g] - 1`` of every group take from each stratum."""
    stratum, n_cells = np.empty(places, np.int32), np.empty(places, np.int32)
    for g in range(len(begin)):
        nth, first, last = begin[g], targets.first[g], targets.first[g + 1]
        period = period_of(targets, g) if leaks.cells[g] == 0 else 0
        unequal = leaks.cells[g] == 0 and not targets.equal[g]
        while unequal and end[g] - nth > last - first:  # elsewhere the batches are fewer than the sums
            n = min(end[g] - nth, SUMMED)
            sum_batches(targets.upto[first:last], nth, n, taken[first:last])
            nth += n
        while nth < end[g]:
            if period > 0 and nth % period == 0 and nth + period <= end[g]:
                periods = (end[g] - nth) // period  # in which the group's strata give equally many cells
                for s in range(first, last):
                    taken[s] += periods * period * np.int64(np.rint(targets.own[g])) // (last - first)
                nth += periods * period
                continue
            for j in range(round_batch(targets, leaks, g, nth, key, stratum, n_cells)):
                taken[stratum[j]] += n_cells[j]
            nth += 1


@njit(cache=True, nogil=True)
def sum_batches(upto: np.ndarray, first: Whole, n: Whole, taken: np.ndarray) -> None:
    """Add to `taken` what `n` batches of a group, from its number `first` on, take from its strata by unequal targets.

    With offset `o`, ``(upto[s] + o) // PARTS`` points of a batch lie on the targets of the strata up to `s`.
    """
    offset = offset_of(first)
    before: Whole = np.int64(0)
    moved = floor_sum(n, PARTS, OFFSET_STEP, offset)
    for s in range(len(upto)):
        points = floor_sum(n, PARTS, OFFSET_STEP, offset + upto[s]) - moved
        taken[s] += points - before
        before = points


@njit(cache=True, nogil=True)
def _plan_stretch(
    primary: np.ndarray,
    occurrence: np.ndarray,
    targets: Targets,
    leaks: Leaks,
    taken: np.ndarray,
    places: Whole,
    key: np.uint64,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the fields of a `Stretch`; counts its batches in `occurrence` and its cells in `taken`."""
    n, filled = len(primary), 0
    most = n * min(places, len(taken))  # entries, as a batch takes from each stratum once
    ptr, turn = np.zeros(n + 1, np.int64), np.empty(n, np.int64)
    stratum, n_cells, before = np.empty(most, np.int32), np.empty(most, np.int32), np.empty(most, taken.dtype)
    for i in range(n):
        g = primary[i]
        turn[i] = occurrence[g]
        occurrence[g] += 1
        filled += round_batch(targets, leaks, g, turn[i], key, stratum[filled:], n_cells[filled:])
        ptr[i + 1] = filled
        for j in range(ptr[i], filled):
            before[j] = taken[stratum[j]]
            taken[stratum[j]] += n_cells[j]
    return primary, turn, ptr, stratum[:filled].copy(), n_cells[:filled].copy(), before[:filled].copy()


@njit(cache=True, nogil=True)
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
