"""An encoder and a loss of one's own: any torch modules with these arguments."""

import torch
from torch import Tensor, nn


class Linear(nn.Module):
    """``model._target_=mine.Linear``: `shape` is that of one input, and `embedding` the length of the output."""

    def __init__(self, shape: tuple[int, ...], embedding: int = 64) -> None:
        super().__init__()
        self.layer = nn.Linear(torch.Size(shape).numel(), embedding)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs.flatten(1))


class Cosine(nn.Module):
    """``objective._target_=mine.Cosine``: a loss of projections and those of their positives, both (batch, dim)."""

    def forward(self, anchors: Tensor, positives: Tensor) -> Tensor:
        return 1 - nn.functional.cosine_similarity(anchors, positives).mean()


inputs = torch.randn(8, 2, 3)
embedding = Linear((2, 3), embedding=16)(inputs)
print(tuple(embedding.shape), Cosine()(embedding, embedding).item())
