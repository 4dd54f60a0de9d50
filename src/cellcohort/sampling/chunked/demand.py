"""What each batch of a chunk window is to hold, and hence how many cells a window requests of each stratum."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numba import njit

from cellcohort.sampling.chunked.chunk_index import ChunkIndex
from cellcohort.sampling.chunked.rotation import Rotation
from cellcohort.sampling.drawing.time_window import TOLERANCE, least_and_most, share_out
from cellcohort.sampling.planning.epoch_plan import EpochPlan, round_batch
from cellcohort.sampling.planning.leaks import Leaks
from cellcohort.sampling.planning.plan import Plan
from cellcohort.sampling.planning.quotas import Targets, on_average
from cellcohort.sampling.planning.sorting import stable_order
from cellcohort.sampling.planning.strata import Strata
from cellcohort.sampling.rng import mix, permuted_each, unit

DONOR_TRIES = 64  # cells drawn at random to find a group that cells may leak from
_U = np.uint64


class WindowSpec(NamedTuple):
    """What the batches of a window are built around; the primary group of batch `j` is ``primary[j % n_groups]``.

    Attributes
    ----------
    primary, occurrence : numpy.ndarray of int64, shape (n_groups,)
        The primary groups, and how often each was primary in all windows before.
    passed : numpy.ndarray of float, shape (n_groups,)
        Share of all chunks, in their common order, that windows of each passed before; -1 without such an order.
    focal : numpy.ndarray of float, shape (n_batches,)
        Focal times in hours; NaN without a time window, infinite if the group has no times.
    inside : numpy.ndarray of int64, shape (n_batches,)
        Cells of each batch around its focal time.
    first : int
        Number of the first batch.
    start_offset : float
        Share of the chunk order to skip; 0 in the first attempts at a window.
    """

    primary: np.ndarray
    occurrence: np.ndarray
    passed: np.ndarray
    focal: np.ndarray
    inside: np.ndarray
    first: int
    start_offset: float


class GroupTimes(NamedTuple):
    """The times of each group, ``hours[indptr[g]:indptr[g + 1]]``, and the cells of a batch around its focal time."""

    hours: np.ndarray
    indptr: np.ndarray
    inside: float

    @classmethod
    def of(cls, plan: Plan) -> GroupTimes:
        """Return the times that are not missing; -inf alone if all of a group are."""
        times = [np.unique(plan.strata.times[a:b]) for a, b in pairwise(plan.batches.times_of_group)]
        known = [hours[np.isfinite(hours)] if np.isfinite(hours).any() else np.array([-np.inf]) for hours in times]
        return cls(np.concatenate(known), np.cumsum([0, *map(len, known)]), plan.places * plan.share_inside)


def window_spec(
    rotation: Rotation, times: GroupTimes | None, epoch: int, number: int, start_offset: float, key: np.uint64
) -> WindowSpec:
    """Return the spec of a window of an epoch; `times` is None without a time window."""
    primary, occurrence = rotation.groups_of(epoch, number)
    n, n_batches = rotation.batches_per_group, rotation.batches_per_window
    passed = np.full(len(primary), -1.0)
    if rotation.stride:
        passed[:] = (number if rotation.all_in_each else occurrence) * rotation.stride + start_offset
    focal, inside = np.full(n_batches, np.nan), np.zeros(n_batches, np.int64)
    if times is not None:  # the batches of a group are spread evenly over its times
        order = permuted_each(np.arange(n), np.full(n, n), np.zeros(n, np.int64), key)
        begin, n_times = times.indptr[primary], (times.indptr[1:] - times.indptr[:-1])[primary]
        share = (order + unit(key, _U(0))) / n
        focal[:] = times.hours[begin + np.minimum(share[:, None] * n_times, n_times - 1).astype(np.int64)].ravel()
        inside[:] = [on_average(times.inside, number * n_batches + j) for j in range(n_batches)]
    return WindowSpec(primary, occurrence, passed, focal, inside, number * n_batches, start_offset)


class GroupBatches(NamedTuple):
    """What the n-th batch of a group takes from every stratum, by `round_batch`; `places` are the cells of a batch."""

    targets: Targets
    leaks: Leaks
    key: np.uint64
    places: int

    @classmethod
    def of(cls, batches: EpochPlan) -> GroupBatches:
        """Return those of a plan."""
        return cls(batches.targets, batches.leaks, batches.key, batches.places)


class Demand(NamedTuple):
    """Cells that the batches of a window request, one entry per batch and stratum; of the strata of most chunks first.

    Attributes
    ----------
    stratum : numpy.ndarray of int64, shape (n,)
        Index in the sorted strata of the window.
    batch, cells, inside : numpy.ndarray of int64, shape (n,)
        The batch, the cells that it takes, and how many of these lie in its time window.
    low, high : numpy.ndarray of int64, shape (n,)
        The times of the stratum in that time window, ``Strata.times[low:high]``.
    """

    stratum: np.ndarray
    batch: np.ndarray
    cells: np.ndarray
    inside: np.ndarray
    low: np.ndarray
    high: np.ndarray


@njit(cache=True, nogil=True)
def window_demand(
    spec: WindowSpec,
    batches: GroupBatches,
    strata: Strata,
    index: ChunkIndex,
    half_width: float,
    key: np.uint64,
) -> tuple[np.ndarray, np.ndarray, Demand]:
    """Return the strata that a window needs, sorted, the cells requested of each over those it has, and the demand."""
    indptr, stratum, cells = _cells_of_batches(spec, batches, strata, key)
    needed = np.unique(stratum)
    local, ratio = np.searchsorted(needed, stratum), np.zeros(len(needed))
    for i in range(len(cells)):
        ratio[local[i]] += cells[i] / (strata.start[stratum[i] + 1] - strata.start[stratum[i]])
    ratio = np.minimum(ratio, 1.0)  # a chunk is read once
    batch, inside = np.zeros(len(cells), np.int64), np.zeros(len(cells), np.int64)
    low, high = np.zeros(len(cells), np.int64), np.zeros(len(cells), np.int64)
    for j in range(len(spec.focal)):
        first, last = indptr[j], indptr[j + 1]
        batch[first:last] = j
        if len(index.time):
            own, begin = stratum[first:last], spec.focal[j] - half_width - TOLERANCE
            end = spec.focal[j] + half_width + TOLERANCE
            low[first:last], high[first:last], least, most = _in_time_window(strata, own, cells[first:last], begin, end)
            inside[first:last] = share_out(cells[first:last], least, most, spec.inside[j], spec.first + j)
    rank = np.empty(len(needed), np.int64)
    n_chunks = index.stratum_indptr[needed + 1] - index.stratum_indptr[needed]
    rank[np.argsort(-ratio * n_chunks)] = np.arange(len(needed))
    order = stable_order(rank[local], len(needed), np.arange(len(cells)))
    return needed, ratio, Demand(local[order], batch[order], cells[order], inside[order], low[order], high[order])


@njit(cache=True, nogil=True)
def _in_time_window(
    strata: Strata, stratum: np.ndarray, cells: np.ndarray, begin: float, end: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the times of some strata from `begin` to `end`, and how few and how many of `cells` can have them."""
    n = len(stratum)
    low, high, least, most = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    for i in range(n):
        s = stratum[i]
        first, times = strata.times_indptr[s], strata.times[strata.times_indptr[s] : strata.times_indptr[s + 1]]
        low[i], high[i] = first + np.searchsorted(times, begin), first + np.searchsorted(times, end)
        available = strata.times_start[high[i]] - strata.times_start[low[i]]
        least[i], most[i] = least_and_most(cells[i], strata.start[s + 1] - strata.start[s], available)
    return low, high, least, most


