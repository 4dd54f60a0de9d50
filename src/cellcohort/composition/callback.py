"""The callback that logs, step by step, what the batches of a training run hold."""

from __future__ import annotations

from cellcohort.extras import require

require("train")

import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, override

import lightning
import numpy as np
import torch
from lightning.pytorch.loggers import CSVLogger, Logger

from cellcohort.composition.log import CompositionLog
from cellcohort.composition.meter import StepMeter
from cellcohort.composition.metrics import PairMetrics
from cellcohort.messages import whole_number
from cellcohort.sampling.protocol import Sampler

MOST_PENDING = 100  # batches pending at most, where the trainer logs less often
REMEDY = (
    "Make the loader with the sampler that CompositionLogger has as its batch_sampler, and let nothing replace or "
    "reorder it (trainer.use_distributed_sampler=false)."
)


class CompositionLogger(lightning.Callback):
    """Log what every training batch holds against what the axes ask, and store it in the run directory.

    Batches are a pure function of the sampler, so rank 0 computes what every rank holds without communication.
    Every rank checks that its loader delivers exactly these cells, and stops the run if not.

    The numbers are those that :mod:`cellcohort.composition.meter` lists. The trainer's loggers receive
    them as ``composition/global/<name>`` for the global batch and, with more than one rank,
    ``composition/rank0/<name>``, save some details. ``composition.parquet`` has all of them, of all
    ranks; :func:`cellcohort.composition.log.read_composition` reads it.

    Parameters
    ----------
    sampler : Sampler
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
    The first batch of an epoch is measured before the model sees it. Later ones are pending until they
    are measured together, every ``trainer.log_every_n_steps`` steps and before every validation, which
    costs a fraction of measuring them one by one. Each row is logged under its own step. The
    client of a tracker takes longer for a row than the measurement does, so a thread logs to all loggers but that of
    ``metrics.csv`` during the next step.
    """

    def __init__(self, sampler: Sampler, run_dir: str | os.PathLike[str], every_n_steps: int = 1) -> None:
        self._sampler, self._run_dir = sampler, run_dir
        self._every = whole_number("every_n_steps", every_n_steps, 1)
        self._last: tuple[int, int] | None = None
        self._pending: list[tuple[int, int, int, torch.Tensor, torch.Tensor | None]] = []
        self._pairs: PairMetrics | None = None
        self._steps: StepMeter | None = None
        self._log: CompositionLog | None = None
        self._writer: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None

    @override
    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Open the log of composition on rank 0."""
        self._last, self._pending = None, []
        if trainer.global_rank == 0:
            self._steps = StepMeter(self._sampler)
            rule = getattr(getattr(trainer.train_dataloader, "dataset", None), "pair_rule", None)
            self._pairs = None if rule is None else PairMetrics(self._sampler.cells, rule.columns)
            self._names = (*self._steps.names, *(self._pairs.names if self._pairs else ()))
            self._log = CompositionLog(self._run_dir, self._names, self._about(self._steps))
            self._keys = self._fixed_keys(self._steps)
            self._writer = ThreadPoolExecutor(1, "composition")

    @override
    def on_train_batch_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Record which batch was delivered; raise if it is not the next one."""
        epoch, step, delivered, partners = _place_of(batch)
        if self._last is not None:
            last_epoch, last_step = self._last
            if not ((epoch, step) == (last_epoch, last_step + 1) or (epoch > last_epoch and step == 0)):
                raise RuntimeError(
                    f"rank {self._sampler.rank}: the loader delivered epoch {epoch}, step {step} after epoch "
                    f"{last_epoch}, step {last_step}: batches were left out or repeated. {REMEDY}"
                )
        begins = self._last is None or epoch != self._last[0]
        if begins:
            self._log_pending(trainer)
        self._last = epoch, step
        self._pending.append((epoch, step, trainer.global_step, delivered, partners))
        if begins or len(self._pending) >= MOST_PENDING:
            self._log_pending(trainer)

    @override
    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the pending batches before a step at which others log, so that logged steps never decrease."""
        self._wait()
        interval: int = trainer.log_every_n_steps  # type: ignore[attr-defined]
        if interval and (trainer.global_step + 1) % interval == 0:
            self._log_pending(trainer)

    @override
    def on_validation_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Log the pending batches before validation logs its results."""
        self._log_pending(trainer)
        self._wait()

    @override
    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Log the pending batches and write the rows of the epoch."""
        self._log_pending(trainer)
        if self._log is not None:
            self._log.flush()
        self._wait()

    @override
    def on_train_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Complete the file."""
        self._close(trainer)

    @override
    def on_exception(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, exception: BaseException
    ) -> None:
        """Complete the file with the batches so far."""
        self._close(trainer)

    def _close(self, trainer: lightning.Trainer) -> None:
        try:
            self._log_pending(trainer)
        finally:
            log, self._log, self._steps = self._log, None, None
            if log is not None:
                log.close()
            if self._writer is not None:
                self._writer.shutdown()
            self._wait()

    def _log_pending(self, trainer: lightning.Trainer) -> None:
        """Check the cells of the pending batches; on rank 0, measure, store and log what all ranks held."""
        pending, self._pending = self._pending, []
        if not pending:
            return
        epoch, first = pending[0][:2]
        if self._steps is None or self._log is None:
            for _, step, _, delivered, _ in pending:
                self._check(epoch, step, delivered, self._sampler.batch(epoch, step))
            return
        positions = self._steps.positions(epoch, first, len(pending))
        for chosen, (_, step, _, delivered, _) in zip(positions[:, self._sampler.rank], pending, strict=True):
            self._check(epoch, step, delivered, chosen)
        numbers, groups = self._steps.measure(epoch, first, positions)
        if self._pairs is not None:
            numbers = np.concatenate([numbers, self._of_pairs(self._pairs, pending)], axis=2)
        global_steps = [global_step for _, _, global_step, _, _ in pending]
        self._log.add(epoch, first, global_steps, groups, numbers)
        rows: list[tuple[dict[str, float], int]] = []
        for values, global_step in zip(numbers, global_steps, strict=True):
            if global_step % self._every == 0:
                row: dict[str, float] = {"epoch": epoch}
                for who, (keys, places) in self._keys.items():
                    row.update(zip(keys, values[who, places].tolist(), strict=True))
                rows.append((row, global_step))
        slow = [logger for logger in trainer.loggers if not isinstance(logger, CSVLogger)]
        _log([logger for logger in trainer.loggers if logger not in slow], rows)
        self._wait()
        if slow and self._writer is not None:
            self._writing = self._writer.submit(_log, slow, rows)

    def _of_pairs(self, pairs: PairMetrics, pending: list[Any]) -> np.ndarray:
        """Measure the pairs that this rank was delivered; those of other ranks are not known here."""
        numbers = np.full((len(pending), self._sampler.world_size + 1, len(pairs.names)), np.nan)
        for row, (_, _, _, delivered, partners) in zip(numbers, pending, strict=True):
            if partners is not None:
                row[self._sampler.rank] = pairs.measure(delivered.cpu().numpy(), partners.cpu().numpy())
        if self._sampler.world_size == 1:
            numbers[:, -1] = numbers[:, 0]
        return numbers

    def _wait(self) -> None:
        """Wait for the logging thread and raise its error, if any."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _check(self, epoch: int, step: int, positions: torch.Tensor, chosen: np.ndarray) -> None:
        delivered = positions.cpu().numpy()
        if not np.array_equal(chosen, delivered):
            strange = np.setdiff1d(delivered, chosen)
            what = f"{len(strange)} that were not chosen, such as {strange[0]}" if len(strange) else "in another order"
            raise RuntimeError(
                f"rank {self._sampler.rank}: the loader delivered other cells than the sampler chose for epoch "
                f"{epoch}, step {step}: {len(delivered)} for {len(chosen)}, {what}. {REMEDY}"
            )

    def _fixed_keys(self, steps: StepMeter) -> dict[int, tuple[list[str], list[int]]]:
        """Return, for each logged row, its keys and the places of their numbers."""
        names = self._names
        places = [i for i, name in enumerate(names) if name not in steps.meter.details]
        rows = {-1: ("global", places)}
        if self._sampler.world_size > 1:
            joint = {"shortfall"} if self._sampler.scope == "global" else set()
            rows[-1] = ("global", [i for i in places if not names[i].startswith("pairs/")])
            rows[0] = ("rank0", [i for i in places if names[i] not in {"coverage", *joint}])
        return {who: ([f"composition/{title}/{names[i]}" for i in some], some) for who, (title, some) in rows.items()}

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


def _log(loggers: list[Logger], rows: list[tuple[dict[str, float], int]]) -> None:
    for row, step in rows:
        for logger in loggers:
            logger.log_metrics(row, step)


def _place_of(batch: Any) -> tuple[int, int, torch.Tensor, torch.Tensor | None]:
    """Return epoch, step and positions of a batch, and those of its positives where a rule pairs cells."""
    try:
        meta = batch["meta"]
        return int(meta["epoch"]), int(meta["step"]), meta["position"], meta.get("partner")
    except (KeyError, TypeError, IndexError) as error:
        raise RuntimeError(
            "the batches of the loader do not name their cells: batch['meta'] needs 'position', 'epoch' and 'step'. "
            "Use cellcohort.loading.rows.make_loader, or train without CompositionLogger."
        ) from error
