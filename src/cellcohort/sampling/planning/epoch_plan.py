"""The batches of an epoch one after another: their primary groups, and whole numbers of cells from targets; compiled.

Batch `i` of all epochs end to end is built around the group in whose interval the fraction of ``i`` times the golden
section lies, where every group has an interval as long as its weight. Each run of `RUN` batches is put in random
order. The n-th batch of a group, counted over all epochs, rounds its targets by systematic sampling: the targets lie
end to end on a line, and the places of the batch are points one apart on it, which move on from batch to batch. So
every run of labels gets the whole number below or above its target, and over epochs every stratum comes as often as
it is asked. Its focal time, if any, is that of its group whose turn it is.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from cellcohort.sampling.planning.strata import Strata, stable_order
from cellcohort.sampling.planning.targets import Targets
from cellcohort.sampling.rng import Whole, bits_of, key_of, key_of_three, mix, permuted

RUN = 16
BLOCK = 2**14  # cells of the batches that are planned together
MOST_KEPT = 4  # blocks
GOLDEN = (math.sqrt(5) - 1) / 2  # multiples of it fill the unit interval most evenly
PLASTIC = 0.7548776662466927  # and of these, which keep no step with the first
SILVER = math.sqrt(2) - 1
WHOLE = 2**32
STEP = round(GOLDEN * WHOLE) | 1
_U = np.uint64


class Groups(NamedTuple):
    """Intervals of whole numbers below `WHOLE`: group `g` has ``end[g - 1]`` to ``end[g]``. Batch 0 is at `begin`."""

    end: np.ndarray
    begin: int


class Donors(NamedTuple):
    """The strata by label and then by group, from which cells leak.

    Attributes
    ----------
    first : numpy.ndarray of int32, shape (n_labels + 1,)
        Label `l` has the strata ``stratum[first[l]:first[l + 1]]``.
    stratum : numpy.ndarray of int, shape (n_strata,)
    end : numpy.ndarray of int, shape (n_strata,)
        Running sum of their sizes.
    begin : numpy.ndarray of int64, shape (n_groups + 1,)
        Group `g` has the strata ``begin[g]`` to ``begin[g + 1] - 1``.
    label : numpy.ndarray of int, shape (n_strata,)
        Label of each stratum, in the order of strata.
    """

    first: np.ndarray
    stratum: np.ndarray
    end: np.ndarray
    begin: np.ndarray
    label: np.ndarray


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


class Block(NamedTuple):
    """Some batches that follow each other, as in `BatchSpec`: batch `i` has the entries ``ptr[i]:ptr[i + 1]``."""

    primary: list[Any]
    occurrence: list[int]
    focal: list[float]
    ptr: list[int]
    stratum: np.ndarray
    n_cells: np.ndarray
    before: np.ndarray


class Front(NamedTuple):
    """What batches of an epoch before its block number `block` hold.

    `begun` is how many of all epochs were built around each group, `taken` the cells of each stratum in this epoch.
    """

    epoch: int
    block: int
    begun: np.ndarray
    taken: np.ndarray


class EpochPlan:
    """What each batch of each epoch takes from every stratum.

    Without times, the cells that earlier batches of the epoch took are counted.

    Parameters
    ----------
    strata : Strata
    targets : Targets
    weights : numpy.ndarray of float, shape (n_groups,)
        How often each group is the primary one; 0 for groups without strata.
    places, seed : int
        Cells of a batch, and key of all randomness.
    per_epoch : int
        Batches by which epochs follow each other in the endless sequence.
    leaks : bool
        Whether cells leak between groups, though `targets` may have none that do.
    """

    def __init__(
        self,
        strata: Strata,
        targets: Targets,
        weights: np.ndarray,
        places: int,
        seed: int,
        per_epoch: int,
        leaks: bool = False,
    ) -> None:
        self.targets, self.places, self._per_epoch, self._seed = targets, places, per_epoch, _U(seed)
        self._times, timed = strata.times, len(strata.times) > 0
        self.times_of_group = strata.times_indptr[targets.first] if timed else np.zeros_like(targets.first)
        self._counted = not timed
        self.share = weights / weights.sum()
        self.key = key_of(seed, 1)
        end = np.rint(np.cumsum(weights) / weights.sum() * WHOLE).astype(np.int64)
        end[np.flatnonzero(weights)[-1] :] = WHOLE
        self.groups = Groups(end, int(self.key >> np.uint64(32)))
        leaks = leaks or bool(targets.leak.any())
        order = np.arange(len(strata.label) if leaks else 0, dtype=np.int32)
        labels = np.arange(len(strata.levels) + 1 if leaks else 1)
        if leaks:
            order = stable_order(strata.label, len(strata.levels), order)
        self.donors = Donors(
            np.searchsorted(strata.label[order], labels).astype(np.int32), order,
            np.cumsum(strata.size[order]).astype(strata.order.dtype), targets.first, strata.label,
        )  # fmt: skip
        self._counter_type = strata.order.dtype
        self.per_block = max(1, min(64, BLOCK // places))
        self._kept: tuple[tuple[tuple[int, int], Block], ...] = ()
        self._front: Front | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        arrays = [*self.targets, *self.donors[:3], *(array for _, block in self._kept for array in block[4:])]
        return sum(array.nbytes for array in arrays) + (self._front.taken.nbytes if self._front else 0)

    def spec(self, epoch: int, number: int) -> BatchSpec:
        """Return what batch `number` of an epoch is to hold."""
        index, i = divmod(number, self.per_block)
        primary, occurrence, focal, ptr, stratum, n_cells, before = self.block(epoch, index)
        entries = slice(ptr[i], ptr[i + 1])
        return BatchSpec(primary[i], occurrence[i], focal[i], stratum[entries], n_cells[entries], before[entries])

    def block(self, epoch: int, index: int) -> Block:
        """Batches ``index * per_block`` to ``(index + 1) * per_block - 1`` of an epoch."""
        for place, block in self._kept:
            if place == (epoch, index):
                return block
        first, front = epoch * self._per_epoch, self._front
        if front is None or front.epoch != epoch or front.block > index:
            front = Front(epoch, 0, self._begin(first), np.zeros(self.targets.first[-1], self._counter_type))
        begun, taken, first = front.begun.copy(), front.taken.copy(), first + index * self.per_block
        if front.block < index:
            begun = self._pass_over(begun, first, taken)
        primary, occurrence, ptr, *entries = self._plan(first, begun, taken)
        focal = self._focal_times(epoch, primary, occurrence).tolist()
        each = primary.tolist() if primary.ndim == 1 else list(primary)
        block = Block(each, occurrence.tolist(), focal, ptr.tolist(), *entries)
        self._kept = (((epoch, index), block), *self._kept[: MOST_KEPT - 1])
        self._front = Front(epoch, index + 1, begun, taken)
        return block

    def _begin(self, first: int) -> np.ndarray:
        """How many batches before number `first` of all epochs are built around each group, int64 (n_groups,)."""
        return occurrences_before(self.groups, first, self.key)

    def _pass_over(self, begun: np.ndarray, first: int, taken: np.ndarray) -> np.ndarray:
        """Count the cells of batches up to number `first` of all epochs in `taken`; return how many are begun then."""
        end = self._begin(first)
        if self._counted:
            count_cells(self.targets, self.donors, begun, end, taken, self.places, self.key)
        return end

    def _plan(self, first: int, begun: np.ndarray, taken: np.ndarray) -> tuple[np.ndarray, ...]:
        """Plan a block from batch `first` of all epochs on; counts its batches in `begun` and its cells in `taken`."""
        primary = primary_groups(self.groups, first, self.per_block, self.key)
        return _plan_block(primary, begun, self.targets, self.donors, taken, self.places, self.key)

    def _focal_times(self, epoch: int, primary: np.ndarray, occurrence: np.ndarray) -> np.ndarray:
        """Focal times of batches: each time of the primary group in turn, and of several groups each in turn."""
        if self._counted:
            return np.full(len(primary), np.nan)
        sets = primary.reshape(len(primary), -1)
        return focal_times(self._times, self.times_of_group, sets, occurrence, self._seed, epoch)

    def rates(self) -> np.ndarray:
        """Cells that a batch takes from each stratum on average for its own group, float of shape (n_strata,)."""
        targets = self.targets
        own = np.where(targets.joint, 1 - targets.leak / self.places, 1.0) * self.share
        return targets.cells() * np.repeat(own, np.diff(targets.first))

    def length_that_covers(self, size: np.ndarray, epoch: int) -> int:
        """Return the fewest batches with which an epoch takes every cell of every stratum."""
        index = 0
        while True:
            block, front = self.block(epoch, index), self._front
            if front is not None and (front[3] >= size).all():
                break
            index += 1
        of = np.repeat(np.arange(self.per_block), np.diff(block.ptr))
        last = of[block.before < size[block.stratum]].max(initial=0)  # the batch that takes the last cells of a stratum
        return index * self.per_block + int(last) + 1


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
def focal_times(
    times: np.ndarray, indptr: np.ndarray, sets: np.ndarray, occurrence: np.ndarray, seed: np.uint64, epoch: Whole
) -> np.ndarray:
    """For each batch, one of ``times[indptr[g]:indptr[g + 1]]``: each in turn, in a pseudo-random order.

    `g` is the primary group in ``sets[i]``, of several each in turn. A missing time passes its turn on to the next
    one; -inf if all are missing.
    """
    out, k = np.full(len(sets), -np.inf), sets.shape[1]
    for i in range(len(sets)):
        group, turn = sets[i, occurrence[i] % k], occurrence[i] // k
        first, n = indptr[group], indptr[group + 1] - indptr[group]
        at = permuted(turn % n, n, bits_of(n), mix(key_of_three(seed, _U(epoch), _U(group)), _U(turn // n)))
        for j in range(n):
            time = times[first + (at + j) % n]
            if np.isfinite(time):
                out[i] = time
                break
    return out


@njit(cache=True, nogil=True)
def count_cells(
    targets: Targets,
    donors: Donors,
    begin: np.ndarray,
    end: np.ndarray,
    taken: np.ndarray,
    places: Whole,
    key: np.uint64,
) -> None:
    """Add to `taken` what batches ``begin[g]`` to ``end[g] - 1`` of every group take from each stratum."""
    stratum, n_cells = np.empty(places, np.int32), np.empty(places, np.int32)
    for g in range(len(begin)):
        period = _period(targets, g) if targets.leak[g] == 0 else 0
        nth, first, last = begin[g], targets.first[g], targets.first[g + 1]
        while nth < end[g]:
            if period > 0 and nth % period == 0 and nth + period <= end[g]:
                periods = (end[g] - nth) // period  # in which the group's strata give equally many cells
                for s in range(first, last):
                    taken[s] += periods * period * np.int64(np.rint(targets.own[g])) // (last - first)
                nth += periods * period
                continue
            for j in range(round_batch(targets, donors, g, nth, key, stratum, n_cells)):
                taken[stratum[j]] += n_cells[j]
            nth += 1


@njit(cache=True, nogil=True)
def _plan_block(
    primary: np.ndarray,
    occurrence: np.ndarray,
    targets: Targets,
    donors: Donors,
    taken: np.ndarray,
    places: Whole,
    key: np.uint64,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the fields of a `Block`; counts its batches in `occurrence` and its cells in `taken`."""
    n, filled = len(primary), 0
    ptr, turn = np.zeros(n + 1, np.int64), np.empty(n, np.int64)
    stratum, n_cells = np.empty(n * places, np.int32), np.empty(n * places, np.int32)
    before = np.empty(n * places, taken.dtype)
    for i in range(n):
        g = primary[i]
        turn[i] = occurrence[g]
        occurrence[g] += 1
        filled += round_batch(targets, donors, g, turn[i], key, stratum[filled:], n_cells[filled:])
        ptr[i + 1] = filled
        for j in range(ptr[i], filled):
            before[j] = taken[stratum[j]]
            taken[stratum[j]] += n_cells[j]
    return primary, turn, ptr, stratum[:filled].copy(), n_cells[:filled].copy(), before[:filled].copy()


