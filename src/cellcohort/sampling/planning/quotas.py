"""How many cells of each stratum a batch holds: fractional targets that the cells can meet, and whole numbers.

The n-th batch of a group rounds its targets by systematic sampling: the targets lie end to end on a line, and the
places of the batch are points one apart on it, which move on from batch to batch. So every run of labels gets the whole
number below or above its target, and over epochs every stratum comes as often as it is asked.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cellcohort.compiled import compiled
from cellcohort.sampling.planning.split import own_targets, ratios_of, running_sums
from cellcohort.sampling.planning.strata import Strata
from cellcohort.sampling.rng import GOLDEN, Whole, bits_of, mix, permuted

PARTS = 2**36  # of a cell, in which targets are added up: in whole numbers, so that sums over batches are exact
OFFSET = PARTS // 4 - 1  # of the points of a group's first batch: odd, as all are, lest one lie at an end of a target
OFFSET_STEP = 2 * (round(GOLDEN * PARTS / 2) | 1)
_U = np.uint64


class Targets(NamedTuple):
    """What the batches of each primary group hold of its strata on average.

    Attributes
    ----------
    places : float
        Cells of a batch; where it has several primary groups, of a block.
    first : numpy.ndarray of int64, shape (n_groups + 1,)
        Group `g` has the strata ``first[g]:first[g + 1]``.
    upto : numpy.ndarray of int64, shape (n_strata,)
        Running sum of the targets over the strata of a group, in an even number of `PARTS` of a cell. Empty where all
        groups are `equal`.
    own : numpy.ndarray of float, shape (n_groups,)
        Sum of the targets of a group: all cells of a batch, or those that do not leak in (see `Leaks`).
    equal : numpy.ndarray of bool, shape (n_groups,)
        Whether all strata of the group have the same target.
    """

    places: float
    first: np.ndarray
    upto: np.ndarray
    own: np.ndarray
    equal: np.ndarray

    @classmethod
    def of(cls, first: np.ndarray, target: np.ndarray, own: np.ndarray, equal: np.ndarray, places: float) -> Targets:
        """Sum up the target of each stratum, float of shape (n_strata,)."""
        there, upto = np.diff(first) > 0, np.empty(0, np.int64)
        if not equal[there].all():
            sums = running_sums(target, first)
            sums[first[1:][there] - 1] = own[there]
            upto = 2 * np.rint(sums * (PARTS // 2)).astype(np.int64)
        return cls(float(places), first, upto, own, equal)

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return sum(array.nbytes for array in self[1:])

    def cells(self) -> np.ndarray:
        """Target of each stratum in a batch of its own group, in cells; float of shape (n_strata,)."""
        per_group = np.diff(self.first)
        if not len(self.upto):
            return np.repeat(self.own / np.maximum(per_group, 1), per_group)
        cells = np.diff(self.upto, prepend=0)
        begins = self.first[:-1][per_group > 0]
        cells[begins] = self.upto[begins]
        return cells / PARTS


def build_targets(strata: Strata, ratios: list[np.ndarray], places: float, n_groups: int) -> Targets:
    """Split the places of a batch among the strata of each group; `ratios` are those that share axes ask of codes."""
    first, own = np.searchsorted(strata.group, np.arange(n_groups + 1)), np.full(n_groups, float(places))
    ratio = ratios_of(strata.levels, ratios)
    target, equal = own_targets(first, strata.label, strata.size, strata.levels, ratio, own)
    return Targets.of(first, target, own, equal, places)


class Rounded(NamedTuple):
    """What a batch takes from a group: ``cells[i]`` cells of its stratum number ``stratum[i]``; `total` in all."""

    stratum: np.ndarray
    cells: np.ndarray
    total: Whole


@compiled
def offset_of(occurrence: Whole) -> Whole:
    """How far the points of a group's n-th batch have moved on, in `PARTS` of the distance of two."""
    return (OFFSET + occurrence * OFFSET_STEP) % PARTS


@compiled
def on_average(cells: float, number: Whole) -> Whole:
    """Return the whole number for batch `number` that is `cells` on average; fractions are made up over batches."""
    whole = np.int64(cells + 1e-9)
    part = cells + 1e-9 - whole
    return whole + np.int64((number + 1) * part) - np.int64(number * part)


@compiled
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


@compiled
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


@compiled
def period_of(targets: Targets, group: Whole) -> Whole:
    """After how many batches all strata of a group gave equally many cells; 0 if their targets do not allow it."""
    own, n = np.rint(targets.own[group]), targets.first[group + 1] - targets.first[group]
    if not targets.equal[group] or abs(targets.own[group] - own) >= 1e-9:
        return 0
    a, b = n, np.int64(own) % n
    while b:
        a, b = b, a % b
    return n // a
