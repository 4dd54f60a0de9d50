"""A small convolutional encoder of the image volume."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from cellcohort.models._patch import checked_patch


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

    Raises
    ------
    ValueError
        `shape` is not that of a patch, or a size is below 1.
    """

    def __init__(self, shape: Sequence[int], embedding: int = 64, channels: int = 16, layers: int = 4) -> None:
        of_image, *_ = checked_patch("Conv3d", shape, embedding=embedding, channels=channels, layers=layers)
        widths = [of_image] + [channels * 2**i for i in range(layers)]
        blocks = [
            nn.Sequential(nn.Conv3d(i, o, 3, stride=(1, 2, 2), padding=1), nn.GroupNorm(1, o), nn.GELU())
            for i, o in pairwise(widths)
        ]
        super().__init__(*blocks, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(widths[-1], embedding))

    def forward(self, patches: Tensor) -> Tensor:
        """Embeddings (batch, embedding) of standardised patches (batch, channels, slices, height, width)."""
        return super().forward(patches)
