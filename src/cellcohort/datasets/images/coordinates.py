"""Coordinates of cells: pixels, or micrometers that the plate's pixel size turns into pixels."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import pandas as pd

from cellcohort.datasets.images.collection import Experiment
from cellcohort.datasets.images.plates import Field

LESS = 0.92  # of an image, at most, that coordinates reach where another unit is looked for


def in_pixels(place: dict[str, np.ndarray], field: np.ndarray, fields: Sequence[Field]) -> dict[str, np.ndarray]:
    """Coordinates in micrometers as pixels of the image.

    Parameters
    ----------
    place : dict of str to numpy.ndarray of float, shape (n,)
        Of axes among "z", "y" and "x", in micrometers.
    field : numpy.ndarray of int, shape (n,)
        The field of each row.
    fields : sequence of Field

    Raises
    ------
    ValueError
        The plate gives no pixel size along one of the axes.
    """
    found = {}
    for axis, values in place.items():
        size, origin = (
            np.array([getattr(f, name)["zyx".index(axis)] for f in fields]) for name in ("pixel_size", "origin")
        )
        if not (size > 0).all():
            one = fields[int(np.argmin(size > 0))]
            raise ValueError(
                f"coordinates of {one.experiment} is micrometer, but {one.store} gives no pixel size in a unit of "
                f"length along {axis} for position {one.name}. Add a scale to the coordinateTransformations of its "
                "images, or give pixels and set coordinates: pixel."
            )
        found[axis] = (values - origin[field]) / size[field]
    return found


def first_pixels(centre: np.ndarray, size: np.ndarray, image: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first pixel of patches around some centres, and which did not have to be moved inside the image.

    Parameters
    ----------
    centre : numpy.ndarray of float, shape (n,)
        Along one axis, in pixels.
    size, image : numpy.ndarray of int, shape (n,)
        Pixels of the patch and of the image along this axis.
    """
    wanted = np.floor(centre + 0.5 - (size - 1) / 2).astype(np.int64)
    first = np.clip(wanted, 0, image - size)
    return first, wanted == first


def warn_of_units(frame: pd.DataFrame, field: np.ndarray, fields: Sequence[Field], experiment: Experiment) -> None:
    """Warn where all coordinates of an experiment reach just the part of the images that another unit would explain.

    Cells that crowd in a corner give no warning: coordinates in another unit fill the part of the images that they
    can reach, evenly up to its end, along both axes.

    Parameters
    ----------
    frame : pandas.DataFrame
        With "y", "x" (pixels) and "track".
    field : numpy.ndarray of int, shape (n,)
        The field of each row.
    fields : sequence of Field
    experiment : Experiment
    """
    if experiment.coordinates is not None or not len(frame):
        return
    shape = np.array([f.shape[3:] for f in fields], float)[field]
    share = frame[["y", "x"]].to_numpy() / shape
    n = frame["track"].nunique()
    reach = ", ".join(f"{axis}={frame[axis].max():g}" for axis in "yx")
    reached = f"{share.max():.3g} of images of {' x '.join(map(str, fields[int(field[0])].shape[3:]))} pixels"
    size = np.array([f.pixel_size[1:] for f in fields])[field]
    if _fills(share / size, n) and (size < LESS).all():
        warnings.warn(
            f"coordinates of {experiment.name} reach {reach} at most, {reached}, as coordinates in micrometers do at "
            f"the pixel size of {size[0, 0]:.4g} micrometers that the plate gives. If they are, {experiment.in_pixels}"
            f"{'' if experiment.indexed else '; if they are pixels, set coordinates: pixel'}.",
            stacklevel=2,
        )
        return
    for level, factor in enumerate(fields[0].levels, 1):
        if _fills(share * factor, n):
            warnings.warn(
                f"coordinates of {experiment.name} reach {reach} at most, {reached}, as pixels of level {level} of the "
                f"pyramid do, which is {factor:g} times smaller. If they are, multiply y and x by {factor:g}, since "
                f"images are read at level 0{'' if experiment.indexed else '; if not, set coordinates: pixel'}.",
                stacklevel=2,
            )
            return


def _fills(share: np.ndarray, n: int) -> bool:
    """Whether shares of what can be reached, of n independent places, lie evenly and reach both ends alike."""
    apart, loose = np.clip(4 / n, 0.04, 0.2), 0.15 + min(0.1, 1 / n)
    low, early, late, high = np.quantile(share, (0, 0.25, 0.75, 1), axis=0)
    ends = (high <= 1.02) & (high >= 0.75) & (np.abs(low + high - 1) <= apart)
    return bool((ends & (early <= 0.25 + loose) & (late >= 0.75 - loose)).all())
