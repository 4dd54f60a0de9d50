"""Checkpoints: written whole and with a digest, the last two of a run, and the one that a run goes on from."""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
import signal
import warnings
import zipfile
from pathlib import Path
from typing import Any, override

import lightning
import torch
from lightning.fabric.plugins.io import CheckpointIO, TorchCheckpointIO
from lightning.pytorch.callbacks import Checkpoint

from cellcohort.files import whole
from cellcohort.messages import whole_number
from cellcohort.runtime import signals
from cellcohort.runtime.distributed import Launch
from cellcohort.runtime.ranks import WatchRanks

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


class StopOnSignal(lightning.Callback):
    """Stop a training on SIGTERM or SIGINT, all ranks after the same step.

    A rank that received the signal tells the others by the store of their launch to stop after the next step of the
    optimizer. No rank can end that step before all have begun it, so that all see it in time.

    Attributes
    ----------
    stopping : bool
        Whether the training stops before its next batch.
    """

    stopping = False

    @override
    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Let signals wait for the end of the step in hand; Lightning has put a handler of its own in place before."""
        self.stopping, self._launch, self._step = False, Launch.here(), trainer.global_step
        signals.handle()
        signals.defer(True)

    @override
    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Decide after a step of the optimizer."""
        if trainer.global_step != self._step:
            self._step = trainer.global_step
            self._decide()

    @override
    def on_validation_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Decide after a validation, too, where no other rank need agree."""
        if not trainer.sanity_checking and self._launch.world_size == 1:
            self._decide()

    @override
    def on_train_batch_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Stop here, where the step before is saved and logged."""
        self.stop_if_decided()

    @override
    def on_validation_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Stop here, unless the epoch is over, whose end is saved after the validation."""
        if not trainer.sanity_checking and not trainer.is_last_batch:
            self.stop_if_decided()

    @override
    def teardown(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, stage: str) -> None:
        """Let signals stop at once from here on."""
        signals.defer(False)

    @override
    def on_fit_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Stop after the last step, too."""
        signals.raise_if_received()

    @override
    def on_exception(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, exception: BaseException
    ) -> None:
        """Let signals stop at once from here on, when it is known whether another rank was lost."""
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, WatchRanks):
                callback.tell(exception)
        signals.defer(False)

    def stop_if_decided(self) -> None:
        """Stop, if that was decided."""
        if self.stopping:
            raise signals.Stopped(signals.received() or signal.SIGTERM)

    def _decide(self) -> None:
        number = signals.received()
        if self._launch.world_size == 1:
            self.stopping = number is not None
        else:
            last = self._launch.last_step(None if number is None else self._step + 1)
            self.stopping = last is not None and self._step >= last


class LastCheckpoint(Checkpoint):
    """Keep the checkpoint of the last step as ``last.ckpt``, and the one before it as ``previous.ckpt``.

    Parameters
    ----------
    dirpath : path
        The folder of checkpoints.
    every_n_epochs : int
        Save at the end of every so many epochs; the end of the run is always saved.
    every_n_train_steps : int, optional
        Save every so many steps besides. A run that goes on from such a checkpoint begins within the epoch.

    Raises
    ------
    ValueError
        A number is not an integer >= 1.
    """

    def __init__(
        self, dirpath: str | os.PathLike[str], every_n_epochs: int = 1, every_n_train_steps: int | None = None
    ) -> None:
        self.every_n_epochs = whole_number("every_n_epochs", every_n_epochs, 1)
        self.every_n_train_steps = every_n_train_steps and whole_number("every_n_train_steps", every_n_train_steps, 1)
        self._directory = Path(dirpath)
        self._saved: int | None = None

    @override
    def setup(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, stage: str) -> None:
        """Let the trainer write and read checkpoints as :class:`CheckpointFiles`, unless it was given another way."""
        if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:
            trainer.strategy.checkpoint_io = CheckpointFiles()

    @override
    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save within an epoch where that was asked or a signal stops the run; where ``max_steps`` ends it, too."""
        every, step = self.every_n_train_steps, trainer.global_step
        due = step == trainer.max_steps or (every and step % every == 0)
        if not trainer.is_last_batch and (due or _stopping(trainer)):
            self.save(trainer)

    @override
    def on_validation_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Save within an epoch where a signal came during the validation."""
        if not trainer.sanity_checking and not trainer.is_last_batch and _stopping(trainer):
            self.save(trainer)

    @override
    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Save at the end of an epoch, and stop there where a signal came."""
        if (trainer.current_epoch + 1) % self.every_n_epochs == 0 or _stopping(trainer):
            self.save(trainer)
        for callback in _stops(trainer):
            callback.stop_if_decided()

    @override
    def on_train_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Save what the run ends with."""
        self.save(trainer)

    def save(self, trainer: lightning.Trainer) -> Path:
        """Save the state of this step, unless it is saved; all ranks must call this.

        Returns
        -------
        pathlib.Path
            The file.
        """
        last = self._directory / LAST
        if self._saved != trainer.global_step and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            if trainer.is_global_zero and last.exists():
                with whole(self._directory / PREVIOUS) as beside:
                    try:
                        os.link(last, beside)
                    except OSError:  # a file system without hard links
                        shutil.copyfile(last, beside)
            trainer.save_checkpoint(last, weights_only=False)
            self._saved = trainer.global_step
        return last


def _stops(trainer: lightning.Trainer) -> list[StopOnSignal]:
    return [callback for callback in trainer.callbacks if isinstance(callback, StopOnSignal)]  # type: ignore[attr-defined]


def _stopping(trainer: lightning.Trainer) -> bool:
    return any(callback.stopping for callback in _stops(trainer))


def check_checkpoint(path: str, max_epochs: int | None) -> None:
    """Refuse a checkpoint that cannot be gone on from, before data are read.

    Parameters
    ----------
    path : str
        What `resume` says.
    max_epochs : int, optional
        What ``trainer.max_epochs`` says; None or -1 is no limit.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    ValueError
        It is not a checkpoint of a training, or of a later epoch than the last one asked for.

    Warns
    -----
    UserWarning
        Its run stopped within an epoch, whose other batches do not come any more.
    """
    there = sorted(str(file) for file in Path(path).parent.glob("*.ckpt") if file != Path(path))
    beside = f"beside it are: {', '.join(there) or 'no checkpoints'}. Give <run directory>/checkpoints/last.ckpt."
    if not Path(path).is_file():
        raise FileNotFoundError(f"resume={path} is no file; {beside}")
    try:
        loop = read_checkpoint(path)["loops"]["fit_loop"]
        progress, batches = loop["epoch_progress"]["current"], loop["epoch_loop.batch_progress"]
    except KeyError as error:
        raise ValueError(f"resume={path} is not a checkpoint of a training: it has no {error}; {beside}") from None
    except ValueError as error:
        raise ValueError(f"resume={path}: {error}") from None
    begun = int(progress["started"])
    if max_epochs is not None and 0 <= max_epochs < begun:
        raise ValueError(
            f"trainer.max_epochs={max_epochs} leaves nothing to train: resume={path} is a checkpoint of epoch {begun}. "
            f"Epochs are counted from the beginning of the first run; raise trainer.max_epochs above {begun}."
        )
    if progress["processed"] == begun and not batches["is_last_batch"] and Launch.here().rank == 0:
        warnings.warn(
            f"resume={path}: its run stopped after {batches['current']['completed']} batches of epoch {begun}, as at "
            "an end: the other batches of that epoch are left out. To leave none out, stop by whole epochs "
            "(trainer.max_epochs) or save by steps (callbacks.last.every_n_train_steps=100).",
            stacklevel=2,
        )
