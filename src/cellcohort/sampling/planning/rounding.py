"""Whole numbers of cells from targets; compiled.

The n-th batch of a group rounds its targets by systematic sampling: the targets lie end to end on a line, and the
places of the batch are points one apart on it, which move on from batch to batch. So every run of labels gets the whole
number below or above its target, and over epochs every stratum comes as often as it is asked.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from cellcohort.sampling.planning.targets import PARTS, Targets
from cellcohort.sampling.rng import Whole, bits_of, mix, permuted

GOLDEN = (math.sqrt(5) - 1) / 2  # multiples of it fill the unit interval most evenly
OFFSET = (
    PARTS // 4 - 1
)  # of the points of a group's first batch: odd, as all are, so that none lies at an end of a target
STEP = 2 * (round(GOLDEN * PARTS / 2) | 1)
_U = np.uint64


class Rounded(NamedTuple):
    """What a batch takes from a group: ``cells[i]`` cells of its stratum number ``stratum[i]``; `total` in all."""

    stratum: np.ndarray
    cells: np.ndarray
    total: Whole


@njit(cache=True, nogil=True)
def offset_of(occurrence: Whole) -> Whole:
    """How far the points of a group's n-th batch have moved on, in `PARTS` of the distance of two."""
    return (OFFSET + occurrence * STEP) % PARTS


@njit(cache=True, nogil=True)
def on_average(cells: float, number: Whole) -> Whole:
    """Return the whole number for batch `number` that is `cells` on average; fractions are made up over batches."""
    whole = np.int64(cells + 1e-9)
    part = cells + 1e-9 - whole
    return whole + np.int64((number + 1) * part) - np.int64(number * part)


@njit(cache=True, nogil=True)
def round_group(
    targets: Targets, group: Whole, occurrence: Whole, offset: Whole, places: Whole, key: np.uint64
) -> Rounded:
    """Round the targets of a group for its n-th batch, to at most `places` cells."""
    n = targets.first[group + 1] - targets.first[group]
    bits, period = bits_of(n), period_of(targets, group)
    if period > 0:
        return _round_equal(n, np.int64(np.rint(targets.own[group])), occurrence, period, key)
    upto = targets.upto[targets.first[group] : targets.first[group + 1]]
    own = upto[-1] if len(upto) > 0 else np.int64(np.rint(targets.own[group] * PARTS))
    stratum, cells = np.empty(min(n, places), np.int64), np.zeros(min(n, places), np.int64)
    at = filled = total = 0
    while total < places and (total + 1) * PARTS - offset < own:
        point = (total + 1) * PARTS - offset
        if len(upto) == 0:
            at = min(n - 1, np.int64(point / (own / n)))
        elif point >= upto[at]:
            at = min(n - 1, at + np.searchsorted(upto[at:], point, "right"))
        if filled == 0 or stratum[filled - 1] != at:
            stratum[filled], filled = at, filled + 1
        cells[filled - 1] += 1
        total += 1
    stratum, cells = stratum[:filled], cells[:filled]
    if targets.equal[group]:  # in a new order when all had their turn
        round_key = mix(key, _U(occurrence // n))
        for i in range(filled):
            stratum[i] = permuted(stratum[i], n, bits, round_key)
        order = np.argsort(stratum)
        stratum, cells = stratum[order], cells[order]
    return Rounded(stratum, cells, total)


@njit(cache=True, nogil=True)
def _round_equal(n: Whole, total: Whole, occurrence: Whole, period: Whole, key: np.uint64) -> Rounded:
    """Share `total` cells out equally among `n` strata: each in turn gets a spare cell, in a new order each period."""
    spare, bits, round_key = total % n, bits_of(n), mix(key, _U(occurrence // period))
    first = occurrence % period * spare
    stratum = np.empty(spare, np.int64)
    for i in range(spare):
        stratum[i] = permuted((first + i) % n, n, bits, round_key)
    if total < n:
        return Rounded(np.sort(stratum), np.ones(spare, np.int64), total)
    cells = np.full(n, total // n)
    for i in range(spare):
        cells[stratum[i]] += 1
    return Rounded(np.arange(n), cells, total)


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
