"""From a batch's spec to the positions of its cells, row by row; compiled.

The cells of each stratum have one pseudo-random order per epoch. A batch takes the next cells of it, after those that
batches before it took. So no cell comes a second time before all came once, and batches that follow each other share
no cell. Batches with a focal time are drawn in `time_window`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from cellcohort.sampling.batch import Asked
from cellcohort.sampling.drawing.time_window import MOST_TRIES, DrawnCells, draw_in_time_window, fill_with_turned_away
from cellcohort.sampling.hash_table import Cap, count_up_to, empty_counts
from cellcohort.sampling.planning.plan import Plan
from cellcohort.sampling.rng import Whole, bits_of, key_of, mix, permuted, stride

_U = np.uint64


class RowPicker:
    """Choose the cells of each batch of a plan among all cells of its strata.

    Parameters
    ----------
    plan : Plan
    """

    def __init__(self, plan: Plan) -> None:
        self.plan, self.warnings = plan, plan.warnings
        self._cells = DrawnCells.of(plan)

    @property
    def nbytes(self) -> int:
        """Bytes of memory held, those of the plan among them."""
        return self.plan.nbytes

    def asked(self, epoch: int, number: int) -> Asked:
        """Return what the axes ask of a batch."""
        spec = self.plan.spec(epoch, number)
        return self.plan.asked(spec.primary, spec.focal)

    def pick(self, epoch: int, number: int) -> np.ndarray:
        """Return the positions of a batch, int64 of shape (places,)."""
        plan, cells, spec = self.plan, self._cells, self.plan.spec(epoch, number)
        out, key = np.empty(plan.places, np.int64), key_of(plan.seed, epoch)
        if plan.timed:
            draw_in_time_window(cells, spec.stratum, spec.n_cells, spec.focal, number, key, out)
        elif plan.cap:
            draw_capped(cells, spec.stratum, spec.n_cells, spec.before, key, out)
        else:
            draw(cells.order, cells.start, spec.stratum, spec.n_cells, spec.before, key, out)
        return out


@njit(cache=True, nogil=True)
def draw(
    order: np.ndarray,
    start: np.ndarray,
    stratum: np.ndarray,
    count: np.ndarray,
    before: np.ndarray,
    key: np.uint64,
    out: np.ndarray,
) -> None:
    """Fill `out` with ``count[i]`` cells of each ``stratum[i]``, those that follow the first ``before[i]``."""
    filled = 0
    for entry in range(len(stratum)):
        s = stratum[entry]
        n = start[s + 1] - start[s]
        stratum_key, bits = mix(key, _U(s)), bits_of(n)
        for i in range(count[entry]):
            out[filled] = start[s] + permuted((before[entry] + i) % n, n, bits, stratum_key)
            filled += 1
    for i in range(filled):
        out[i] = order[out[i]]


@njit(cache=True, nogil=True)
def draw_capped(
    cells: DrawnCells,
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
    filled, cap = 0, Cap(cells.capped, cells.most, empty_counts(count.sum()))
    for entry in range(len(stratum)):
        s, need = stratum[entry], count[entry]
        first, n = cells.start[s], cells.start[s + 1] - cells.start[s]
        stratum_key = mix(key, _U(s))
        step, offset = stride(n, stratum_key), np.int64(stratum_key >> _U(2)) % n
        tries = min(n, MOST_TRIES * (need + 8))
        turned_away = np.empty(tries, np.int64)
        taken = n_away = 0
        for i in range(max(tries, need)):
            far = need + (i - need + (n - need) // 2) % (n - need) if need <= i < n else i
            rank = _jittered((offset + (before[entry] + far) % n * step) % n, n, stratum_key)
            position = cells.order[first + rank]
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


@njit(cache=True, nogil=True)
def _jittered(rank: Whole, n: Whole, key: np.uint64) -> Whole:
    """Swap neighbours within blocks of 16, so that the order does not always bring the same cells together."""
    block = rank >> 4
    return rank if (block + 1) << 4 > n else np.int64(_U(rank) ^ (mix(key, _U(block)) & _U(15)))
