"""A small convolutional encoder of the image volume."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor, nn

from cellcohort.models._normalisation import Norm, of_inputs
from cellcohort.models._patch import checked_patch, convolutions

if TYPE_CHECKING:
    from pydantic import PositiveInt


class Conv3d(nn.Sequential):
    """Encode a patch by convolutions over its slices and its plane.

    Each convolution halves the plane and keeps the slices, which are few and further apart than pixels are;
    one slice is a volume too. Means and normalisation are those of
    :class:`~cellcohort.models.conv2d.Conv2d`.

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
        As for :class:`~cellcohort.models.conv2d.Conv2d`.

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
        of_image, *_ = checked_patch("Conv3d", shape, embedding=embedding, channels=channels, layers=layers)
        widths = [of_image, *(channels * 2**i for i in range(layers))]
        blocks = [*of_inputs(norm, widths[0], 3), *convolutions(nn.Conv3d, widths, (1, 2, 2), norm)]
        pooled = (nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(widths[-1], embedding))
        super().__init__(*blocks, *pooled)

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
