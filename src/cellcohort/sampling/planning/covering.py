"""How many batches draw every cell at least once."""

from __future__ import annotations

import numpy as np

from cellcohort.messages import several
from cellcohort.sampling.planning.epoch_plan import EpochPlan
from cellcohort.sampling.planning.plan import Plan

MOST_TO_COVER = 100  # times the batches that the cells fill
LOOKED_AT = 20_000  # batches, to find how many cover the cells in every epoch


def covering(plan: Plan) -> tuple[int, str]:
    """Batches that draw every cell at least once, and what that costs, in words."""
    if plan.timed or plan.cap:
        raise ValueError(
            "num_batches='cover' cannot be promised with a window around a focal time or a cap on tracks, "
            "which decides what is drawn; set a number, and see with coverage() what it covers."
        )
    size, rates = plan.strata.size, plan.batches.rates()
    expected = float((size / rates).max())
    if expected > MOST_TO_COVER * plan.n_batches:
        rarest = int((size / rates).argmax())
        raise ValueError(
            f"num_batches='cover' takes about {expected:,.0f} batches, {expected / plan.n_batches:,.0f} times as "
            f"many as the cells fill: a stratum of {several(int(size[rarest]), 'cell')} is asked "
            f"{rates[rarest]:.2g} cells a batch. Set a number, or give it more (weights, ratio)."
        )
    epochs = range(int(np.clip(LOOKED_AT / expected, 4, 64)) if expected <= LOOKED_AT else 1)
    n = max(_length(plan.batches, size, epoch) for epoch in epochs)
    n += n // 50 if len(size) > 1 else 0  # since later epochs may take a little longer
    draws = rates * n / size
    least, most = int(draws.argmin()), int(draws.argmax())
    return n, (
        f"{n} batches draw every cell at least once: on average {draws[least]:.1f} times in the least sampled of "
        f"{len(size)} strata ({size[least]:,} cells), {draws[most]:.1f} times in the most sampled "
        f"({size[most]:,} cells); {plan.n_batches} batches hold as many cells as there are."
    )


def _length(batches: EpochPlan, size: np.ndarray, epoch: int) -> int:
    """Return the fewest batches with which an epoch takes every cell of every stratum."""
    end, taken = 0, np.zeros(len(size), np.int64)
    while (taken < size).any():
        stretch = batches.stretch(epoch, end)
        end += len(stretch.primary)
        np.maximum.at(taken, stretch.stratum, stretch.before + stretch.n_cells)
    of = np.repeat(np.arange(len(stretch.primary)), np.diff(stretch.ptr))
    unfinished = of[stretch.before < size[stretch.stratum]]  # batches before which a stratum had cells left
    return stretch.first + int(unfinished.max(initial=0)) + 1