@njit(cache=True, nogil=True)
def round_batch(
    targets: Targets,
    donors: Donors,
    group: Whole,
    occurrence: Whole,
    key: np.uint64,
    stratum: np.ndarray,
    n_cells: np.ndarray,
) -> Whole:
    """Write the strata of a group's n-th batch and the cells of each, by label; return how many entries there are."""
    first = targets.first[group]
    joint, leak = targets.joint[group], targets.leak[group]
    places = np.int64(np.rint(targets.own[group] + (0.0 if joint else leak)))
    theta = min(max((0.25 + occurrence * GOLDEN) % 1.0, 1e-9), 1 - 1e-9)
    leaf, cells, n_own = round_own(targets, group, occurrence, theta, places, mix(key, _U(group)))
    filled = at = 0
    if joint:
        share, psi = leak / places, (occurrence * PLASTIC) % 1.0 * (1 - 1e-6) + 1e-9
        upto = 0
        for i in range(len(leaf)):
            label = donors.label[first + leaf[i]]
            leaked = np.int64((upto + cells[i]) * share + psi) - np.int64(upto * share + psi)
            upto += cells[i]
            if cells[i] > leaked:
                stratum[filled], n_cells[filled] = first + leaf[i], cells[i] - leaked
                filled += 1
            if leaked > 0:
                filled += _donate(donors, group, label, leaked, occurrence, stratum[filled:], n_cells[filled:])
        return filled
    begin, n_leak, j = n_own + 1 - theta - targets.own[group], places - n_own, 0  # their points on the line of leaks
    while j < n_leak:
        label, same = _label_at(targets, donors, group, begin + j), 1
        while j + same < n_leak and _label_at(targets, donors, group, begin + j + same) == label:
            same += 1
        while at < len(leaf) and donors.label[first + leaf[at]] <= label:
            stratum[filled], n_cells[filled] = first + leaf[at], cells[at]
            filled, at = filled + 1, at + 1
        filled += _donate(donors, group, label, same, occurrence, stratum[filled:], n_cells[filled:])
        j += same
    for i in range(at, len(leaf)):
        stratum[filled], n_cells[filled] = first + leaf[i], cells[i]
        filled += 1
    return filled


