"""Arrays in files, made by one process and mapped into the memory of all."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from io import BytesIO
from mmap import PAGESIZE
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from xxhash import xxh3_128

from cellcohort.files import REFUSED, in_turn, state, whole

FORM = 2  # of the files, and of the arrays in them: raised with whatever makes the arrays of the same inputs others
ALIGNED = 64  # bytes
DIGEST = 16  # bytes at the end of a file: the digest of those before
HEADER = 4096  # bytes of a file that hold a header, at most
ABANDONED = 3600  # seconds since the last byte of a file that is being written, from which its process counts as gone
_HELD = threading.local()  # directories whose lock this thread holds
OWN_PAGE = (2, 4)  # the highest three bits of a page that is swapped out, or in memory, and not that of its file
NOT_USABLE = (*REFUSED, errno.EEXIST, errno.ENOTDIR, errno.ENOENT, errno.ENODEV)  # of a place for files


@dataclass(frozen=True)
class ArrayFiles:
    """Files of the arrays that are made of one source, so that all processes share them and later ones find them.

    Attributes
    ----------
    directory : path or None
        As for :func:`cached_arrays`.
    inputs : tuple
        All that the arrays depend on: plain values.
    """

    directory: str | os.PathLike[str] | None = None
    inputs: tuple[Any, ...] = ()

    def of(self, *inputs: Any) -> ArrayFiles:
        """Return the files of arrays that depend on these inputs besides: plain values and arrays."""
        if self.directory is None:
            return self
        return ArrayFiles(self.directory, (_digest([*self.inputs, *inputs]).hex(),))

    def arrays(self, make: Callable[[], Iterable[np.ndarray]]) -> tuple[np.ndarray, ...]:
        """As :func:`cached_arrays`; every process gives the warnings that there were when the arrays were made."""
        if self.directory is None:
            return tuple(make())

        def with_warnings() -> Iterable[np.ndarray]:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", UserWarning)
                arrays = tuple(make())
            texts = [str(each.message) for each in caught if issubclass(each.category, UserWarning)]
            return [as_bytes(texts), *arrays]

        texts, *arrays = cached_arrays(self.directory, self.inputs, with_warnings)
        for text in from_bytes(texts):
            warnings.warn(text, stacklevel=3)
        return tuple(arrays)


NO_FILES = ArrayFiles()


def as_bytes(values: Any) -> np.ndarray:
    """Return plain values as an array, uint8 (n,), which :func:`from_bytes` reads."""
    return np.frombuffer(json.dumps(values).encode(), np.uint8)


def from_bytes(array: np.ndarray) -> Any:
    """Return the plain values in an array."""
    return json.loads(array.tobytes())


def cached_arrays(
    directory: str | os.PathLike[str] | None,
    inputs: Sequence[Any],
    make: Callable[[], Iterable[np.ndarray]],
) -> tuple[np.ndarray, ...]:
    """Return arrays from the file of their inputs, which one process writes if it is missing or damaged.

    All processes that map the file share its memory. What one of them writes to an array stays its own, and from then
    on it neither reads nor writes files, so that what it makes of that array does not reach others. This is known on
    Linux; elsewhere do not change an array from which others are made.

    The digest of the file is checked when it is found for the first time, and whenever its size or one of its times
    or its place on the disk is another than when it was last checked: a file that was changed, cut short or copied is
    read whole before it is used, and all other files are used at once.

    Parameters
    ----------
    directory : path or None
        Where the files are; is created. None: the arrays are made, and nothing is read or written.
    inputs : sequence of numpy.ndarray and plain values
        All that the arrays depend on. Their digest names the file; arrays of such a file enter with the digest of that
        file, so that they need not be read.
    make : callable
        Returns the arrays.

    Returns
    -------
    tuple of numpy.ndarray

    Raises
    ------
    OSError
        The file is not there, and cannot be written.

    Warns
    -----
    UserWarning
        A file is damaged, or this process wrote to an array of one.
    """
    if directory is None:
        return tuple(make())
    if not isinstance(directory, str | os.PathLike) or not os.fspath(directory):
        raise ValueError(f"index_cache={directory!r} must be the path of a directory, or null.")
    if changed := _changed_here():
        warnings.warn(
            f"this process wrote to an array that it has from {changed}, so it makes its index itself and keeps none "
            f"in index_cache={directory}. Copy an array before you change it, to use the index_cache.",
            stacklevel=2,
        )
        return tuple(make())
    file = Path(directory) / f"{_digest([FORM, version('cellcohort'), *inputs]).hex()}.index"
    if file.exists() and not file.is_file():
        raise OSError(
            errno.EEXIST,
            f"{file} is no file, and a file of index_cache={directory} has this name. Remove it, or name another "
            "directory",
        )
    of_source: list[OSError] = []

    def made() -> Iterator[np.ndarray]:
        try:
            yield from make()
        except OSError as error:
            of_source.append(error)
            raise

    try:
        arrays = _read(file)
        if arrays is not None:
            return arrays
        file.parent.mkdir(parents=True, exist_ok=True)
        with _alone(file.parent):
            arrays = _read(file)  # which another process may have written meanwhile
            if arrays is not None:
                return arrays
            if file.exists():
                warnings.warn(f"{file} was damaged and is made again.", stacklevel=2)
            _remove_abandoned(file.parent)
            return _write(file, made())
    except OSError as error:
        if error.errno not in NOT_USABLE or error in of_source:
            raise
        raise OSError(
            error.errno,
            f"index_cache={directory} has no index of these cells and axes that can be read, and none can be written "
            f"there ({error.strerror}). Name a directory that can be written to, or none "
            "(batch_sampler.index_cache=null, in code index_cache=None): every process then holds an index of its own",
        ) from error


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Hold the lock of a directory; arrays that are made of others, which are made meanwhile, have it already."""
    held = _HELD.__dict__.setdefault("directories", set())
    if directory in held:
        yield
        return
    with in_turn(directory / ".lock"):
        held.add(directory)
        try:
            yield
        finally:
            held.remove(directory)


