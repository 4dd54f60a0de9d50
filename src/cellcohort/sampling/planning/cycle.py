"""A cycle of batches: which group leads each, and how many cells of each stratum it holds.

Every batch of the cycle is exact: quotas are rounded so that each label (and each combination of
labels) gets the whole number below or above its target, and the spare places rotate from batch to
batch. A running count of the cells taken from each stratum before is kept with every batch, so
that any batch can be drawn without drawing the ones before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cellcohort.sampling.planning.quotas import BOTH, LEAKED, Quota
from cellcohort.sampling.planning.rounding import GOLDEN, PLASTIC, FlatQuotas, leaked_of, round_quotas, sum_by, within
from cellcohort.sampling.planning.strata import Strata
from cellcohort.sampling.rng import key_of, uniform

SHORTEST_CYCLE = 1024  # batches; lets spare places and small groups come in small tables


@dataclass(frozen=True)
class Cycle:
    """A cycle of batches, repeated for as long as an epoch lasts.

    Attributes
    ----------
    primary, occurrence : numpy.ndarray of int, shape (n_batches,)
        Group that leads each batch, and how many batches of the cycle it led before.
    occurrences : numpy.ndarray of int, shape (n_groups,)
        Batches of the cycle that each group leads.
    ptr : numpy.ndarray of int, shape (n_batches + 1,)
        Batch `i` takes ``count[j]`` cells of ``stratum[j]`` for j in ``ptr[i]:ptr[i + 1]``.
    stratum, count, before : numpy.ndarray of int, shape (n_entries,)
        `before` counts the cells that earlier batches of the cycle take from the stratum.
    total : numpy.ndarray of int, shape (n_strata,)
        Cells that one cycle takes from each stratum.
    """

    primary: np.ndarray
    occurrence: np.ndarray
    occurrences: np.ndarray
    ptr: np.ndarray
    stratum: np.ndarray
    count: np.ndarray
    before: np.ndarray
    total: np.ndarray

    def __len__(self) -> int:
        return len(self.primary)

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return sum(array.nbytes for array in vars(self).values())

    def length_that_covers(self, size: np.ndarray) -> int:
        """The least number of batches that draws every cell of every stratum, wherever it begins."""
        by_stratum = np.argsort(self.stratum, kind="stable")
        row = np.repeat(np.arange(len(self)), np.diff(self.ptr))[by_stratum]
        bounds = np.searchsorted(self.stratum[by_stratum], np.arange(len(size) + 1))
        longest = 0
        for s, cells in enumerate(size):
            rows = row[bounds[s] : bounds[s + 1]]
            if len(rows) == 0:
                raise ValueError(f"{cells} cells are drawn by no batch of the cycle.")
            laps, rest = divmod(int(cells), int(self.total[s]))
            length = laps * len(self)
            if rest:
                taken = np.cumsum(np.tile(self.count[by_stratum[bounds[s] : bounds[s + 1]]], 2))
                twice = np.concatenate([rows, rows + len(self)])
                before = np.concatenate([[rows[-1] - len(self)], rows[:-1]])  # the epoch begins right after this row
                start = taken[: len(rows)] - self.count[by_stratum[bounds[s] : bounds[s + 1]]]
                length += int((twice[np.searchsorted(taken, start + rest)] - before).max())
            longest = max(longest, length)
        return longest


def build_cycle(
    strata: Strata, weights: np.ndarray, quotas: dict[int, list[Quota]], n_batches: int, seed: int
) -> Cycle:
    """Plan a cycle of about `n_batches` batches.

    Parameters
    ----------
    weights : numpy.ndarray of float, shape (n_groups,)
        How often each group leads; groups without an entry in `quotas` never do.
    quotas : dict of int to list of Quota
        What the batches of each leading group hold.
    """
    primaries = np.array(sorted(quotas))
    share = weights[primaries] / weights[primaries].sum()
    occurrences = np.zeros(len(weights), np.int64)
    occurrences[primaries] = np.maximum(1, np.rint(share * max(n_batches, SHORTEST_CYCLE)))
    primary, occurrence = order_of_primaries(occurrences, seed)

    flat = FlatQuotas.of([(g, quota) for g in primaries for quota in quotas[g]], strata.levels.shape[1] > 1)
    row, section = _pairs(flat.primary, primary)
    place, leaf, count = round_quotas(flat, section, occurrence[row], seed)
    row, section, label = row[place], section[place], flat.label[leaf]
    leaked = np.where(flat.part[section] == LEAKED, count, 0)
    thin = flat.part[section] == BOTH
    leaked[thin] = leaked_of(place[thin], count[thin], flat.leaky[section[thin]], occurrence[row[thin]])
    own = count - leaked

    key_of = strata.group.astype(np.int64) * len(strata.levels) + strata.label
    kept = own > 0
    own_stratum = np.searchsorted(key_of, primary[row[kept]] * len(strata.levels) + label[kept])
    spread = leaked > 0
    leak_entry, leak_stratum = _spread(
        strata, primary[row[spread]], label[spread], leaked[spread], occurrence[row[spread]]
    )
    rows = np.concatenate([row[kept], row[spread][leak_entry]])
    stratum = np.concatenate([own_stratum, leak_stratum])
    counts = np.concatenate([own[kept], np.ones(len(leak_entry), np.int64)])
    return _assemble(strata, primary, occurrence, occurrences, rows, stratum, counts)


def order_of_primaries(occurrences: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Spread each group's occurrences evenly over the cycle, each at a random moment of its interval."""
    group = np.repeat(np.arange(len(occurrences)), occurrences)
    occurrence = np.arange(len(group)) - np.repeat(np.cumsum(occurrences) - occurrences, occurrences)
    jitter = uniform(key_of(seed), np.arange(len(group), dtype=np.uint64))
    order = np.argsort((occurrence + jitter) / occurrences[group], kind="stable")
    return group[order].astype(np.int32), occurrence[order]


