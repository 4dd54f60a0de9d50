"""Frames that hold no image: empty, dark, saturated, repeated, or padded with zeros."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
import pandas as pd
import pyarrow as pa

from cellcohort.datasets.images.chunks import Chunks
from cellcohort.datasets.images.parquet_cache import cached_table
from cellcohort.datasets.images.plates import Field
from cellcohort.datasets.images.storage import Storage, keys_of
from cellcohort.files import fingerprint
from cellcohort.messages import listed, several
from cellcohort.progress_bar import progress_bar

SAMPLED = 16  # frames of a field that are always looked at, evenly spread
TOGETHER = 2**26  # bytes of frames that are in memory at once
SATURATED = 0.9  # of the pixels at the greatest value of the camera
TOPS = (2**8 - 1, 2**10 - 1, 2**12 - 1, 2**14 - 1, 2**16 - 1)
EMPTY = 0.5  # of the pixels have the least value in a channel that is nearly empty by nature
FLAT = 0.99  # of the pixels have the least value in a frame without an image that has some odd pixels
PADDED = 0.25  # of a frame that an image within padding has, at least
NOTHING = (0,) * 6  # box of a frame without an image
BOX = ("z0", "y0", "x0", "z1", "y1", "x1")
COLUMNS = ("field", "channel", "t", "kind", *BOX)


class Seen(NamedTuple):
    """What was seen in one frame of one channel."""

    kind: str  # empty where nothing is wrong
    box: Sequence[int]  # first and last slice, line and column (exclusive) of the image; all 0 where there is none
    low: float  # the least value
    flat: float  # share of the pixels that have it


def sampled_frames(field: Field) -> list[int]:
    """Frames that stand for a field, evenly spread in time."""
    return np.unique(np.linspace(0, field.shape[0] - 1, SAMPLED).astype(int)).tolist()


def frames_with_image(number: int, channel: int, field: Field, used: Iterable[int], faults: pd.DataFrame) -> list[int]:
    """Frames that stand for a channel of a field: of those evenly spread in time, else of those in use.

    Parameters
    ----------
    number, channel : int
        Number of the field, and place of the channel in its input.
    field : Field
    used : iterable of int
        Frames that have cells.
    faults : pandas.DataFrame
        As :func:`blank_frames` gives it; frames without an image are left out.
    """
    here = (faults["field"] == number) & (faults["channel"] == channel) & (faults["z1"] == 0)
    blank = set(faults["t"][here])
    frames = [t for t in sampled_frames(field) if t not in blank]
    return frames or [t for t in used if t not in blank]


def blank_frames(fields: Sequence[Field], used: np.ndarray, cache: str | Path) -> pd.DataFrame:
    """Frames that hold no image, or only in a part of them.

    A frame is decoded where its stored size gives reason to: it is small, that of another frame, or far below the
    median of its channel. 16 frames of each field are always decoded, and all of a channel where one is at fault. In a
    channel that is nearly empty by nature, frames of its background alone are no fault. Noise without an image is none
    either.

    Parameters
    ----------
    fields : sequence of Field
    used : numpy.ndarray of int, shape (n, 2)
        Numbers of fields, and frames that have cells.
    cache : str or Path
        Directory of what was found, which is looked for again when a file of the images changes.

    Returns
    -------
    pandas.DataFrame
        One row per field, channel (its place in the input) and frame at fault: "field", "channel", "t", "kind" ("all
        zero", "saturated", "of one value", "of one value but for a few pixels", "repeated", "padded with zeros", "not
        stored", which only frames without cells may be), and "z0" to "x1", the part of the frame that has an image.

    Raises
    ------
    ReadError
        Frames that are used lack a stored chunk, or cannot be decoded.
    """
    chunks = Chunks(fields, 0)
    frames = [
        sorted({*used[used[:, 0] == number, 1].tolist(), *sampled_frames(field)}) for number, field in enumerate(fields)
    ]
    keys = [key for number, field in enumerate(fields) for key in keys_of(number, field, frames[number])]
    mark = fingerprint(list(fields), frames, chunks.stamps(keys), 3)  # the last is the version of this code

    def build() -> pa.Table:
        lists = [used[used[:, 0] == number, 1].tolist() for number in range(len(fields))]
        chunks.check_stored(key for i, some in enumerate(lists) for key in keys_of(i, fields[i], some))

        def faults(number: int) -> list[tuple[object, ...]]:
            spare, rows = {*frames[number]} - {*lists[number]}, list[tuple[object, ...]]()
            for channel in range(len(fields[number].channels)):
                absent = _not_stored(chunks, number, channel, spare)
                rows += [(number, channel, t, "not stored", *NOTHING) for t in sorted(absent)]
                rows += _faults(chunks, number, channel, [t for t in frames[number] if t not in absent])
            return rows

        with ThreadPoolExecutor() as pool:  # decoding leaves the interpreter free; `stamps` has opened the images
            each = progress_bar(pool.map(faults, range(len(fields))), "frames", "position", len(fields))
            found = [row for rows in each for row in rows]
        return pa.Table.from_pandas(pd.DataFrame(found, columns=list(COLUMNS)), preserve_index=False)

    return cached_table(Path(cache) / f"frames-{mark}.parquet", build).to_pandas()


def blank_cells(faults: pd.DataFrame, place: np.ndarray, sizes: np.ndarray, axes: str = "zyx") -> np.ndarray:
    """Which patches lie in frames without an image, or reach into padding.

    Parameters
    ----------
    faults : pandas.DataFrame
        As :func:`blank_frames` gives it.
    place : numpy.ndarray of int, shape (n, 5)
        Field, frame, and first slice, line and column of each patch.
    sizes : numpy.ndarray of int, shape (n, 3)
        Slices, lines and columns of each patch.
    axes : str
        Those along which a patch must lie in the image; where any slices may be read, "yx".

    Returns
    -------
    numpy.ndarray of bool, shape (n,)
    """
    bad = np.zeros(len(place), bool)
    if len(faults):
        rows = pd.DataFrame(place, columns=["field", "t", "z", "y", "x"]).reset_index(names="row")
        met = rows.merge(faults, on=["field", "t"])
        inside = (met["z1"] > 0).to_numpy(copy=True)
        for axis, size in zip("zyx", sizes[met["row"]].T, strict=True):
            if axis in axes:
                inside &= (met[axis] >= met[f"{axis}0"]) & (met[axis] + size <= met[f"{axis}1"])
        bad[met["row"][~inside]] = True
    return bad


def describe(faults: pd.DataFrame, fields: Sequence[Field], place: np.ndarray, bad: np.ndarray) -> str:
    """Position, channels, frames and number of cells of each fault, in words."""
    frames_of = dict[tuple[int, str, int], list[int]]()
    for row in faults.itertuples(index=False):
        frames_of.setdefault((row.field, row.kind, row.channel), []).append(row.t)  # type: ignore[arg-type]
    channels = dict[tuple[int, str, tuple[int, ...]], list[int]]()
    for (number, kind, channel), frames_here in frames_of.items():
        channels.setdefault((number, kind, tuple(frames_here)), []).append(channel)
    lines = []
    for (number, kind, frames), some in channels.items():
        field = fields[number]
        n = int((bad & (place[:, 0] == number) & np.isin(place[:, 1], frames)).sum())
        one = len(frames) == 1
        lines.append(
            f"position {field.name} of {field.experiment}, channel{'s' * (len(some) > 1)} "
            f"{', '.join(field.channel_names[i] for i in some)}: frame{'s' * (not one)} {_ranges(frames)} "
            f"{'is' if one else 'are'} {kind} ({several(n, 'cell')})"
        )
    return listed(lines, most=12, separator="; ")


def _not_stored(chunks: Chunks, number: int, channel: int, frames: Iterable[int]) -> set[int]:
    """Frames of which a chunk is not stored, as those that an acquisition did not reach before it was stopped."""
    field, storage = chunks.fields[number].with_channel(channel), chunks.storage(number)
    if field.fills:
        return set()
    return {t for t in frames if any(storage.size(place) is None for _, *place in keys_of(number, field, [t]))}


def _faults(chunks: Chunks, number: int, channel: int, frames: Sequence[int]) -> Iterator[tuple[object, ...]]:
    """Return the rows of one channel of a field."""
    field = chunks.fields[number].with_channel(channel)
    suspects = _suspects(chunks.storage(number), field, frames)
    seen = _look(chunks, number, field, frames, suspects)
    if any(one.kind for one in seen.values()) and len(suspects) < len(frames):
        seen = _look(chunks, number, field, frames, set(frames))
    images = [one for one in seen.values() if one.flat < 1]
    sparse = bool(images) and np.median([one.flat for one in images]) > EMPTY
    background = np.median([one.low for one in images]) if sparse else None
    for t, one in sorted(seen.items()):
        flat = one.flat >= FLAT
        if images and not sparse and flat and one.flat < 1:
            yield number, channel, t, "of one value but for a few pixels", *NOTHING
        elif one.kind and not (flat and one.low == background):
            yield number, channel, t, one.kind, *one.box


def _suspects(storage: Storage, field: Field, frames: Sequence[int]) -> set[int]:
    """Frames whose stored size gives reason to look at them, and those that are always looked at."""
    of_time = dict[int, list[int]]()
    for _, *place in keys_of(0, field, frames):
        of_time.setdefault(place[0], []).append(storage.size(place) or 0)
    sizes = np.array([of_time[t // field.chunks[0]] for t in frames])
    total = sizes.sum(axis=1)
    whole = prod(field.shape[2:]) * np.dtype(field.dtype).itemsize
    _, of, n = np.unique(sizes, axis=0, return_inverse=True, return_counts=True)
    odd = (n[of.ravel()] > 1) | (total < 0.9 * np.median(total)) | (total < whole / 50)
    return {*np.array(frames)[odd].tolist(), *sampled_frames(field)} & set(frames)


def _look(chunks: Chunks, number: int, field: Field, frames: Sequence[int], wanted: set[int]) -> dict[int, Seen]:
    """Return what is in some of the frames of a channel; each is compared with those before it."""
    before = {t for t, after in pairwise(frames) if after in wanted}
    decoded = sorted(wanted | before)
    n = max(TOGETHER // (prod(field.shape[2:]) * np.dtype(field.dtype).itemsize), field.chunks[0])
    seen: dict[int, Seen] = {}
    images_before = set[tuple[int, ...]]()
    for some in (decoded[i : i + n] for i in range(0, len(decoded), n)):
        for t, image in zip(some, frames_of_channel(chunks, number, field, some), strict=True):
            mark = _checksums(image)
            if t in wanted:
                seen[t] = _seen(image, mark in images_before)
            images_before.add(mark)
    return seen


def _checksums(image: np.ndarray) -> tuple[int, ...]:
    """Return numbers that are the same for the same image: one of 32 bits for each half of its bytes."""
    return tuple(google_crc32c.value(half.tobytes()) for half in np.array_split(image.ravel(), 2))


def frames_of_channel(chunks: Chunks, number: int, field: Field, frames: Sequence[int]) -> np.ndarray:
    """Whole frames of one channel, (n, z, y, x)."""
    images: Any = np.empty((len(frames), *field.shape[2:]), np.dtype(field.dtype).newbyteorder("="))
    for key, chunk in chunks.each(keys_of(number, field, frames)):
        rows = [i for i, t in enumerate(frames) if t // field.chunks[0] == key[1]]
        within = [frames[i] % field.chunks[0] for i in rows]
        at = tuple(slice(i * n, i * n + m) for i, n, m in zip(key[3:], field.chunks[2:], chunk.shape[2:], strict=True))
        images[(rows, *at)] = chunk[within, field.channels[0] % field.chunks[1]]
    return images


def _seen(image: np.ndarray, repeated: bool) -> Seen:
    """Return what is in one image (z, y, x); the kinds are tried from the plainest on."""
    low, high = image.min(), image.max()
    least = image == low
    about = float(low), float(least.mean())
    tops = {*TOPS, *((np.iinfo(image.dtype).max,) if image.dtype.kind in "ui" else ())}
    if low == high:
        kind = "all zero" if high == 0 else "saturated" if high in tops else "of one value"
        return Seen(kind, NOTHING, *about)
    if repeated:
        return Seen("repeated", NOTHING, *about)
    if high in tops and (image == high).mean() >= SATURATED:
        return Seen("saturated", NOTHING, *about)
    if low <= 0 and not (there := ~least if low == 0 else image != 0).all():
        ends = [np.flatnonzero(there.any(axis=tuple({0, 1, 2} - {axis}))) for axis in range(3)]
        first, last = [int(end[0]) for end in ends], [int(end[-1]) + 1 for end in ends]
        within = there[tuple(slice(i, j) for i, j in zip(first, last, strict=True))]
        if PADDED * image.size <= within.size < image.size and within.mean() >= 0.99:
            return Seen("padded with zeros", (*first, *last), *about)
    return Seen("", (0, 0, 0, *image.shape), *about)


def _ranges(frames: Sequence[int]) -> str:
    """Frames in words, such as ``4, 9 to 11``."""
    starts = [t for i, t in enumerate(frames) if i == 0 or frames[i - 1] != t - 1]
    stops = [t for i, t in enumerate(frames) if i + 1 == len(frames) or frames[i + 1] != t + 1]
    return listed(f"{a}" if a == b else f"{a} to {b}" for a, b in zip(starts, stops, strict=True))