@njit(cache=True, nogil=True)
def on_average(cells: float, number: Whole) -> Whole:
    """Return the whole number for batch `number` that is `cells` on average; fractions are made up over batches."""
    whole = np.int64(cells + 1e-9)
    part = cells + 1e-9 - whole
    return whole + np.int64((number + 1) * part) - np.int64(number * part)


@njit(cache=True, nogil=True)
def round_own(
    targets: Targets, group: Whole, occurrence: Whole, theta: float, places: Whole, key: np.uint64
) -> tuple[np.ndarray, np.ndarray, Whole]:
    """Which strata of the group a batch takes, in order, the cells of each, and their sum."""
    first, n = targets.first[group], targets.first[group + 1] - targets.first[group]
    own, period = targets.own[group], _period(targets, group)
    bits = bits_of(n)
    if period > 0:  # each in turn gets a spare place; in a new order when all had some
        total = np.int64(np.rint(own))
        spare, round_key = total % n, mix(key, _U(occurrence // period))
        leaf = np.empty(spare, np.int64)
        for j in range(spare):
            leaf[j] = permuted((occurrence % period * spare + j) % n, n, bits, round_key)
        if total < n:
            return np.sort(leaf), np.ones(spare, np.int64), total
        cells = np.full(n, total // n)
        for j in range(spare):
            cells[leaf[j]] += 1
        return np.arange(n), cells, total
    upto, step = targets.upto[first : first + n], own / n
    leaf, cells = np.empty(min(n, places), np.int64), np.zeros(min(n, places), np.int64)
    slot = filled = n_own = 0
    while n_own < places and n_own + 1 - theta < own:
        if len(upto) == 0:
            slot = min(n - 1, np.int64((n_own + 1 - theta) / step))
        elif n_own + 1 - theta >= upto[slot]:
            slot = min(n - 1, slot + np.searchsorted(upto[slot:], n_own + 1 - theta, "right"))
        if filled == 0 or leaf[filled - 1] != slot:
            leaf[filled], filled = slot, filled + 1
        cells[filled - 1] += 1
        n_own += 1
    leaf, cells = leaf[:filled], cells[:filled]
    if targets.equal[group]:
        round_key = mix(key, _U(occurrence // n))
        for j in range(filled):
            leaf[j] = permuted(leaf[j], n, bits, round_key)
        order = np.argsort(leaf)
        leaf, cells = leaf[order], cells[order]
    return leaf, cells, n_own


@njit(cache=True, nogil=True)
def _label_at(targets: Targets, donors: Donors, group: Whole, place: float) -> Whole:
    """Return the label at a place of the line of a group's leaks, whose targets lie end to end."""
    begin, end = targets.leak_first[group], targets.leak_first[group + 1]
    if begin < end:
        at = np.searchsorted(targets.leak_upto[begin:end], place, "right")
        return np.int64(targets.leak_label[min(end - 1, begin + at)])
    alone_label = targets.alone_label[targets.alone_first[group] : targets.alone_first[group + 1]]
    alone_upto = targets.alone_upto[targets.alone_first[group] : targets.alone_first[group + 1]]
    rest = 1.0 - (alone_upto[-1] if len(alone_upto) > 0 else 0.0)
    n_labels = len(donors.first) - 1
    low, high, weight = 0, n_labels - 1, place / targets.leak[group] * rest
    while low < high:  # the labels that only this group has are left out of the line
        middle = (low + high) // 2
        had = np.searchsorted(alone_label, middle, "right")
        left_out = alone_upto[had - 1] if had > 0 else 0.0
        upto = targets.weight_upto[middle] if len(targets.weight_upto) > 0 else (middle + 1) / n_labels
        if upto - left_out > weight:
            high = middle
        else:
            low = middle + 1
    return low


@njit(cache=True, nogil=True)
def _donate(
    donors: Donors,
    group: Whole,
    label: Whole,
    count: Whole,
    occurrence: Whole,
    stratum: np.ndarray,
    n_cells: np.ndarray,
) -> Whole:
    """Write the strata of other groups that `count` cells of a label leak from, in proportion to size; how many."""
    first, last = donors.first[label], donors.first[label + 1]
    end = donors.end[first:last]
    begin = np.int64(donors.end[first - 1]) if first > 0 else np.int64(0)
    at = np.searchsorted(donors.stratum[first:last], donors.begin[group])
    own, own_begin = 0, np.int64(end[-1])
    if first + at < last and donors.stratum[first + at] < donors.begin[group + 1]:
        own_begin = np.int64(end[at - 1]) if at > 0 else begin
        own = end[at] - own_begin
    theta, step, filled = (occurrence * SILVER + label * PLASTIC) % 1.0, (end[-1] - begin - own) / count, 0
    for k in range(count):
        point = begin + (k + theta) * step
        point += own if point >= own_begin else 0
        s = donors.stratum[first + min(len(end) - 1, np.searchsorted(end, point, "right"))]
        if filled == 0 or stratum[filled - 1] != s:
            stratum[filled], n_cells[filled], filled = s, 0, filled + 1
        n_cells[filled - 1] += 1
    return filled


@njit(cache=True, nogil=True)
def _period(targets: Targets, group: Whole) -> Whole:
    """After how many batches all strata of a group gave equally many cells; 0 if their targets do not allow it."""
    own, n = np.rint(targets.own[group]), targets.first[group + 1] - targets.first[group]
    if not targets.equal[group] or abs(targets.own[group] - own) >= 1e-9:
        return 0
    a, b = n, np.int64(own) % n
    while b:
        a, b = b, a % b
    return n // a
