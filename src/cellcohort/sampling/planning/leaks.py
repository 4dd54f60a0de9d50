"""Which cells of other groups a batch holds, where cells leak between groups; compiled.

Each label has its share of the leak, as of the rest of the batch. Where every group has enough cells of every label,
labels are rounded for the whole batch, and a share of each is leaked. Elsewhere the labels of the leak lie end to end
on a line of their own, which the points of the batch reach after the line of its group. The cells of a label leak from
all other groups in proportion to their cells of it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from cellcohort.compiled import compiled
from cellcohort.sampling.planning.quotas import (
    PARTS,
    Rounded,
    Targets,
    build_targets,
    offset_of,
)
from cellcohort.sampling.planning.sorting import stable_order
from cellcohort.sampling.planning.split import own_targets, ratios_of, running_sums, split
from cellcohort.sampling.planning.strata import Strata
from cellcohort.sampling.rng import Whole

PLASTIC = 0.7548776662466927  # multiples of it fill the unit interval evenly, and keep no step with those of GOLDEN
SILVER = math.sqrt(2) - 1


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

    @classmethod
    def of(cls, strata: Strata, begin: np.ndarray) -> Donors:
        """Sort the strata by label."""
        order = stable_order(strata.label, len(strata.levels), np.arange(len(strata.label), dtype=np.int32))
        first = np.searchsorted(strata.label[order], np.arange(len(strata.levels) + 1)).astype(np.int32)
        return cls(first, order, np.cumsum(strata.size[order]).astype(strata.order.dtype), begin, strata.label)


class Leaks(NamedTuple):
    """Cells of other groups in the batches of each group.

    Attributes
    ----------
    cells : numpy.ndarray of float, shape (n_groups,)
        Leaked cells of a batch of each group, on average.
    joint : numpy.ndarray of bool, shape (n_groups,)
        Whether the same share of every label is leaked, so that labels are rounded first and leaks from the result.
    first, label, upto : numpy.ndarray
        Labels that leak into the batches of group `g`, and the running sum of their targets, from ``first[g]`` to
        ``first[g + 1]``. Empty where leaks follow `weight_upto`.
    weight_upto : numpy.ndarray of float, shape (n_labels,)
        Running sum of the weights of all labels. Empty without leaks, and where labels have equal weights.
    alone_first, alone_label, alone_upto : numpy.ndarray
        Labels that no other group has than `g`, and the running sum of their weights, from ``alone_first[g]`` to
        ``alone_first[g + 1]``.
    donors : Donors
        The strata of each label. Empty without leaks.
    """

    cells: np.ndarray
    joint: np.ndarray
    first: np.ndarray
    label: np.ndarray
    upto: np.ndarray
    weight_upto: np.ndarray
    alone_first: np.ndarray
    alone_label: np.ndarray
    alone_upto: np.ndarray
    donors: Donors

    @property
    def nbytes(self) -> int:
        """Bytes of memory held; the last arrays of `donors` are those of targets and strata."""
        return sum(array.nbytes for array in [*self[:-1], *self.donors[:3]])


def no_leaks(strata: Strata, begin: np.ndarray, *, donors: bool = False) -> Leaks:
    """Return leaks of no cells; with `donors` that know the strata of each label all the same."""
    of = Donors.of(strata, begin) if donors else Donors(
        np.zeros(1, np.int32), np.empty(0, np.int32), np.empty(0, strata.order.dtype), begin, strata.label
    )  # fmt: skip
    n_groups, number, label = len(begin) - 1, np.empty(0), np.empty(0, np.int32)
    none = np.zeros(n_groups + 1, np.int64)
    return Leaks(np.zeros(n_groups), np.zeros(n_groups, bool), none, label, number, number, none, label, number, of)


def build_leaks(
    strata: Strata, ratios: list[np.ndarray], leaky: float, places: float, n_groups: int
) -> tuple[Targets, Leaks]:
    """Split the places of a batch among the strata of each group, and those of its leak among the labels of the others.

    `ratios` are those that share axes ask of codes, and `leaky` is the share of a batch that leaks.
    """
    if leaky == 0:
        targets = build_targets(strata, ratios, places, n_groups)
        return targets, no_leaks(strata, targets.first)
    first = np.searchsorted(strata.group, np.arange(n_groups + 1))
    label, size, levels = strata.label, strata.size, strata.levels
    n_labels, there = len(levels), np.diff(first) > 0
    everyone = np.bincount(label, weights=size, minlength=n_labels).astype(np.int64)
    cells = np.minimum(leaky * places, everyone.sum() - _sums(size, first)).astype(float)
    ratio = ratios_of(levels, ratios)
    weight = np.empty(n_labels)
    split(1.0, levels, ratio, np.full(n_labels, np.iinfo(np.int64).max // (n_labels + 1)), weight)
    target, equal = own_targets(first, label, size, levels, ratio, places - cells)
    joint = _joint_groups(first, label, size, everyone, weight, target, cells)
    alone = np.where(size == everyone[label], weight[label], 0.0)
    rest, others = 1.0 - _sums(alone, first), everyone[label] - size
    fewest = everyone.copy()  # cells of a label that a group finds in the others, at least
    np.minimum.at(fewest, label[others > 0], others[others > 0])
    by_line = there & ~joint & (cells > 0)
    lonely = np.flatnonzero(alone)
    alone_first = np.searchsorted(lonely, first)
    start = np.zeros(n_groups + 1, np.int64)
    few = by_line.any() and (cells[by_line].max() * weight / rest[by_line].min().clip(1e-12) > fewest).any()
    # what is left out of a level is shared by the rest of that level, which one sum over all labels cannot tell
    own_line = by_line & (few or ((levels.shape[1] > 1) & (np.diff(alone_first) > 0)))
    start[1:] = np.cumsum(np.where(own_line, n_labels - np.diff(alone_first), 0))
    by_label = _targets_of_leaks(strata, ratio, first, everyone, cells, start)
    leaks = Leaks(
        cells, joint, start, *by_label, np.cumsum(weight) if np.ptp(weight) > 1e-12 * weight[0] else np.empty(0),
        alone_first, label[lonely], running_sums(alone[lonely], alone_first), Donors.of(strata, first),
    )  # fmt: skip
    target = np.where(np.repeat(joint, np.diff(first)), places * weight[label], target)
    own = np.where(joint, float(places), places - cells)
    return Targets.of(first, target, own, equal, places), leaks


def _sums(values: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Return the sum of the values of each group."""
    sums, there = np.zeros(len(first) - 1, values.dtype), np.diff(first) > 0
    sums[there] = np.add.reduceat(values, first[:-1][there])  # from the first value of each to that of the next
    return sums


