"""The progress bar of a training, which counts epochs from 1."""

from __future__ import annotations

from typing import Any

import lightning
from lightning.pytorch.callbacks import TQDMProgressBar


class EpochProgress(TQDMProgressBar):
    """Show ``Epoch 2 of 5`` for the second of five epochs; Lightning's own bars count from 0."""

    def on_train_epoch_start(self, trainer: lightning.Trainer, *args: Any) -> None:
        """Begin the bar of an epoch."""
        super().on_train_epoch_start(trainer, *args)
        last = trainer.max_epochs
        of = f" of {last}" if last is not None and last > 0 else ""
        self.train_progress_bar.set_description(f"Epoch {trainer.current_epoch + 1}{of}")
