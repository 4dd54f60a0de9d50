"""Encoders: a batch of inputs (batch, *shape) to embeddings (batch, embedding)."""

from cellcohort.extras import require

require("train")

from cellcohort.models._normalisation import ExperimentNorm, experiments
from cellcohort.models.conv1d import Conv1d
from cellcohort.models.conv2d import Conv2d
from cellcohort.models.conv3d import Conv3d
from cellcohort.models.mlp import MLP
from cellcohort.models.resnet import ResNet
from cellcohort.models.timm import Timm

__all__ = ["MLP", "Conv1d", "Conv2d", "Conv3d", "ExperimentNorm", "ResNet", "Timm", "experiments"]
