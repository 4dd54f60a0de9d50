"""NT-Xent: tell the positive of a cell from all other cells of the batch."""

from __future__ import annotations

from typing import Any

import torch
from pytorch_metric_learning.losses import SupConLoss
from pytorch_metric_learning.reducers import MeanReducer
from torch import Tensor, distributed, nn


class NTXent(nn.Module):
    """Normalised temperature-scaled cross entropy (Chen et al. 2020).

    Each of the 2 x batch projections is told from the others by its cosine similarity to its
    partner. With one positive per anchor this is the supervised contrastive loss, and it is
    computed as that: the same number, while `pytorch_metric_learning.losses.NTXentLoss` needs
    memory and time that grow with the third power of the batch.

    Parameters
    ----------
    temperature : float
        Similarities are divided by it; smaller values press harder on the nearest negatives.
    gather : bool
        Take negatives from the batches of all ranks, not only from this one. Gradients flow through
        the gathered projections: averaged over ranks, loss and gradients are those of one process
        that holds all the batches. Axes that group batches by experiment then want
        ``scope="global"`` in the batch sampler, or negatives come from other experiments.

    Raises
    ------
    ValueError
        `temperature` is not above 0.
    """

    def __init__(self, temperature: float = 0.2, gather: bool = False) -> None:
        super().__init__()
        if not temperature > 0:
            raise ValueError(f"temperature={temperature} is not above 0; 0.05 to 0.5 are usual.")
        self.gather = gather
        self.loss = SupConLoss(temperature=temperature, reducer=MeanReducer())

    def forward(self, anchors: Tensor, positives: Tensor) -> Tensor:
        """Return the loss, a scalar; 0 when there is no negative, that is, one cell on one rank.

        Parameters
        ----------
        anchors, positives : torch.Tensor, shape (batch, dim)
            Projections of the cells and of their positives, in the same order. With `gather`,
            every rank must have the same batch size.

        Returns
        -------
        torch.Tensor of float, shape ()
        """
        own = torch.cat([anchors, positives])
        spread = self.gather and distributed.is_available() and distributed.is_initialized()
        rank, ranks = (distributed.get_rank(), distributed.get_world_size()) if spread else (0, 1)
        everyone = _Gather.apply(own) if ranks > 1 else own
        labels = torch.arange(len(anchors) * ranks, device=own.device).view(ranks, 1, -1).expand(-1, 2, -1)
        pairs = _pairs(labels[rank].flatten(), labels.flatten(), rank * len(own))
        return self.loss(own, labels[rank].flatten(), pairs, everyone, labels.flatten())


def _pairs(labels: Tensor, others: Tensor, offset: int) -> tuple[Tensor, ...]:
    """Rows and columns of the positive and of the negative pairs; row i is itself column offset + i."""
    same = labels[:, None] == others[None, :]
    negative = ~same
    same[torch.arange(len(labels)), torch.arange(len(labels)) + offset] = False
    return (*torch.where(same), *torch.where(negative))


class _Gather(torch.autograd.Function):
    """Rows of all ranks in rank order; the gradient of a row is summed over the ranks that used it."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        ctx.own = slice(distributed.get_rank() * len(rows), (distributed.get_rank() + 1) * len(rows))
        gathered = [torch.empty_like(rows) for _ in range(distributed.get_world_size())]
        distributed.all_gather(gathered, rows.contiguous())
        return torch.cat(gathered)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gradient = gradient.contiguous()
        distributed.all_reduce(gradient)
        return gradient[ctx.own]
