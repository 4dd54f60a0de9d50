"""Encoders: a batch of inputs (batch, *shape) to embeddings (batch, embedding)."""

from cellcohort.models.conv1d import Conv1d
from cellcohort.models.mlp import MLP

__all__ = ["MLP", "Conv1d"]
