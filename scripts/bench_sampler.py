"""Cost of the batch sampler against torch's random sampler and a plain numpy cascade, in one run.

    python scripts/bench_sampler.py [--cells 1e5 1e6 1e7 1e8]

The table has 10 experiments, 4 conditions at 70/20/8/2 % and hours 0 to 48 in half hours; batches
hold 256 cells. Ratios are to the two baselines measured beside each row: below 1 is faster.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import torch
from torch.utils.data import BatchSampler as TorchBatchSampler
from torch.utils.data import RandomSampler

from cellcohort.cells import CellTable
from cellcohort.sampling import BatchSampler, ConditionBalanced, ExperimentAware, TemporallyEnriched
from cellcohort.sampling.axes.base import Axis

BATCH = 256
AXES: dict[str, dict[str, Axis]] = {
    "random": {},
    "experiment_aware": {"experiment": ExperimentAware(leaky=0.1)},
    "condition": {"condition": ConditionBalanced()},
    "temporal": {"temporal": TemporallyEnriched()},
}
AXES["all three"] = {name: axis for axes in list(AXES.values()) for name, axis in axes.items()}


def make_frame(n: int, experiments: int = 10) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    experiment = rng.integers(0, experiments, n, dtype=np.int8)
    condition = np.searchsorted([0.7, 0.9, 0.98], rng.random(n, dtype=np.float32)).astype(np.int8)
    return pd.DataFrame(
        {
            "experiment": pd.Categorical.from_codes(experiment, pd.Index([f"e{i}" for i in range(experiments)])),
            "condition": pd.Categorical.from_codes(condition, pd.Index(list("abcd"))),
            "hours_post_infection": rng.integers(0, 97, n, dtype=np.int8) / 2,
        }
    )


class Peak:
    """Peak of this process's memory within a with-block, in bytes above its start, as Linux keeps it."""

    def __enter__(self) -> Peak:
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # begins a new peak
        self._start = self._kept("VmRSS")
        return self

    def __exit__(self, *_: object) -> None:
        self.bytes = self._kept("VmHWM") - self._start

    @staticmethod
    def _kept(what: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what))


def per_batch(batches: Iterator[object], seconds: float = 1.0, chunk: int = 200) -> tuple[float, float]:
    """Milliseconds to the first batch, and microseconds for each that follows, in the best of up to ten chunks."""
    start = time.perf_counter()
    next(batches)
    first = time.perf_counter() - start
    best, begin = float("inf"), time.perf_counter()
    for _ in range(10):
        start = time.perf_counter()
        n = sum(1 for _ in itertools.islice(batches, chunk))
        if n < chunk:
            break
        best = min(best, (time.perf_counter() - start) / n)
        if time.perf_counter() - begin > seconds:
            break
    return first * 1e3, best * 1e6


def plain(frame: pd.DataFrame, axes: dict[str, Axis]) -> Iterator[np.ndarray]:
    """Return the same cascade as one would write it in numpy: boolean masks, then a choice in every pool."""
    rng = np.random.default_rng(0)
    experiment, condition = frame.experiment.cat.codes.to_numpy(), frame.condition.cat.codes.to_numpy()
    hours = frame.hours_post_infection.to_numpy()
    everything = np.arange(len(frame))
    grouped = {e: np.flatnonzero(experiment == e) for e in range(10)} if "experiment" in axes else {}
    others = {e: np.flatnonzero(experiment != e) for e in range(10)} if "experiment" in axes else {}

    def pick(pool: np.ndarray, n: int, focal: float) -> list[np.ndarray]:
        if "condition" in axes and n >= 4:
            parts = [pool[condition[pool] == c] for c in range(4)]
            return [p for part in parts for p in windowed(part, n // 4, focal)]
        return windowed(pool, n, focal)

    def windowed(pool: np.ndarray, n: int, focal: float) -> list[np.ndarray]:
        if "temporal" not in axes:
            return [rng.choice(pool, n)]
        near = np.abs(hours[pool] - focal) <= 2.0
        n_near = round(0.7 * n)
        return [rng.choice(pool[near], n_near), rng.choice(pool[~near], n - n_near)]

    while True:
        if "experiment" not in axes:
            yield np.concatenate(pick(everything, BATCH, rng.choice(97) / 2))
            continue
        e = rng.choice(10)
        focal = rng.choice(hours[grouped[e]])
        leak = round(0.1 * BATCH)
        yield np.concatenate(pick(grouped[e], BATCH - leak, focal) + pick(others[e], leak, focal))


def resident(build: Callable[[], BatchSampler]) -> tuple[BatchSampler, float, int]:
    with Peak() as peak:
        start = time.perf_counter()
        sampler = build()
        seconds = time.perf_counter() - start
    return sampler, seconds, peak.bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=float, nargs="+", default=[1e5, 1e6, 1e7, 1e8])
    sizes = [int(n) for n in parser.parse_args().cells]
    print(f"{platform.processor() or platform.machine()}, {psutil.cpu_count()} cores, numpy {np.__version__}")
    warm = CellTable.from_frame(make_frame(100_000))
    for axes in AXES.values():
        BatchSampler(warm, axes, BATCH).batch(0, 0)  # compiles the kernels once
    print(
        f"{'cells':>11} {'axes':<17}{'us/batch':>9}{'x torch':>9}{'x plain':>9}{'first ms':>9}{'seek ms':>9}"
        f"{'build s':>9}{'s per 1e6':>10}{'B/cell':>8}{'peak B':>8}"
    )
    for n in sizes:
        frame = make_frame(n)
        cells = CellTable.from_frame(frame)
        generator = torch.Generator().manual_seed(0)
        _, torch_us = per_batch(iter(TorchBatchSampler(RandomSampler(range(n), generator=generator), BATCH, True)))
        for name, axes in AXES.items():
            _, plain_us = per_batch(plain(frame, axes), chunk=3)
            sampler, build_s, peak = resident(lambda c=cells, a=axes: BatchSampler(c, a, BATCH))  # type: ignore[misc]
            sampler.set_epoch(1)
            first_ms, us = per_batch(iter(sampler))
            start = time.perf_counter()
            sampler.batch(2, 10**6)
            seek_ms = (time.perf_counter() - start) * 1e3
            print(
                f"{n:>11,} {name:<17}{us:>9.1f}{us / torch_us:>9.2f}{us / plain_us:>9.4f}"
                f"{first_ms:>9.2f}{seek_ms:>9.2f}{build_s:>9.2f}{build_s / n * 1e6:>10.3f}"
                f"{sampler.nbytes / n:>8.1f}{peak / n:>8.1f}",
                flush=True,
            )
            del sampler
        del frame, cells


if __name__ == "__main__":
    main()
