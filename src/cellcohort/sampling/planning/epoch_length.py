"""How many batches an epoch has: as many as are asked for, as the cells fill, or as draw every cell at least once."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from cellcohort.messages import several, whole_number
from cellcohort.sampling.planning.epoch_plan import EpochPlan
from cellcohort.sampling.planning.plan import Plan

MOST_TO_COVER = 100  # times the batches that the cells fill
LOOKED_AT = 20_000  # batches, to find how many cover the cells in every epoch


def number_or_cover(num_batches: Any) -> int | Literal["cover"] | None:
    """Return the option `num_batches` if it is allowed, else raise ValueError."""
    if num_batches is None or num_batches == "cover":
        return num_batches
    if isinstance(num_batches, str):
        raise ValueError(
            "num_batches must be an integer >= 1, 'cover', or null (None), which is as many as the cells fill; "
            f"got {num_batches!r}."
        )
    return whole_number("num_batches", num_batches, 1)


def batches_per_rank(plan: Plan, num_batches: int | Literal["cover"] | None, ranks: int) -> tuple[int, tuple[str, ...]]:
    """Batches of an epoch for each of some ranks that share those of a plan, and what is worth knowing of them."""
    if num_batches == "cover":
        n, note = _covering(plan)
        return -(-n // ranks), (note,)
    if num_batches is None and plan.n_batches < ranks:
        raise ValueError(
            f"{plan.n_cells} cells fill {several(plan.n_batches, 'batch')} of batch_size={plan.places}, fewer "
            f"than world_size={ranks} ranks; use fewer ranks, batch_sampler.batch_size="
            f"{max(plan.n_cells // ranks, 1)} or less, or set num_batches."
        )
    return num_batches or plan.n_batches // ranks, ()


def _covering(plan: Plan) -> tuple[int, str]:
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
        f"{several(len(size), 'stratum', 'strata')} ({several(int(size[least]), 'cell')}), {draws[most]:.1f} times in "
        f"the most sampled ({several(int(size[most]), 'cell')}); {plan.n_batches} batches hold as many cells as there "
        "are."
    )


def _length(batches: EpochPlan, size: np.ndarray, epoch: int) -> int:
    """Return the fewest batches with which an epoch takes every cell of every stratum."""
    end, taken = 0, np.zeros(len(size), np.int64)
    while (taken < size).any():
        stretch = batches.stretch(epoch, end)
        end = stretch.end
        np.maximum.at(taken, stretch.stratum, stretch.before + stretch.n_cells)
    of = np.repeat(np.arange(len(stretch.primary)), np.diff(stretch.ptr))
    unfinished = of[stretch.before < size[stretch.stratum]]  # batches before which a stratum had cells left
    return stretch.first + int(unfinished.max(initial=0)) + 1
