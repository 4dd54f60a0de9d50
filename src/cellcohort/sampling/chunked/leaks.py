"""From which groups cells leak into the batches of a chunk window; compiled.

The labels of these cells are those of the plan. The cells come from the other primary groups of the window, whose
chunks are read anyway; if there is none, from one other group, chosen in proportion to its cells. Where these lack the
cells, they come from the strata of the plan.
"""

from __future__ import annotations

import numpy as np

from cellcohort.compiled import compiled
from cellcohort.sampling.planning.strata import Strata
from cellcohort.sampling.rng import mix

DONOR_TRIES = 64  # cells drawn at random to find a group that cells may leak from
_U = np.uint64


@compiled
def donors_of(primary: np.ndarray, group: int, strata: Strata, key: np.uint64) -> np.ndarray:
    """Return the other primary groups of a window, each once; if there is none, another group at random."""
    donors, n = np.empty(len(primary) + 1, np.int64), 0
    for other in primary:
        if other != group and not np.any(donors[:n] == other):
            donors[n] = other
            n += 1
    for i in range(DONOR_TRIES):
        if n > 0:
            break
        cell = np.int64(mix(key, _U(i)) % _U(strata.start[-1]))
        donors[0] = strata.group[np.searchsorted(strata.start, cell, "right") - 1]
        n = int(donors[0] != group)
    return donors[:n]


@compiled
def leak_from(
    donors: np.ndarray,
    planned: tuple[np.ndarray, np.ndarray],
    group: int,
    nth: int,
    strata: Strata,
    out: tuple[np.ndarray, np.ndarray],
) -> int:
    """Write the strata that leak into the n-th batch of a group, and the cells of each; return how many there are.

    `planned` are those of the plan, in the order of labels. Labels with cells that the donors lack keep them.
    """
    (stratum, cells), (from_stratum, n_cells), filled, first = out, planned, 0, 0
    while first < len(from_stratum):
        label, total, i = strata.label[from_stratum[first]], 0, first
        while first < len(from_stratum) and strata.label[from_stratum[first]] == label:
            total += n_cells[first] if strata.group[from_stratum[first]] != group else 0
            first += 1
        n_donors = _share_out(donors, label, total, nth, strata, stratum[filled:], cells[filled:])
        filled += n_donors
        while n_donors == 0 and total > 0 and i < first:
            if strata.group[from_stratum[i]] != group:
                stratum[filled], cells[filled] = from_stratum[i], n_cells[i]
                filled += 1
            i += 1
    return filled


@compiled
def _share_out(
    donors: np.ndarray, label: int, total: int, nth: int, strata: Strata, stratum: np.ndarray, cells: np.ndarray
) -> int:
    """Share `total` cells of one label among the donors; return how many give some, or 0 if one of them has too few."""
    n, filled = len(donors), 0
    for d in range(n):
        share = total // n + ((d + nth + label) % n < total % n)
        if share == 0:
            continue
        first = np.searchsorted(strata.group, donors[d])
        labels = strata.label[first : np.searchsorted(strata.group, donors[d], "right")]
        s = first + np.searchsorted(labels, label)
        if s == first + len(labels) or strata.label[s] != label or strata.start[s + 1] - strata.start[s] < share:
            return 0
        stratum[filled], cells[filled] = s, share
        filled += 1
    return filled
