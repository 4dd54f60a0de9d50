"""A multilayer perceptron on the flattened window."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn


class MLP(nn.Sequential):
    """Encode a window of features by fully connected layers.

    Layers are normalised over their units (LayerNorm), never over the batch, so that the
    embedding of a cell does not depend on which other cells are in its batch.

    Parameters
    ----------
    features, frames : int
        Shape of one window.
    embedding : int
        Length of the embedding.
    hidden : int
        Units of each hidden layer.
    layers : int
        Number of hidden layers; 0 makes the encoder linear.

    Raises
    ------
    ValueError
        A size is below 1, or `layers` below 0.
    """

    def __init__(self, features: int, frames: int, embedding: int = 64, hidden: int = 256, layers: int = 2) -> None:
        if min(features, frames, embedding, hidden) < 1 or layers < 0:
            raise ValueError(
                f"MLP has features={features}, frames={frames}, embedding={embedding}, hidden={hidden}, "
                f"layers={layers}; sizes must be at least 1 and layers at least 0."
            )
        widths = [features * frames] + [hidden] * layers
        blocks = [nn.Sequential(nn.Linear(i, o), nn.LayerNorm(o), nn.GELU()) for i, o in pairwise(widths)]
        super().__init__(nn.Flatten(), *blocks, nn.Linear(widths[-1], embedding))

    def forward(self, windows: Tensor) -> Tensor:
        """Embeddings (batch, embedding) of standardised windows (batch, features, frames)."""
        return super().forward(windows)
