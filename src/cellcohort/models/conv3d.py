"""A small convolutional encoder of the image volume."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from cellcohort.models._patch import checked_patch, convolutions


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
        blocks = convolutions(nn.Conv3d, of_image, channels, layers, stride=(1, 2, 2))
        pooled = (nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(channels * 2 ** (layers - 1), embedding))
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
