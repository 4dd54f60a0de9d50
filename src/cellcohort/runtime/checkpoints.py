"""Checkpoints of a run: the last two are kept, and a run can go on from one."""

from __future__ import annotations

import os
import shutil
import warnings
from pathlib import Path
from typing import Any, override

import lightning
from lightning.fabric.plugins.io import TorchCheckpointIO
from lightning.pytorch.callbacks import Checkpoint

from cellcohort.files import whole
from cellcohort.messages import whole_number
from cellcohort.runtime.checkpoint_files import LAST, PREVIOUS, CheckpointFiles, read_checkpoint
from cellcohort.runtime.distributed import Launch
from cellcohort.runtime.stop_on_signal import StopOnSignal


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
            if trainer.is_global_zero and last.is_file():
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
