"""Whole numbers of cells from targets, and from which groups cells leak; compiled.

The n-th batch of a group rounds its targets by systematic sampling: the targets lie end to end on a line, and the
places of the batch are points one apart on it, which move on from batch to batch. So every run of labels gets the whole
number below or above its target, and over epochs every stratum comes as often as it is asked.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from cellcohort.sampling.planning.targets import Targets
from cellcohort.sampling.rng import Whole, bits_of, mix, permuted

GOLDEN = (math.sqrt(5) - 1) / 2  # multiples of it fill the unit interval most evenly
PLASTIC = 0.7548776662466927  # and of these, which keep no step with the first
SILVER = math.sqrt(2) - 1
_U = np.uint64


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
    places, outside = np.int64(np.rint(targets.own[group] + (0.0 if joint else leak))), np.array([np.int64(group)])
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
                filled += donate(donors, outside, label, leaked, occurrence, stratum[filled:], n_cells[filled:])
        return filled
    begin, n_leak, j = n_own + 1 - theta - targets.own[group], places - n_own, 0  # their points on the line of leaks
    while j < n_leak:
        label, same = _label_at(targets, donors, group, begin + j), 1
        while j + same < n_leak and _label_at(targets, donors, group, begin + j + same) == label:
            same += 1
        while at < len(leaf) and donors.label[first + leaf[at]] <= label:
            stratum[filled], n_cells[filled] = first + leaf[at], cells[at]
            filled, at = filled + 1, at + 1
        filled += donate(donors, outside, label, same, occurrence, stratum[filled:], n_cells[filled:])
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
    own, period = targets.own[group], period_of(targets, group)
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
def _own_of(donors: Donors, group: Whole, label: Whole) -> tuple[Whole, Whole]:
    """Where the cells of a group begin among those of a label in all groups, and how many they are."""
    first, last = donors.first[label], donors.first[label + 1]
    at = first + np.searchsorted(donors.stratum[first:last], donors.begin[group])
    if at >= last or donors.stratum[at] >= donors.begin[group + 1]:
        return 0, 0
    begin = np.int64(donors.end[at - 1]) if at > 0 else np.int64(0)
    return begin, np.int64(donors.end[at]) - begin


@njit(cache=True, nogil=True)
def cells_outside(donors: Donors, outside: np.ndarray, label: Whole) -> Whole:
    """Cells of a label that are not of these groups."""
    first, last = donors.first[label], donors.first[label + 1]
    cells = np.int64(donors.end[last - 1]) - (np.int64(donors.end[first - 1]) if first > 0 else np.int64(0))
    for group in outside:
        cells -= _own_of(donors, group, label)[1]
    return cells


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
def period_of(targets: Targets, group: Whole) -> Whole:
    """After how many batches all strata of a group gave equally many cells; 0 if their targets do not allow it."""
    own, n = np.rint(targets.own[group]), targets.first[group + 1] - targets.first[group]
    if not targets.equal[group] or abs(targets.own[group] - own) >= 1e-9:
        return 0
    a, b = n, np.int64(own) % n
    while b:
        a, b = b, a % b
    return n // a
