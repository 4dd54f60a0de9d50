"""Brightness and contrast of every frame, field or plate, measured once or taken from what is stored."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import ceil, isfinite, prod, sqrt
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pandas as pd
import pyarrow as pa

from cellcohort.datasets.images.attributes import LEVELS, attributes_of, stored_statistics
from cellcohort.datasets.images.blank_frames import BOX, frames_with_image
from cellcohort.datasets.images.chunks import Chunks
from cellcohort.datasets.images.index import Index
from cellcohort.datasets.images.parquet_cache import cached_table
from cellcohort.datasets.images.storage import keys_of
from cellcohort.files import fingerprint
from cellcohort.messages import listed
from cellcohort.progress_bar import progress_bar

Normalise = Literal["frame", "position", "plate", "none"]
NormaliseBy = Literal["mean", "median", "percentiles"]
Statistics = Literal["measured", "stored", "auto"]
NAMES = {"mean": ("mean", "std"), "median": ("median", "iqr"), "percentiles": ("p5", "p95")}  # as they are stored
IN_WORDS = {"median": "interquartile range", "percentiles": "distance of the 5th and 95th percentiles"}
MOST_SAMPLED = 2**22  # pixels that medians and percentiles are taken of

Boxes = Mapping[int, tuple[int, ...]]  # of each frame, the part that has an image
Unit = tuple[int, int, int]  # field (of a plate, the first), frame (of all, 0) and channel
Parts = Mapping[int, Boxes]  # by field


def scaling(
    index: Index,
    normalise: Normalise,
    cache: str | Path,
    normalise_by: NormaliseBy = "mean",
    statistics: Statistics = "measured",
) -> np.ndarray:
    """Return what to subtract from the pixels of every field, frame and channel, and what to divide them by.

    What is measured is kept in `cache`. For positions and plates it is of at most 16 whole frames of each field,
    evenly spread in time; medians and percentiles are of at most 4 million pixels, on a grid. Frames without an image
    and padding are left out. A channel that does not vary is only centred.

    Parameters
    ----------
    index : Index
    normalise : {"frame", "position", "plate", "none"}
        Over what: each frame with cells, each field by itself, all fields of an experiment, or not at all.
    cache : str or Path
        Directory of what is measured once.
    normalise_by : {"mean", "median", "percentiles"}
        Mean and standard deviation, median and interquartile range, or the 5th percentile, which becomes 0, and the
        95th, which becomes 1.
    statistics : {"measured", "stored", "auto"}
        Measured here; those that ``viscy preprocess`` stored among the attributes of the positions; or those
        where a position (of a plate, every position) has them. A line tells which.

    Returns
    -------
    numpy.ndarray of float32, shape (2, n_fields, n_frames, n_channels)
        With one frame, which stands for all, but for ``normalise="frame"``.

    Raises
    ------
    ReadError
        An image cannot be read.
    ValueError
        An option is no choice, pixels are not finite, or statistics that are to be stored are not there.
    """
    check_options(normalise, normalise_by, statistics)
    fields = index.fields
    frames = max(field.shape[0] for field in fields) if normalise == "frame" else 1
    scale = np.zeros((2, len(fields), frames, len(fields[0].channels)))
    scale[1] = 1.0
    if normalise == "none":
        return scale.astype(np.float32)
    units = _units(index, normalise)
    stored = {} if statistics == "measured" else _stored(index, units, normalise, normalise_by)
    if statistics == "stored" and (lacking := [unit for unit in units if unit not in stored]):
        raise _not_stored(index, lacking, normalise, normalise_by, len(units))
    measured = _measured_once(index, {unit: units[unit] for unit in units if unit not in stored}, normalise_by, cache)
    for (number, t, channel), values in {**stored, **measured}.items():
        scale[:, list(units[number, t, channel]), t, channel] = np.reshape(values, (2, -1))
    if statistics != "measured":
        _tell(index, units, stored, normalise)
    flat = scale[1] <= 1e-6 * np.abs(scale[0])
    if normalise_by != "mean" and flat.any():
        warnings.warn(
            f"the {IN_WORDS[normalise_by]} is 0 in {int(flat.sum()):,} of {flat.size:,} (each a {normalise} and a "
            "channel), where so many pixels have one value; these are only centred. data.normalise_by=mean takes the "
            "standard deviation, which is not 0 there.",
            stacklevel=2,
        )
    scale[1][flat] = 1.0
    return scale.astype(np.float32)


def check_options(normalise: str, normalise_by: str, statistics: str) -> None:
    """Raise ValueError where an option is no choice, or would be ignored."""
    for name, value, choices in (
        ("normalise", normalise, get_args(Normalise)),
        ("normalise_by", normalise_by, get_args(NormaliseBy)),
        ("statistics", statistics, get_args(Statistics)),
    ):
        if value not in choices:
            raise ValueError(f"{name}={value!r} is not a choice; use one of {', '.join(choices)}.")
    if normalise == "none" and (normalise_by != "mean" or statistics != "measured"):
        raise ValueError(
            f"normalise='none' leaves pixels as they are, but normalise_by={normalise_by!r} and "
            f"statistics={statistics!r} are set; leave these out, or choose frame, position or plate."
        )


def _units(index: Index, normalise: Normalise) -> dict[Unit, dict[int, Boxes]]:
    """Return what each pair of numbers is measured of."""
    units = dict[Unit, dict[int, Boxes]]()
    first = dict[tuple[str, str], int]()  # field of each plate and channel
    for number, field in enumerate(index.fields):
        used = np.unique(index.place[index.place[:, 0] == number, 1]).tolist()
        for channel, name in enumerate(field.channel_names):
            plate = first.setdefault((field.experiment, name), number)
            here = (index.faults["field"] == number) & (index.faults["channel"] == channel)
            boxes = {t: tuple(box) for t, *box in index.faults.loc[here, ["t", *BOX]].to_numpy().tolist()}
            if normalise == "frame":
                chosen = [t for t in used if any(boxes.get(t, BOX))]
            else:
                chosen = frames_with_image(number, channel, field, used, index.faults)
            found = {t: boxes.get(t, (0, 0, 0, *field.shape[2:])) for t in chosen}
            if normalise == "frame":
                units |= {(number, t, channel): {number: {t: box}} for t, box in found.items()}
            else:
                units.setdefault((plate if normalise == "plate" else number, 0, channel), {})[number] = found
    return units


def _stored(
    index: Index, units: Mapping[Unit, Parts], normalise: Normalise, normalise_by: NormaliseBy
) -> dict[Unit, np.ndarray]:
    """Return the numbers that are stored, (2, n_fields of the unit) of each unit all of whose fields have them."""
    with ThreadPoolExecutor() as pool:  # opening files is mostly waiting
        attributes = list(pool.map(attributes_of, index.fields))
    low, high = NAMES[normalise_by]
    found = {}
    for (number, t, channel), parts in units.items():
        pairs = []
        for part in parts:
            name = index.fields[part].channel_names[channel]
            there = stored_statistics(attributes[part], name, normalise, [t]).get(t, {})
            pair = [there.get(low), there.get(high)]
            if all(isinstance(value, int | float) and isfinite(value) for value in pair):
                pairs.append(pair)
        if len(pairs) == len(parts):
            values = np.array(pairs, float).T
            found[number, t, channel] = np.stack([values[0], _spread(values, normalise_by)])
    return found


def _spread(values: np.ndarray, normalise_by: NormaliseBy) -> np.ndarray:
    return values[1] - values[0] if normalise_by == "percentiles" else values[1]


def _not_stored(
    index: Index, lacking: Sequence[Unit], normalise: Normalise, normalise_by: NormaliseBy, n: int
) -> ValueError:
    number, t, channel = lacking[0]
    field = index.fields[number]
    there = attributes_of(field).get("normalization")
    frame = f" at frame {t}" if normalise == "frame" else ""
    return ValueError(
        f"statistics='stored', but {len(lacking):,} of {n:,} are not stored, such as {LEVELS[normalise]} of "
        f"{' and '.join(NAMES[normalise_by])} of channel {field.channel_names[channel]}{frame} in position "
        f"{field.name} of {field.experiment}. Its attribute `normalization` has "
        f"{listed(there) if there else 'nothing'}. Use statistics=auto to measure those that lack, run `viscy "
        "preprocess`, or choose another normalise or normalise_by."
    )


def _tell(index: Index, units: Mapping[Unit, Parts], stored: Mapping[Unit, np.ndarray], normalise: Normalise) -> None:
    """Print which statistics are used."""
    line = f"normalisation: {len(stored):,} of {len(units):,} statistics are those stored as {LEVELS[normalise]}"
    if rest := [unit for unit in units if unit not in stored]:
        fields = [index.fields[number] for number in dict.fromkeys(unit[0] for unit in rest)]
        names = [
            field.experiment if normalise == "plate" else f"{field.name} of {field.experiment}" for field in fields
        ]
        line += f", and {len(rest):,} are measured: {listed(names, most=5)}"
    print(f"{line}.", file=sys.stderr, flush=True)


def _measured_once(
    index: Index, units: Mapping[Unit, Parts], normalise_by: NormaliseBy, cache: str | Path
) -> dict[Unit, np.ndarray]:
    """Return the two numbers of each unit that has images."""
    if not units:
        return {}
    chunks = Chunks(index.fields, 0)
    keys = [
        key
        for (_, _, channel), parts in units.items()
        for number, boxes in parts.items()
        for key in keys_of(number, index.fields[number].with_channel(channel), boxes)
    ]
    mark = fingerprint(index.fields, normalise_by, units, chunks.stamps(keys), 3)  # the last is the version of this
    file = Path(cache) / f"scaling-{mark}.parquet"
    table = cached_table(file, lambda: _measured(chunks, units, normalise_by)).to_pandas()
    rows = table.dropna().itertuples(index=False)
    return {(row.field, row.t, row.channel): np.array([row.centre, row.spread]) for row in rows}


def _measured(chunks: Chunks, units: Mapping[Unit, Parts], normalise_by: NormaliseBy) -> pa.Table:
    """One row per unit; NaN where there is no image."""

    def measure(unit: Unit) -> tuple[float, float]:
        if normalise_by == "mean":
            return _moments(chunks, unit[2], units[unit])
        return _quantiles(chunks, unit[2], units[unit], normalise_by)

    with ThreadPoolExecutor() as pool:  # decoding leaves the interpreter free
        found = progress_bar(pool.map(measure, units), "brightness", "statistic", len(units))
        rows = [(*unit, *values) for unit, values in zip(units, found, strict=True)]
    return pa.Table.from_pandas(
        pd.DataFrame(rows, columns=["field", "t", "channel", "centre", "spread"]), preserve_index=False
    )


def _moments(chunks: Chunks, channel: int, parts: Parts) -> tuple[float, float]:
    """Mean and standard deviation of the pixels."""
    total = np.zeros(3)
    for image in _images(chunks, channel, parts):
        image = image.astype(np.float64)
        total += image.size, image.sum(), np.square(image).sum()
    if not total[0]:
        return np.nan, np.nan
    mean, square = total[1] / total[0], total[2] / total[0]
    return mean, sqrt(max(square - mean**2, 0.0))


def _quantiles(chunks: Chunks, channel: int, parts: Parts, normalise_by: NormaliseBy) -> tuple[float, float]:
    """Median and interquartile range, or the 5th percentile and what the 95th is above it."""
    pixels = sum(prod(np.subtract(box[3:], box[:3]).tolist()) for boxes in parts.values() for box in boxes.values())
    step = ceil(sqrt(pixels / MOST_SAMPLED)) or 1
    sample = [image[:, ::step, ::step].ravel() for image in _images(chunks, channel, parts)]
    if not sample:
        return np.nan, np.nan
    values = np.concatenate(sample).astype(np.float32)
    low, centre, high = np.percentile(values, (25, 50, 75) if normalise_by == "median" else (5, 5, 95)).tolist()
    return centre, high - low


def _images(chunks: Chunks, channel: int, parts: Parts) -> Iterator[np.ndarray]:
    """Give the pixels (slices, lines, columns) of the parts of frames that have an image, chunk by chunk."""
    for number, boxes in parts.items():
        field = chunks.fields[number].with_channel(channel)
        for key, chunk in chunks.each(keys_of(number, field, boxes)):
            corner = [i * n for i, n in zip(key[3:], field.chunks[2:], strict=True)]
            for t in (t for t in boxes if t // field.chunks[0] == key[1]):
                part = tuple(
                    slice(max(first - at, 0), max(last - at, 0))
                    for first, last, at in zip(boxes[t][:3], boxes[t][3:], corner, strict=True)
                )
                image = chunk[t % field.chunks[0], field.channels[0] % field.chunks[1]][part]
                if image.dtype.kind == "f" and not np.isfinite(image).all():
                    raise ValueError(
                        f"{field.store}: position {field.name} of {field.experiment} has pixels that are not finite in "
                        f"channel {field.channels[0]}; correct them, or exclude the position."
                    )
                if image.size:
                    yield image
