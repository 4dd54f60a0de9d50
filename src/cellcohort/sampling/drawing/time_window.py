"""Batches with a focal time, compiled.

A stratum is cut into blocks of `CLASSES` neighbouring cells, and each block gives one cell to each
class. Batches that follow each other draw from different classes, so they share no cell while
there are enough, whatever their windows; when a class runs out, the next is used. In a window of few
blocks some classes have no cell, and the classes after these come more often: therefore the classes
of small strata are dealt anew from time to time, and all cells come equally often.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from cellcohort.sampling.drawing.uniform import MOST_TRIES, admit, give_way, tally
from cellcohort.sampling.planning.rounding import inside_of
from cellcohort.sampling.rng import bits_of, mix, permuted

CLASSES = 64
SMALL = 16 * CLASSES  # cells; smaller strata deal their classes anew every CLASSES batches
FEW = 16  # cells that are looked at one by one, where trying class by class would mostly miss
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
    """As `draw`, with `inside` cells of the batch (see `inside_of`) at most `half_width` from `focal`, if there are.

    With `most` > 0, also with at most so many cells of one label of `capped`, if there are.
    """
    m = len(stratum)
    low, high, begin, end = np.empty(m, np.int64), np.empty(m, np.int64), np.empty(m, np.int64), np.empty(m, np.int64)
    for entry in range(m):
        s = stratum[entry]
        size = start[s + 1] - start[s]
        first, last = knot_ptr[s], knot_ptr[s + 1]
        first = first_from(knot, first, last, focal - half_width - TOLERANCE)
        begin[entry] = knot_start[first] - start[s]
        end[entry] = knot_start[first_from(knot, first, last, focal + half_width + TOLERANCE)] - start[s]
        within = end[entry] - begin[entry]
        low[entry], high[entry] = least_and_most(count[entry], size, within)
    wanted = share_out(count, low, high, inside_of(inside, number), number)

    place = filled = 0
    held = tally(count.sum() if most > 0 else 1)
    batch_key = mix(key, _U(number))
    for entry in range(m):
        s = stratum[entry]
        size = start[s + 1] - start[s]
        for part in range(2):
            need = wanted[entry] if part == 0 else count[entry] - wanted[entry]
            if need:
                place, filled = _draw_part(
                    order, s, start[s], size, begin[entry], end[entry], capped, most, held, part, need,
                    number, key, batch_key, place, filled, share, shares, out,
                )  # fmt: skip
    if most == 0:
        for i in range(filled):
            out[i] = order[out[i]]


@njit(cache=True, nogil=True)
def least_and_most(count, size, within):  # type: ignore[no-untyped-def]
    """How few and how many of `count` cells of a stratum of `size` can be of `within`, with the fewest repeats."""
    turns = (count + size - 1) // size  # how often the most repeated cell must come
    least = max((turns - 1) * within, count - turns * (size - within))
    return least, min(turns * within, count - (turns - 1) * (size - within))


@njit(cache=True, nogil=True)
def first_from(knot, first, last, time):  # type: ignore[no-untyped-def]
    """The first of the rising times ``knot[first:last]`` that is not below `time`; `last` if all are."""
    while first < last:
        middle = (first + last) // 2
        if knot[middle] < time:
            first = middle + 1
        else:
            last = middle
    return first


@njit(cache=True, nogil=True)
def share_out(count, low, high, inside, number):  # type: ignore[no-untyped-def]
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
    order, stratum, begin_of, size, begin, end, capped, most, held, part, need, number, key, batch_key,
    place, filled, share, shares, out,
):  # fmt: skip
    """Draw `need` cells of one stratum inside (part 0) or outside (part 1) the ranks begin..end."""
    # the ranks to draw from are one or two runs of neighbours
    bounds = ((begin, end), (0, 0)) if part == 0 else ((0, begin), (end, size))
    n_fit = bounds[0][1] - bounds[0][0] + bounds[1][1] - bounds[1][0]
    stratum_key = mix(key, _U(stratum))
    if size <= SMALL:
        stratum_key = mix(stratum_key, _U(number // CLASSES))
    shift = np.int64(stratum_key % _U(CLASSES)) if size > CLASSES else np.int64(0)
    first_class = number % CLASSES
    if size <= CLASSES and most == 0 and need <= n_fit <= FEW:
        block_key, turn = mix(stratum_key, _U(0)), np.int64(-1)
        for _ in range(need):
            rank, turn = _next_of_few(bounds, turn, first_class, block_key)
            if place % shares == share:
                out[filled] = begin_of + rank
                filled += 1
            place += 1
        return place, filled
    batch_key = mix(batch_key, _U(stratum))
    # of each run, its first block and number of blocks
    left, n_left = _blocks(bounds[0][0] + shift, bounds[0][1] + shift)
    right, n_right = _blocks(bounds[1][0] + shift, bounds[1][1] + shift)
    look = most > 0  # without a cap, all positions are looked up together at the end, which is faster
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
def _next_of_few(bounds, turn, first_class, key):  # type: ignore[no-untyped-def]
    """The rank within the bounds whose class comes up next after `turn`, found by looking at every rank; its turn."""
    next_rank, next_turn = 0, CLASSES
    for begin, end in bounds:
        for rank in range(begin, end):
            own = _reversed_bits(_class_at(rank, key) ^ first_class)
            if turn < own < next_turn:
                next_rank, next_turn = rank, own
    return next_rank, next_turn


@njit(cache=True, nogil=True)
def _class_at(offset, key):  # type: ignore[no-untyped-def]
    """The class of a cell of a block: the inverse of `_offset`."""
    x = _U(offset)
    for i in range(3):
        k = key >> _U(12 * (2 - i))
        odd = k >> _U(6) | _U(1)
        x ^= x >> _U(3)
        x = (x * odd * (_U(2) - odd * odd)) & _U(63)  # odd * (2 - odd**2) is the inverse of odd, modulo 64
        x = (x - k) & _U(63)
    return np.int64(x)


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
