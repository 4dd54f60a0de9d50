"""VICReg: pull pairs together and keep the features of a batch varied and uncorrelated; no cell is a negative."""

from __future__ import annotations

from pytorch_metric_learning.losses import VICRegLoss
from torch import Tensor, nn

from cellcohort.objectives._gather import Ranks


class VICReg(nn.Module):
    """Variance-invariance-covariance regularisation (Bardes et al. 2022), by pytorch-metric-learning.

    Parameters
    ----------
    invariance, variance, covariance : float
        Weights of the three terms.
    gather : bool
        Take variances and covariances over the batches of all ranks. Averaged over ranks, loss and gradients are those
        of one process that holds all the batches.
    """

    def __init__(
        self, invariance: float = 25.0, variance: float = 25.0, covariance: float = 1.0, gather: bool = False
    ) -> None:
        super().__init__()
        self.gather = gather
        self.loss = VICRegLoss(invariance, variance, covariance)

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
            There are fewer than two cells, which have no variance.
        """
        anchors, positives = (Ranks.here(self.gather).gathered(rows) for rows in (anchors, positives))
        if len(anchors) < 2:
            raise ValueError("VICReg needs batches of two cells or more; raise batch_sampler.batch_size.")
        return self.loss(anchors, ref_emb=positives)
