"""How many cells of each label a batch is to hold: fractional targets that the cells can meet."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from cellcohort.sampling.planning.strata import Strata

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
    even = _nested_evenly(total, levels, ratios)
    if (even <= size).all():
        return even
    codes, first = np.unique(levels[:, 0], return_index=True) if ratios else (np.zeros(1, int), np.zeros(1, int))
    target = fill(total, ratios[0][codes] if ratios else np.ones(1), np.add.reduceat(size, first))
    if len(ratios) <= 1:
        return target
    bounds = [*first.tolist(), len(size)]
    return np.concatenate([
        nested(part, levels[i:j, 1:], ratios[1:], size[i:j])
        for part, i, j in zip(target, bounds, bounds[1:], strict=False)
    ])  # fmt: skip


def _nested_evenly(total: float, levels: np.ndarray, ratios: list[np.ndarray]) -> np.ndarray:
    """As `nested`, if every part had cells enough."""
    target = np.full(len(levels), float(total))
    family = np.zeros(len(levels), np.int64)  # rows that agree on the levels so far
    for level, ratio in enumerate(ratios):
        new = np.concatenate([[True], (levels[1:, : level + 1] != levels[:-1, : level + 1]).any(axis=1)])
        own = ratio[levels[:, level]]
        target *= own / np.bincount(family, weights=np.where(new, own, 0))[family]
        family = np.cumsum(new) - 1
    return target


def quotas(strata: Strata, ratios: list[np.ndarray], leaky: float, batch_size: int) -> dict[int, list[Quota]]:
    """What the batches of each group are to hold.

    Parameters
    ----------
    ratios : list of numpy.ndarray
        Asked share of each code, one array per share axis.
    leaky : float
        Share of a batch asked from the groups that do not lead it.
    """
    leaders, first = np.unique(strata.group, return_index=True)
    everyone = np.bincount(strata.label, weights=strata.size, minlength=len(strata.levels))
    bounds = [*first.tolist(), len(strata.group)]
    return {
        int(leader): _quotas_of(
            strata.levels, strata.label[i:j], strata.size[i:j], everyone, ratios, leaky, batch_size
        )
        for leader, i, j in zip(leaders, bounds, bounds[1:], strict=False)
    }  # fmt: skip


def _quotas_of(
    levels: np.ndarray, label: np.ndarray, size: np.ndarray, everyone: np.ndarray,
    ratios: list[np.ndarray], leaky: float, batch_size: int,
) -> list[Quota]:  # fmt: skip
    """The quotas of one group, which has `size` of the `everyone` cells of each of its labels."""
    leak = min(leaky * batch_size, everyone.sum() - size.sum())
    if leak == 0:
        return [Quota(OWN, batch_size, label, nested(batch_size, levels[label], ratios, size))]
    pool = everyone.copy()
    pool[label] -= size
    leak_label = np.flatnonzero(pool)
    leak_size = pool[leak_label]

    def split(own_total: float, leak_total: float) -> tuple[np.ndarray, np.ndarray]:
        return (
            nested(own_total, levels[label], ratios, size),
            nested(leak_total, levels[leak_label], ratios, leak_size),
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