@compiled
def _joint_groups(
    first: np.ndarray,
    label: np.ndarray,
    size: np.ndarray,
    everyone: np.ndarray,
    weight: np.ndarray,
    target: np.ndarray,
    leak: np.ndarray,
) -> np.ndarray:
    """Whether a group has all labels, and it and the others have enough cells of each."""
    joint = np.zeros(len(leak), np.bool_)
    for g in range(len(leak)):
        a, b = first[g], first[g + 1]
        own = target[a:b].sum()
        joint[g] = b - a == len(weight) and leak[g] > 0
        for s in range(a, b):
            if not joint[g]:
                break
            both, share = (own + leak[g]) * weight[label[s]], leak[g] / (own + leak[g])
            most = np.ceil(both - 1e-9)
            enough = most - np.floor(most * share) <= size[s] and np.ceil(most * share) <= everyone[label[s]] - size[s]
            joint[g] = enough and abs(target[s] - own * weight[label[s]]) < 1e-9
    return joint


@compiled
def _targets_of_leaks(
    strata: Strata, ratio: np.ndarray, first: np.ndarray, everyone: np.ndarray, leak: np.ndarray, start: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels that leak into the batches of each group, with the running sum of their targets."""
    label, upto = np.empty(start[-1], np.int32), np.empty(start[-1])
    for g in range(len(leak)):
        if start[g] == start[g + 1]:
            continue
        others = everyone.copy()
        for s in range(first[g], first[g + 1]):
            others[strata.label[s]] -= strata.start[s + 1] - strata.start[s]
        there = np.flatnonzero(others)
        target = np.empty(len(there))
        split(leak[g], strata.levels[there], ratio[there], others[there], target)
        label[start[g] : start[g + 1]] = there
        upto[start[g] : start[g + 1]] = np.cumsum(target)
    return label, upto


@compiled
def add_leaks(
    leaks: Leaks,
    targets: Targets,
    group: Whole,
    occurrence: Whole,
    rounded: Rounded,
    stratum: np.ndarray,
    n_cells: np.ndarray,
) -> Whole:
    """Write the strata of a group's n-th batch and the cells of each, by label; return how many entries there are.

    `rounded` is what its targets round to: the batch without its leaks, or all of it where the group is `joint`.
    """
    donors, first, outside = leaks.donors, targets.first[group], np.array([np.int64(group)])
    places, filled = np.int64(np.rint(targets.places)), 0
    if leaks.joint[group]:
        leaked = split_off(rounded, leaks.cells[group] / places, occurrence)
        for i in range(len(leaked)):
            if rounded.cells[i] > leaked[i]:
                stratum[filled], n_cells[filled] = first + rounded.stratum[i], rounded.cells[i] - leaked[i]
                filled += 1
            if leaked[i] > 0:
                label = donors.label[first + rounded.stratum[i]]
                filled += donate(donors, outside, label, leaked[i], occurrence, stratum[filled:], n_cells[filled:])
        return filled
    begin = (
        rounded.total + 1 - offset_of(occurrence) / PARTS - targets.own[group]
    )  # the first point on the line of leaks
    n_leak, j, at = places - rounded.total, 0, 0
    while j < n_leak:
        label, same = _label_at(leaks, group, begin + j), 1
        while j + same < n_leak and _label_at(leaks, group, begin + j + same) == label:
            same += 1
        while at < len(rounded.stratum) and donors.label[first + rounded.stratum[at]] <= label:
            stratum[filled], n_cells[filled] = first + rounded.stratum[at], rounded.cells[at]
            filled, at = filled + 1, at + 1
        filled += donate(donors, outside, label, same, occurrence, stratum[filled:], n_cells[filled:])
        j += same
    for i in range(at, len(rounded.stratum)):
        stratum[filled], n_cells[filled] = first + rounded.stratum[i], rounded.cells[i]
        filled += 1
    return filled


@compiled
def leak_offset(turn: Whole) -> float:
    """How far the points by which leaks are rounded have moved on in batch `turn`, above 0 and below 1."""
    return (turn * PLASTIC) % 1.0 * (1 - 1e-6) + 1e-9


@compiled
def split_off(rounded: Rounded, share: float, turn: Whole) -> np.ndarray:
    """Return a share of the cells of each label in whole numbers, which are exact over labels and over batches."""
    leaked, upto, offset = np.empty(len(rounded.cells), np.int64), 0, leak_offset(turn)
    for i in range(len(leaked)):
        leaked[i] = np.int64((upto + rounded.cells[i]) * share + offset) - np.int64(upto * share + offset)
        upto += rounded.cells[i]
    return leaked


@compiled
def _label_at(leaks: Leaks, group: Whole, place: float) -> Whole:
    """Return the label at a place of the line of a group's leaks, whose targets lie end to end."""
    begin, end = leaks.first[group], leaks.first[group + 1]
    if begin < end:
        at = np.searchsorted(leaks.upto[begin:end], place, "right")
        return np.int64(leaks.label[min(end - 1, begin + at)])
    alone_label = leaks.alone_label[leaks.alone_first[group] : leaks.alone_first[group + 1]]
    alone_upto = leaks.alone_upto[leaks.alone_first[group] : leaks.alone_first[group + 1]]
    rest = 1.0 - (alone_upto[-1] if len(alone_upto) > 0 else 0.0)
    n_labels = len(leaks.donors.first) - 1
    low, high, weight = 0, n_labels - 1, place / leaks.cells[group] * rest
    while low < high:  # the labels that only this group has are left out of the line
        middle = (low + high) // 2
        had = np.searchsorted(alone_label, middle, "right")
        left_out = alone_upto[had - 1] if had > 0 else 0.0
        upto = leaks.weight_upto[middle] if len(leaks.weight_upto) > 0 else (middle + 1) / n_labels
        if upto - left_out > weight:
            high = middle
        else:
            low = middle + 1
    return low


@compiled
def _own_of(donors: Donors, group: Whole, label: Whole) -> tuple[Whole, Whole]:
    """Where the cells of a group begin among those of a label in all groups, and how many they are."""
    first, last = donors.first[label], donors.first[label + 1]
    at = first + np.searchsorted(donors.stratum[first:last], donors.begin[group])
    if at >= last or donors.stratum[at] >= donors.begin[group + 1]:
        return 0, 0
    begin = np.int64(donors.end[at - 1]) if at > 0 else np.int64(0)
    return begin, np.int64(donors.end[at]) - begin


@compiled
def cells_outside(donors: Donors, outside: np.ndarray, label: Whole) -> Whole:
    """Cells of a label that are not of these groups."""
    first, last = donors.first[label], donors.first[label + 1]
    cells = np.int64(donors.end[last - 1]) - (np.int64(donors.end[first - 1]) if first > 0 else np.int64(0))
    for group in outside:
        cells -= _own_of(donors, group, label)[1]
    return cells


@compiled
def donate(
    donors: Donors,
    outside: np.ndarray,
    label: Whole,
    count: Whole,
    turn: Whole,
    stratum: np.ndarray,
    n_cells: np.ndarray,
) -> Whole:
    """Write the strata that `count` cells of a label leak from, in proportion to size, not of the groups `outside`."""
    first, last = donors.first[label], donors.first[label + 1]
    theta = (turn * SILVER + label * PLASTIC) % 1.0
    begin = np.float64(donors.end[first - 1]) if first > 0 else 0.0
    own_begin, own = np.empty(len(outside), np.int64), np.empty(len(outside), np.int64)
    for i in range(len(outside)):
        own_begin[i], own[i] = _own_of(donors, outside[i], label)
    step, filled = (donors.end[last - 1] - begin - own.sum()) / count, 0
    for k in range(count):
        point = begin + (k + theta) * step
        for i in range(len(outside)):  # in rising order, as their cells are
            point += own[i] if own[i] > 0 and point >= own_begin[i] else 0
        s = donors.stratum[min(last - 1, first + np.searchsorted(donors.end[first:last], point, "right"))]
        if filled == 0 or stratum[filled - 1] != s:
            stratum[filled], n_cells[filled], filled = s, 0, filled + 1
        n_cells[filled - 1] += 1
    return filled
