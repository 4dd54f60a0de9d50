"""How many cells of each stratum a batch holds: fractional targets that the cells can meet, and whole numbers.

The n-th batch of a group rounds its targets by systematic sampling: the targets lie end to end on a line, and the
places of the batch are points one apart on it, which move on from batch to batch. So every run of labels gets the whole
number below or above its target, and over epochs every stratum comes as often as it is asked.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from cellcohort.sampling.planning.strata import Strata
from cellcohort.sampling.rng import Whole, bits_of, mix, permuted

PARTS = 2**36  # of a cell, in which targets are added up: in whole numbers, so that sums over batches are exact
GOLDEN = (math.sqrt(5) - 1) / 2  # multiples of it fill the unit interval most evenly
OFFSET = (
    PARTS // 4 - 1
)  # of the points of a group's first batch: odd, as all are, so that none lies at an end of a target
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
    """Split the places of a batch among the strata of each group.

    Parameters
    ----------
    strata : Strata
    ratios : list of numpy.ndarray
        Asked share of each code, one array per share axis.
    places : float
        Cells of a batch.
    n_groups : int
    """
    first, own = np.searchsorted(strata.group, np.arange(n_groups + 1)), np.full(n_groups, float(places))
    ratio = ratios_of(strata.levels, ratios)
    target, equal = own_targets(first, strata.label, strata.size, strata.levels, ratio, own)
    return Targets.of(first, target, own, equal, places)


def ratios_of(levels: np.ndarray, ratios: list[np.ndarray]) -> np.ndarray:
    """Return the asked share of each code of `levels`, float of the same shape."""
    ratio = np.ones(levels.shape)
    for level, share in enumerate(ratios):
        ratio[:, level] = share[levels[:, level]]
    return ratio


@njit(cache=True, nogil=True)
def running_sums(values: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Return the running sums of the values of each group."""
    out = np.empty_like(values)
    for g in range(len(first) - 1):
        total = 0.0
        for s in range(first[g], first[g + 1]):
            total += values[s]
            out[s] = total
    return out


@njit(cache=True, nogil=True)
def own_targets(
    first: np.ndarray, label: np.ndarray, size: np.ndarray, levels: np.ndarray, ratio: np.ndarray, own: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Cells of each stratum in a batch of its own group, and whether they are equal in a group."""
    target, equal = np.zeros(len(label)), np.zeros(len(own), np.bool_)
    one_level = levels.shape[1] <= 1  # else a change of order would mix up the labels of the first level
    for g in range(len(own)):
        a, b = first[g], first[g + 1]
        if a < b:
            split(own[g], levels[label[a:b]], ratio[label[a:b]], size[a:b], target[a:b])
            equal[g] = one_level and target[a:b].max() - target[a:b].min() < 1e-9
    return target, equal


@njit(cache=True, nogil=True)
def split(total: float, levels: np.ndarray, ratio: np.ndarray, size: np.ndarray, out: np.ndarray) -> None:
    """Split `total` by the first level, each part by the second, and so on; as evenly as the cells allow.

    Parameters
    ----------
    total : float
    levels : numpy.ndarray of int64, shape (n, n_levels)
        Code of each part on each level; rows are distinct and sorted.
    ratio : numpy.ndarray of float, shape (n, n_levels)
        Ratio of each code.
    size : numpy.ndarray of int64, shape (n,)
        Cells of each part.
    out : numpy.ndarray of float, shape (n,)
        Is filled with the parts.
    """
    for limited in range(2):  # without regard to sizes first, which is all that is needed where they suffice
        out[:] = total
        for level in range(levels.shape[1]):
            begin = 0
            while begin < len(out):
                end = begin + 1
                while end < len(out) and (levels[end, :level] == levels[begin, :level]).all():
                    end += 1
                _split_level(
                    levels[begin:end, level], ratio[begin:end, level], size[begin:end], limited, out[begin:end]
                )
                begin = end
        if (out <= size).all():
            break


@njit(cache=True, nogil=True)
def _split_level(code: np.ndarray, ratio: np.ndarray, size: np.ndarray, limited: int, out: np.ndarray) -> None:
    """Split ``out[0]`` among the codes of one level."""
    first = np.flatnonzero(np.append(np.ones(1, np.bool_), code[1:] != code[:-1]))
    bounds = np.append(first, len(code))
    cells = np.array([size[bounds[i] : bounds[i + 1]].sum() for i in range(len(first))])
    ratios = ratio[first]
    part = fill(out[0], ratios, cells) if limited else out[0] * ratios / ratios.sum()
    for i in range(len(first)):
        out[bounds[i] : bounds[i + 1]] = part[i]


@njit(cache=True, nogil=True)
def fill(total: float, ratio: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Split `total` in proportion to `ratio` (all > 0), repeating cells as rarely as possible.

    No part gets more than its size while another has cells left, and no cell comes a third time
    before all came twice. What a part cannot take is shared by the others, in proportion to ratio.
    """
    times = max(1, int(np.ceil(total / size.sum())))
    low, high = (times - 1) * size, times * size
    # the parts take clip(scale * ratio, low, high); find the scale at which they add up to total
    scales = np.concatenate((low / ratio, high / ratio))
    order = np.argsort(scales)
    slope, reached, scale = 0.0, float(low.sum()), scales[order[0]]
    for i in order:
        step = slope * (scales[i] - scale)
        if reached + step >= total and slope > 0:
            scale += (total - reached) / slope
            break
        reached, scale = reached + step, scales[i]
        slope += ratio[i] if i < len(ratio) else -ratio[i - len(ratio)]
    return np.minimum(np.maximum(scale * ratio, low), high)


class Rounded(NamedTuple):
    """What a batch takes from a group: ``cells[i]`` cells of its stratum number ``stratum[i]``; `total` in all."""

    stratum: np.ndarray
    cells: np.ndarray
    total: Whole


@njit(cache=True, nogil=True)
def offset_of(occurrence: Whole) -> Whole:
    """How far the points of a group's n-th batch have moved on, in `PARTS` of the distance of two."""
    return (OFFSET + occurrence * OFFSET_STEP) % PARTS


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
