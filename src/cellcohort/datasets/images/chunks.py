"""Decoded chunks of images, with a bounded cache."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from math import prod
from typing import Any

import numpy as np
from cachetools import LRUCache

from cellcohort.datasets.images.plates import Field
from cellcohort.datasets.images.storage import WAY_OUT, Key, ReadError, Storage

STAMPED = 256  # files that a thread asks for at once
TOGETHER = 2**25  # bytes that are decoded in one call, at most, or one chunk


class Chunks:
    """Decoded chunks of the images of some fields, with a bound on the bytes that are kept.

    Arrays are opened in the process that reads them, and neither they nor the kept chunks are pickled.
    Threads may share it.

    Parameters
    ----------
    fields : sequence of Field
    most_bytes : int
        Chunks that were used last are kept up to this many bytes, in each process.

    Attributes
    ----------
    home : list of int
        For each field the first one of the same images, whose chunks serve all of them.
    """

    def __init__(self, fields: Sequence[Field], most_bytes: int) -> None:
        self.fields, self.most_bytes = list(fields), most_bytes
        self._start()

    def _start(self) -> None:
        first = dict[tuple[str, str], int]()  # the same images may be there for several channels
        self.home = [first.setdefault((one.store, one.array), number) for number, one in enumerate(self.fields)]
        self._storages: dict[int, Storage] = {}
        self._kept: LRUCache[Key, np.ndarray] = LRUCache(self.most_bytes, lambda chunk: chunk.nbytes)
        self._lock = threading.Lock()

    @property
    def bytes(self) -> int:
        """Bytes of the chunks that are kept."""
        return int(self._kept.currsize)

    def __getstate__(self) -> dict[str, Any]:
        return {"fields": self.fields, "most_bytes": self.most_bytes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def each(self, keys: Iterable[Key]) -> Iterator[tuple[Key, np.ndarray]]:
        """Return the chunks of some keys, each once: those in the cache first, then the others.

        A chunk is cut off where the image ends; (t, c, z, y, x). Do not write to it.

        Raises
        ------
        ReadError
            A chunk cannot be decoded, or is missing from a store that does not leave out empty chunks.
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
        """Size and time of the file of each chunk, which change when it is written anew; empty where there is none."""
        keys = list(keys)
        for number in dict.fromkeys(key[0] for key in keys):  # one after the other, since the way to decode is global
            self.storage(number)
        parts = [keys[i : i + STAMPED] for i in range(0, len(keys), STAMPED)]
        with ThreadPoolExecutor() as pool:  # asking a disk is mostly waiting
            return [*chain.from_iterable(pool.map(lambda some: [*map(self._stamp, some)], parts))]

    def _stamp(self, key: Key) -> str:
        return self.storage(key[0]).stamp(key[1:])

    def check_stored(self, keys: Iterable[Key]) -> None:
        """Make sure that chunks are stored, without decoding them.

        Raises
        ------
        ReadError
            A shard is damaged, or chunks are missing in a field whose store does not leave out empty ones.
        """
        missing, n = [], 0
        for n, key in enumerate(keys, 1):  # noqa: B007
            if self.storage(key[0]).size(key[1:]) is None and not self.fields[key[0]].fills:
                missing.append(key)
        if missing:
            key, field = missing[0], self.fields[missing[0][0]]
            raise ReadError(
                f"{len(missing)} of {n} chunks are missing, such as that of {field.store}, position {field.name} of "
                f"{field.experiment}, frame {key[1] * field.chunks[0]}, channel {key[2] * field.chunks[1]}: "
                f"{self.storage(key[0]).file(key[1:])}. {WAY_OUT}"
            )

    def _kept_chunk(self, key: Key) -> np.ndarray | None:
        with self._lock:
            return self._kept.get(key)

    def _keep(self, key: Key, chunk: np.ndarray) -> None:
        if chunk.nbytes > self.most_bytes:
            return
        with self._lock:
            if key not in self._kept:
                self._kept[key] = chunk.copy()  # else the whole of what was read with it would stay

    def _read(self, keys: Sequence[Key]) -> list[np.ndarray]:
        """Chunks that differ in time only."""
        try:
            return self._decoded(keys)
        except ReadError:  # of a whole shard
            raise
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
        field, storage = self.fields[keys[0][0]], self.storage(keys[0][0])
        for key in keys:
            storage.check_stored(key[1:])
        corner = [i * n for i, n in zip(keys[0][1:], field.chunks, strict=True)]
        at = tuple(slice(i, min(i + n, size)) for i, n, size in zip(corner, field.chunks, field.shape, strict=True))
        length, frames = field.chunks[0], field.shape[0]
        if len(keys) == 1:
            return [storage.read(at)]
        spans = [range(key[1] * length, min((key[1] + 1) * length, frames)) for key in keys]
        together = storage.read((np.concatenate([np.array(span) for span in spans]), *at[1:]))
        return np.split(together, np.cumsum([len(span) for span in spans])[:-1])

    def storage(self, number: int) -> Storage:
        """Return the stored chunks of a field, opened once."""
        if number not in self._storages:
            self._storages[number] = Storage(self.fields[number])
        return self._storages[number]
