"""A convolution over time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn


class Conv1d(nn.Sequential):
    """Encode a window of features by convolutions over its frames.

    Channels are normalised within one window (GroupNorm with one group), never over the batch,
    so that the embedding of a cell does not depend on which other cells are in its batch.

    Parameters
    ----------
    shape : (int, int)
        Features and frames of one window.
    embedding : int
        Length of the embedding.
    channels : int
        Channels of each convolution.
    layers : int
        Number of convolutions; 0 makes the encoder linear.
    kernel : int
        Frames that one convolution looks at; odd, so that the window keeps its length.

    Raises
    ------
    ValueError
        `shape` is not that of a window, a size is below 1, `layers` below 0, or `kernel` even.
    """

    def __init__(
        self, shape: Sequence[int], embedding: int = 64, channels: int = 64, layers: int = 3, kernel: int = 3
    ) -> None:
        if len(shape) != 2:
            raise ValueError(f"Conv1d reads windows (features, frames), not inputs of shape={tuple(shape)}; use MLP.")
        features, frames = shape
        if min(features, frames, embedding, channels, kernel) < 1 or layers < 0:
            raise ValueError(
                f"Conv1d has shape={tuple(shape)}, embedding={embedding}, channels={channels}, "
                f"layers={layers}, kernel={kernel}; sizes must be at least 1 and layers at least 0."
            )
        if kernel % 2 == 0:
            raise ValueError(f"kernel={kernel} is even, so windows would change their length; use {kernel + 1}.")
        widths = [features] + [channels] * layers
        blocks = [
            nn.Sequential(nn.Conv1d(i, o, kernel, padding=kernel // 2), nn.GroupNorm(1, o), nn.GELU())
            for i, o in pairwise(widths)
        ]
        super().__init__(*blocks, nn.Flatten(), nn.Linear(widths[-1] * frames, embedding))

    def forward(self, windows: Tensor) -> Tensor:
        """Embed standardised samples.

        Parameters
        ----------
        windows : torch.Tensor of float, shape (batch, features, frames)
            Standardised frame windows.

        Returns
        -------
        torch.Tensor of float, shape (batch, embedding)
        """
        return super().forward(windows)
