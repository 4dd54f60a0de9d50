"""Batches with a focal time, compiled.

A stratum is cut into blocks of `CLASSES` neighbouring cells, and each block gives one cell to each
class. Batches that follow each other draw from different classes, so they share no cell while
there are enough, whatever their windows; when a class runs out, the next is used. In a window of few
blocks some classes have no cell, and the classes after these come more often: therefore the classes
of small strata are dealt anew from time to time, and all cells come equally often.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cellcohort.compiled import compiled, inlined
from cellcohort.sampling.drawing.cap import MOST_TRIES, Cap, count_up_to, empty_counts, fill_with_turned_away
from cellcohort.sampling.planning.plan import Plan
from cellcohort.sampling.planning.quotas import on_average
from cellcohort.sampling.rng import Whole, bits_of, mix, permuted

CLASSES = 64
SMALL = 16 * CLASSES  # cells; smaller strata deal their classes anew every CLASSES batches
FEW = 16  # cells that are looked at one by one, where trying class by class would mostly miss
_BITS = 6
TOLERANCE = 1e-4  # hours, a third of a second; what 32-bit hours leave unsure is less
_U = np.uint64


class TimedCells(NamedTuple):
    """The cells of a plan, and what its batches are to hold of them.

    Attributes
    ----------
    order, start, times, times_start, times_indptr, capped : numpy.ndarray
        As in `Strata`.
    most : int
        Cells of one label of `capped` in a batch; 0 without a cap.
    half_width, inside : float
        Half-width of the time window in hours, and cells of a batch inside it, on average.
    """

    order: np.ndarray
    start: np.ndarray
    times: np.ndarray
    times_start: np.ndarray
    times_indptr: np.ndarray
    capped: np.ndarray
    most: int
    half_width: float
    inside: float

    @classmethod
    def of(cls, plan: Plan) -> TimedCells:
        """Return those of a plan."""
        strata = plan.strata
        return cls(
            strata.order, strata.start, strata.times, strata.times_start, strata.times_indptr, strata.capped,
            plan.cap, float(plan.half_width), plan.places * plan.share_inside,
        )  # fmt: skip


class Part(NamedTuple):
    """The cells of one stratum inside or outside a time window: two runs of ranks in it. It begins at `start`."""

    stratum: Whole
    start: Whole
    size: Whole
    first: tuple[Whole, Whole]
    second: tuple[Whole, Whole]
    outside: bool


@compiled
def draw_in_time_window(
    cells: TimedCells,
    stratum: np.ndarray,
    count: np.ndarray,
    focal: float,
    number: Whole,
    key: np.uint64,
    out: np.ndarray,
) -> None:
    """Fill `out` with ``count[i]`` cells of each ``stratum[i]``, of all as many inside the time window as are asked.

    With a cap, at most `most` cells of one capped label, if there are. `number` is the place of the batch in its
    epoch, and `key` that of the epoch.
    """
    order, start, times, indptr, m = cells.order, cells.start, cells.times, cells.times_indptr, len(stratum)
    low, high, begin, end = np.empty(m, np.int64), np.empty(m, np.int64), np.empty(m, np.int64), np.empty(m, np.int64)
    for entry in range(m):
        s = stratum[entry]
        size = start[s + 1] - start[s]
        first = first_from(times, indptr[s], indptr[s + 1], focal - cells.half_width - TOLERANCE)
        last = first_from(times, first, indptr[s + 1], focal + cells.half_width + TOLERANCE)
        begin[entry], end[entry] = cells.times_start[first] - start[s], cells.times_start[last] - start[s]
        low[entry], high[entry] = least_and_most(count[entry], size, end[entry] - begin[entry])
    n_inside = share_out(count, low, high, on_average(cells.inside, number), number)

    filled = 0
    cap = Cap(cells.capped, cells.most, empty_counts(count.sum() if cells.most > 0 else 1))
    for entry in range(m):
        s, near, far = stratum[entry], n_inside[entry], count[entry] - n_inside[entry]
        size = start[s + 1] - start[s]
        if near:
            part = Part(s, start[s], size, (begin[entry], end[entry]), (0, 0), False)
            _draw_part(order, part, cap, number, key, out[filled : filled + near])
        if far:
            part = Part(s, start[s], size, (0, begin[entry]), (end[entry], size), True)
            _draw_part(order, part, cap, number, key, out[filled + near : filled + near + far])
        filled += count[entry]
    if cap.most == 0:  # without a cap, all positions are looked up together, which is faster
        for i in range(filled):
            out[i] = order[out[i]]


@compiled
def least_and_most(count: Whole, size: Whole, within: Whole) -> tuple[Whole, Whole]:
    """How few and how many of `count` cells of a stratum of `size` can be of `within`, with the fewest repeats."""
    times = (count + size - 1) // size  # how often the most repeated cell must come
    least = max((times - 1) * within, count - times * (size - within))
    return least, min(times * within, count - (times - 1) * (size - within))


@inlined
def first_from(values: np.ndarray, first: Whole, last: Whole, least: float) -> Whole:
    """Return the first of the rising ``values[first:last]`` that is not below `least`; `last` if all are."""
    while first < last:
        middle = (first + last) // 2
        if values[middle] < least:
            first = middle + 1
        else:
            last = middle
    return first


@compiled
def share_out(count: np.ndarray, low: np.ndarray, high: np.ndarray, inside: Whole, number: Whole) -> np.ndarray:
    """Share `inside` places out in proportion to `count`, between `low` and `high` of each entry."""
    m = len(count)
    total = count.sum()
    part = np.empty(m, np.int64)
    for entry in range(m):
        part[entry] = min(max(count[entry] * inside // total, low[entry]), high[entry])
    rest = min(max(inside, low.sum()), high.sum()) - part.sum()
    step = 1 if rest > 0 else -1
    while rest != 0:
        room = 0
        for entry in range(m):
            room += part[entry] < high[entry] if step > 0 else part[entry] > low[entry]
        each = max(1, abs(rest) // room)
        for i in range(m):
            entry = (i + number) % m
            space = high[entry] - part[entry] if step > 0 else part[entry] - low[entry]
            moved = min(each, space, abs(rest))
            part[entry] += step * moved
            rest -= step * moved
    return part


@compiled
def _draw_part(order: np.ndarray, part: Part, cap: Cap, number: Whole, key: np.uint64, out: np.ndarray) -> None:
    """Fill `out` with cells of one part of a stratum: ranks in sorted order, or positions where there is a cap."""
    need, n_fit = len(out), part.first[1] - part.first[0] + part.second[1] - part.second[0]
    stratum_key = mix(key, _U(part.stratum))
    if part.size <= SMALL:
        stratum_key = mix(stratum_key, _U(number // CLASSES))
    if part.size <= CLASSES and cap.most == 0 and need <= n_fit <= FEW:
        _draw_few(part, number % CLASSES, mix(stratum_key, _U(0)), out)
        return
    shift = np.int64(stratum_key % _U(CLASSES)) if part.size > CLASSES else np.int64(0)
    batch_key = mix(mix(key, _U(number)), _U(part.stratum))
    # of each run, its first block and number of blocks
    left, n_left = _blocks(part.first[0] + shift, part.first[1] + shift)
    right, n_right = _blocks(part.second[0] + shift, part.second[1] + shift)
    capped = cap.most > 0 and need <= n_fit
    tries = min(n_fit, MOST_TRIES * (need + 8)) if capped else 0
    turned_away = np.empty(tries, np.int64)
    n_blocks = n_left + n_right
    bits = bits_of(n_blocks)
    taken = n_away = round_ = 0
    while True:
        cell_class = number % CLASSES ^ _reversed_bits(round_ % CLASSES)
        round_key = mix(batch_key, _U(2 * round_ + part.outside))
        for i in range(n_blocks):
            j = permuted(i, n_blocks, bits, round_key)
            block = left + j if j < n_left else right + j - n_left
            rank = block * CLASSES - shift + _offset(cell_class, mix(stratum_key, _U(block)))
            lowest, highest = part.first if j < n_left else part.second
            if not lowest <= rank < highest:
                continue
            position = order[part.start + rank] if cap.most > 0 else part.start + rank
            if capped and not count_up_to(cap.tally, cap.label[position], cap.most):
                turned_away[n_away] = position
                n_away += 1
            else:
                out[taken] = position
                taken += 1
            if taken + (n_away if taken + n_away == tries else 0) >= need:
                fill_with_turned_away(cap, turned_away[:n_away], out[taken:])
                return
        round_ += 1


@compiled
def _blocks(begin: Whole, end: Whole) -> tuple[Whole, Whole]:
    """Return the first block of a run of ranks, and how many it touches."""
    return begin // CLASSES, (end - 1) // CLASSES - begin // CLASSES + 1 if end > begin else 0


@compiled
def _draw_few(part: Part, first_class: Whole, key: np.uint64, out: np.ndarray) -> None:
    """Fill `out` with the cells of a part whose classes come up first, found by looking at every cell."""
    due: Whole = -1
    for i in range(len(out)):
        next_rank: Whole = 0
        next_due: Whole = CLASSES
        for begin, end in (part.first, part.second):
            for rank in range(begin, end):
                own = _reversed_bits(_class_at(rank, key) ^ first_class)
                if due < own < next_due:
                    next_rank, next_due = rank, own
        out[i], due = part.start + next_rank, next_due


@compiled
def _class_at(offset: Whole, key: np.uint64) -> Whole:
    """Return the class of a cell of a block: the inverse of `_offset`."""
    x = _U(offset)
    for i in range(3):
        k = key >> _U(12 * (2 - i))
        odd = k >> _U(6) | _U(1)
        x ^= x >> _U(3)
        x = (x * odd * (_U(2) - odd * odd)) & _U(63)  # odd * (2 - odd**2) is the inverse of odd, modulo 64
        x = (x - k) & _U(63)
    return np.int64(x)


@compiled
def _offset(cell_class: Whole, key: np.uint64) -> Whole:
    """Which cell of a block belongs to a class: a permutation of 0..CLASSES-1 that `key` names."""
    x = _U(cell_class)
    for _ in range(3):
        x = (x + key) & _U(63)
        x = (x * (key >> _U(6) | _U(1))) & _U(63)
        x ^= x >> _U(3)
        key >>= _U(12)
    return np.int64(x)


@compiled
def _reversed_bits(x: Whole) -> Whole:
    """Return the `_BITS` bits of x in reverse order, so that classes used next to each other are far apart."""
    y: Whole = 0
    for _ in range(_BITS):
        y = (y << 1) | (x & 1)
        x >>= 1
    return y
