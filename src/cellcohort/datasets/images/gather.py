"""Patches cut out of the chunks in which images are stored."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from cellcohort.datasets.images.chunks import Chunks
from cellcohort.datasets.images.plates import Field
from cellcohort.datasets.images.storage import Key, ReadError


def gather(chunks: Chunks, place: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Return the pixels of some patches; each chunk that they touch is read once.

    Parameters
    ----------
    chunks : Chunks
    place : numpy.ndarray of int, shape (n, 5)
        Field, frame, and first slice, line and column of each patch, which is inside its image.
    shape : (int, int, int, int)
        Channels, slices, lines and columns.

    Returns
    -------
    numpy.ndarray of float32, shape (n, *shape)

    Raises
    ------
    ReadError
        A chunk cannot be read, or a patch has pixels that are not finite.
    """
    places = place.tolist()
    pixels = np.empty((len(places), *shape), np.float32)
    touched: dict[Key, list[tuple[int, int]]] = {}
    for number, (field_number, t, *corner) in enumerate(places):
        field = chunks.fields[field_number]
        spans = [
            range(at // n, (at + size - 1) // n + 1)
            for at, size, n in zip(corner, shape[1:], field.chunks[2:], strict=True)
        ]
        for channel, stored in enumerate(field.channels):
            for at in product(*spans):
                key = (chunks.home[field_number], t // field.chunks[0], stored // field.chunks[1], *at)
                touched.setdefault(key, []).append((number, channel))
    for key, chunk in chunks.each(touched):
        field = chunks.fields[key[0]]
        chunk_at = [i * n for i, n in zip(key[3:], field.chunks[2:], strict=True)]
        for number, channel in touched[key]:
            own, t, *corner = places[number]
            image = chunk[t % field.chunks[0], chunks.fields[own].channels[channel] % field.chunks[1]]
            _copy_overlap(image, chunk_at, pixels[number, channel], corner)
    _check_finite(chunks.fields, places, pixels)
    return pixels


def _check_finite(fields: Sequence[Field], places: Sequence[Sequence[int]], pixels: np.ndarray) -> None:
    """Raise ReadError where pixels are not finite; integers always are."""
    if all(np.dtype(fields[number].dtype).kind != "f" for number in {place[0] for place in places}):
        return
    if np.isfinite(pixels).all():
        return
    bad = ~np.isfinite(pixels).all(axis=(2, 3, 4))
    patch, channel = np.argwhere(bad)[0]
    number, t, _, y, x = places[patch]
    field = fields[number]
    raise ReadError(
        f"{field.store}: position {field.name} of {field.experiment} has pixels that are not finite at frame {t}, "
        f"channel {field.channels[channel]}, in the patch from y={y}, x={x}, and so have {bad.any(axis=1).sum()} of "
        f"{len(places)} patches that were read with it. Correct them, or leave these rows out of the tracks."
    )


def _copy_overlap(image: np.ndarray, image_at: Sequence[int], patch: np.ndarray, patch_at: Sequence[int]) -> None:
    """Copy what an image and a patch share, both placed by their first corner in the field."""
    source, target = [], []
    for n_image, at_image, n_patch, at_patch in zip(image.shape, image_at, patch.shape, patch_at, strict=True):
        first, last = max(at_image, at_patch), min(at_image + n_image, at_patch + n_patch)
        source.append(slice(first - at_image, last - at_image))
        target.append(slice(first - at_patch, last - at_patch))
    patch[tuple(target)] = image[tuple(source)]
