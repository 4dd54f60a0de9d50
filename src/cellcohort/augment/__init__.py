"""Augmentation of whole batches where the model is.

Views are functions of (inputs, key), see cellcohort.datasets.protocol.Views.
"""

from __future__ import annotations

from cellcohort.extras import require

require("train")

from collections.abc import Mapping
from typing import Any


def made(views: Any) -> Any:
    """Make views of their node of a config, where they are not made yet.

    The node is kept until the inputs of cells are needed: views of images import torch, which labels do not need.

    Parameters
    ----------
    views : Views, Augment, mapping or None
        A mapping has a ``_target_``, as Hydra reads it.
    """
    if not isinstance(views, Mapping):
        return views
    from hydra.utils import instantiate

    return instantiate(dict(views))
