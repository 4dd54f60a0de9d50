"""What the batches of one window ask of every stratum, compiled."""

from __future__ import annotations

import numpy as np
from numba import njit

from cellcohort.sampling.keyed import mix

DONOR_TRIES = 64  # cells looked at to find a group that cells may leak from
_U = np.uint64


@njit(cache=True, nogil=True)
def window_asks(  # type: ignore[no-untyped-def]
    leaders, blocks, turns, plan_rows, plan_first, plan_ptr, plan_stratum, plan_count,
    group, label, n_labels, start, key,
):  # fmt: skip
    """Strata and counts of each batch; batch ``t * groups + k`` is turn `t` of the window's group `k`.

    A group's own cells are those of its plan. Cells that leak in have the labels of its plan, but come
    from the other groups of the window, whose chunks are read anyway; if there is none, from one other
    group, met as often as it has cells. Where such a group lacks the cells, those of the plan are asked.

    Returns
    -------
    ptr, stratum, count
        Batch `j` asks ``count[i]`` cells of ``stratum[i]`` for i in ``ptr[j]:ptr[j + 1]``.
    """
    n_groups = len(leaders)
    n = 0
    for k in range(n_groups):
        n_turns = plan_first[leaders[k] + 1] - plan_first[leaders[k]]
        for t in range(turns):
            row = plan_rows[plan_first[leaders[k]] + (blocks[k] * turns + t) % n_turns]
            n += (plan_ptr[row + 1] - plan_ptr[row]) * (1 + n_groups)
    ptr = np.zeros(n_groups * turns + 1, np.int64)
    stratum, count = np.empty(n, np.int64), np.empty(n, np.int64)
    leaked = np.zeros(n_labels, np.int64)
    filled = 0
    for t in range(turns):
        for k in range(n_groups):
            leader = leaders[k]
            n_turns = plan_first[leader + 1] - plan_first[leader]
            row = plan_rows[plan_first[leader] + (blocks[k] * turns + t) % n_turns]
            for i in range(plan_ptr[row], plan_ptr[row + 1]):
                if group[plan_stratum[i]] == leader:
                    stratum[filled], count[filled] = plan_stratum[i], plan_count[i]
                    filled += 1
                else:
                    leaked[label[plan_stratum[i]]] += plan_count[i]
            donors = _donors(leaders, leader, group, start, mix(key, _U(k)))
            for i in range(plan_ptr[row], plan_ptr[row + 1]):
                s = plan_stratum[i]
                if group[s] == leader or leaked[label[s]] == 0:
                    continue
                before = filled
                filled = _leak(donors, label[s], leaked[label[s]], t, group, label, start, stratum, count, filled)
                if filled > before:
                    leaked[label[s]] = 0
                else:
                    stratum[filled], count[filled] = s, plan_count[i]
                    filled += 1
            for i in range(plan_ptr[row], plan_ptr[row + 1]):
                leaked[label[plan_stratum[i]]] = 0
            ptr[t * n_groups + k + 1] = filled
    return ptr, stratum[:filled], count[:filled]


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
