"""Batches of several primary groups, each with a block of the batch; compiled.

Which groups: in each run of `RUN` batches, a group is primary in the whole number of batches below or above its share,
by systematic sampling, whose start moves on by the golden section from run to run. In a random order of the groups
these places lie end to end on a line, and batch `i` of the run takes the places ``i``, ``i + RUN``, ``i + 2 * RUN`` and
so on. So no batch has a group twice, and all groups come together.

How many cells: those of each label are rounded for the whole batch, then dealt to the other groups (the leak) and to
the blocks in turn. Where a group lacks cells of a label, each block is rounded by itself. What rotates does so by the
number of the batch in all epochs.
"""

from __future__ import annotations

from typing import NamedTuple, override

import numpy as np

from cellcohort.cells import Column
from cellcohort.compiled import compiled
from cellcohort.messages import listed, several
from cellcohort.sampling.axes.base import GroupAxis
from cellcohort.sampling.planning.epoch_plan import EpochPlan, Progress, count
from cellcohort.sampling.planning.leaks import (
    PLASTIC,
    Donors,
    cells_outside,
    donate,
    leak_offset,
    no_leaks,
    split_off,
)
from cellcohort.sampling.planning.primary_groups import RUN
from cellcohort.sampling.planning.quotas import PARTS, Targets, build_targets, offset_of, on_average, round_group
from cellcohort.sampling.planning.split import fill
from cellcohort.sampling.planning.strata import Strata
from cellcohort.sampling.rng import STEP, WHOLE, Whole, bits_of, mix, permuted

_U = np.uint64


class Blocks(NamedTuple):
    """What a batch holds of each label and in each block, and of which groups every label can be taken.

    Attributes
    ----------
    labels : Targets
        Targets of the labels in a whole batch, as those of the strata of one group.
    weight : numpy.ndarray of float, shape (n_labels,)
        Share of each label.
    targets : Targets
        Of a block of each group.
    full : numpy.ndarray of bool, shape (n_groups,)
        Whether a group has enough cells of every label for a block.
    leak : float
        Cells of a batch from other groups than the primary ones.
    donors : Donors
        The strata of each label. Empty without leaks.
    """

    labels: Targets
    weight: np.ndarray
    targets: Targets
    full: np.ndarray
    leak: float
    donors: Donors


class PrimarySets(EpochPlan):
    """What each batch of each epoch takes from every stratum, where batches have several primary groups.

    Parameters
    ----------
    strata : Strata
    ratios : list of numpy.ndarray
        Asked share of each code, one array per share axis.
    weights : numpy.ndarray of float, shape (n_groups,)
        How often each group is primary; 0 for groups without strata.
    group : GroupAxis
        How many groups are primary in a batch, and the share of it that comes from others.
    places, seed : int
        Cells of a batch, and key of all randomness.
    per_epoch : int
        Batches by which epochs follow each other in the endless sequence.

    Attributes
    ----------
    often : numpy.ndarray of float, shape (n_groups,)
        Share of batches in which each group is primary.
    targets : Targets
        Of a block of each group.
    """

    def __init__(
        self,
        strata: Strata,
        ratios: list[np.ndarray],
        weights: np.ndarray,
        group: GroupAxis,
        places: int,
        seed: int,
        per_epoch: int,
    ) -> None:
        self.n_primary, leak = group.n_primary, group.leaky * places
        targets = build_targets(strata, ratios, (places - leak) / self.n_primary, len(weights))
        leaks = no_leaks(strata, targets.first, donors=leak > 0)
        super().__init__(strata, targets, leaks, weights, places, seed, per_epoch)
        self._by_steps = self._counted
        groups = np.flatnonzero(weights)
        self.often: np.ndarray = np.zeros(len(weights))
        self.often[groups] = fill(float(self.n_primary), weights[groups], np.ones(len(groups), np.int64))
        self._groups, self._upto = groups, np.cumsum(_whole_lengths(self.often[groups], self.n_primary))
        self._blocks = _blocks(strata, ratios, targets, places, leak, leaks.donors)

    @override
    def rates(self) -> np.ndarray:
        return self.targets.cells() * np.repeat(self.often, np.diff(self.targets.first))

    @override
    def _plan(self, first: int, n: int, progress: Progress) -> tuple[np.ndarray, ...]:
        primary = primary_sets(self._groups, self._upto, self.n_primary, first, n, self.key)
        turn = np.arange(first, first + n)  # nothing rotates by how often a group was primary
        ptr, stratum, n_cells = _round_sets(self._blocks, primary, turn, self.key)
        return primary, turn, ptr, stratum, n_cells, count(stratum, n_cells, progress.taken)


