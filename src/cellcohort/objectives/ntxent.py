"""NT-Xent: tell the positive of a cell from all other cells of the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from pytorch_metric_learning.losses import SupConLoss
from pytorch_metric_learning.reducers import MeanReducer
from torch import Tensor, nn

from cellcohort.cells import Name, names_of
from cellcohort.objectives._gather import Ranks

if TYPE_CHECKING:
    from pydantic import PositiveFloat


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
    exclude : str or sequence of str, optional
        Columns of the cells, such as "track". Two cells with the same label in one of them are no
        negatives of each other, those gathered from other ranks included.

    Attributes
    ----------
    columns : list of str or list of str
        The columns whose labels :meth:`forward` takes.
    measured : dict of str to torch.Tensor
        What the last call measured: with `exclude`, "excluded" is the share of the other cells' projections that
        are no negatives.

    Raises
    ------
    ValueError
        `temperature` is not above 0.
    """

    def __init__(self, temperature: PositiveFloat = 0.2, gather: bool = False, exclude: Name | None = None) -> None:
        super().__init__()
        if not temperature > 0:
            raise ValueError(f"temperature={temperature} is not above 0; 0.05 to 0.5 are usual.")
        self.gather = gather
        self.columns: list[Name] = list(names_of([exclude]))
        self.measured: dict[str, Tensor] = {}
        self.loss = SupConLoss(temperature=temperature, reducer=MeanReducer())

    def forward(self, anchors: Tensor, positives: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the loss, a scalar; 0 when there is no negative, that is, one cell on one rank.

        Parameters
        ----------
        anchors, positives : torch.Tensor, shape (batch, dim)
            Projections of the cells and of their positives, in the same order. With `gather`,
            every rank must have the same batch size.
        labels : torch.Tensor of int64, shape (n_columns, 2, batch), optional
            For each of `columns` the labels of the anchors and of the positives; needed where there are columns.

        Returns
        -------
        torch.Tensor of float, shape ()
        """
        own, ranks = torch.cat([anchors, positives]), Ranks.here(self.gather)
        everyone = ranks.gathered(own)
        alike = torch.zeros(0, len(own), len(everyone), dtype=torch.bool, device=own.device)  # for each of the columns
        if self.columns:
            if labels is None:
                raise ValueError("this objective needs the labels of its columns; pass labels.")
            flat = labels.flatten(1)
            alike = flat[:, :, None] == ranks.gathered(flat.T).T[:, None]
        cells = torch.arange(len(anchors) * ranks.world_size, device=own.device).view(ranks.world_size, 1, -1)
        cells = cells.expand(-1, 2, -1)
        same_cell = cells[ranks.rank].flatten()[:, None] == cells.flatten()
        positive, negative = self._sides(same_cell, alike)
        itself = torch.arange(len(own), device=own.device)
        positive[itself, itself + ranks.rank * len(own)] = False
        numbers = cells.flatten()
        pairs = (*torch.where(positive), *torch.where(negative))
        return self.loss(own, numbers[: len(own)], pairs, everyone, numbers)

    def _sides(self, same_cell: Tensor, alike: Tensor) -> tuple[Tensor, Tensor]:
        """Return which projections of others are positives and which are negatives, (2 batch, 2 batch ranks) each."""
        excluded = alike.any(0) & ~same_cell
        if len(alike):
            self.measured["excluded"] = excluded.sum() / (~same_cell).sum().clamp(min=1)
        return same_cell.clone(), ~(same_cell | excluded)
