"""What the composition log costs a training step.

    uv run python scripts/bench_composition.py
    uv run python scripts/bench_composition.py --loggers none csv wandb --world-sizes 2

A loop of steps that compute for a while is run with the callback of rank 0 as a trainer would call
it. All of the time that the loop waits for the callback counts: checking, measuring, logging,
writing the parquet file. It is given per step, as a share of a 50 ms step and of the bare step of
the same loop, and as time on the processor, which other processes disturb less. W&B receives its
rows on a thread beside the next step, whose cost would show in the bare step. Beside it stands what
the clients of the loggers take for a row of a single number, one by one.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import torch
import wandb
from lightning.pytorch.loggers import CSVLogger, Logger, WandbLogger

from cellcohort.cells import CellTable
from cellcohort.composition.callback import CompositionLogger
from cellcohort.sampling import BatchSampler, ConditionBalanced, ExperimentAware, TemporallyEnriched

STEP = 0.050  # seconds of the step that costs are compared with
LOG_EVERY = 50  # Lightning's own default of log_every_n_steps


def make_cells(n_cells: int, n_experiments: int, n_conditions: int) -> CellTable:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "experiment": rng.integers(0, n_experiments, n_cells),
            "condition": rng.integers(0, n_conditions, n_cells),
            "hours": rng.integers(0, 97, n_cells) / 2,
            "track": rng.integers(0, n_cells // 50 + 1, n_cells),
        }
    )
    return CellTable.from_frame(frame, hours="hours", track="track")


def make_work(seconds: float) -> Any:
    """Return a function that computes for about so long, on one core."""
    matrix = np.random.default_rng(0).normal(size=(256, 256)).astype(np.float32)
    start, n = time.perf_counter(), 0
    while time.perf_counter() - start < 0.5:
        matrix @ matrix
        n += 1
    rounds = max(1, round(n * seconds / 0.5))

    def work() -> None:
        for _ in range(rounds):
            matrix @ matrix

    return work


def make_loggers(kind: str, directory: Path) -> list[Logger]:
    """Loggers that are open already, so that no step pays for it."""
    loggers: list[CSVLogger | WandbLogger] = []
    if kind != "none":
        loggers.append(CSVLogger(directory, name=None, version=""))
    if kind == "wandb":
        loggers.append(WandbLogger(save_dir=directory, offline=True))
    for logger in loggers:
        _ = logger.experiment
    return [*loggers]


def run(sampler: BatchSampler, loggers: list[Logger], directory: Path, steps: int, work: Any) -> np.ndarray:
    """Seconds per step spent on the callback, on the processor for it, and on the bare step."""
    trainer: Any = SimpleNamespace(
        global_rank=0, global_step=0, loggers=loggers, log_every_n_steps=LOG_EVERY, train_dataloader=None
    )
    module: Any = None
    callback = CompositionLogger(sampler, directory)
    callback.on_train_start(trainer, module)
    times = []
    for step in range(-1, steps):  # the first compiles and opens files
        place = divmod(step + 1, sampler.num_batches)
        meta = {"position": torch.from_numpy(sampler.batch(*place)), "epoch": place[0], "step": place[1]}
        work()
        begin, cpu = time.perf_counter(), time.thread_time()
        callback.on_train_batch_start(trainer, module, {"meta": meta}, place[1])
        trainer.global_step += 1
        callback.on_train_batch_end(trainer, module, None, {"meta": meta}, place[1])
        if step == steps - 1:
            callback.on_train_epoch_end(trainer, module)
        end, cpu_end = time.perf_counter(), time.thread_time()
        work()
        times.append((end - begin, cpu_end - cpu, time.perf_counter() - end))
    callback.on_train_end(trainer, module)
    return np.array(times[1:])


def bare_rows(loggers: list[Logger], steps: int) -> float:
    """Seconds that the loggers take for a row of a single number."""
    start = time.perf_counter()
    for step in range(steps):
        for logger in loggers:
            logger.log_metrics({"one": 1.0}, step)
    return (time.perf_counter() - start) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world-sizes", type=int, nargs="+", default=[1, 2, 8])
    parser.add_argument("--loggers", nargs="+", choices=["none", "csv", "wandb"], default=["none", "csv", "wandb"])
    parser.add_argument("--cells", type=int, default=200_000)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--experiments", type=int, default=10)
    parser.add_argument("--conditions", type=int, default=4)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    os.environ.setdefault("WANDB_SILENT", "true")
    warnings.filterwarnings("ignore", "Experiment logs directory")
    cells = make_cells(options.cells, options.experiments, options.conditions)
    axes = {"experiment": ExperimentAware(0.1), "condition": ConditionBalanced(), "temporal": TemporallyEnriched()}
    work = make_work(STEP / 2)
    print(f"{cells!r}\nbatch_size {options.batch_size}, three axes, {options.steps} steps, mean per step")
    print(
        "world size  loggers  callback ms  of 50 ms  processor ms  of 50 ms  bare step ms  of it  client's own ms  "
        "bytes a row"
    )
    for world_size in options.world_sizes:
        sampler = BatchSampler(cells, axes, options.batch_size, world_size=world_size)
        for kind in options.loggers:
            with tempfile.TemporaryDirectory() as directory:
                loggers = make_loggers(kind, Path(directory))
                spent, cpu, half = run(sampler, loggers, Path(directory), options.steps, work).mean(axis=0)
                client = bare_rows(loggers, options.steps)
                rows = (options.steps + 1) * (world_size + 1)
                size = (Path(directory) / "composition.parquet").stat().st_size / rows
                wandb.finish()
            print(
                f"{world_size:10d}  {kind:7s} {1e3 * spent:12.3f} {spent / STEP:9.2%} {1e3 * cpu:13.3f} "
                f"{cpu / STEP:9.2%} {2e3 * half:13.1f} {spent / (2 * half):6.2%} {1e3 * client:16.3f} {size:12.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
