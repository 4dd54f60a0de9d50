"""How many cells of each stratum the batches of a group hold on average: fractional targets that the cells can meet."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from cellcohort.sampling.planning.strata import Strata

PARTS = 2**36  # of a cell, in which targets are added up: in whole numbers, so that sums over batches are exact


class Targets(NamedTuple):
    """What the batches of each primary group hold of its strata on average.

    Attributes
    ----------
    places : float
        Cells of a batch.
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
