"""From a batch's spec to the positions of its cells, row by row; compiled.

The cells of each stratum have one pseudo-random order per epoch. A batch takes the next cells of it, after those that
batches before it took. So no cell comes a second time before all came once, and batches that follow each other share
no cell. Batches with a focal time are drawn in `time_window`.
"""

from __future__ import annotations

import numpy as np

from cellcohort.compiled import compiled
from cellcohort.sampling.batch import Asked
from cellcohort.sampling.drawing.cap import draw_capped
from cellcohort.sampling.drawing.time_window import TimedCells, draw_in_time_window
from cellcohort.sampling.planning.plan import Plan
from cellcohort.sampling.rng import bits_of, key_of, mix, permuted

_U = np.uint64


class RowPicker:
    """Choose the cells of each batch of a plan among all cells of its strata.

    Parameters
    ----------
    plan : Plan
    """

    def __init__(self, plan: Plan) -> None:
        self.plan, self.warnings = plan, plan.warnings
        self._timed = TimedCells.of(plan)

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
        plan, strata, spec = self.plan, self.plan.strata, self.plan.spec(epoch, number)
        out, key = np.empty(plan.places, np.int64), key_of(plan.seed, epoch)
        if plan.timed:
            draw_in_time_window(self._timed, spec.stratum, spec.n_cells, spec.focal, number, key, out)
        elif plan.cap:
            draw_capped(strata, plan.cap, spec.stratum, spec.n_cells, spec.before, key, out)
        else:
            draw(strata.order, strata.start, spec.stratum, spec.n_cells, spec.before, key, out)
        return out


@compiled
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
