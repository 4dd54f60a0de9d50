"""Encoders: a window of features (batch, features, frames) to an embedding (batch, embedding)."""

from cellcohort.models.conv1d import Conv1d
from cellcohort.models.mlp import MLP

__all__ = ["MLP", "Conv1d"]
