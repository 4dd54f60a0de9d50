"""At most so many cells of one label in a batch; compiled.

A batch counts the labels of its cells in a hash table, and turns away cells of a label that it has enough of.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cellcohort.compiled import compiled
from cellcohort.sampling.planning.strata import Strata
from cellcohort.sampling.rng import Whole, mix, stride

MOST_TRIES = 8  # cells looked at for each one needed before a cap gives way
_U = np.uint64


class Cap(NamedTuple):
    """A batch takes at most `most` cells of a label (any number if 0); `label` by position, `tally` of the batch."""

    label: np.ndarray
    most: int
    tally: np.ndarray


@compiled
def empty_counts(n: Whole) -> np.ndarray:
    """Return an empty table of (label + 1, count), int64 of shape (n_slots, 2), with room for `n` labels."""
    size = 2
    while size < 2 * n:
        size *= 2
    return np.zeros((size, 2), np.int64)


@compiled
def slot_of(counts: np.ndarray, label: Whole) -> Whole:
    """Return the slot of a label, which is empty if none of it was counted."""
    slot = np.int64(mix(_U(0), _U(label)) & _U(len(counts) - 1))
    while counts[slot, 0] != 0 and counts[slot, 0] != label + 1:
        slot = (slot + 1) & (len(counts) - 1)
    return slot


@compiled
def count_up_to(counts: np.ndarray, label: Whole, most: Whole) -> bool:
    """Count a cell of `label` and return True, or return False if `most` cells of it are counted already."""
    slot = slot_of(counts, label)
    if counts[slot, 1] >= most:
        return False
    counts[slot, 0] = label + 1
    counts[slot, 1] += 1
    return True


@compiled
def draw_capped(
    strata: Strata,
    most: int,
    stratum: np.ndarray,
    count: np.ndarray,
    before: np.ndarray,
    key: np.uint64,
    out: np.ndarray,
) -> None:
    """As `draw`, with at most `most` cells of one capped label, if there are.

    Cells of one label are neighbours in a stratum, and its order takes long steps, so that few are turned away. Their
    places go to cells that the order will not reach for long.
    """
    filled, cap = 0, Cap(strata.capped, most, empty_counts(count.sum()))
    for entry in range(len(stratum)):
        s, need = stratum[entry], count[entry]
        first, n = strata.start[s], strata.start[s + 1] - strata.start[s]
        stratum_key = mix(key, _U(s))
        step, offset = stride(n, stratum_key), np.int64(stratum_key >> _U(2)) % n
        tries = min(n, MOST_TRIES * (need + 8))
        turned_away = np.empty(tries, np.int64)
        taken = n_away = 0
        for i in range(max(tries, need)):
            far = need + (i - need + (n - need) // 2) % (n - need) if need <= i < n else i
            rank = _jittered((offset + (before[entry] + far) % n * step) % n, n, stratum_key)
            position = strata.order[first + rank]
            if need <= n and not count_up_to(cap.tally, cap.label[position], cap.most):
                turned_away[n_away] = position
                n_away += 1
                continue
            out[filled + taken] = position
            taken += 1
            if taken == need:
                break
        fill_with_turned_away(cap, turned_away[:n_away], out[filled + taken : filled + need])
        filled += need


@compiled
def _jittered(rank: Whole, n: Whole, key: np.uint64) -> Whole:
    """Swap neighbours within blocks of 16, so that the order does not always bring the same cells together."""
    block = rank >> 4
    return rank if (block + 1) << 4 > n else np.int64(_U(rank) ^ (mix(key, _U(block)) & _U(15)))


@compiled
def fill_with_turned_away(cap: Cap, turned_away: np.ndarray, out: np.ndarray) -> None:
    """Fill `out` with cells that the cap turned away, raising the cap one by one."""
    filled, most = 0, cap.most
    while filled < len(out):
        most += 1
        for i in range(len(turned_away)):
            if turned_away[i] >= 0 and filled < len(out) and count_up_to(cap.tally, cap.label[turned_away[i]], most):
                out[filled] = turned_away[i]
                filled, turned_away[i] = filled + 1, -1
