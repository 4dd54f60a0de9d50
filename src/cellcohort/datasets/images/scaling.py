"""Brightness and contrast of every field, measured once."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pandas as pd
import pyarrow as pa

from cellcohort.datasets.images.chunks import Chunks
from cellcohort.datasets.images.kept import kept
from cellcohort.datasets.images.plates import Field
from cellcohort.datasets.images.storage import keys_of

Normalise = Literal["position", "plate", "none"]
FRAMES = 16  # of a field that are measured, evenly spread


def scaling(fields: Sequence[Field], normalise: Normalise, cache: str | Path) -> np.ndarray:
    """What to subtract from the pixels of every field and channel, and what to divide them by.

    The mean and standard deviation are of at most 16 whole frames of each field, evenly spread in time, and
    are kept in `cache`. A channel that does not vary is only centred.

    Parameters
    ----------
    fields : sequence of Field
    normalise : {"position", "plate", "none"}
        Over what: each field by itself, all fields of an experiment, or not at all.
    cache : str or Path
        Directory of what is measured once.

    Returns
    -------
    numpy.ndarray of float32, shape (2, n_fields, n_channels)

    Raises
    ------
    ReadError
        An image cannot be read.
    ValueError
        `normalise` is no choice, or pixels are not finite.
    """
    if normalise not in get_args(Normalise):
        raise ValueError(f"normalise={normalise!r} is not a choice; use one of {', '.join(get_args(Normalise))}.")
    n_channels = len(fields[0].channels)
    if normalise == "none":
        return np.stack([np.zeros((len(fields), n_channels)), np.ones((len(fields), n_channels))]).astype(np.float32)
    chunks = Chunks(fields, 0)
    file = Path(cache) / f"scaling-{_fingerprint(chunks)}.parquet"
    measured = kept(file, lambda: _measured(chunks)).to_pandas()
    if normalise == "plate":
        pooled = measured.assign(square=measured["std"] ** 2 + measured["mean"] ** 2)
        pooled = pooled.groupby(["experiment", "channel"])[["mean", "square"]].transform("mean")
        measured = measured.assign(mean=pooled["mean"], std=np.sqrt((pooled["square"] - pooled["mean"] ** 2).clip(0)))
    centre, spread = (measured[name].to_numpy().reshape(len(fields), n_channels) for name in ("mean", "std"))
    spread = np.where(spread <= 1e-6 * np.abs(centre), 1.0, spread)
    return np.stack([centre, spread]).astype(np.float32)


def _fingerprint(chunks: Chunks) -> str:
    """Of the fields, and of the first file of every frame and channel that is measured."""
    keys = [key for number, field in enumerate(chunks.fields) for key in keys_of(number, field, _frames(field))]
    stamps = chunks.stamps(key for key in keys if not any(key[3:]))
    return hashlib.sha256(repr((chunks.fields, stamps)).encode()).hexdigest()[:16]


def _frames(field: Field) -> list[int]:
    """The frames that are measured."""
    return np.unique(np.linspace(0, field.shape[0] - 1, FRAMES).astype(int)).tolist()


def _measured(chunks: Chunks) -> pa.Table:
    """One row per field and channel."""
    rows = []
    for number, field in enumerate(chunks.fields):
        frames = _frames(field)
        for channel, stored in enumerate(field.channels):
            mean, square = _moments(chunks, number, frames, stored)
            if not np.isfinite(square):
                raise ValueError(
                    f"{field.store}: position {field.name} of {field.experiment} has pixels that are not finite in "
                    f"channel {stored}; correct them, or exclude the position."
                )
            row = {"experiment": field.experiment, "fov": field.name, "channel": channel}
            rows.append({**row, "mean": mean, "std": np.sqrt(max(square - mean**2, 0.0))})
    return pa.Table.from_pandas(pd.DataFrame(rows), preserve_index=False)


def _moments(chunks: Chunks, number: int, frames: Sequence[int], channel: int) -> tuple[float, float]:
    """Mean of the pixels of some frames of one channel, and of their squares."""
    field = chunks.fields[number]
    one = replace(field, channels=(channel,))
    total = np.zeros(3)
    for key, chunk in chunks.each(keys_of(number, one, frames)):
        within = [t % field.chunks[0] for t in frames if t // field.chunks[0] == key[1]]
        images = chunk[within, channel % field.chunks[1]].astype(np.float64)
        total += images.size, images.sum(), np.square(images).sum()
    return total[1] / total[0], total[2] / total[0]
