"""The part of a larger patch that a network sees, where nothing is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def seen(shape: Sequence[int], views: Any) -> tuple[int, ...]:
    """Return the shape of what a network sees of inputs: that of the crop of the views, where they have one.

    Raises
    ------
    ValueError
        The crop is larger than the inputs, or these are no patches.
    """
    crop = getattr(views, "crop", None)
    if crop is None:
        return tuple(shape)
    if len(shape) != 4 or any(small > large for small, large in zip(crop, shape[2:], strict=True)):
        raise ValueError(
            f"augment.crop={list(crop)} is larger than the patches, which have {list(shape[2:])} lines and columns; "
            "set a smaller one, or a larger data.patch."
        )
    return (*shape[:2], *crop)


def middle(patches: Any, size: Sequence[int]) -> Any:
    """Return the lines and columns in the middle of patches (..., lines, columns), as they are where all are asked."""
    first = [(whole - part) // 2 for whole, part in zip(patches.shape[-2:], size, strict=True)]
    return patches[..., first[0] : first[0] + size[0], first[1] : first[1] + size[1]]
