"""The projections of all ranks, with gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed


class Ranks(NamedTuple):
    """The place of a process among those whose batches an objective compares.

    Attributes
    ----------
    rank, world_size : int
        0 and 1 where each rank is by itself.
    """

    rank: int
    world_size: int

    @classmethod
    def here(cls, gather: bool) -> Ranks:
        """Return the place of this process; alone without `gather` or without a process group."""
        spread = gather and distributed.is_available() and distributed.is_initialized()
        return cls(distributed.get_rank(), distributed.get_world_size()) if spread else cls(0, 1)

    def gathered(self, rows: Tensor) -> Tensor:
        """Rows of all ranks in rank order; gradients flow back to the ranks that the rows came from.

        Averaged over ranks, as DDP averages, the gradients of a loss of all rows are those of one process.
        """
        if self.world_size == 1:
            return rows
        if rows.is_floating_point():
            gathered: Tensor = _Gather.apply(rows)
            return gathered
        return torch.cat(_gathered(rows))


def _gathered(rows: Tensor) -> list[Tensor]:
    found = [torch.empty_like(rows) for _ in range(distributed.get_world_size())]
    distributed.all_gather(found, rows.contiguous())
    return found


class _Gather(torch.autograd.Function):
    """Rows of all ranks in rank order; the gradient of a row is summed over the ranks that used it."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        ctx.own = slice(distributed.get_rank() * len(rows), (distributed.get_rank() + 1) * len(rows))
        return torch.cat(_gathered(rows))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gradient = gradient.contiguous()
        distributed.all_reduce(gradient)
        return gradient[ctx.own]
