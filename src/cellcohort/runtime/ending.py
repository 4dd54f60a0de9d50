"""The end of a run as its last checkpoint, also where checkpoints come only every so many steps or epochs."""

from __future__ import annotations

from typing import Any

import lightning
from lightning.pytorch.callbacks import ModelCheckpoint


class EndOfRun(lightning.Callback):
    """Save the last checkpoint once more when training ends, unless it is of the last step already.

    Without it, what ``last.ckpt`` holds is the last step that `checkpoint` happened to be due at.

    Parameters
    ----------
    checkpoint : lightning.pytorch.callbacks.ModelCheckpoint
        The callback that saves checkpoints; one without ``save_last`` is left alone.
    """

    def __init__(self, checkpoint: ModelCheckpoint) -> None:
        self._checkpoint = checkpoint

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Of checkpoints by steps, save that of ``max_steps`` within an epoch, which can be gone on with from here."""
        every, step = self._checkpoint._every_n_train_steps, trainer.global_step
        if every and step % every and step == trainer.max_steps and not trainer.is_last_batch:
            self._save(trainer)

    def on_train_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Save what the run ends with."""
        self._save(trainer)

    def _save(self, trainer: lightning.Trainer) -> None:
        checkpoint = self._checkpoint
        saved = checkpoint._last_global_step_saved == trainer.global_step
        if checkpoint.save_last and not saved and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            checkpoint.save_last = True  # not a link, which would be to an earlier step
            checkpoint._save_last_checkpoint(trainer, checkpoint._monitor_candidates(trainer))