def check_blocks(column: Column, cells_of: np.ndarray, group: GroupAxis, places: int) -> None:
    """Refuse more blocks than there are groups or places, and a leak that the other groups have no cells for."""
    k, there = group.n_primary, int(np.count_nonzero(cells_of))
    if k > min(there, places):
        raise ValueError(
            f"{group} asks for {k} blocks in each batch, and there are {several(there, 'label')} of {column.name} to "
            f"draw for {several(places, 'place')}; use at most {min(there, places)}."
        )
    outside = int(np.sort(cells_of)[: len(cells_of) - k].sum())
    if group.leaky * places > outside:
        raise ValueError(
            f"{group} asks for {group.leaky * places:g} leaked cells in each batch, and the labels of {column.name} "
            f"beside the {k} largest have {several(outside, 'cell')}; use leaky=0, or fewer blocks."
        )


def in_every_batch(column: Column, weights: np.ndarray, n_primary: int) -> tuple[str, ...]:
    """Say which groups are in every batch because they are asked more than once in each."""
    demand = n_primary * weights / weights.sum()
    more = np.flatnonzero(demand > 1 + 1e-9)
    if not len(more) or n_primary == np.count_nonzero(weights):
        return ()
    worst = more[demand[more].argmax()]
    return (
        f"{listed((column.labels[g] for g in more), 5, repr)} of {column.name} {'is' if len(more) == 1 else 'are'} "
        f"primary in every batch, and no more: by weight {column.labels[worst]!r} would have {demand[worst]:.2f} of "
        f"the {n_primary} blocks.",
    )


