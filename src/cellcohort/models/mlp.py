"""A multilayer perceptron on the flattened input."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from torch import Tensor, nn


class MLP(nn.Sequential):
    """Encode an input of any shape by fully connected layers.

    Layers are normalised over their units (LayerNorm), never over the batch, so that the
    embedding of a cell does not depend on which other cells are in its batch.

    Parameters
    ----------
    shape : sequence of int
        Shape of one input, such as (features, frames) of a window or (genes,) of a profile.
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

    def __init__(self, shape: Sequence[int], embedding: int = 64, hidden: int = 256, layers: int = 2) -> None:
        if min(*shape, embedding, hidden) < 1 or layers < 0:
            raise ValueError(
                f"MLP has shape={tuple(shape)}, embedding={embedding}, hidden={hidden}, layers={layers}; "
                "sizes must be at least 1 and layers at least 0."
            )
        widths = [prod(shape)] + [hidden] * layers
        blocks = [nn.Sequential(nn.Linear(i, o), nn.LayerNorm(o), nn.GELU()) for i, o in pairwise(widths)]
        super().__init__(nn.Flatten(), *blocks, nn.Linear(widths[-1], embedding))

    def forward(self, inputs: Tensor) -> Tensor:
        """Embed standardised samples.

        Parameters
        ----------
        inputs : torch.Tensor of float, shape (batch, *shape)
            Standardised inputs.

        Returns
        -------
        torch.Tensor of float, shape (batch, embedding)
        """
        return super().forward(inputs)
