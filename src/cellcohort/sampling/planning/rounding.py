"""Whole numbers of cells from fractional quotas, for many batches at once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numba import njit

from cellcohort.sampling.planning.quotas import Quota
from cellcohort.sampling.rng import Whole, key_of, permuted_each

GOLDEN = (math.sqrt(5) - 1) / 2  # steps of this fraction fill the unit interval most evenly
PLASTIC = 0.7548776662466927  # the same for a second rotation that keeps no step with the first


@dataclass(frozen=True)
class FlatQuotas:
    """All quotas end to end: section `i` owns the leaves ``ptr[i]:ptr[i + 1]``."""

    primary: np.ndarray
    part: np.ndarray
    leaky: np.ndarray
    label: np.ndarray
    whole: np.ndarray  # whole part of each leaf's target
    end: np.ndarray  # running sum of the fractional parts, sections end to end
    spare: np.ndarray  # places per section that the whole parts leave
    ptr: np.ndarray
    step: np.ndarray  # by how much the spare places move from one batch of the group to the next
    offset: np.ndarray
    alike: np.ndarray  # sections whose leaves are interchangeable but for the whole parts

    @classmethod
    def of(cls, sections: list[tuple[int, Quota]], nested: bool) -> FlatQuotas:
        quota = [q for _, q in sections]
        size = np.array([len(q.label) for q in quota])
        ptr = np.concatenate([[0], np.cumsum(size)])
        target = np.concatenate([q.target for q in quota])
        whole = np.floor(target + 1e-9).astype(np.int64)
        part = np.maximum(target - whole, 0.0)
        spare = np.array([q.total for q in quota]) - np.add.reduceat(whole, ptr[:-1])
        end = np.cumsum(part)
        base = np.cumsum(spare) - spare
        end += np.repeat(base - (end[ptr[:-1]] - part[ptr[:-1]]), size)
        end[ptr[1:] - 1] = base + spare  # rid of rounding errors
        equal = np.maximum.reduceat(part, ptr[:-1]) - np.minimum.reduceat(part, ptr[:-1]) < 1e-9
        step = np.where(equal, [golden_step(n) / n for n in size], GOLDEN)
        return cls(
            primary=np.array([g for g, _ in sections]), part=np.array([q.part for q in quota]),
            leaky=np.array([q.leaky for q in quota]), label=np.concatenate([q.label for q in quota]),
            whole=whole, end=end, spare=spare, ptr=ptr, step=step, offset=np.where(equal, 0.5 / size, 0.25),
            alike=equal & (not nested),
        )  # fmt: skip


@lru_cache
def golden_step(n: int) -> int:
    """A number near the golden section of n that has no factor in common with it."""
    return next(a for a in range(max(1, round(n * GOLDEN)), 2 * n + 2) if math.gcd(a, n) == 1)


def within(n: np.ndarray) -> np.ndarray:
    """0..n[0]-1, 0..n[1]-1, and so on."""
    return np.arange(n.sum()) - np.repeat(np.cumsum(n) - n, n)


def round_quotas(
    flat: FlatQuotas, section: np.ndarray, occurrence: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Whole numbers for every (batch, section): entries of (index of the pair, leaf, count).

    Systematic rounding: the fractional parts lie end to end on a line, and the spare places are
    points one apart on it, so every run of leaves gets the whole number below or above its sum.
    Where all parts are alike, they lie in a new order after every round, so that no two labels
    are kept apart for ever.
    """
    theta = np.mod(flat.offset[section] + occurrence * flat.step[section], 1.0)
    n = flat.spare[section]
    base = np.cumsum(flat.spare) - flat.spare
    point = np.repeat(base[section] + 1 - theta, n) + within(n)
    spare_leaf = np.searchsorted(flat.end, point)
    alike = np.repeat(flat.alike[section], n)
    of = np.repeat(section, n)[alike]
    size = np.diff(flat.ptr)[of]
    rounds = np.repeat(occurrence, n)[alike] // size
    local = spare_leaf[alike] - flat.ptr[of]
    spare_leaf[alike] = flat.ptr[of] + permuted_each(local, size, of * 2**32 + rounds, key_of(seed, 1))
    has = np.flatnonzero(flat.whole)
    first = np.searchsorted(has, flat.ptr)
    m = (first[1:] - first[:-1])[section]
    whole_leaf = has[np.repeat(first[:-1][section], m) + within(m)]
    pair = np.concatenate([np.repeat(np.arange(len(section)), m), np.repeat(np.arange(len(section)), n)])
    leaf = np.concatenate([whole_leaf, spare_leaf])
    count = np.concatenate([flat.whole[whole_leaf], np.ones(len(spare_leaf), np.int64)])
    key, count = sum_by(pair * len(flat.label) + leaf, count)
    return key // len(flat.label), key % len(flat.label), count


def sum_by(key: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sorted distinct keys, and the sum of the counts of each."""
    order = np.argsort(key, kind="stable")
    key = key[order]
    first = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]]))
    return key[first], np.add.reduceat(count[order], first)


def leaked_of(place: np.ndarray, count: np.ndarray, leaky: np.ndarray, occurrence: np.ndarray) -> np.ndarray:
    """How many of each entry's cells are leaked: the share `leaky` of every run of entries, rounded."""
    if len(place) == 0:
        return count
    end = np.cumsum(count)
    new = np.concatenate([[True], place[1:] != place[:-1]])
    begin = np.maximum.accumulate(np.where(new, end - count, 0))
    psi = np.mod(occurrence * PLASTIC, 1.0) * (1 - 1e-6) + 1e-9
    upto = np.floor((end - begin) * leaky + psi)
    return (upto - np.floor((end - begin - count) * leaky + psi)).astype(np.int64)


@njit(cache=True, nogil=True)
def inside_of(cells: float, number: Whole) -> Whole:
    """The whole number for batch `number` that is `cells` on average: fractions of a cell are made up over batches."""
    whole = np.int64(cells + 1e-9)
    part = cells + 1e-9 - whole
    return whole + np.int64((number + 1) * part) - np.int64(number * part)
