"""Normalisation by experiment: two experiments that differ by shift and scale have the same embeddings."""

import torch

from cellcohort.models import MLP, experiments

encoder = MLP((5,), norm="experiment")
cells = torch.randn(8, 5)
inputs = torch.cat([cells, 10 + 3 * cells])
with experiments([0] * 8 + [1] * 8):
    first, second = encoder(inputs).chunk(2)
print(torch.allclose(first, second, atol=1e-3))
