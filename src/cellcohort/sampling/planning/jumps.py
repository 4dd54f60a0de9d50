"""What many batches take from each stratum, summed up without rounding each of them; compiled."""

from __future__ import annotations

import numpy as np

from cellcohort.compiled import compiled
from cellcohort.sampling.planning.quotas import OFFSET_STEP, PARTS, Targets, offset_of, period_of
from cellcohort.sampling.rng import Whole, bits_of, floor_sum, mix, permuted

SUMMED = 2**26  # batches whose cells are summed up at once, so that no sum exceeds 64 bits
_U = np.uint64


@compiled
def count_cells(targets: Targets, begin: np.ndarray, end: np.ndarray, taken: np.ndarray, key: np.uint64) -> None:
    """Add to `taken` what batches ``begin[g]`` to ``end[g] - 1`` of every group take from each stratum; none leak."""
    for g in range(len(begin)):
        strata = slice(targets.first[g], targets.first[g + 1])
        if targets.equal[g]:
            total, period = np.int64(np.rint(targets.own[g])), period_of(targets, g)
            _add_equal(begin[g], end[g], total, period, mix(key, _U(g)), taken[strata])
        else:
            for first in range(begin[g], end[g], SUMMED):
                _add_unequal(first, min(SUMMED, end[g] - first), targets.upto[strata], taken[strata])


@compiled
def _add_equal(first: Whole, last: Whole, total: Whole, period: Whole, key: np.uint64, taken: np.ndarray) -> None:
    """Add what batches of `total` cells take from strata with equal targets, each of which has a spare cell in turn."""
    n, spare = len(taken), total % len(taken)
    for sign, nth in ((-1, first), (1, last)):  # of the batches before each
        turns, left = nth * spare // n, nth * spare % n  # which all strata had, and strata of the turn that goes on
        for s in range(n):
            taken[s] += sign * (nth * (total // n) + turns)
        round_key = mix(key, _U(turns * n // max(spare, 1) // period))
        for i in range(left):
            taken[permuted(i, n, bits_of(n), round_key)] += sign


@compiled
def _add_unequal(first: Whole, n: Whole, upto: np.ndarray, taken: np.ndarray) -> None:
    """Add what `n` batches take from strata with unequal targets.

    With offset `o`, ``(upto[s] + o) // PARTS`` points of a batch lie on the targets of the strata up to `s`.
    """
    offset = offset_of(first)
    before: Whole = np.int64(0)
    moved = floor_sum(n, PARTS, OFFSET_STEP, offset)
    for s in range(len(upto)):
        points = floor_sum(n, PARTS, OFFSET_STEP, offset + upto[s]) - moved
        taken[s] += points - before
        before = points
