"""A training that a signal stops: all ranks after the same step, once that is saved and logged."""

from __future__ import annotations

from typing import Any, override

import lightning

from cellcohort.runtime import signals
from cellcohort.runtime.distributed import Launch
from cellcohort.runtime.ranks import WatchRanks


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
            signals.stop()

    def _decide(self) -> None:
        number = signals.received()
        if self._launch.world_size == 1:
            self.stopping = number is not None
        else:
            last = self._launch.last_step(None if number is None else self._step + 1)
            self.stopping = last is not None and self._step >= last
