"""A cycle of batches: which group leads each, and how many cells of each stratum it holds.

Every batch of the cycle is exact: quotas are rounded so that each label (and each combination of
labels) gets the whole number below or above its target, and the spare places rotate from batch to
batch. A running count of the cells taken from each stratum before is kept with every batch, so
that any batch can be drawn without drawing the ones before it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from cellcohort.sampling.keyed import key_of, uniform
from cellcohort.sampling.quota import BOTH, LEAKED, Quota
from cellcohort.sampling.strata import Strata

GOLDEN = (math.sqrt(5) - 1) / 2  # steps of this fraction fill the unit interval most evenly
PLASTIC = 0.7548776662466927  # the same for a second rotation that keeps no step with the first
SHORTEST_CYCLE = 1024  # batches; lets spare places and small groups have their turns in small tables


@dataclass(frozen=True)
class Plan:
    """A cycle of batches, repeated for as long as an epoch lasts.

    Attributes
    ----------
    leader, turn : numpy.ndarray of int, shape (n_batches,)
        Group that leads each batch, and how many batches of the cycle it led before.
    turns : numpy.ndarray of int, shape (n_groups,)
        Batches of the cycle that each group leads.
    ptr : numpy.ndarray of int, shape (n_batches + 1,)
        Batch `i` takes ``count[j]`` cells of ``stratum[j]`` for j in ``ptr[i]:ptr[i + 1]``.
    stratum, count, before : numpy.ndarray of int, shape (n_entries,)
        `before` counts the cells that earlier batches of the cycle take from the stratum.
    total : numpy.ndarray of int, shape (n_strata,)
        Cells that one cycle takes from each stratum.
    """

    leader: np.ndarray
    turn: np.ndarray
    turns: np.ndarray
    ptr: np.ndarray
    stratum: np.ndarray
    count: np.ndarray
    before: np.ndarray
    total: np.ndarray

    def __len__(self) -> int:
        return len(self.leader)

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return sum(array.nbytes for array in vars(self).values())


def build_plan(strata: Strata, weights: np.ndarray, quotas: dict[int, list[Quota]], n_batches: int, seed: int) -> Plan:
    """Plan a cycle of about `n_batches` batches.

    Parameters
    ----------
    weights : numpy.ndarray of float, shape (n_groups,)
        How often each group leads; groups without an entry in `quotas` never do.
    quotas : dict of int to list of Quota
        What the batches of each leading group hold.
    """
    leaders = np.array(sorted(quotas))
    share = weights[leaders] / weights[leaders].sum()
    turns = np.zeros(len(weights), np.int64)
    turns[leaders] = np.maximum(1, np.rint(share * max(n_batches, SHORTEST_CYCLE)))
    leader, turn = _order_of_leaders(turns, seed)

    flat = _FlatQuotas.of([(g, quota) for g in leaders for quota in quotas[g]])
    row, section = _pairs(flat.leader, leader)
    place, leaf, count = _round(flat, section, turn[row])
    row, section, label = row[place], section[place], flat.label[leaf]
    leaked = np.where(flat.part[section] == LEAKED, count, 0)
    thin = flat.part[section] == BOTH
    leaked[thin] = _leaked(place[thin], count[thin], flat.leaky[section[thin]], turn[row[thin]])
    own = count - leaked

    key_of = strata.group * len(strata.levels) + strata.label
    kept = own > 0
    own_stratum = np.searchsorted(key_of, leader[row[kept]] * len(strata.levels) + label[kept])
    spread = leaked > 0
    leak_entry, leak_stratum = _spread(strata, leader[row[spread]], label[spread], leaked[spread], turn[row[spread]])
    rows = np.concatenate([row[kept], row[spread][leak_entry]])
    stratum = np.concatenate([own_stratum, leak_stratum])
    counts = np.concatenate([own[kept], np.ones(len(leak_entry), np.int64)])
    return _assemble(strata, leader, turn, turns, rows, stratum, counts)


def _order_of_leaders(turns: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Spread each group's turns evenly over the cycle, each at a random moment of its interval."""
    group = np.repeat(np.arange(len(turns)), turns)
    turn = np.arange(len(group)) - np.repeat(np.cumsum(turns) - turns, turns)
    jitter = uniform(key_of(seed), np.arange(len(group), dtype=np.uint64))
    order = np.argsort((turn + jitter) / turns[group], kind="stable")
    return group[order].astype(np.int32), turn[order]


@dataclass(frozen=True)
class _FlatQuotas:
    """All quotas end to end: section `i` owns the leaves ``ptr[i]:ptr[i + 1]``."""

    leader: np.ndarray
    part: np.ndarray
    leaky: np.ndarray
    label: np.ndarray
    whole: np.ndarray  # whole part of each leaf's target
    end: np.ndarray  # running sum of the fractional parts, sections end to end
    spare: np.ndarray  # places per section that the whole parts leave
    ptr: np.ndarray
    step: np.ndarray  # by how much the spare places move from one batch of the group to the next
    offset: np.ndarray

    @classmethod
    def of(cls, sections: list[tuple[int, Quota]]) -> _FlatQuotas:
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
        step = np.where(equal, [_coprime(n) / n for n in size], GOLDEN)
        return cls(
            leader=np.array([g for g, _ in sections]), part=np.array([q.part for q in quota]),
            leaky=np.array([q.leaky for q in quota]), label=np.concatenate([q.label for q in quota]),
            whole=whole, end=end, spare=spare, ptr=ptr, step=step, offset=np.where(equal, 0.5 / size, 0.25),
        )  # fmt: skip


