"""The input shape and the convolutions that encoders of image patches have in common."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from torch import nn

from cellcohort.models._normalisation import normalisation


def checked_patch(encoder: str, shape: Sequence[int], **sizes: int) -> tuple[int, int, int, int]:
    """Return the shape of a patch: channels, slices, height and width.

    Raises
    ------
    ValueError
        `shape` is not that of a patch, or it or one of `sizes` is below 1.
    """
    if len(shape) != 4:
        raise ValueError(
            f"{encoder} reads patches (channels, slices, height, width), not inputs of shape={tuple(shape)}; "
            "use MLP, or Conv1d for windows (features, frames)."
        )
    if min(*shape, *sizes.values()) < 1:
        given = ", ".join(f"{name}={value}" for name, value in sizes.items())
        raise ValueError(f"{encoder} has shape={tuple(shape)}, {given}; each must be at least 1.")
    channels, slices, height, width = shape
    return channels, slices, height, width


def convolutions(kind: type[Any], widths: Sequence[int], stride: Any, norm: str) -> list[nn.Module]:
    """Convolutions of one kind over three pixels, from each number of channels to the next, normalised by `norm`."""
    axes = 2 if kind is nn.Conv2d else 3
    return [
        nn.Sequential(kind(i, o, 3, stride=stride, padding=1), normalisation(norm, o, axes), nn.GELU())
        for i, o in pairwise(widths)
    ]
