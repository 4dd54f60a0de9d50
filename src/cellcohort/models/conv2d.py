"""A small convolutional encoder of the image plane."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor, nn

from cellcohort.models._normalisation import Norm, of_inputs
from cellcohort.models._patch import checked_patch, convolutions

if TYPE_CHECKING:
    from pydantic import PositiveInt


class Conv2d(nn.Sequential):
    """Encode a patch by convolutions over its plane, each of which halves it; slices count as channels.

    The mean over what is left of the plane becomes the embedding, so patches may have any size. By default
    channels are normalised within one patch (GroupNorm with one group), never over the batch, so that the
    embedding of a cell does not depend on which other cells are in its batch or on its rank.

    Parameters
    ----------
    shape : (int, int, int, int)
        Channels, slices, height and width of one patch.
    embedding : int
        Length of the embedding.
    channels : int
        Channels of the first convolution; each further one has twice as many.
    layers : int
        Number of convolutions, at least 1.
    norm : {"batch", "experiment", "layer", "group", "instance", "none"}
        What the channels of each convolution are normalised over: "layer", all channels and pixels of one cell;
        "group", eight groups of channels of one cell, each by itself; "instance", each channel of one cell; "batch",
        each channel over the batch; "experiment", over the cells of the batch that are of the same experiment
        (:class:`~cellcohort.models.ExperimentNorm`). The last two normalise the inputs too, and then the embedding
        of a cell depends on the other cells.

    Raises
    ------
    ValueError
        `shape` is not that of a patch, a size is below 1, or `norm` no choice.
    """

    def __init__(
        self,
        shape: Sequence[int],
        embedding: PositiveInt = 64,
        channels: PositiveInt = 16,
        layers: PositiveInt = 4,
        norm: Norm = "layer",
    ) -> None:
        of_image, slices, *_ = checked_patch("Conv2d", shape, embedding=embedding, channels=channels, layers=layers)
        widths = [of_image * slices, *(channels * 2**i for i in range(layers))]
        blocks = [*of_inputs(norm, widths[0], 2), *convolutions(nn.Conv2d, widths, 2, norm)]
        pooled = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], embedding))
        super().__init__(nn.Flatten(1, 2), *blocks, *pooled)

    def forward(self, patches: Tensor) -> Tensor:
        """Embed standardised samples.

        Parameters
        ----------
        patches : torch.Tensor of float, shape (batch, channels, slices, height, width)
            Standardised patches.

        Returns
        -------
        torch.Tensor of float, shape (batch, embedding)
        """
        return super().forward(patches)
