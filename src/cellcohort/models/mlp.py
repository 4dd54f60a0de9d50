"""A multilayer perceptron on the flattened input."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING

from torch import Tensor, nn

from cellcohort.models._normalisation import Norm, normalisation, of_inputs

if TYPE_CHECKING:
    from pydantic import NonNegativeInt, PositiveInt


class MLP(nn.Sequential):
    """Encode an input of any shape by fully connected layers.

    By default layers are normalised over their units (LayerNorm), never over the batch, so that the
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
    norm : {"batch", "experiment", "layer", "group", "none"}
        What the units of each hidden layer are normalised over: "layer", all units of one cell; "group", eight groups
        of units of one cell, each by itself; "batch", each unit over the batch; "experiment", over the cells of the
        batch that are of the same experiment (:class:`~cellcohort.models.ExperimentNorm`). The last two normalise the
        inputs too, and then the embedding of a cell depends on the other cells.

    Raises
    ------
    ValueError
        A size is below 1, `layers` below 0, or `norm` no choice; "instance" is none, since a unit has one value.
    """

    def __init__(
        self,
        shape: Sequence[int],
        embedding: PositiveInt = 64,
        hidden: PositiveInt = 256,
        layers: NonNegativeInt = 2,
        norm: Norm = "layer",
    ) -> None:
        if min(*shape, embedding, hidden) < 1 or layers < 0:
            raise ValueError(
                f"MLP has shape={tuple(shape)}, embedding={embedding}, hidden={hidden}, layers={layers}; "
                "sizes must be at least 1 and layers at least 0."
            )
        widths = [prod(shape)] + [hidden] * layers
        blocks = [nn.Sequential(nn.Linear(i, o), normalisation(norm, o, 0), nn.GELU()) for i, o in pairwise(widths)]
        super().__init__(nn.Flatten(), *of_inputs(norm, widths[0], 0), *blocks, nn.Linear(widths[-1], embedding))

    def forward(self, inputs: Tensor) -> Tensor:
        """Embed standardised samples.

        Parameters
        ----------
        inputs : torch.Tensor of float, shape (batch, ...)
            Standardised inputs.

        Returns
        -------
        torch.Tensor of float, shape (batch, embedding)
        """
        return super().forward(inputs)
