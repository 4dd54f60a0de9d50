"""Barlow Twins: make the two views' features agree one by one and else uncorrelated; no cell is a negative."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from cellcohort.objectives._gather import Ranks

if TYPE_CHECKING:
    from pydantic import NonNegativeFloat

LEAST_SPREAD = 1e-5  # of a feature over a batch


class BarlowTwins(nn.Module):
    """Redundancy reduction (Zbontar et al. 2021).

    The correlation over the batch of every feature of the anchors with every feature of the positives is pulled
    towards the identity matrix.

    Parameters
    ----------
    redundancy : float
        Weight of the correlations between different features.
    gather : bool
        Take correlations over the batches of all ranks. Averaged over ranks, loss and gradients are those of one
        process that holds all the batches.
    """

    def __init__(self, redundancy: NonNegativeFloat = 0.005, gather: bool = False) -> None:
        super().__init__()
        if not redundancy >= 0:
            raise ValueError(f"redundancy={redundancy} must be a number >= 0; 0.005 is usual.")
        self.redundancy, self.gather = redundancy, gather

    def forward(self, anchors: Tensor, positives: Tensor) -> Tensor:
        """Return the loss, a scalar.

        Parameters
        ----------
        anchors, positives : torch.Tensor, shape (batch, dim)
            Projections of the cells and of their positives, in the same order.

        Returns
        -------
        torch.Tensor of float, shape ()

        Raises
        ------
        ValueError
            There are fewer than two cells, which have no correlation.
        """
        one, two = (self._scaled(Ranks.here(self.gather).gathered(rows)) for rows in (anchors, positives))
        if len(one) < 2:
            raise ValueError("Barlow Twins needs batches of two cells or more; raise batch_sampler.batch_size.")
        correlation = one.T @ two / len(one)
        diagonal = torch.diagonal(correlation)
        others = correlation.square().sum() - diagonal.square().sum()
        return (1 - diagonal).square().sum() + self.redundancy * others

    def _scaled(self, rows: Tensor) -> Tensor:
        centred = rows - rows.mean(0)
        return centred / (centred.square().mean(0) + LEAST_SPREAD**2).sqrt()