@njit(cache=True, nogil=True)
def _cells_of_batches(
    spec: WindowSpec, batches: GroupBatches, strata: Strata, key: np.uint64
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the strata and cells of the batches of a window: ``indptr[j]:indptr[j + 1]`` are those of batch `j`.

    Cells of the primary group are those of the plan. Cells that leak in have the labels of the plan but come from the
    other primary groups of the window, whose chunks are read anyway; if there is none, from one other group, chosen in
    proportion to its cells. Where these lack the cells, they come from the strata of the plan.
    """
    n, n_groups = len(spec.focal), len(spec.primary)
    indptr, stratum = np.zeros(n + 1, np.int64), np.empty(n * batches.places, np.int64)
    cells, filled = np.empty(n * batches.places, np.int64), 0
    planned, n_planned = np.empty(batches.places, np.int32), np.empty(batches.places, np.int32)
    for j in range(n):
        group, nth = spec.primary[j % n_groups], spec.occurrence[j % n_groups] * (n // n_groups) + j // n_groups
        first, last = 0, round_batch(batches.targets, batches.leaks, group, nth, batches.key, planned, n_planned)
        for i in range(last):
            if strata.group[planned[i]] == group:
                stratum[filled], cells[filled] = planned[i], n_planned[i]
                filled += 1
        donors = _donors(spec.primary, group, strata, mix(key, _U(j % n_groups)))
        while first < last:
            label, total, i = strata.label[planned[first]], 0, first
            while first < last and strata.label[planned[first]] == label:
                total += n_planned[first] if strata.group[planned[first]] != group else 0
                first += 1
            n_donors = _leak(donors, label, total, j // n_groups, strata, stratum[filled:], cells[filled:])
            filled += n_donors
            while n_donors == 0 and total > 0 and i < first:
                if strata.group[planned[i]] != group:
                    stratum[filled], cells[filled] = planned[i], n_planned[i]
                    filled += 1
                i += 1
        indptr[j + 1] = filled
    return indptr, stratum[:filled], cells[:filled]


@njit(cache=True, nogil=True)
def _donors(primary: np.ndarray, group: int, strata: Strata, key: np.uint64) -> np.ndarray:
    """Return the other primary groups of a window, each once; if there is none, another group at random."""
    donors, n = np.empty(len(primary) + 1, np.int64), 0
    for other in primary:
        if other != group and not np.any(donors[:n] == other):
            donors[n] = other
            n += 1
    for i in range(DONOR_TRIES):
        if n > 0:
            break
        cell = np.int64(mix(key, _U(i)) % _U(strata.start[-1]))
        donors[0] = strata.group[np.searchsorted(strata.start, cell, "right") - 1]
        n = int(donors[0] != group)
    return donors[:n]


@njit(cache=True, nogil=True)
def _leak(
    donors: np.ndarray, label: int, total: int, nth: int, strata: Strata, stratum: np.ndarray, cells: np.ndarray
) -> int:
    """Share `total` cells of one label among the donors; return how many give some, or 0 if one of them has too few."""
    n, filled = len(donors), 0
    for d in range(n):
        share = total // n + ((d + nth + label) % n < total % n)
        if share == 0:
            continue
        first = np.searchsorted(strata.group, donors[d])
        labels = strata.label[first : np.searchsorted(strata.group, donors[d], "right")]
        s = first + np.searchsorted(labels, label)
        if s == first + len(labels) or strata.label[s] != label or strata.start[s + 1] - strata.start[s] < share:
            return 0
        stratum[filled], cells[filled] = s, share
        filled += 1
    return filled
