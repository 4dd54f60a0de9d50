"""Pixels of stored images: every chunk is decoded once, and kept while there is room."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from cellcohort.timelapse.fields import Field

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

    def get(self, key: Key) -> np.ndarray:
        """One chunk, cut off where the image ends; (t, c, z, y, x). Not to be written to.

        Raises
        ------
        ReadError
            It cannot be decoded, or is missing and its store does not say that this means fill values.
        """
        with self._lock:
            if (chunk := self._kept.get(key)) is not None:
                self._kept.move_to_end(key)
                return chunk
        chunk = self._read(key)
        with self._lock:
            if key not in self._kept:
                self._kept[key] = chunk
                self.bytes += chunk.nbytes
            while self.bytes > self.most_bytes and self._kept:
                self.bytes -= self._kept.popitem(last=False)[1].nbytes
        return chunk

    def _read(self, key: Key) -> np.ndarray:
        field = self.fields[key[0]]
        corner = [i * n for i, n in zip(key[1:], field.chunks, strict=True)]
        try:
            array = self._array(key[0])
            self._check_there(array, field, key[1:])
            ends = (min(at + n, size) for at, n, size in zip(corner, field.chunks, field.shape, strict=True))
            return np.asarray(array[tuple(slice(at, end) for at, end in zip(corner, ends, strict=True))])
        except Exception as error:
            raise ReadError(
                f"{field.store}: position {field.name} of {field.experiment} cannot be read at frame {corner[0]}, "
                f"channel {corner[1]} (chunk {'.'.join(map(str, key[1:]))}): {type(error).__name__}: {error}"
            ) from error

    def _array(self, number: int) -> Any:
        if number not in self._arrays:
            field = self.fields[number]
            self._arrays[number] = zarr.open_array(field.store, path=field.array, mode="r")
        return self._arrays[number]

    def _check_there(self, array: Any, field: Field, place: Sequence[int]) -> None:
        """A missing chunk would be read as fill values, and a cell as a black square."""
        if field.fills:
            return
        stored = array.shards or array.chunks
        corner = (i * n for i, n in zip(place, array.chunks, strict=True))
        at = tuple(at // n for at, n in zip(corner, stored, strict=True))
        file = Path(field.store, field.array, array.metadata.encode_chunk_key(at))
        if not file.exists():
            raise FileNotFoundError(
                f"no chunk {file}. If it was left unwritten because it holds nothing, say so in the store: "
                "write_empty_chunks: false among the attributes of the array."
            )
