"""What each batch of a chunk window is to hold, and hence how many cells a window requests of each stratum."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cellcohort.compiled import compiled
from cellcohort.sampling.chunked.chunk_index import ChunkIndex
from cellcohort.sampling.chunked.leaks import donors_of, leak_from
from cellcohort.sampling.chunked.rotation import Rotation
from cellcohort.sampling.chunked.time_window import GroupTimes, in_time_window
from cellcohort.sampling.drawing.time_window import share_out
from cellcohort.sampling.planning.epoch_plan import round_batch
from cellcohort.sampling.planning.leaks import Leaks
from cellcohort.sampling.planning.quotas import Targets, on_average
from cellcohort.sampling.planning.sorting import stable_order
from cellcohort.sampling.planning.strata import Strata
from cellcohort.sampling.rng import mix

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
    if times is not None:
        focal[:] = times.focal(primary, n, key)
        inside[:] = [on_average(times.inside, number * n_batches + j) for j in range(n_batches)]
    return WindowSpec(primary, occurrence, passed, focal, inside, number * n_batches, start_offset)


class GroupBatches(NamedTuple):
    """What the n-th batch of a group takes from every stratum, by `round_batch`; `places` are the cells of a batch."""

    targets: Targets
    leaks: Leaks
    key: np.uint64
    places: int


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


@compiled
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
            low[first:last], high[first:last], least, most = in_time_window(
                strata, stratum[first:last], cells[first:last], spec.focal[j], half_width
            )
            inside[first:last] = share_out(cells[first:last], least, most, spec.inside[j], spec.first + j)
    rank = np.empty(len(needed), np.int64)
    n_chunks = index.stratum_indptr[needed + 1] - index.stratum_indptr[needed]
    rank[np.argsort(-ratio * n_chunks)] = np.arange(len(needed))
    order = stable_order(rank[local], len(needed), np.arange(len(cells)))
    return needed, ratio, Demand(local[order], batch[order], cells[order], inside[order], low[order], high[order])


@compiled
def _cells_of_batches(
    spec: WindowSpec, batches: GroupBatches, strata: Strata, key: np.uint64
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the strata and cells of the batches of a window: ``indptr[j]:indptr[j + 1]`` are those of batch `j`.

    Cells of the primary group are those of the plan.
    """
    n, n_groups = len(spec.focal), len(spec.primary)
    indptr, stratum = np.zeros(n + 1, np.int64), np.empty(n * batches.places, np.int64)
    cells, filled = np.empty(n * batches.places, np.int64), 0
    planned, n_planned = np.empty(batches.places, np.int32), np.empty(batches.places, np.int32)
    for j in range(n):
        group, nth = spec.primary[j % n_groups], spec.occurrence[j % n_groups] * (n // n_groups) + j // n_groups
        last = round_batch(batches.targets, batches.leaks, group, nth, batches.key, planned, n_planned)
        for i in range(last):
            if strata.group[planned[i]] == group:
                stratum[filled], cells[filled] = planned[i], n_planned[i]
                filled += 1
        if batches.leaks.cells[group] > 0:
            donors = donors_of(spec.primary, group, strata, mix(key, _U(j % n_groups)))
            of_plan, out = (planned[:last], n_planned[:last]), (stratum[filled:], cells[filled:])
            filled += leak_from(donors, of_plan, group, j // n_groups, strata, out)
        indptr[j + 1] = filled
    return indptr, stratum[:filled], cells[:filled]
