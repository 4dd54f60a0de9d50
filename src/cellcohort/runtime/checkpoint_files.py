"""Files of checkpoints: replaced whole or not at all, with a digest, and read without running code."""

from __future__ import annotations

import hashlib
import os
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any, override

import torch
from lightning.fabric.plugins.io import CheckpointIO

from cellcohort.files import whole

LAST, PREVIOUS = "last.ckpt", "previous.ckpt"
MARK = b"sha256:"  # begins the comment of the zip archive that a checkpoint is; the digest follows
LENGTH = len(MARK) + 64


class CheckpointFiles(CheckpointIO):
    """Files of checkpoints, as Lightning takes them: replaced whole or not at all, with a digest that reading checks.

    A checkpoint is the zip archive that ``torch.save`` writes. Its comment is the SHA-256 of all that comes before
    the comment, so that the digest moves with the file.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Write a checkpoint beside its place, with its digest, and rename it."""
        if storage_options is not None:
            raise TypeError("storage_options are for other file systems; a checkpoint goes to a local path.")
        with whole(Path(path)) as beside:
            _write(checkpoint, beside)

    @override
    def load_checkpoint(
        self, path: Any, map_location: Any | None = "cpu", weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a checkpoint; see :func:`read_checkpoint`."""
        return read_checkpoint(path, map_location)

    def remove_checkpoint(self, path: Any) -> None:
        """Delete a checkpoint."""
        Path(path).unlink(missing_ok=True)


def read_checkpoint(path: str | os.PathLike[str], map_location: Any | None = "cpu") -> dict[str, Any]:
    """Read a checkpoint, which holds tensors and plain values and is what was written.

    Parameters
    ----------
    path : path
    map_location : device, optional
        Where to put the tensors, as ``torch.load`` takes it.

    Returns
    -------
    dict of str to object

    Raises
    ------
    FileNotFoundError
        There is no such file.
    ValueError
        Its bytes are not those that were written, or it holds other objects than tensors and plain values; the
        message names the checkpoints beside it that are whole.
    """
    path = Path(path)
    try:
        check_digest(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of what it then raises
            state = torch.load(path, map_location=map_location, weights_only=True)
    except pickle.UnpicklingError:
        reason = "it holds other objects than tensors and plain values, which could run code when they are read"
    except (RuntimeError, EOFError, ValueError, zipfile.BadZipFile) as error:
        reason = str(error).splitlines()[0] if isinstance(error, ValueError) else "it is cut off or damaged"
    else:
        if isinstance(state, dict):
            return state
        reason = f"it holds a {type(state).__name__}, not the state of a training"
    raise ValueError(f"{path} cannot be loaded: {reason}. {_others(path)}")


def check_digest(path: Path) -> None:
    """Compare a checkpoint with its digest; one that was written without a digest with the checksums of its parts.

    Raises
    ------
    ValueError
        They differ.
    """
    if path.exists() and not path.is_file():
        raise ValueError("it is no file")
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LENGTH))
        comment = file.read()
        if not comment.startswith(MARK):
            damaged = zipfile.ZipFile(file).testzip() is not None
        else:
            damaged = comment != MARK + _digest(file, size - LENGTH - 2)
    if damaged:
        raise ValueError("it is damaged: its bytes are not those that were written")


def newest_whole(directory: Path) -> Path | None:
    """Return the newest checkpoint of a folder that is whole: ``last.ckpt``, ``previous.ckpt``, or None."""
    return next((path for path in (directory / LAST, directory / PREVIOUS) if _is_whole(path)), None)


def _write(checkpoint: dict[str, Any], path: Path) -> None:
    """Save a checkpoint and append its digest."""
    failed: list[OSError] = []

    class Output:  # torch hides the error of the system behind one of its own
        def write(self, data: Any) -> int:
            try:
                return file.write(data)
            except OSError as error:
                failed.append(error)
                raise

        def flush(self) -> None:
            file.flush()

    with open(path, "w+b") as file:
        try:
            torch.save(checkpoint, Output())  # type: ignore[arg-type]  # it calls these two methods alone
            size = file.seek(0, os.SEEK_END)
            comment = MARK + _digest(file, size - 2)
            file.seek(size - 2)
            file.write(len(comment).to_bytes(2, "little") + comment)
        except RuntimeError as error:
            raise failed[0] if failed else error from None


def _digest(file: Any, size: int) -> bytes:
    """Return the SHA-256, as hexadecimal digits, of the first bytes of a file."""
    found = hashlib.sha256()
    file.seek(0)
    while size > 0 and (block := file.read(min(size, 2**20))):
        found.update(block)
        size -= len(block)
    return found.hexdigest().encode()


def _is_whole(path: Path) -> bool:
    try:
        check_digest(path)
    except (OSError, ValueError, zipfile.BadZipFile):
        return False
    return True


def _others(path: Path) -> str:
    """Return the checkpoints beside one that cannot be loaded, and what to do."""
    there = sorted(
        (file for file in path.parent.glob("*.ckpt") if file != path), key=lambda file: file.name != PREVIOUS
    )
    good = [str(file) for file in there if _is_whole(file)]
    if not good:
        return "There is no other checkpoint beside it: train again, or restore the file from a copy."
    return f"Use another checkpoint of the run: {', '.join(good)}."
