"""How many cells of each stratum the batches of a group hold on average: fractional targets that the cells can meet."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from cellcohort.cells import Column
from cellcohort.sampling.planning.strata import Strata


class AskedShares(NamedTuple):
    """What a share axis asks of each label of its column.

    Attributes
    ----------
    column : Column
    share : numpy.ndarray of float, shape (n_labels,)
        Share of a batch.
    group : numpy.ndarray of int, shape (n_labels,), or None
        The group that each label lies in, if the column of the groups is part of `column`. A batch then cannot hold
        labels of other groups, save by leaks, and is not asked to.
    """

    column: Column
    share: np.ndarray
    group: np.ndarray | None

    @classmethod
    def of(cls, column: Column, share: np.ndarray, groups: Column | None) -> AskedShares:
        """Bring shares to a sum of 1, and look up the groups of labels where they are part of `column`."""
        if abs(share.sum() - 1) > 1e-9:
            share = share / share.sum()
        if groups is None:
            return cls(column, share, None)
        of: np.ndarray = np.zeros(len(share), np.int64)
        of[column.codes] = groups.codes
        return cls(column, share, of)

    def within(self, primary: int) -> np.ndarray:
        """Share of each label in the cells of a batch that come from its primary group."""
        return self.share if self.group is None else _scaled(np.where(self.group == primary, self.share, 0.0))

    def asked(self, primary: np.ndarray, leaky: float) -> np.ndarray:
        """Share of each label in a batch with these primary groups."""
        if self.group is None:
            return self.share
        others = _scaled(np.where(np.isin(self.group, primary), 0.0, self.share))
        own = sum(self.within(int(group)) for group in primary) / len(primary)
        return (1 - leaky * others.sum()) * own + leaky * others


def _scaled(share: np.ndarray) -> np.ndarray:
    return share / share.sum() if share.any() else share


class Targets(NamedTuple):
    """What the batches of each primary group hold on average.

    Attributes
    ----------
    first : numpy.ndarray of int64, shape (n_groups + 1,)
        Group `g` has the strata ``first[g]:first[g + 1]``.
    upto : numpy.ndarray of float, shape (n_strata,)
        Running sum of the targets over the strata of a group, in cells. It includes the leaked cells of the label
        where `joint` is true. Empty where all groups are `equal`.
    own, leak : numpy.ndarray of float, shape (n_groups,)
        Cells of a batch from its primary group, and from the others. They add up to the batch.
    equal : numpy.ndarray of bool, shape (n_groups,)
        Whether all strata of the group have the same target.
    joint : numpy.ndarray of bool, shape (n_groups,)
        Whether the same share of every label is leaked, so that labels are rounded first and leaks from the result.
    leak_first, leak_label, leak_upto : numpy.ndarray
        Labels that leak into the batches of group `g`, and the running sum of their targets, from ``leak_first[g]`` to
        ``leak_first[g + 1]``. Empty where leaks follow `weight_upto`.
    weight_upto : numpy.ndarray of float, shape (n_labels,)
        Running sum of the weights of all labels. Empty without leaks, and where labels have equal weights.
    alone_first, alone_label, alone_upto : numpy.ndarray
        Labels that no other group has than `g`, and the running sum of their weights, from ``alone_first[g]`` to
        ``alone_first[g + 1]``.
    """

    first: np.ndarray
    upto: np.ndarray
    own: np.ndarray
    leak: np.ndarray
    equal: np.ndarray
    joint: np.ndarray
    leak_first: np.ndarray
    leak_label: np.ndarray
    leak_upto: np.ndarray
    weight_upto: np.ndarray
    alone_first: np.ndarray
    alone_label: np.ndarray
    alone_upto: np.ndarray

    def cells(self) -> np.ndarray:
        """Target of each stratum in a batch of its own group, in cells; float of shape (n_strata,)."""
        per_group = np.diff(self.first)
        if not len(self.upto):
            return np.repeat(self.own / np.maximum(per_group, 1), per_group)
        cells = np.diff(self.upto, prepend=0.0)
        begins = self.first[:-1][per_group > 0]
        cells[begins] = self.upto[begins]
        return cells


def build_targets(strata: Strata, ratios: list[np.ndarray], leaky: float, places: float, n_groups: int) -> Targets:
    """Split the places of a batch among the strata of each group, and among the labels of the others.

    Parameters
    ----------
    strata : Strata
    ratios : list of numpy.ndarray
        Asked share of each code, one array per share axis.
    leaky : float
        Share of a batch that comes from other groups than the primary one.
    places : float
        Cells of a batch.
    n_groups : int
    """
    first = np.searchsorted(strata.group, np.arange(n_groups + 1))
    label, size, levels = strata.label, strata.size, strata.levels
    n_labels = len(levels)
    everyone = np.bincount(label, weights=size, minlength=n_labels).astype(np.int64)
    in_group = np.add.reduceat(size, first[:-1].clip(max=len(size) - 1)) * (np.diff(first) > 0)
    leak = np.minimum(leaky * places, everyone.sum() - in_group).astype(float)
    ratio = np.ones((n_labels, levels.shape[1]))
    for level, share in enumerate(ratios):
        ratio[:, level] = share[levels[:, level]]
    weight = np.empty(n_labels)
    _split(1.0, levels, ratio, np.full(n_labels, np.iinfo(np.int64).max // (n_labels + 1)), weight)
    target, equal = _own_targets(first, label, size, levels, ratio, places - leak)
    equal &= levels.shape[1] <= 1  # else a change of order would mix up the labels of the first level
    alone = np.where(size == everyone[label], weight[label], 0.0) if leaky else np.zeros(len(size))
    joint, leaves = np.zeros(n_groups, bool), (np.zeros(n_groups + 1, np.int64), np.empty(0, np.int32), np.empty(0))
    if leaky:
        joint = _joint_groups(first, label, size, everyone, weight, target, leak)
        rest = 1.0 - np.add.reduceat(alone, first[:-1].clip(max=len(size) - 1)) * (np.diff(first) > 0)
        others = everyone[label] - size
        fewest = everyone.copy()  # cells of a label that a group finds in the others, at least
        np.minimum.at(fewest, label[others > 0], others[others > 0])
        led = (np.diff(first) > 0) & ~joint & (leak > 0)
        if led.any() and (leak[led].max() * weight / rest[led].min().clip(1e-12) > fewest).any():
            leaves = _leaves_of_leaks(first, label, size, levels, ratio, np.where(led, leak, 0.0))
    target = np.where(np.repeat(joint, np.diff(first)), places * weight[label], target)
    own = np.where(joint, float(places), places - leak)
    there = np.flatnonzero(alone)
    alone_first = np.searchsorted(there, first)
    return Targets(
        first, np.empty(0) if equal[np.diff(first) > 0].all() else _running(target, first), own, leak, equal, joint,
        *leaves, np.cumsum(weight) if leaky and np.ptp(weight) > 1e-12 * weight[0] else np.empty(0),
        alone_first, label[there], _running(alone[there], alone_first),
    )  # fmt: skip


@njit(cache=True, nogil=True)
def _running(values: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Return the running sums of the values of each group."""
    out = np.empty_like(values)
    for g in range(len(first) - 1):
        total = 0.0
        for s in range(first[g], first[g + 1]):
            total += values[s]
            out[s] = total
    return out


