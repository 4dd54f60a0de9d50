"""A convolution over time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from torch import Tensor, nn

from cellcohort.models._normalisation import Norm, normalisation, of_inputs

if TYPE_CHECKING:
    from pydantic import NonNegativeInt, PositiveInt


class Conv1d(nn.Sequential):
    """Encode a window of features by convolutions over its frames.

    By default channels are normalised within one window (GroupNorm with one group), never over the batch,
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
    norm : {"batch", "experiment", "layer", "group", "instance", "none"}
        What the channels of each convolution are normalised over: "layer", all channels and frames of one cell;
        "group", eight groups of channels of one cell, each by itself; "instance", each channel of one cell; "batch",
        each channel over the batch; "experiment", over the cells of the batch that are of the same experiment
        (:class:`~cellcohort.models.ExperimentNorm`). The last two normalise the inputs too, and then the embedding
        of a cell depends on the other cells.

    Raises
    ------
    ValueError
        `shape` is not that of a window, a size is below 1, `layers` below 0, `kernel` even, or `norm` no
        choice.
    """

    def __init__(
        self,
        shape: Sequence[int],
        embedding: PositiveInt = 64,
        channels: PositiveInt = 64,
        layers: NonNegativeInt = 3,
        kernel: PositiveInt = 3,
        norm: Norm = "layer",
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
            nn.Sequential(nn.Conv1d(i, o, kernel, padding=kernel // 2), normalisation(norm, o, 1), nn.GELU())
            for i, o in pairwise(widths)
        ]
        embedded = (nn.Flatten(), nn.Linear(widths[-1] * frames, embedding))
        super().__init__(*of_inputs(norm, features, 1), *blocks, *embedded)

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