def _coprime(n: int) -> int:
    """A number near the golden section of n that has no factor in common with it."""
    return next(a for a in range(max(1, round(n * GOLDEN)), 2 * n + 2) if math.gcd(a, n) == 1)


def _pairs(section_leader: np.ndarray, leader: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every (batch, section) that belong together; sections of one leader are neighbours."""
    first = np.searchsorted(section_leader, leader)
    n = np.searchsorted(section_leader, leader, side="right") - first
    row = np.repeat(np.arange(len(leader)), n)
    return row, np.repeat(first, n) + _within(n)


def _within(n: np.ndarray) -> np.ndarray:
    """0..n[0]-1, 0..n[1]-1, and so on."""
    return np.arange(n.sum()) - np.repeat(np.cumsum(n) - n, n)


def _round(flat: _FlatQuotas, section: np.ndarray, turn: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Whole numbers for every (batch, section): entries of (index of the pair, leaf, count).

    Systematic rounding: the fractional parts lie end to end on a line, and the spare places are
    points one apart on it, so every run of leaves gets the whole number below or above its sum.
    """
    theta = np.mod(flat.offset[section] + turn * flat.step[section], 1.0)
    n = flat.spare[section]
    base = np.cumsum(flat.spare) - flat.spare
    point = np.repeat(base[section] + 1 - theta, n) + _within(n)
    spare_leaf = np.searchsorted(flat.end, point)
    has = np.flatnonzero(flat.whole)
    first = np.searchsorted(has, flat.ptr)
    m = (first[1:] - first[:-1])[section]
    whole_leaf = has[np.repeat(first[:-1][section], m) + _within(m)]
    pair = np.concatenate([np.repeat(np.arange(len(section)), m), np.repeat(np.arange(len(section)), n)])
    leaf = np.concatenate([whole_leaf, spare_leaf])
    count = np.concatenate([flat.whole[whole_leaf], np.ones(len(spare_leaf), np.int64)])
    key, count = _sum_by(pair * len(flat.label) + leaf, count)
    return key // len(flat.label), key % len(flat.label), count


def _sum_by(key: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sorted distinct keys, and the sum of the counts of each."""
    order = np.argsort(key, kind="stable")
    key = key[order]
    first = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]]))
    return key[first], np.add.reduceat(count[order], first)


def _leaked(place: np.ndarray, count: np.ndarray, leaky: np.ndarray, turn: np.ndarray) -> np.ndarray:
    """How many of each entry's cells are leaked: the share `leaky` of every run of entries, rounded."""
    if len(place) == 0:
        return count
    end = np.cumsum(count)
    new = np.concatenate([[True], place[1:] != place[:-1]])
    begin = np.maximum.accumulate(np.where(new, end - count, 0))
    psi = np.mod(turn * PLASTIC, 1.0) * (1 - 1e-6) + 1e-9
    upto = np.floor((end - begin) * leaky + psi)
    return (upto - np.floor((end - begin - count) * leaky + psi)).astype(np.int64)


def _spread(
    strata: Strata, leader: np.ndarray, label: np.ndarray, count: np.ndarray, turn: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Share leaked cells out over the other groups' strata of their label, in proportion to size.

    Returns the entry and the stratum of every leaked cell.
    """
    order = np.argsort(strata.label, kind="stable")  # by label, then group
    labels, size = strata.label[order], strata.size[order]
    end = np.cumsum(size)
    label_begin = (end - size)[np.searchsorted(labels, label)]
    label_end = end[np.searchsorted(labels, label, side="right") - 1]
    width = np.int64(strata.group.max() + 1)
    key_of, key = labels * width + strata.group[order], label * width + leader
    at = np.minimum(np.searchsorted(key_of, key), len(order) - 1)
    own = np.where(key_of[at] == key, size[at], 0)
    own_begin = np.where(own > 0, end[at] - size[at], label_end)

    entry = np.repeat(np.arange(len(count)), count)
    theta = np.mod(turn * GOLDEN + label * PLASTIC, 1.0)
    pool = label_end - label_begin - own
    point = label_begin[entry] + (_within(count) + theta[entry]) * (pool / count)[entry]
    point += np.where(point >= own_begin[entry], own[entry], 0)
    return entry, order[np.searchsorted(end, point, side="right")]


def _assemble(
    strata: Strata, leader: np.ndarray, turn: np.ndarray, turns: np.ndarray,
    row: np.ndarray, stratum: np.ndarray, count: np.ndarray,
) -> Plan:  # fmt: skip
    n = len(strata.group)
    by_label = np.argsort(strata.label, kind="stable")
    rank = np.empty(n, np.int64)
    rank[by_label] = np.arange(n)
    key, count = _sum_by(row * n + rank[stratum], count)
    row, stratum = key // n, by_label[key % n]
    order = np.argsort(stratum, kind="stable")
    running = np.cumsum(count[order]) - count[order]
    new = np.concatenate([[True], np.diff(stratum[order]) != 0])
    before = np.empty(len(count), np.int64)
    before[order] = running - np.maximum.accumulate(np.where(new, running, 0))
    return Plan(
        leader, turn, turns, np.searchsorted(row, np.arange(len(leader) + 1)), stratum.astype(np.int32),
        count.astype(np.int32), before, np.bincount(stratum, weights=count, minlength=n).astype(np.int64),
    )  # fmt: skip