@njit(cache=True, nogil=True)
def _own_targets(
    first: np.ndarray, label: np.ndarray, size: np.ndarray, levels: np.ndarray, ratio: np.ndarray, own: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Cells of each stratum in a batch of its own group, and whether they are equal in a group."""
    target, equal = np.zeros(len(label)), np.zeros(len(own), np.bool_)
    for g in range(len(own)):
        a, b = first[g], first[g + 1]
        if a < b:
            _split(own[g], levels[label[a:b]], ratio[label[a:b]], size[a:b], target[a:b])
            equal[g] = target[a:b].max() - target[a:b].min() < 1e-9
    return target, equal


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
def _leaves_of_leaks(
    first: np.ndarray, label: np.ndarray, size: np.ndarray, levels: np.ndarray, ratio: np.ndarray, leak: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the labels that leak into the batches of each group, with the running sum of their targets."""
    n_labels = len(levels)
    everyone = np.zeros(n_labels, np.int64)
    for s in range(len(label)):
        everyone[label[s]] += size[s]
    start = np.zeros(len(leak) + 1, np.int64)
    for g in range(len(leak)):
        n = 0
        if leak[g] > 0:
            n = n_labels
            for s in range(first[g], first[g + 1]):
                n -= size[s] == everyone[label[s]]
        start[g + 1] = start[g] + n
    leaf, upto = np.empty(start[-1], np.int32), np.empty(start[-1])
    for g in range(len(leak)):
        if start[g] == start[g + 1]:
            continue
        pool = everyone.copy()
        for s in range(first[g], first[g + 1]):
            pool[label[s]] -= size[s]
        found = np.flatnonzero(pool)
        target = np.empty(len(found))
        _split(leak[g], levels[found], ratio[found], pool[found], target)
        leaf[start[g] : start[g + 1]] = found
        upto[start[g] : start[g + 1]] = np.cumsum(target)
    return start, leaf, upto


@njit(cache=True, nogil=True)
def _split(total: float, levels: np.ndarray, ratio: np.ndarray, size: np.ndarray, out: np.ndarray) -> None:
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