def _pairs(section_primary: np.ndarray, primary: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every (batch, section) that belong together; sections of one primary are neighbours."""
    first = np.searchsorted(section_primary, primary)
    n = np.searchsorted(section_primary, primary, side="right") - first
    row = np.repeat(np.arange(len(primary)), n)
    return row, np.repeat(first, n) + within(n)


def _spread(
    strata: Strata, primary: np.ndarray, label: np.ndarray, count: np.ndarray, occurrence: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Share leaked cells out over the other groups' strata of their label, in proportion to size.

    Returns the entry and the stratum of every leaked cell.
    """
    order = np.argsort(strata.label, kind="stable")  # by label, then group
    labels, size = strata.label[order].astype(np.int64), strata.size[order]
    end = np.cumsum(size)
    label_begin = (end - size)[np.searchsorted(labels, label)]
    label_end = end[np.searchsorted(labels, label, side="right") - 1]
    width = np.int64(strata.group.max() + 1)
    key_of, key = labels * width + strata.group[order], label * width + primary
    at = np.minimum(np.searchsorted(key_of, key), len(order) - 1)
    own = np.where(key_of[at] == key, size[at], 0)
    own_begin = np.where(own > 0, end[at] - size[at], label_end)

    entry = np.repeat(np.arange(len(count)), count)
    theta = np.mod(occurrence * GOLDEN + label * PLASTIC, 1.0)
    pool = label_end - label_begin - own
    point = label_begin[entry] + (within(count) + theta[entry]) * (pool / count)[entry]
    point += np.where(point >= own_begin[entry], own[entry], 0)
    return entry, order[np.searchsorted(end, point, side="right")]


def _assemble(
    strata: Strata, primary: np.ndarray, occurrence: np.ndarray, occurrences: np.ndarray,
    row: np.ndarray, stratum: np.ndarray, count: np.ndarray,
) -> Cycle:  # fmt: skip
    n = len(strata.group)
    by_label = np.argsort(strata.label, kind="stable")
    rank = np.empty(n, np.int64)
    rank[by_label] = np.arange(n)
    key, count = sum_by(row * n + rank[stratum], count)
    row, stratum = key // n, by_label[key % n]
    order = np.argsort(stratum, kind="stable")
    running = np.cumsum(count[order]) - count[order]
    new = np.concatenate([[True], np.diff(stratum[order]) != 0])
    before = np.empty(len(count), np.int64)
    before[order] = running - np.maximum.accumulate(np.where(new, running, 0))
    return Cycle(
        primary, occurrence, occurrences, np.searchsorted(row, np.arange(len(primary) + 1)), stratum.astype(np.int32),
        count.astype(_narrow(count, np.int16)), before.astype(_narrow(before, np.int32)),
        np.bincount(stratum, weights=count, minlength=n).astype(np.int64),
    )  # fmt: skip


def _narrow(values: np.ndarray, small: type[np.signedinteger]) -> type[np.signedinteger]:
    """`small` if it holds the values, else int64."""
    return small if values.max(initial=0) <= np.iinfo(small).max else np.int64
