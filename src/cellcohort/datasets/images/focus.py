"""The slice in focus of every frame: as VisCy stored it, or where details are strongest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from scipy.ndimage import gaussian_filter

from cellcohort.datasets.images.attributes import attributes_of
from cellcohort.datasets.images.blank_frames import frames_of_channel, frames_with_image
from cellcohort.datasets.images.chunks import Chunks
from cellcohort.datasets.images.parquet_cache import cached_table
from cellcohort.datasets.images.plates import Field
from cellcohort.datasets.images.storage import keys_of
from cellcohort.files import fingerprint
from cellcohort.progress_bar import progress_bar

FINE, COARSE = 1.0, 3.0  # standard deviations, in pixels, between which details lie


def focus_slices(fields: Sequence[Field], used: np.ndarray, cache: str | Path, faults: pd.DataFrame) -> np.ndarray:
    """Return the slice in focus of some frames.

    Where a position has the attribute "focus_slice", as VisCy's quality control writes it, the slice is that of the
    frame, else the mean of the position, else that of the plate; of the first channel of the input that has one, else
    of any. Elsewhere it is measured in the first channel of the input, at up to 16 frames of the field that have an
    image and in between by linear interpolation: the slice whose details of 1 to 3 pixels vary most; without such a
    frame it is the middle one. Bright-field images vary least where they are in focus; store the slice for these.

    Parameters
    ----------
    fields : sequence of Field
    used : numpy.ndarray of int, shape (n, 2)
        Numbers of fields, and frames.
    cache : str or Path
        Directory of what is measured once.
    faults : pandas.DataFrame
        Frames without an image, see :func:`~cellcohort.datasets.images.blank_frames.blank_frames`.

    Returns
    -------
    numpy.ndarray of float, shape (n,)
    """
    with ThreadPoolExecutor() as pool:  # opening files is mostly waiting
        stored = [_stored(one, field) for one, field in zip(pool.map(attributes_of, fields), fields, strict=True)]
    found = np.array([_of_frame(stored[number], t) for number, t in used.tolist()], float).reshape(len(used))
    lacking = np.isnan(found)
    if lacking.any():
        frames = {
            number: frames_with_image(number, 0, fields[number], used[used[:, 0] == number, 1], faults)
            for number in np.unique(used[lacking, 0]).tolist()
        }
        measured = _measured_once(fields, frames, cache)
        for number, some in frames.items():
            here = lacking & (used[:, 0] == number)
            of_field = measured[measured["field"] == number]
            middle = (fields[number].shape[2] - 1) / 2
            found[here] = np.interp(used[here, 1], of_field["t"], of_field["z"]) if some else middle
    return found


def _stored(attributes: Mapping[str, Any], field: Field) -> Mapping[str, Any]:
    """Return what is stored of the focus of a field."""
    channels = attributes.get("focus_slice")
    if not isinstance(channels, Mapping):
        return {}
    named = [name for name in (*field.channel_names, *channels) if isinstance(channels.get(name), Mapping)]
    return channels[named[0]] if named else {}


def _of_frame(stored: Mapping[str, Any], t: int) -> float:
    """Return the slice in focus of a frame; NaN where nothing is stored."""
    ways = (("per_timepoint", str(t)), ("fov_statistics", "z_focus_mean"), ("dataset_statistics", "z_focus_mean"))
    for level, name in ways:
        of_level = stored.get(level)
        value = of_level.get(name) if isinstance(of_level, Mapping) else None
        if isinstance(value, int | float) and isfinite(value):
            return float(value)
    return float("nan")


def _measured_once(fields: Sequence[Field], frames: Mapping[int, Sequence[int]], cache: str | Path) -> pd.DataFrame:
    """Return the slice in focus of some frames of each of some fields."""
    chunks = Chunks(fields, 0)
    keys = [key for number, some in frames.items() for key in keys_of(number, fields[number].with_channel(0), some)]

    def build() -> pa.Table:
        with ThreadPoolExecutor() as pool:
            each = pool.map(lambda number: _measured(chunks, number, frames[number]), frames)
            found = progress_bar(each, "focus", "position", len(frames))
            rows = [(number, t, z) for number, of in zip(frames, found, strict=True) for t, z in of]
        return pa.Table.from_pandas(pd.DataFrame(rows, columns=["field", "t", "z"]), preserve_index=False)

    mark = fingerprint([fields[number] for number in frames], frames, chunks.stamps(keys), 1)  # version of this code
    return cached_table(Path(cache) / f"focus-{mark}.parquet", build).to_pandas()


def _measured(chunks: Chunks, number: int, frames: Sequence[int]) -> list[tuple[int, int]]:
    """Frames of a field, each with its slice of the strongest details."""
    found = []
    for t in frames:
        (stack,) = frames_of_channel(chunks, number, chunks.fields[number].with_channel(0), [t])
        found.append((t, int(np.argmax([_details(plane) for plane in stack]))))
    return found


def _details(plane: np.ndarray) -> float:
    plane = plane.astype(np.float32)
    return float((gaussian_filter(plane, FINE) - gaussian_filter(plane, COARSE)).var())
