"""Places split among strata by the ratios of their labels, as far as there are cells."""

from __future__ import annotations

import numpy as np

from cellcohort.compiled import compiled


def ratios_of(levels: np.ndarray, ratios: list[np.ndarray]) -> np.ndarray:
    """Return the asked share of each code of `levels`, float of the same shape."""
    ratio = np.ones(levels.shape)
    for level, share in enumerate(ratios):
        ratio[:, level] = share[levels[:, level]]
    return ratio


@compiled
def running_sums(values: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Return the running sums of the values of each group."""
    out = np.empty_like(values)
    for g in range(len(first) - 1):
        total = 0.0
        for s in range(first[g], first[g + 1]):
            total += values[s]
            out[s] = total
    return out


@compiled
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


@compiled
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


@compiled
def _split_level(code: np.ndarray, ratio: np.ndarray, size: np.ndarray, limited: int, out: np.ndarray) -> None:
    """Split ``out[0]`` among the codes of one level."""
    first = np.flatnonzero(np.append(np.ones(1, np.bool_), code[1:] != code[:-1]))
    bounds = np.append(first, len(code))
    cells = np.array([size[bounds[i] : bounds[i + 1]].sum() for i in range(len(first))])
    ratios = ratio[first]
    part = fill(out[0], ratios, cells) if limited else out[0] * ratios / ratios.sum()
    for i in range(len(first)):
        out[bounds[i] : bounds[i + 1]] = part[i]


@compiled
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
