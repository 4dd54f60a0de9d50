"""From a planned batch to the positions of its cells, compiled.

Each stratum is walked along one pseudo-random cycle per epoch: a batch takes the
next cells of it, wherever the batches before it stopped. So no cell comes a second time before all
came once, and batches that follow each other share no cell.
Batches with a focal time are drawn in `windowed`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from cellcohort.sampling.rng import bits_of, mix, permuted, stride

MOST_TRIES = 8  # cells looked at for each one needed before a cap gives way
_U = np.uint64


@njit(cache=True, nogil=True)
def draw(order, start, stratum, count, before, key, share, shares, out):  # type: ignore[no-untyped-def]
    """Fill `out` with share `share` of `shares` of a batch: every `shares`-th place of it."""
    place = filled = 0
    for entry in range(len(stratum)):
        s = stratum[entry]
        n = start[s + 1] - start[s]
        stratum_key, bits = mix(key, _U(s)), bits_of(n)
        for i in range(count[entry]):
            if place % shares == share:
                out[filled] = start[s] + permuted((before[entry] + i) % n, n, bits, stratum_key)
                filled += 1
            place += 1
    for i in range(filled):
        out[i] = order[out[i]]


@njit(cache=True, nogil=True)
def draw_capped(order, start, capped, most, stratum, count, before, key, share, shares, out):  # type: ignore[no-untyped-def]
    """As `draw`, with at most `most` cells of one label of `capped` (codes by position), if there are.

    Cells of one label are neighbours in a stratum, and the walk takes long steps, so that few are
    turned away. Their places go to cells that the walk will not reach for long.
    """
    place = filled = 0
    held = tally(count.sum())
    for entry in range(len(stratum)):
        s, need = stratum[entry], count[entry]
        n = start[s + 1] - start[s]
        stratum_key = mix(key, _U(s))
        step, offset = stride(n, stratum_key), np.int64(stratum_key >> _U(2)) % n
        tries = min(n, MOST_TRIES * (need + 8))
        turned_away = np.empty(tries, np.int64)
        taken = n_away = 0
        for i in range(max(tries, need)):
            far = need + (i - need + (n - need) // 2) % (n - need) if need <= i < n else i
            rank = _jittered((offset + (before[entry] + far) % n * step) % n, n, stratum_key)
            position = order[start[s] + rank]
            if need <= n and not admit(held, capped[position], most):
                turned_away[n_away] = position
                n_away += 1
                continue
            if place % shares == share:
                out[filled] = position
                filled += 1
            place, taken = place + 1, taken + 1
            if taken == need:
                break
        place, filled = give_way(
            held, capped, most, turned_away[:n_away], need - taken, place, filled, share, shares, out
        )


@njit(cache=True, nogil=True)
def give_way(held, capped, most, turned_away, missing, place, filled, share, shares, out):  # type: ignore[no-untyped-def]
    """Fill the places that are missing with cells turned away, raising the cap one by one."""
    while missing > 0:
        most += 1
        for i in range(len(turned_away)):
            if turned_away[i] >= 0 and missing > 0 and admit(held, capped[turned_away[i]], most):
                if place % shares == share:
                    out[filled] = turned_away[i]
                    filled += 1
                place, missing, turned_away[i] = place + 1, missing - 1, -1
    return place, filled


@njit(cache=True, nogil=True)
def _jittered(rank, n, key):  # type: ignore[no-untyped-def]
    """Swap neighbours within blocks of 16, so that the walk does not always bring the same cells together."""
    block = rank >> 4
    return rank if (block + 1) << 4 > n else np.int64(_U(rank) ^ (mix(key, _U(block)) & _U(15)))


@njit(cache=True, nogil=True)
def tally(n):  # type: ignore[no-untyped-def]
    """An empty count of labels: a hash table of (label + 1, count) with room for n labels."""
    size = 2
    while size < 2 * n:
        size *= 2
    return np.zeros((size, 2), np.int64)


@njit(cache=True, nogil=True)
def admit(held, label, most):  # type: ignore[no-untyped-def]
    """Count a cell of `label`, unless there are `most` of it."""
    slot = np.int64(mix(_U(0), _U(label)) % _U(len(held)))
    while held[slot, 0] != 0 and held[slot, 0] != label + 1:
        slot = (slot + 1) % len(held)
    if held[slot, 1] >= most:
        return False
    held[slot, 0] = label + 1
    held[slot, 1] += 1
    return True
