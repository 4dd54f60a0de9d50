"""What the batches of one window ask of every stratum, compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from cellcohort.sampling.planning.cycle import Cycle
from cellcohort.sampling.rng import mix

DONOR_TRIES = 64  # cells looked at to find a group that cells may leak from
_U = np.uint64


class Turns(NamedTuple):
    """The batches of a plan by the group that leads them.

    Attributes
    ----------
    first : numpy.ndarray of int64, shape (n_groups + 1,)
        Group `g` leads the batches ``row[first[g]:first[g + 1]]`` of the plan.
    row : numpy.ndarray of int64, shape (n_batches,)
    ptr, stratum, cells : numpy.ndarray of int64
        Batch `i` takes ``cells[j]`` cells of ``stratum[j]`` for j in ``ptr[i]:ptr[i + 1]``.
    """

    first: np.ndarray
    row: np.ndarray
    ptr: np.ndarray
    stratum: np.ndarray
    cells: np.ndarray


def turns_of(plan: Cycle, n_groups: int) -> Turns:
    """The batches of a plan by the group that leads them."""
    row = np.argsort(plan.primary, kind="stable")
    first = np.searchsorted(plan.primary[row], np.arange(n_groups + 1))
    return Turns(first, row, plan.ptr, plan.stratum, plan.count.astype(np.int64))


class Asks(NamedTuple):
    """What batches ask: batch `j` asks ``cells[i]`` cells of ``stratum[i]`` for i in ``ptr[j]:ptr[j + 1]``."""

    ptr: np.ndarray
    stratum: np.ndarray
    cells: np.ndarray


@njit(cache=True, nogil=True)
def window_asks(leaders, blocks, n_turns, turns, layers, key):  # type: ignore[no-untyped-def]
    """What each batch of a window asks; batch ``t * groups + k`` is turn `t` of the window's group `k`.

    A group's own cells are those of its plan. Cells that leak in have the labels of its plan, but come
    from the other groups of the window, whose chunks are read anyway; if there is none, from one other
    group, met as often as it has cells. Where such a group lacks the cells, those of the plan are asked.
    """
    n_groups, n = len(leaders), 0
    for k in range(n_groups):
        for t in range(n_turns):
            row = _row(turns, leaders[k], blocks[k] * n_turns + t)
            n += (turns.ptr[row + 1] - turns.ptr[row]) * (1 + n_groups)
    ptr = np.zeros(n_groups * n_turns + 1, np.int64)
    stratum, count = np.empty(n, np.int64), np.empty(n, np.int64)
    group, label, start = layers.group, layers.label, layers.start
    leaked = np.zeros(label.max() + 1, np.int64)
    filled = 0
    for t in range(n_turns):
        for k in range(n_groups):
            leader = leaders[k]
            row = _row(turns, leader, blocks[k] * n_turns + t)
            own, asked = turns.stratum[turns.ptr[row] : turns.ptr[row + 1]], turns.cells[turns.ptr[row] :]
            for i in range(len(own)):
                if group[own[i]] == leader:
                    stratum[filled], count[filled] = own[i], asked[i]
                    filled += 1
                else:
                    leaked[label[own[i]]] += asked[i]
            donors = _donors(leaders, leader, group, start, mix(key, _U(k)))
            for i in range(len(own)):
                s = own[i]
                if group[s] == leader or leaked[label[s]] == 0:
                    continue
                before = filled
                filled = _leak(donors, label[s], leaked[label[s]], t, group, label, start, stratum, count, filled)
                if filled > before:
                    leaked[label[s]] = 0
                else:
                    stratum[filled], count[filled] = s, asked[i]
                    filled += 1
            for i in range(len(own)):
                leaked[label[own[i]]] = 0
            ptr[t * n_groups + k + 1] = filled
    return Asks(ptr, stratum[:filled], count[:filled])


@njit(cache=True, nogil=True)
def _row(turns, group, turn):  # type: ignore[no-untyped-def]
    """Row of the plan that is a group's next turn after so many."""
    return turns.row[turns.first[group] + turn % (turns.first[group + 1] - turns.first[group])]


@njit(cache=True, nogil=True)
def _donors(leaders, leader, group, start, key):  # type: ignore[no-untyped-def]
    donors = np.empty(len(leaders) + 1, np.int64)
    n = 0
    for other in leaders:
        new = other != leader
        for i in range(n):
            new = new and donors[i] != other
        if new:
            donors[n] = other
            n += 1
    tries = 0
    while n == 0 and tries < DONOR_TRIES:
        cell = np.int64(mix(key, _U(tries)) % _U(start[-1]))
        other = group[np.searchsorted(start, cell, "right") - 1]
        if other != leader:
            donors[0] = other
            n = 1
        tries += 1
    return donors[:n]


@njit(cache=True, nogil=True)
def _leak(donors, of_label, total, turn, group, label, start, stratum, count, filled):  # type: ignore[no-untyped-def]
    """Share `total` cells of one label out over the donors, or none if one of them has too few."""
    n, begin = len(donors), filled
    for d in range(n):
        share = total // n + ((d + turn + of_label) % n < total % n)
        s = _find(group, label, donors[d], of_label)
        if share and (s < 0 or start[s + 1] - start[s] < share):
            return begin
        if share:
            stratum[filled], count[filled] = s, share
            filled += 1
    return filled


@njit(cache=True, nogil=True)
def _find(group, label, of_group, of_label):  # type: ignore[no-untyped-def]
    """The stratum of a group and a label; -1 if there is none. Strata are sorted by both."""
    low, high = 0, len(group)
    while low < high:
        middle = (low + high) // 2
        if group[middle] < of_group or (group[middle] == of_group and label[middle] < of_label):
            low = middle + 1
        else:
            high = middle
    return low if low < len(group) and group[low] == of_group and label[low] == of_label else -1
