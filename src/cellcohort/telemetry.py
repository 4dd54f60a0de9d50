"""The callback that tells, step by step, what the batches of a training run hold."""

from __future__ import annotations

import os
from typing import Any

import lightning
import numpy as np

from cellcohort.composition import StepMeter
from cellcohort.ledger import Ledger
from cellcohort.sampling import BatchSampler


class CompositionLogger(lightning.Callback):
    """Log what every training batch holds against what was asked, and keep it all in the run directory.

    Batches are a pure function of the sampler, so rank 0 knows what every rank holds without asking.
    Every rank checks that its loader delivers just these cells, and stops the run if not.

    The numbers are those that :mod:`cellcohort.composition` lists. The trainer's loggers receive
    them as ``composition/global/<name>`` for the global batch and, with more than one rank,
    ``composition/rank0/<name>``, save some details. ``composition.parquet`` has all of them, of all
    ranks; :func:`cellcohort.ledger.read_composition` reads it.

    Parameters
    ----------
    sampler : BatchSampler
        The batch sampler of the training loader of this rank.
    run_dir : path
        Where ``composition.parquet`` goes.
    every_n_steps : int
        Log the composition of every so many steps of the optimizer. The parquet file has every batch
        in any case.

    Raises
    ------
    ValueError
        `every_n_steps` is less than 1.
    RuntimeError
        In training: the loader delivers other cells than the sampler chose, leaves out a batch or
        repeats one.

    Notes
    -----
    Each row is logged under its own step, but rows are handed to the loggers together every
    ``trainer.log_every_n_steps`` steps, which costs less than one by one.
    """

    def __init__(self, sampler: BatchSampler, run_dir: str | os.PathLike[str], every_n_steps: int = 1) -> None:
        if every_n_steps < 1:
            raise ValueError(f"every_n_steps={every_n_steps} is out of range; use 1 to log every step.")
        self._sampler, self._run_dir, self._every = sampler, run_dir, every_n_steps
        self._last: tuple[int, int] | None = None
        self._steps: StepMeter | None = None
        self._ledger: Ledger | None = None
        self._waiting: list[tuple[dict[str, float], int]] = []

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Open the ledger on rank 0."""
        self._last = None
        if trainer.global_rank == 0:
            self._steps = StepMeter(self._sampler)
            self._ledger = Ledger(self._run_dir, self._steps.names, self._about(self._steps))
            self._keys = self._fixed_keys(self._steps)

    def on_train_batch_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Check the batch of this rank; on rank 0, measure those of all ranks."""
        epoch, step, delivered = _told(batch)
        if self._steps is None or self._ledger is None:
            self._check(epoch, step, delivered, self._sampler.batch(epoch, step))
            return
        positions = self._steps.positions(epoch, step)
        self._check(epoch, step, delivered, positions[self._sampler.rank])
        numbers, groups = self._steps.measure(epoch, step, positions)
        self._ledger.add(epoch, step, trainer.global_step, groups, numbers)
        if trainer.global_step % self._every == 0:
            row: dict[str, float] = {"epoch": epoch}
            for who, (keys, places) in self._keys.items():
                row.update(zip(keys, numbers[who, places].tolist(), strict=True))
            self._waiting.append((row, trainer.global_step))
        # Others log at the beginning or at the end of every step that is due: be there before them,
        # so that the steps of the log never go back.
        interval: int = trainer.log_every_n_steps  # type: ignore[attr-defined]
        if interval and (trainer.global_step + 2) % interval <= 1:
            self._post(trainer)

    def on_validation_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Log what waits, before the validation does."""
        self._post(trainer)

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Log what waits, and put the rows of the epoch down."""
        self._post(trainer)
        if self._ledger is not None:
            self._ledger.flush()

    def on_train_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Leave a whole file."""
        self._close(trainer)

    def on_exception(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, exception: BaseException
    ) -> None:
        """Leave a whole file of what was done."""
        self._close(trainer)

    def _close(self, trainer: lightning.Trainer) -> None:
        ledger, self._ledger, self._steps = self._ledger, None, None
        if ledger is not None:
            ledger.close()
        self._post(trainer)

    def _post(self, trainer: lightning.Trainer) -> None:
        waiting, self._waiting = self._waiting, []
        for row, step in waiting:
            for logger in trainer.loggers:
                logger.log_metrics(row, step)

    def _check(self, epoch: int, step: int, delivered: np.ndarray, chosen: np.ndarray) -> None:
        """Make sure that a batch is the next one and holds the cells it should."""
        who = f"rank {self._sampler.rank}: the loader delivered"
        remedy = (
            "Make the loader with the sampler that CompositionLogger has as its batch_sampler, and let nothing "
            "replace or reorder it (trainer.use_distributed_sampler=false)."
        )
        if not np.array_equal(chosen, delivered):
            strange = np.setdiff1d(delivered, chosen)
            what = f"{len(strange)} that were not chosen, such as {strange[0]}" if len(strange) else "in another order"
            raise RuntimeError(
                f"{who} other cells than the sampler chose for epoch {epoch}, step {step}: {len(delivered)} for "
                f"{len(chosen)}, {what}. {remedy}"
            )
        if self._last is not None:
            last_epoch, last_step = self._last
            if not ((epoch, step) == (last_epoch, last_step + 1) or (epoch > last_epoch and step == 0)):
                raise RuntimeError(
                    f"{who} epoch {epoch}, step {step} after epoch {last_epoch}, step {last_step}: batches were left "
                    f"out or repeated. {remedy}"
                )
        self._last = epoch, step

    def _fixed_keys(self, steps: StepMeter) -> dict[int, tuple[list[str], list[int]]]:
        """For each row that is logged, its keys and where their numbers are."""
        places = [i for i, name in enumerate(steps.names) if name not in steps.meter.details]
        rows = {-1: ("global", places)}
        if self._sampler.world_size > 1:
            joint = {"shortfall"} if self._sampler.scope == "global" else set()
            rows[0] = ("rank0", [i for i in places if steps.names[i] not in {"coverage", *joint}])
        return {
            who: ([f"composition/{title}/{steps.names[i]}" for i in some], some) for who, (title, some) in rows.items()
        }

    def _about(self, steps: StepMeter) -> dict[str, Any]:
        sampler = self._sampler
        return {
            "batch_size": sampler.batch_size,
            "axes": {name: repr(axis) for name, axis in sampler.axes.items()},
            "scope": sampler.scope,
            "world_size": sampler.world_size,
            "seed": sampler.seed,
            "num_batches": sampler.num_batches,
            "cells": len(sampler.cells),
            "labels": {name: column.present() for name, column in steps.meter.columns.items()},
        }


def _told(batch: Any) -> tuple[int, int, np.ndarray]:
    """Epoch, step and cells, as a batch tells them."""
    try:
        meta = batch["meta"]
        return int(meta["epoch"]), int(meta["step"]), meta["position"].cpu().numpy()
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise RuntimeError(
            "the batches of the loader do not tell their cells: batch['meta'] needs 'position', 'epoch' and 'step'. "
            "Use cellcohort.loader.make_loader, or train without CompositionLogger."
        ) from error
