"""Brightness and contrast of every field, measured once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pandas as pd
import pyarrow as pa
from tqdm.auto import tqdm  # type: ignore[import-untyped]

from cellcohort.datasets.images.blank_frames import BOX, sampled_frames
from cellcohort.datasets.images.chunks import Chunks
from cellcohort.datasets.images.index import Index
from cellcohort.datasets.images.parquet_cache import cached_table
from cellcohort.datasets.images.storage import keys_of
from cellcohort.files import fingerprint

Normalise = Literal["position", "plate", "none"]


def scaling(index: Index, normalise: Normalise, cache: str | Path) -> np.ndarray:
    """Return what to subtract from the pixels of every field and channel, and what to divide them by.

    The mean and standard deviation are of at most 16 whole frames of each field, evenly spread in time, and are kept
    in `cache`. Frames without an image and padding are left out. A channel that does not vary is only centred.

    Parameters
    ----------
    index : Index
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
    shape = len(index.fields), len(index.fields[0].channels)
    if normalise == "none":
        return np.stack([np.zeros(shape), np.ones(shape)]).astype(np.float32)
    chunks = Chunks(index.fields, 0)
    frames = _frames(index)
    keys = [
        key
        for (number, channel), boxes in frames.items()
        for key in keys_of(number, index.fields[number].with_channel(channel), boxes)
        if not any(key[3:])
    ]
    file = Path(cache) / f"scaling-{fingerprint(index.fields, frames, chunks.stamps(keys))}.parquet"
    measured = cached_table(file, lambda: _measured(chunks, frames)).to_pandas()
    if normalise == "plate":
        pooled = measured.assign(square=measured["std"] ** 2 + measured["mean"] ** 2)
        pooled = pooled.groupby(["experiment", "channel"])[["mean", "square"]].transform("mean")
        measured = measured.assign(mean=pooled["mean"], std=np.sqrt((pooled["square"] - pooled["mean"] ** 2).clip(0)))
    centre, spread = (measured[name].fillna(0.0).to_numpy().reshape(shape) for name in ("mean", "std"))
    spread = np.where(spread <= 1e-6 * np.abs(centre), 1.0, spread)
    return np.stack([centre, spread]).astype(np.float32)


Frames = Mapping[tuple[int, int], Mapping[int, tuple[int, ...]]]  # by field and channel: the box of each frame


def _frames(index: Index) -> Frames:
    """Return the frames that are measured of every channel, with the part of each that has an image."""
    found = {}
    for number, field in enumerate(index.fields):
        used = np.unique(index.place[index.place[:, 0] == number, 1]).tolist()
        for channel in range(len(field.channels)):
            here = (index.faults["field"] == number) & (index.faults["channel"] == channel)
            boxes = {t: tuple(box) for t, *box in index.faults.loc[here, ["t", *BOX]].to_numpy().tolist()}
            blank = {t for t, box in boxes.items() if not any(box)}
            frames = [t for t in sampled_frames(field) if t not in blank]
            others = [t for t in used if t not in blank]
            found[number, channel] = {t: boxes.get(t, (0, 0, 0, *field.shape[2:])) for t in frames or others}
    return found


def _measured(chunks: Chunks, frames: Frames) -> pa.Table:
    """One row per field and channel; NaN where there is no image."""
    rows = []
    for (number, channel), boxes in tqdm(frames.items(), desc="brightness", unit="channel", disable=None, leave=False):
        field = chunks.fields[number]
        mean, square = _moments(chunks, number, channel, boxes)
        if boxes and not np.isfinite(square):
            raise ValueError(
                f"{field.store}: position {field.name} of {field.experiment} has pixels that are not finite in "
                f"channel {field.channels[channel]}; correct them, or exclude the position."
            )
        row = {"experiment": field.experiment, "fov": field.name, "channel": channel}
        rows.append({**row, "mean": mean, "std": np.sqrt(max(square - mean**2, 0.0)) if boxes else np.nan})
    return pa.Table.from_pandas(pd.DataFrame(rows), preserve_index=False)


def _moments(chunks: Chunks, number: int, channel: int, boxes: Mapping[int, tuple[int, ...]]) -> tuple[float, float]:
    """Mean of the pixels of parts of some frames of one channel, and of their squares."""
    if not boxes:
        return np.nan, np.nan
    field = chunks.fields[number].with_channel(channel)
    total = np.zeros(3)
    for key, chunk in chunks.each(keys_of(number, field, boxes)):
        corner = [i * n for i, n in zip(key[3:], field.chunks[2:], strict=True)]
        for t in (t for t in boxes if t // field.chunks[0] == key[1]):
            part = tuple(
                slice(max(first - at, 0), max(last - at, 0))
                for first, last, at in zip(boxes[t][:3], boxes[t][3:], corner, strict=True)
            )
            image = chunk[t % field.chunks[0], field.channels[0] % field.chunks[1]][part].astype(np.float64)
            total += image.size, image.sum(), np.square(image).sum()
    return total[1] / total[0], total[2] / total[0]
