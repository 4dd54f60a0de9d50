"""Pixels of stored images: every chunk is decoded once, and kept while there is room."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from cellcohort.datasets.codecs import decoding
from cellcohort.datasets.images.fields import Field, stamp

TOGETHER = 2**25  # bytes that are decoded in one call, at most, or one chunk
SAY_SO = (
    "If such are unwritten because they hold nothing, say so in the store: write_empty_chunks: false among the "
    "attributes of the array. Else store them again, or leave the position out by `exclude`."
)
Key = tuple[int, ...]  # a field and the place of a chunk in its grid; the field knows its store


class ReadError(RuntimeError):
    """An image could not be read; says which, and at what frame."""


class Chunks:
    """Decoded chunks of the images of some fields, with a bound on the bytes that are kept.

    Arrays are opened in the process that reads them, and neither they nor the kept chunks are pickled.
    Threads may share it.

    Parameters
    ----------
    fields : sequence of Field
    most_bytes : int
        Chunks that were used last are kept up to this many bytes, in each process.
    """

    def __init__(self, fields: Sequence[Field], most_bytes: int) -> None:
        self.fields, self.most_bytes = list(fields), most_bytes
        self._start()

    def _start(self) -> None:
        self._arrays: dict[int, Any] = {}
        self._kept: OrderedDict[Key, np.ndarray] = OrderedDict()
        self.bytes = 0
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {"fields": self.fields, "most_bytes": self.most_bytes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def each(self, keys: Iterable[Key]) -> Iterator[tuple[Key, np.ndarray]]:
        """The chunks of some keys, each once and in no order of theirs: those that are kept, then the others.

        A chunk is cut off where the image ends; (t, c, z, y, x). It is not to be written to.

        Raises
        ------
        ReadError
            One cannot be decoded, or is missing and its store does not say that this means fill values.
        """
        absent: dict[Key, list[Key]] = {}
        for key in sorted(set(keys)):
            chunk = self._kept_chunk(key)
            if chunk is not None:
                yield key, chunk
            else:  # those that differ in time only are read together, which costs half as much
                absent.setdefault((key[0], *key[2:]), []).append(key)
        for group in absent.values():
            field = self.fields[group[0][0]]
            n = max(TOGETHER // (prod(field.chunks) * np.dtype(field.dtype).itemsize), 1)
            for some in (group[i : i + n] for i in range(0, len(group), n)):
                for key, chunk in zip(some, self._read(some), strict=True):
                    self._keep(key, chunk)
                    yield key, chunk

    def stamps(self, keys: Iterable[Key]) -> list[str]:
        """What changes when the files of some chunks are written anew; empty where there is none."""
        files = (_file(self._array(key[0]), self.fields[key[0]], key[1:]) for key in keys)
        return [stamp(file) if file.exists() else "" for file in files]

    def _kept_chunk(self, key: Key) -> np.ndarray | None:
        with self._lock:
            if (chunk := self._kept.get(key)) is not None:
                self._kept.move_to_end(key)
            return chunk

    def _keep(self, key: Key, chunk: np.ndarray) -> None:
        if chunk.nbytes > self.most_bytes:
            return
        with self._lock:
            if key not in self._kept:
                self._kept[key] = chunk.copy()  # else the whole of what was read with it would stay
                self.bytes += chunk.nbytes
            while self.bytes > self.most_bytes:
                self.bytes -= self._kept.popitem(last=False)[1].nbytes

    def _read(self, keys: Sequence[Key]) -> list[np.ndarray]:
        """Chunks that differ in time only."""
        try:
            return self._decoded(keys)
        except Exception as error:
            if len(keys) > 1:  # to find out which
                return [chunk for key in keys for chunk in self._read([key])]
            field, place = self.fields[keys[0][0]], keys[0][1:]
            t, channel = (i * n for i, n in zip(place[:2], field.chunks, strict=False))
            raise ReadError(
                f"{field.store}: position {field.name} of {field.experiment} cannot be read at frame {t}, "
                f"channel {channel} (chunk {'.'.join(map(str, place))}): {type(error).__name__}: {error}"
            ) from error

    def _decoded(self, keys: Sequence[Key]) -> list[np.ndarray]:
        field, array = self.fields[keys[0][0]], self._array(keys[0][0])
        for key in keys:
            self._check_there(array, field, key[1:])
        corner = [i * n for i, n in zip(keys[0][1:], field.chunks, strict=True)]
        at = tuple(slice(i, min(i + n, size)) for i, n, size in zip(corner, field.chunks, field.shape, strict=True))
        length, frames = field.chunks[0], field.shape[0]
        if len(keys) == 1:
            return [np.asarray(array[at])]
        spans = [range(key[1] * length, min((key[1] + 1) * length, frames)) for key in keys]
        together = array.oindex[(np.concatenate([np.array(span) for span in spans]), *at[1:])]
        return np.split(np.asarray(together), np.cumsum([len(span) for span in spans])[:-1])

    def _array(self, number: int) -> Any:
        if number not in self._arrays:
            field = self.fields[number]
            with decoding(np.dtype(field.dtype).isnative):
                self._arrays[number] = zarr.open_array(field.store, path=field.array, mode="r")
        return self._arrays[number]

    def _check_there(self, array: Any, field: Field, place: Sequence[int]) -> None:
        """A missing chunk would be read as fill values, and a cell as a black square."""
        if not field.fills and not (file := _file(array, field, place)).exists():
            raise FileNotFoundError(f"no chunk {file}. {SAY_SO}")


def keys_of(number: int, field: Field, frames: Iterable[int]) -> Iterator[Key]:
    """The chunks of the channels in use that hold whole frames of a field; `number` is the field's."""
    times = sorted({t // field.chunks[0] for t in frames})
    channels = sorted({channel // field.chunks[1] for channel in field.channels})
    grid = [range(-(-size // n)) for size, n in zip(field.shape[2:], field.chunks[2:], strict=True)]
    return ((number, *place) for place in product(times, channels, *grid))


def check_stored(fields: Sequence[Field], used: np.ndarray) -> None:
    """Make sure that every chunk of some frames is stored, without decoding it.

    Parameters
    ----------
    fields : sequence of Field
    used : numpy.ndarray of int, shape (n, 2)
        Numbers of fields, and frames.

    Raises
    ------
    ReadError
        Chunks are missing in a field whose store does not say that this means fill values.
    """
    chunks, missing, n = Chunks(fields, 0), [], 0
    for number, field in enumerate(fields):
        if field.fills:
            continue
        for key in keys_of(number, field, used[used[:, 0] == number, 1].tolist()):
            n += 1
            if not _file(chunks._array(number), field, key[1:]).exists():
                missing.append(key)
    if missing:
        key, field = missing[0], fields[missing[0][0]]
        raise ReadError(
            f"{len(missing)} of {n} chunks are missing, such as that of {field.store}, position {field.name} of "
            f"{field.experiment}, frame {key[1] * field.chunks[0]}, channel {key[2] * field.chunks[1]}: "
            f"{_file(chunks._array(key[0]), field, key[1:])}. {SAY_SO}"
        )


def _file(array: Any, field: Field, place: Sequence[int]) -> Path:
    """Where a chunk is stored, by itself or in a shard."""
    stored = array.shards or array.chunks
    at = tuple(i * n // m for i, n, m in zip(place, array.chunks, stored, strict=True))
    return Path(field.store, field.array, array.metadata.encode_chunk_key(at))
