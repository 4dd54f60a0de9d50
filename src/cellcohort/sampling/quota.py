"""How many cells of each label a batch is to hold: fractional targets that the cells can meet."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from cellcohort.sampling.strata import Strata

OWN, LEAKED, BOTH = 0, 1, 2


@dataclass(frozen=True)
class Quota:
    """What one part of a batch is to hold.

    Attributes
    ----------
    part : int
        `OWN` (cells of the group that leads the batch), `LEAKED` (cells of the others), or `BOTH`
        where a share `leaky` of every label's cells is leaked.
    total : int
        Cells of this part.
    label : numpy.ndarray of int, shape (n,)
        Rows of ``Strata.levels``, ascending.
    target : numpy.ndarray of float, shape (n,)
        Cells per label; sums to `total`.
    leaky : float
    """

    part: int
    total: int
    label: np.ndarray
    target: np.ndarray
    leaky: float = 0.0


def fill(total: float, ratio: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Split `total` in proportion to `ratio` (all > 0), repeating cells as rarely as possible.

    No part gets more than its size while another has cells left, and no cell comes a third time
    before all came twice. What a part cannot take is shared by the others, in proportion to ratio.
    """
    times = max(1, math.ceil(total / size.sum()))
    low, high = (times - 1) * size, times * size
    # the parts take clip(scale * ratio, low, high); find the scale at which they add up to total
    scales = np.concatenate([low, high]) / np.concatenate([ratio, ratio])
    order = np.argsort(scales, kind="stable")
    slope = np.cumsum(np.concatenate([ratio, -ratio])[order])
    reached = low.sum() + np.concatenate([[0.0], np.cumsum(slope[:-1] * np.diff(scales[order]))])
    scale = np.interp(total, reached, scales[order])
    return np.clip(scale * ratio, low, high)


def nested(total: float, levels: np.ndarray, ratios: list[np.ndarray], size: np.ndarray) -> np.ndarray:
    """Split `total` by the first level, each part by the second, and so on.

    Parameters
    ----------
    levels : numpy.ndarray of int, shape (n, n_levels)
        Code of each part on each level, rows sorted.
    ratios : list of numpy.ndarray
        Ratio of each code, one array per level.
    size : numpy.ndarray of int, shape (n,)
        Cells per part.
    """
    if not ratios:
        return np.full(len(size), total / max(len(size), 1))
    codes, member = np.unique(levels[:, 0], return_inverse=True)
    target = fill(total, ratios[0][codes], np.bincount(member, weights=size))
    if len(ratios) == 1:
        return target
    parts = [
        nested(target[i], levels[member == i, 1:], ratios[1:], size[member == i]) if target[i] > 0 else
        np.zeros(int((member == i).sum()))
        for i in range(len(codes))
    ]  # fmt: skip
    return np.concatenate(parts)


def quotas(strata: Strata, leader: int, ratios: list[np.ndarray], leaky: float, batch_size: int) -> list[Quota]:
    """The quotas of the batches that group `leader` leads.

    Parameters
    ----------
    ratios : list of numpy.ndarray
        Asked share of each code, one array per share axis.
    """
    low, high = np.searchsorted(strata.group, [leader, leader + 1])
    label, size = strata.label[low:high], strata.size[low:high]
    pool = np.bincount(strata.label, weights=strata.size, minlength=len(strata.levels))
    pool[label] -= size
    leak = min(leaky * batch_size, pool.sum())
    if leak == 0:
        return [Quota(OWN, batch_size, label, nested(batch_size, strata.levels[label], ratios, size))]
    leak_label = np.flatnonzero(pool)
    leak_size = pool[leak_label]

    def split(own_total: float, leak_total: float) -> tuple[np.ndarray, np.ndarray]:
        return (
            nested(own_total, strata.levels[label], ratios, size),
            nested(leak_total, strata.levels[leak_label], ratios, leak_size),
        )

    own_target, leak_target = split(batch_size - leak, leak)
    if np.array_equal(label, leak_label):
        both, share = own_target + leak_target, leak / batch_size
        most = np.ceil(both - 1e-9)
        roomy = (most - np.floor(most * share) <= size) & (np.ceil(most * share) <= leak_size)
        if roomy.all() and np.allclose(leak_target, share * both, rtol=0, atol=1e-9):
            return [Quota(BOTH, batch_size, label, both, share)]
    n_leak = round(leak)
    own_target, leak_target = split(batch_size - n_leak, n_leak)
    parts = [Quota(OWN, batch_size - n_leak, label, own_target), Quota(LEAKED, n_leak, leak_label, leak_target)]
    return [part for part in parts if part.total]