def _whole_lengths(often: np.ndarray, n_primary: int) -> np.ndarray:
    """Return whole numbers of at most `WHOLE` that are in proportion to `often` and add up to ``n_primary * WHOLE``."""
    length = np.minimum(np.rint(often * WHOLE).astype(np.int64), WHOLE)
    over = int(length.sum()) - n_primary * WHOLE
    for i in np.argsort(np.abs(length - WHOLE // 2), kind="stable"):  # those that have room, both ways
        moved = np.clip(over, length[i] - WHOLE, length[i])
        length[i] -= moved
        over -= int(moved)
    return length


def _blocks(
    strata: Strata, ratios: list[np.ndarray], targets: Targets, places: int, leak: float, donors: Donors
) -> Blocks:
    """Take the labels of all cells as the strata of one group, for what a whole batch holds of each."""
    n = len(strata.levels)
    many = np.full(n, 2**50 // n)  # the shares are those asked, however few cells there are
    whole = Strata(
        strata.order[:0], np.append(0, np.cumsum(many)), np.zeros(n, np.int16), np.arange(n, dtype=np.int32),
        strata.levels, strata.times, strata.times_start, strata.times_indptr,
    )  # fmt: skip
    labels = build_targets(whole, ratios, places, 1)
    weight = labels.cells() / places
    enough = strata.size >= np.ceil(targets.places * weight[strata.label] + 2)
    full = np.bincount(strata.group, weights=enough, minlength=len(targets.own)) == n
    return Blocks(labels, weight, targets, full, leak, donors)


@compiled
def primary_sets(groups: np.ndarray, upto: np.ndarray, k: Whole, first: Whole, n: Whole, key: np.uint64) -> np.ndarray:
    """Which groups `n` batches from number `first` of all epochs on are built around, int64 of shape (n, k).

    `upto` is the running sum of how often each group is primary, in parts of `WHOLE`.
    """
    out, order, end = np.empty((n, k), np.int64), np.empty(len(groups), np.int64), np.empty(len(groups), np.int64)
    begin, bits, run = np.int64(key >> _U(32)), bits_of(len(groups)), -1
    for i in range(n):
        if (first + i) // RUN != run:
            run = (first + i) // RUN
            run_key, start = mix(key, _U(run)), (begin + run * STEP) % WHOLE - WHOLE + 1
            for j in range(len(groups)):
                g = order[j] = permuted(j, len(groups), bits, mix(run_key, _U(0)))
                before = (upto[g - 1] * RUN - start) // WHOLE if g > 0 else 0
                end[j] = (upto[g] * RUN - start) // WHOLE - before + (end[j - 1] if j > 0 else 0)
        place = permuted((first + i) % RUN, RUN, _U(4), run_key)
        for j in range(k):
            out[i, j] = groups[order[np.searchsorted(end, place + j * RUN, "right")]]
    return out


@compiled
def _round_sets(
    blocks: Blocks, primary: np.ndarray, turn: np.ndarray, key: np.uint64
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return `ptr`, `stratum` and `n_cells` of a `Stretch`."""
    n, filled, places = len(primary), 0, np.int64(blocks.labels.places)
    ptr, stratum, n_cells = np.zeros(n + 1, np.int64), np.empty(n * places, np.int32), np.empty(n * places, np.int32)
    for i in range(n):
        filled += round_set(blocks, primary[i], turn[i], key, stratum[filled:], n_cells[filled:])
        ptr[i + 1] = filled
    return ptr, stratum[:filled].copy(), n_cells[:filled].copy()


@compiled
def round_set(
    blocks: Blocks, primary: np.ndarray, turn: Whole, key: np.uint64, stratum: np.ndarray, n_cells: np.ndarray
) -> Whole:
    """Write the strata of batch `turn` and the cells of each, by label; return how many entries there are."""
    full = True
    for group in primary:
        full = full and blocks.full[group]
    if full:
        filled = _round_whole(blocks, primary, turn, key, stratum, n_cells)
        if filled > 0:
            return filled
    filled = _round_each(blocks, primary, turn, key, stratum, n_cells)
    filled += _leak(blocks, primary, turn, stratum[filled:], n_cells[filled:])
    by_label = np.argsort(blocks.donors.label[stratum[:filled]], kind="mergesort")
    stratum[:filled], n_cells[:filled] = stratum[:filled][by_label], n_cells[:filled][by_label]
    return filled


@compiled
def _round_whole(
    blocks: Blocks, primary: np.ndarray, turn: Whole, key: np.uint64, stratum: np.ndarray, n_cells: np.ndarray
) -> Whole:
    """Write a batch whose labels are rounded together, and dealt to the leak and the blocks; 0 if that cannot be."""
    k, places, outside = len(primary), np.int64(blocks.labels.places), np.sort(primary)
    rounded = round_group(blocks.labels, 0, turn, offset_of(turn), places, key)
    leaks, filled, dealt = split_off(rounded, on_average(blocks.leak, turn) / places, turn), 0, 0
    for i in range(len(leaks)):
        label, leaked = rounded.stratum[i], leaks[i]
        own = rounded.cells[i] - leaked
        for b in range(k):
            at = (b - turn) % k  # the block takes the cells at, at + k, ... of all that are dealt
            count = (dealt + own + k - 1 - at) // k - (dealt + k - 1 - at) // k
            if count > 0:
                stratum[filled], n_cells[filled] = blocks.targets.first[primary[b]] + label, count
                filled += 1
        dealt += own
        if leaked > 0:
            if cells_outside(blocks.donors, outside, label) < leaked:
                return 0
            filled += donate(blocks.donors, outside, label, leaked, turn, stratum[filled:], n_cells[filled:])
    return filled


@compiled
def _round_each(
    blocks: Blocks, primary: np.ndarray, turn: Whole, key: np.uint64, stratum: np.ndarray, n_cells: np.ndarray
) -> Whole:
    """Write the strata of blocks of equal size, each rounded by itself."""
    k, filled, targets = len(primary), 0, blocks.targets
    own = np.int64(blocks.labels.places) - on_average(blocks.leak, turn)
    for b in range(k):
        group = primary[b]
        size = own // k + ((b + turn) % k < own % k)
        part = targets.own[group] - np.floor(targets.own[group] + 1e-9)  # rounds down below 1 - part
        u = min(max((turn * PLASTIC + b / k) % 1.0, 1e-6), 1 - 1e-6)
        theta = u if part < 1e-9 else u * (1 - part) if size < targets.own[group] else 1 - part + u * part
        offset = (np.int64(theta * PARTS) - 1) | 1  # odd, as all are
        rounded = round_group(targets, group, turn * k + b, offset, size, mix(key, _U(group)))
        for i in range(len(rounded.stratum)):
            stratum[filled], n_cells[filled] = targets.first[group] + rounded.stratum[i], rounded.cells[i]
            filled += rounded.cells[i] > 0
    return filled


@compiled
def _leak(blocks: Blocks, primary: np.ndarray, turn: Whole, stratum: np.ndarray, n_cells: np.ndarray) -> Whole:
    """Write the strata of other groups from which cells leak, labels by their shares as far as they have cells."""
    n_leak, donors, outside, filled = on_average(blocks.leak, turn), blocks.donors, np.sort(primary), 0
    if n_leak == 0:
        return 0
    there = np.empty(len(blocks.weight), np.int64)
    for label in range(len(there)):
        there[label] = cells_outside(donors, outside, label)
    labels = np.flatnonzero(there)
    target, upto = fill(float(n_leak), blocks.weight[labels], there[labels]), 0.0
    for i in range(len(labels)):
        before = np.int64(upto + leak_offset(turn))
        upto = float(n_leak) if i == len(labels) - 1 else upto + target[i]
        count = np.int64(upto + leak_offset(turn)) - before
        if count > 0:
            filled += donate(donors, outside, labels[i], count, turn, stratum[filled:], n_cells[filled:])
    return filled