class _Held(np.memmap):
    """The bytes of a file, by which arrays in it are known."""

    digest = b""


_MAPPED = WeakValueDictionary[int, _Held]()  # all that are in use, by their address


def _changed_here() -> str:
    """Return the name of a mapped file that this process wrote to in its memory, as Linux tells, or ""."""
    for begin, held in list(_MAPPED.items()):
        first, end = begin // PAGESIZE, -(-(begin + held.nbytes) // PAGESIZE)
        with suppress(OSError), open("/proc/self/pagemap", "rb", buffering=0) as pages:
            pages.seek(8 * first)
            flags = np.frombuffer(pages.read(8 * (end - first)), np.uint64) >> np.uint64(61)
            if np.isin(flags, OWN_PAGE).any():
                return str(held.filename)
    return ""


def _digest(parts: Iterable[Any]) -> bytes:
    """Return the digest of arrays and of the ``repr`` of anything else, in this order."""
    found = xxh3_128()
    for part in parts:
        if isinstance(part, np.ndarray):
            found.update(f"{part.dtype.str}{part.shape}\n".encode())
            found.update(_place(part) or _bytes(part))
        else:
            found.update(f"{part!r}\n".encode())
    return found.digest()


def _place(array: np.ndarray) -> bytes:
    """Return the digest of the file that an array is mapped from, and its place there; empty if there is none."""
    file: Any = array
    while isinstance(file, np.ndarray) and not isinstance(file, _Held):
        file = file.base
    if file is None or not array.flags.c_contiguous or not array.size:
        return b""
    first, begin = (one.__array_interface__["data"][0] for one in (array, file))
    return file.digest + str(first - begin).encode()


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _remove_abandoned(directory: Path) -> None:
    """Remove what processes that were killed had begun to write."""
    for begun in (*directory.glob(".*.index"), *directory.glob(".*.checked")):
        with suppress(OSError):  # of another user, or renamed just now
            if time.time() - begun.stat().st_mtime > ABANDONED:
                begun.unlink()


def _write(file: Path, made: Iterable[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Write arrays one behind the other, each as numpy writes it, and their digest; return them as they are read."""
    with whole(file) as beside, open(beside, "wb") as opened:
        found = _seeded(file)
        for array in made:
            header = BytesIO()
            np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
            for part in (header.getvalue(), _bytes(array), bytes(-array.nbytes % ALIGNED)):
                opened.write(part)
                found.update(part)
        opened.write(found.digest())
        with suppress(OSError):  # of a disk without permissions
            os.fchmod(opened.fileno(), 0o444)  # no process but one of root cuts short what others have mapped
    arrays = _read(file)
    if arrays is None:
        raise OSError(errno.EIO, f"{file} was written, and is damaged when it is read: its disk is faulty")
    return arrays


def _read(file: Path) -> tuple[np.ndarray, ...] | None:
    """Return the arrays of a file, mapped; None if it is missing or damaged."""
    try:
        with open(file, "rb") as opened:
            mapped, found = _Held(opened, np.uint8, "c"), state(os.fstat(opened.fileno()))
    except (FileNotFoundError, NotADirectoryError, ValueError):  # of an empty file
        return None
    held: np.ndarray = np.asarray(mapped)
    mapped.digest = held[-DIGEST:].tobytes()
    _MAPPED[mapped.__array_interface__["data"][0]] = mapped
    if not _is_whole(file, held, found):
        return None
    arrays, begin = [], 0
    while begin < len(held) - DIGEST:
        header = BytesIO(held[begin : begin + HEADER].tobytes())
        np.lib.format.read_magic(header)
        shape, _, kind = np.lib.format.read_array_header_1_0(header)
        begin += header.tell()
        end = begin + int(np.prod(shape)) * kind.itemsize
        arrays.append(held[begin:end].view(kind).reshape(shape))
        begin = end + -end % ALIGNED
    return tuple(arrays)


def _is_whole(file: Path, held: np.ndarray, found: str) -> bool:
    """Whether the bytes of a file have their digest; they are not read where they had it in the state that is found."""
    checked = file.with_suffix(".checked")
    with suppress(OSError, UnicodeDecodeError):
        if checked.is_file() and checked.read_text() == found:
            return True
    digest = _seeded(file)
    digest.update(held[:-DIGEST])
    if digest.digest() != held[-DIGEST:].tobytes():
        return False
    with suppress(OSError), whole(checked) as beside:  # of a directory that is read-only: every process reads the file
        beside.write_text(found)
    return True


def _seeded(file: Path) -> xxh3_128:
    """Return the digest of the name of a file, to which its bytes are added: no file is taken for another."""
    return xxh3_128(file.stem.encode())
