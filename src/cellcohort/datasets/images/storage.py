"""Where the chunks of an image are stored: each in a file of its own, or several in a shard."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Any

import google_crc32c
import numpy as np
import zarr
from cachetools import LRUCache
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec

from cellcohort.datasets.codecs import decoding
from cellcohort.datasets.images.plates import AXES, Field

WAY_OUT = (
    "If the store leaves out chunks that hold nothing, set write_empty_chunks: false among the attributes of the "
    "array. Else store them again, or leave the position out by `exclude`."
)
ABSENT = 2**64 - 1  # offset of a chunk that a shard does not hold
MOST_INDICES = 256  # of shards that are kept, for each field
Key = tuple[int, ...]  # number of a field, and the place of a chunk in its grid (t, c, z, y, x)


class ReadError(RuntimeError):
    """An image cannot be read; the message gives the plate, the position and the frame."""


class Storage:
    """The stored chunks of one field.

    Parameters
    ----------
    field : Field
    """

    def __init__(self, field: Field) -> None:
        self.field = field
        with decoding(np.dtype(field.dtype).isnative and not field.in_columns):
            self._array: Any = zarr.open_array(field.store, path=field.array, mode="r")
        self._stored = [AXES.index(axis) for axis in field.axes]
        outer = dict(zip(field.axes, self._array.shards or self._array.chunks, strict=True))
        self._per_file = tuple(outer.get(axis, 1) // n for axis, n in zip(AXES, field.chunks, strict=True))
        self._folder = os.path.join(field.store, field.array)
        self._indices: LRUCache[Key, tuple[str, np.ndarray]] = LRUCache(MOST_INDICES)
        self._lock = threading.Lock()

    def file(self, place: Sequence[int]) -> str:
        """Path of the file that holds a chunk, by itself or in a shard."""
        at = self._file_place(place)
        return os.path.join(self._folder, self._array.metadata.encode_chunk_key(tuple(at[i] for i in self._stored)))

    def stamp(self, place: Sequence[int]) -> str:
        """Size and time of the file of a chunk, which change when it is written anew; empty where there is none."""
        try:
            about = os.stat(self.file(place))
        except FileNotFoundError:
            return ""
        return f"{about.st_size} {about.st_mtime_ns}"

    def size(self, place: Sequence[int]) -> int | None:
        """Bytes of a chunk as it is stored; None where it is not stored.

        Raises
        ------
        ReadError
            The shard that should hold it is damaged.
        """
        stamp = self.stamp(place)
        if not stamp:
            return None
        if self._array.shards is None:
            return int(stamp.partition(" ")[0])
        shard = self._file_place(place)
        with self._lock:
            kept = self._indices.get(shard)
            if kept is None or kept[0] != stamp:
                kept = self._indices[shard] = stamp, self._index(place)
        offset, length = kept[1][tuple(i % n for i, n in zip(place, self._per_file, strict=True))]
        return None if offset == ABSENT else int(length)

    def read(self, at: Sequence[slice | np.ndarray]) -> np.ndarray:
        """Return the pixels between some bounds (t, c, z, y, x), where frames may be a list; with all five axes."""
        wanted = tuple(at[i] for i in self._stored)
        every = all(isinstance(one, slice) for one in wanted)
        pixels = np.asarray(self._array[wanted] if every else self._array.oindex[wanted])
        return np.expand_dims(pixels, tuple(i for i in range(len(AXES)) if i not in self._stored))

    def check_stored(self, place: Sequence[int]) -> None:
        """Raise FileNotFoundError where a chunk is missing, which would be read as fill values."""
        if not self.field.fills and self.size(place) is None:
            where = "not stored in the shard" if self.stamp(place) else "no chunk"
            raise FileNotFoundError(f"{where} {self.file(place)}. {WAY_OUT}")

    def _file_place(self, place: Sequence[int]) -> Key:
        return tuple(i // n for i, n in zip(place, self._per_file, strict=True))

    def _index(self, place: Sequence[int]) -> np.ndarray:
        """Offset and length of every chunk of a shard, uint64 (*chunks of a shard, 2)."""
        codec: ShardingCodec = self._array.metadata.codecs[0]
        endian, checked = "little", False
        for step in codec.index_codecs:
            if isinstance(step, BytesCodec):
                endian = str(getattr(step.endian, "value", step.endian))
            elif isinstance(step, Crc32cCodec):
                checked = True
            else:
                raise self._unreadable(place, f"its index is stored by {step}, which is not supported")
        size = 16 * int(np.prod(self._per_file))
        stored = size + 4 * checked
        with open(self.file(place), "rb") as file:
            length = os.fstat(file.fileno()).st_size
            at_start = str(getattr(codec.index_location, "value", codec.index_location)) == "start"
            file.seek(0 if at_start else max(length - stored, 0))
            content = file.read(stored)
        if len(content) < stored:
            raise self._unreadable(place, f"it has {length} bytes, fewer than its index")
        if checked and google_crc32c.value(content[:size]) != int.from_bytes(content[size:], "little"):
            raise self._unreadable(place, "the checksum of its index is wrong")
        index = np.frombuffer(content[:size], ">u8" if endian == "big" else "<u8")
        return index.reshape(*self._per_file, 2)

    def _unreadable(self, place: Sequence[int], reason: str) -> ReadError:
        first = [i * n * m for i, n, m in zip(self._file_place(place), self._per_file, self.field.chunks, strict=True)]
        frames, channels = (
            f"{first[i]} to {min(first[i] + self._per_file[i] * self.field.chunks[i], self.field.shape[i]) - 1}"
            for i in (0, 1)
        )
        return ReadError(
            f"{self.field.store}: position {self.field.name} of {self.field.experiment}: the shard "
            f"{self.file(place)} is cut off or damaged ({reason}), so all of it is unreadable: frames {frames}, "
            f"channels {channels}. Store it again, or leave the position out by `exclude`."
        )


def keys_of(number: int, field: Field, frames: Iterable[int]) -> Iterator[Key]:
    """Return the chunks of the channels in use that hold whole frames of a field; `number` is the field's."""
    times = sorted({t // field.chunks[0] for t in frames})
    channels = sorted({channel // field.chunks[1] for channel in field.channels})
    grid = [range(-(-size // n)) for size, n in zip(field.shape[2:], field.chunks[2:], strict=True)]
    return ((number, *place) for place in product(times, channels, *grid))
