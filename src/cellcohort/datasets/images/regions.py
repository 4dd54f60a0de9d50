"""What is read around a cell: as many slices, lines and columns as make a patch of one size and one extent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal, get_args

import numpy as np
import torch
from torch.nn.functional import interpolate

from cellcohort.datasets.images.plates import ALIKE, Field
from cellcohort.datasets.protocol import Remark
from cellcohort.messages import listed

Slab = Literal["centre", "random", "focus", "max"]


@dataclass(frozen=True)
class Region:
    """What a patch shows.

    Attributes
    ----------
    patch : (int, int, int)
        Slices, lines and columns of a patch.
    pixel_size : float, optional
        Micrometers along y and x that a pixel of a patch covers, whatever the plate; None reads pixels as they are.
    z : {"centre", "random", "focus", "max"}
        Slices around the cell (the middle of the stack, where the tracks have no z), drawn at random, around the plane
        in focus, or the greatest value of all slices.

    Raises
    ------
    ValueError
        An option is out of range, or no choice.
    """

    patch: Sequence[int]
    pixel_size: float | None = None
    z: Slab = "centre"

    def __post_init__(self) -> None:
        if len(self.patch) != 3 or not all(isinstance(n, int | np.integer) and n >= 1 for n in self.patch):
            raise ValueError(
                f"patch={list(self.patch)} must be the slices, lines and columns of a patch, integers such as "
                "[1, 64, 64]."
            )
        size = self.pixel_size
        if size is not None and (isinstance(size, bool) or not isfinite(size) or size <= 0):
            raise ValueError(
                f"pixel_size={size} must be a number of micrometers above 0; null reads pixels as they are."
            )
        if self.z not in get_args(Slab):
            raise ValueError(f"z={self.z!r} is not a choice; use one of {', '.join(get_args(Slab))}.")
        if self.z == "max" and self.patch[0] != 1:
            raise ValueError(
                f"z='max' makes one slice of all, but patch={list(self.patch)} has {self.patch[0]}; set data.patch="
                f"{[1, *self.patch[1:]]}, or choose another z."
            )

    def sizes(self, fields: Sequence[Field]) -> np.ndarray:
        """Slices, lines and columns that are read of each field, int64 (n_fields, 3).

        Lines and columns are rounded to whole ones, so that a pixel of a patch is wrong by less than half of that
        number of parts.

        Raises
        ------
        ValueError
            The plate of a field gives no pixel size, or a region does not fit into an image.
        """
        sizes = np.tile(np.array(self.patch, np.int64), (len(fields), 1))
        if self.pixel_size is not None:
            own = np.array([field.pixel_size[1:] for field in fields])
            if not (own > 0).all():
                one = fields[int(np.argmin((own > 0).all(axis=1)))]
                raise ValueError(
                    f"pixel_size={self.pixel_size:g}, but {one.store} gives no pixel size for position {one.name} of "
                    f"{one.experiment}. Add a scale to the coordinateTransformations of its images, or set "
                    "data.pixel_size=null."
                )
            exact = sizes[:, 1:] * self.pixel_size / own
            if (fine := (exact < 1).any(axis=1)).any():
                one = fields[int(np.argmax(fine))]
                raise ValueError(
                    f"pixel_size={self.pixel_size:g} makes a patch of {list(self.patch)} smaller than one pixel of "
                    f"position {one.name} of {one.experiment}, of {one.pixel_size[1]:g} micrometers. Give micrometers."
                )
            sizes[:, 1:] = np.maximum(np.rint(exact), 1)
        if self.z == "max":
            sizes[:, 0] = [field.shape[2] for field in fields]
        images = np.array([field.shape[2:] for field in fields])
        if (small := (images < sizes).any(axis=1)).any():
            one, size = fields[int(np.argmax(small))], sizes[int(np.argmax(small))].tolist()
            larger = "" if size == list(self.patch) else f", which is {size} pixels of the plate,"
            raise ValueError(
                f"a patch of {list(self.patch)} (slices, lines, columns){larger} does not fit into {small.sum()} of "
                f"{len(fields)} fields, such as {one.name} of {one.experiment} with {list(one.shape[2:])}."
            )
        return sizes

    def remarks(self, fields: Sequence[Field]) -> list[Remark]:
        """Return that plates differ in pixel size, where nothing brings them to a common one."""
        found = dict[tuple[str, str], str]()  # a position of each size of each experiment
        for field in fields:
            if field.pixel_size[1] > 0:
                found.setdefault((field.experiment, f"{field.pixel_size[1]:.4g}"), field.name)
        sizes = [float(size) for _, size in found]
        if self.pixel_size is not None or not found or max(sizes) <= ALIKE * min(sizes):
            return []
        lines, several_in = self.patch[1], Counter(name for name, _ in found)
        told = listed(
            f"{size} in {name}{f', position {position}' if several_in[name] > 1 else ''} "
            f"({lines * float(size):.4g} micrometers)"
            for (name, size), position in found.items()
        )
        return [
            Remark(
                f"{'Plates' if len(several_in) > 1 else 'Positions'} differ in the size of a pixel, so that a cell is "
                f"larger in the patches of some: micrometers a pixel, and what {lines} lines cover: {told}.",
                "Bring them to a common one; the coarsest adds nothing that was not recorded.",
                f"data.pixel_size={max(sizes):.4g}",
            )
        ]


def brought_to(pixels: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Bring the regions of some cells to the shape of a patch.

    Parameters
    ----------
    pixels : numpy.ndarray of float32, shape (n, channels, slices, lines, columns)
    shape : (int, int, int)
        Slices, lines and columns of a patch. Where it has fewer slices, one is left: the greatest value of all.
        Lines and columns are interpolated linearly; where they become fewer, pixels are averaged.

    Returns
    -------
    numpy.ndarray of float32, shape (n, channels, *shape)
    """
    if pixels.shape[2] != shape[0]:
        pixels = pixels.max(axis=2, keepdims=True)
    if pixels.shape[3:] == tuple(shape[1:]):
        return pixels
    planes = torch.from_numpy(pixels.reshape(len(pixels), -1, *pixels.shape[3:]))
    made = interpolate(planes, size=tuple(shape[1:]), mode="bilinear", align_corners=False, antialias=True)
    return made.numpy().reshape(*pixels.shape[:3], *shape[1:])
