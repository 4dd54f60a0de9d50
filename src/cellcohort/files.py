"""Files that are there whole or not at all, their fingerprints, and locks on the folders they are written to."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import traceback
import uuid
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import yaml

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)  # of a path that this user may not read, or not write to
REFUSED = (*FORBIDDEN, errno.ENAMETOOLONG, errno.ELOOP)  # of one that cannot be used
NO_SPACE_TEXT = re.compile(r"No space left|\d+ requested and \d+ written")  # of errors without a number, as numpy's
NAMED = "the disk of"  # begins what is said of a full disk, before its directory


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Write a file or directory beside its place, sync it to the disk, and rename it at the end.

    A file that is there is replaced. A directory that is there is kept, since another process wrote the same one.

    Parameters
    ----------
    path : pathlib.Path
        What is to be there at the end.

    Yields
    ------
    pathlib.Path
        Where to write it.

    Raises
    ------
    OSError
        The disk is full; the message names the directory.
    """
    beside = path.with_name(f".{uuid.uuid4().hex}{path.suffix}")
    try:
        with full_disk_named(path.parent, f"{path.name} was not written."):
            path.parent.mkdir(parents=True, exist_ok=True)
            yield beside
            for file in [beside, *beside.rglob("*")] if beside.is_dir() else [beside]:
                _sync(file)
            try:
                beside.rename(path)
            except OSError:
                if not (beside.is_dir() and path.is_dir()):
                    raise
            _sync(path.parent)
    finally:
        if beside.is_dir():
            shutil.rmtree(beside)
        else:
            beside.unlink(missing_ok=True)


@contextmanager
def full_disk_named(directory: Path, lost: str) -> Iterator[None]:
    """Name the directory that is written to where the system says only that a disk is full.

    Parameters
    ----------
    directory : pathlib.Path
    lost : str
        What is not there now, as a sentence.

    Raises
    ------
    OSError
        The disk is full.
    """
    try:
        yield
    except OSError as error:
        full = error.errno in NO_SPACE or NO_SPACE_TEXT.search(str(error))
        if not full or NAMED in str(error):
            raise
        raise OSError(
            error.errno or errno.ENOSPC,
            f"{NAMED} {directory.resolve()} is full: {lost} Files that were there before are unchanged. Make room and "
            "start the same command again",
        ) from error


def is_refused(error: OSError) -> bool:
    """Whether the system refused a path: it cannot be used, or no directory can be made there."""
    *_, (frame, _) = [(None, 0), *traceback.walk_tb(error.__traceback__)]
    makes = frame is not None and frame.f_code.co_name in ("mkdir", "makedirs")
    return error.filename is not None and (error.errno in REFUSED or makes)


def _sync(path: Path) -> None:
    """Wait until the disk holds a file, or the names in a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that cannot sync a directory
            raise
    finally:
        os.close(descriptor)


def read_yaml(file: Path) -> Any:
    """Return what a YAML file holds; several times as fast where PyYAML was built with its parser in C."""
    return yaml.load(file.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def is_pipe(path: str | os.PathLike[str]) -> bool:
    """Whether a path is there and is no file and no directory: opening it may wait without end."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def fingerprint(*parts: Any, digits: int = 16) -> str:
    """Hexadecimal digits of the SHA-256 of arrays, bytes, and the ``repr`` of anything else, in this order."""
    found = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            part = part.tobytes()
        found.update(part if isinstance(part, bytes) else f"{part!r}\n".encode())
    return found.hexdigest()[:digits]


def short_name(name: str, longest: int, of: str = "") -> str:
    """Return the name of a file, cut to so many bytes where it has more; it then ends in a digest of it, or of `of`."""
    written = name.encode("utf-8", "replace")
    if len(written) <= longest:
        return name
    digest = fingerprint((of or name).encode("utf-8", "replace"), digits=8)
    return f"{written[: longest - len(digest) - 1].decode(errors='ignore')}_{digest}"


def stamp(file: Path) -> str:
    """Return the path of a file and its :func:`state`, which change when it is written anew."""
    return f"{file.resolve()} {state(file.stat())}"


def state(about: os.stat_result) -> str:
    """Return what changes with every write to a file, also where its time is set back, and when it is replaced."""
    return f"{about.st_size} {about.st_mtime_ns} {about.st_ctime_ns} {about.st_ino}"


@contextmanager
def _opened(file: Path) -> Iterator[int]:
    """Open a file to lock it: one that a link leads to is not emptied, and a pipe waits for no other process."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o666)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def locked(file: Path) -> Iterator[bool]:
    """Hold the lock of a file while the block runs; the system releases it however the process ends.

    On a disk without locks, as some network file systems are, a warning says so and nothing is locked.

    Parameters
    ----------
    file : pathlib.Path
        Is created where it is not there.

    Yields
    ------
    bool
        Whether this process may go on; False where another process holds the lock.
    """
    with _opened(file) as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError as error:
            warnings.warn(
                f"the disk of {file.parent} has no file locks ({error.strerror}). Make sure that no other process "
                "writes to this directory at the same time.",
                stacklevel=3,
            )
        yield True


@contextmanager
def in_turn(file: Path) -> Iterator[None]:
    """Wait for the lock of a file, and hold it while the block runs; the system releases it however the process ends.

    For processes that would write the same file, so that one does and the others find it. Where there can be no lock,
    as on some network file systems, no process waits, and all write.

    Parameters
    ----------
    file : pathlib.Path
        Is created where it is not there.
    """
    with ExitStack() as stack:
        with suppress(OSError):
            fcntl.flock(stack.enter_context(_opened(file)), fcntl.LOCK_EX)
        yield
