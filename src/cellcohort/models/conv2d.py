"""A small convolutional encoder of the image plane."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from cellcohort.models._patch import checked_patch, convolutions


class Conv2d(nn.Sequential):
    """Encode a patch by convolutions over its plane, each of which halves it; slices count as channels.

    The mean over what is left of the plane becomes the embedding, so patches may have any size. Channels
    are normalised within one patch (GroupNorm with one group), never over the batch, so that the embedding
    of a cell does not depend on which other cells are in its batch or on its rank.

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

    Raises
    ------
    ValueError
        `shape` is not that of a patch, or a size is below 1.
    """

    def __init__(self, shape: Sequence[int], embedding: int = 64, channels: int = 16, layers: int = 4) -> None:
        of_image, slices, *_ = checked_patch("Conv2d", shape, embedding=embedding, channels=channels, layers=layers)
        blocks = convolutions(nn.Conv2d, of_image * slices, channels, layers, stride=2)
        pooled = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels * 2 ** (layers - 1), embedding))
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
