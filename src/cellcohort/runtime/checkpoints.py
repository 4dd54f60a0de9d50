"""Checkpoints: written whole and with a digest, the last two of a run, and the one that a run goes on from."""

from __future__ import annotations

import os
import pickle
import shutil
import warnings
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Checkpoint

from cellcohort.files import whole
from cellcohort.messages import whole_number
from cellcohort.runtime.distributed import Launch

LAST, PREVIOUS = "last.ckpt", "previous.ckpt"


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

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save within an epoch where that was asked; where ``max_steps`` ends the run, too."""
        every, step = self.every_n_train_steps, trainer.global_step
        if not trainer.is_last_batch and (step == trainer.max_steps or (every and step % every == 0)):
            self.save(trainer)

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Save at the end of an epoch."""
        if (trainer.current_epoch + 1) % self.every_n_epochs == 0:
            self.save(trainer)

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
                    shutil.copyfile(last, beside)
            trainer.save_checkpoint(last)
            self._saved = trainer.global_step
        return last


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
    progress, batches = _progress(path, beside)
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


def _progress(path: str, beside: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """How many epochs were begun and gone through, and batches of the last of them."""
    try:
        loop = torch.load(path, map_location="cpu", weights_only=True, mmap=True)["loops"]["fit_loop"]
        return loop["epoch_progress"]["current"], loop["epoch_loop.batch_progress"]
    except (RuntimeError, EOFError, OSError, KeyError, TypeError, pickle.UnpicklingError) as error:
        raise ValueError(
            f"resume={path} is not a checkpoint of a training, or is cut off ({type(error).__name__}: "
            f"{str(error).partition('. ')[0]}); {beside}"
        ) from error
