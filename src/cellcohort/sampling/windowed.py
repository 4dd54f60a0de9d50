"""Batches with a focal time, compiled.

A stratum is cut into blocks of `CLASSES` neighbouring cells, and each block gives one cell to each
class. Batches that follow each other draw from different classes, so they share no cell while
there are enough, whatever their windows; when a class runs out, the next is used.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from cellcohort.sampling.draw import MOST_TRIES, admit, give_way, tally
from cellcohort.sampling.keyed import bits_of, mix, permuted

CLASSES = 64
_BITS = 6
TOLERANCE = 1e-4  # hours, a third of a second; what 32-bit hours leave unsure is less
_U = np.uint64


@njit(cache=True, nogil=True)
def focal_knot(knot, first, last, turn, key):  # type: ignore[no-untyped-def]
    """One of the times ``knot[first:last]``, each having its turn; -1 if all are missing."""
    n = last - first
    index = permuted(turn % n, n, bits_of(n), mix(key, _U(turn // n)))
    for i in range(n):
        known = first + (index + i) % n
        if np.isfinite(knot[known]):
            return known
    return -1


@njit(cache=True, nogil=True)
def draw_windowed(  # type: ignore[no-untyped-def]
    order,
    start,
    knot,
    knot_start,
    knot_ptr,
    capped,
    most,
    stratum,
    count,
    focal,
    half_width,
    inside,
    number,
    key,
    share,
    shares,
    out,
):
    """As `draw`, with `inside` cells of the batch at most `half_width` from `focal`, if there are.

    With `most` > 0, also with at most so many cells of one label of `capped`, if there are.
    """
    m = len(stratum)
    low, high, begin, end = np.empty(m, np.int64), np.empty(m, np.int64), np.empty(m, np.int64), np.empty(m, np.int64)
    for entry in range(m):
        s = stratum[entry]
        size = start[s + 1] - start[s]
        times = knot[knot_ptr[s] : knot_ptr[s + 1]]
        begin[entry] = knot_start[knot_ptr[s] + np.searchsorted(times, focal - half_width - TOLERANCE)] - start[s]
        end[entry] = (
            knot_start[knot_ptr[s] + np.searchsorted(times, focal + half_width + TOLERANCE, "right")] - start[s]
        )
        within = end[entry] - begin[entry]
        turns = (count[entry] + size - 1) // size  # how often the most repeated cell must come
        low[entry] = max((turns - 1) * within, count[entry] - turns * (size - within))
        high[entry] = min(turns * within, count[entry] - (turns - 1) * (size - within))
    wanted = _share_out(count, low, high, inside, number)

    place = filled = 0
    held = tally(count.sum() if most > 0 else 1)
    batch_key = mix(key, _U(number))
    for entry in range(m):
        s = stratum[entry]
        size = start[s + 1] - start[s]
        for part in range(2):
            need = wanted[entry] if part == 0 else count[entry] - wanted[entry]
            place, filled = _draw_part(
                order, start[s], size, begin[entry], end[entry], capped, most, held, part, need, number % CLASSES,
                mix(key, _U(s)), mix(batch_key, _U(s)), place, filled, share, shares, out,
            )  # fmt: skip
    if most == 0:
        for i in range(filled):
            out[i] = order[out[i]]


@njit(cache=True, nogil=True)
def _share_out(count, low, high, inside, number):  # type: ignore[no-untyped-def]
    """Share `inside` places out in proportion to `count`, between `low` and `high` of each entry."""
    m = len(count)
    total = count.sum()
    wanted = np.empty(m, np.int64)
    for entry in range(m):
        wanted[entry] = min(max(count[entry] * inside // total, low[entry]), high[entry])
    rest = min(max(inside, low.sum()), high.sum()) - wanted.sum()
    step = 1 if rest > 0 else -1
    while rest != 0:
        room = 0
        for entry in range(m):
            room += wanted[entry] < high[entry] if step > 0 else wanted[entry] > low[entry]
        each = max(1, abs(rest) // room)
        for i in range(m):
            entry = (i + number) % m
            space = high[entry] - wanted[entry] if step > 0 else wanted[entry] - low[entry]
            moved = min(each, space, abs(rest))
            wanted[entry] += step * moved
            rest -= step * moved
    return wanted


@njit(cache=True, nogil=True)
def _blocks(begin, end):  # type: ignore[no-untyped-def]
    return begin // CLASSES, (end - 1) // CLASSES - begin // CLASSES + 1 if end > begin else 0


@njit(cache=True, nogil=True)
def _draw_part(  # type: ignore[no-untyped-def]
    order, begin_of, size, begin, end, capped, most, held, part, need, first_class, stratum_key, batch_key,
    place, filled, share, shares, out,
):  # fmt: skip
    """Draw `need` cells of one stratum inside (part 0) or outside (part 1) the ranks begin..end."""
    if need == 0:
        return place, filled
    shift = np.int64(stratum_key % _U(CLASSES))
    # the ranks to draw from are one or two runs of neighbours; of each, its first block and number of blocks
    bounds = ((begin, end), (0, 0)) if part == 0 else ((0, begin), (end, size))
    left, n_left = _blocks(bounds[0][0] + shift, bounds[0][1] + shift)
    right, n_right = _blocks(bounds[1][0] + shift, bounds[1][1] + shift)
    n_fit = bounds[0][1] - bounds[0][0] + bounds[1][1] - bounds[1][0]
    look = most > 0  # without a cap, all positions are looked up together at the end, which is faster
    if n_fit == 1:  # as in most strata of a screen with very many labels
        position = begin_of + (bounds[0][0] if bounds[0][1] > bounds[0][0] else bounds[1][0])
        if look:
            position = order[position]
        if need == 1 and (most == 0 or admit(held, capped[position], most)):
            if place % shares == share:
                out[filled] = position
                filled += 1
            return place + 1, filled
    most = most if need <= n_fit else 0
    tries = min(n_fit, MOST_TRIES * (need + 8)) if most > 0 else 0
    turned_away = np.empty(tries, np.int64)
    n_blocks = n_left + n_right
    bits = bits_of(n_blocks)
    taken = n_away = visit = 0
    while True:
        cell_class = first_class ^ _reversed_bits(visit % CLASSES)
        walk_key = mix(batch_key, _U(2 * visit + part))
        for i in range(n_blocks):
            j = permuted(i, n_blocks, bits, walk_key)
            block = left + j if j < n_left else right + j - n_left
            rank = block * CLASSES - shift + _offset(cell_class, mix(stratum_key, _U(block)))
            lowest, highest = bounds[0] if j < n_left else bounds[1]
            if not lowest <= rank < highest:
                continue
            position = order[begin_of + rank] if look else begin_of + rank
            if most > 0 and not admit(held, capped[position], most):
                turned_away[n_away] = position
                n_away += 1
            else:
                if place % shares == share:
                    out[filled] = position
                    filled += 1
                place, taken = place + 1, taken + 1
            if taken + (n_away if taken + n_away == tries else 0) >= need:
                return give_way(
                    held, capped, most, turned_away[:n_away], need - taken, place, filled, share, shares, out
                )
        visit += 1


@njit(cache=True, nogil=True)
def _offset(cell_class, key):  # type: ignore[no-untyped-def]
    """Which cell of a block belongs to a class: a permutation of 0..CLASSES-1 that `key` names."""
    x = _U(cell_class)
    for _ in range(3):
        x = (x + key) & _U(63)
        x = (x * (key >> _U(6) | _U(1))) & _U(63)
        x ^= x >> _U(3)
        key >>= _U(12)
    return np.int64(x)


@njit(cache=True, nogil=True)
def _reversed_bits(x):  # type: ignore[no-untyped-def]
    """The `_BITS` bits of x in reverse order, so that classes used next to each other are far apart."""
    y = 0
    for _ in range(_BITS):
        y = (y << 1) | (x & 1)
        x >>= 1
    return y
