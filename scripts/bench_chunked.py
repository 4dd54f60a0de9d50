"""Speed and exactness of batches cut from chunks, against annbatch's own samplers and reading row by row, in one run.

    python scripts/bench_chunked.py [--rows 200000] [--features 512] [--rounds 5] [--sparse] [--prepared]

A store of 64-row chunks, dense or sparse, with 5 experiments, 4 conditions at 70/20/8/2 % and hours 0 to 48 in half
hours; batches of 256; 4,096 rows in memory, and more where these do not do. Rows per second and their ratios to
annbatch's RandomSampler and to decoding the store from end to end, both measured right before, are medians over rounds
in which every sampler has a turn; ratios in brackets are of rows per second of CPU time, in which other work on the
machine does not count. `bound` is the ratio to decoding if nothing but decoding took time. `rows read` is per row
delivered, `least` the least of it with which all cells of a stratum come equally often. `error` is the
largest number of cells by which a batch misses its quota of the leading experiment, of a condition or of the time
window (below 1 is rounding); `coverage` the distinct cells of an epoch, over those of the row-by-row `BatchSampler`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, override

import annbatch
import annbatch.abc
import anndata
import numpy as np
import pandas as pd
import zarr
from annbatch.samplers import ClassSampler, RandomSampler, WeightedClassSampler
from annbatch.types import LoadRequest
from scipy import sparse

from bench_sampler import make_frame
from cellcohort.cells import CellTable
from cellcohort.datasets.codecs import decoding
from cellcohort.loading.chunks import WindowReader, read_ahead
from cellcohort.preparation import stored_order
from cellcohort.sampling import (
    BatchSampler,
    ChunkedBatchSampler,
    ConditionBalanced,
    ExperimentAware,
    TemporallyEnriched,
)
from cellcohort.sampling.axes.base import Axis
from cellcohort.sampling.chunked.read_cost import reading
from cellcohort.sampling.coverage import coverage

BATCH, CHUNK, PRELOAD = 256, 64, 64
TOLERABLE = 1.3  # times the least rows read; beyond, more memory is tried too
WINDOWS = 20  # by which amplification is judged
AXES: dict[str, list[str]] = {
    "experiment": ["experiment"],
    "condition": ["condition"],
    "experiment, condition": ["experiment", "condition"],
    "all three": ["experiment", "condition", "temporal"],
}
MADE: dict[str, Callable[[float], Axis]] = {
    "experiment": lambda leaky: ExperimentAware(leaky),
    "condition": lambda _: ConditionBalanced(),
    "temporal": lambda _: TemporallyEnriched(),
}


def prepared(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows as scripts/prepare.py lays them out for all three axes."""
    order, _ = stored_order(frame, ["experiment", "condition", "hours_post_infection"])
    return frame.iloc[order].reset_index(drop=True)


def write(path: Path, n: int, features: int, is_sparse: bool) -> Any:
    """Return a store of numbers as an expression profile has them; the order of its rows does not matter."""
    rng, group = np.random.default_rng(1), zarr.open_group(path, mode="w", zarr_format=3)
    if is_sparse:
        matrix = sparse.random(n, features, density=0.1, format="csr", dtype=np.float32, random_state=1)
        annbatch.write_sharded(group, anndata.AnnData(matrix), n_obs_per_chunk=CHUNK, shard_size=64 * CHUNK)
        with decoding():
            return anndata.io.sparse_dataset(group["X"])
    array = group.create_array("X", shape=(n, features), dtype="float32", chunks=(CHUNK, features),
                               shards=(64 * CHUNK, features))  # fmt: skip
    for begin in range(0, n, 64 * CHUNK):
        size = min(64 * CHUNK, n - begin)
        array[begin : begin + size] = np.log1p(rng.poisson(0.5, (size, features)).astype(np.float32))
    with decoding():
        return zarr.open_array(path / "X", mode="r")


class RowByRow(annbatch.abc.Sampler):
    """The batches of a `BatchSampler`, each row asked for by itself."""

    batch_size, shuffle = BATCH, False

    def __init__(self, sampler: BatchSampler) -> None:
        self._sampler = sampler

    @override
    def n_batches(self, n_obs: int) -> int:
        return len(self._sampler)

    @override
    def validate(self, n_obs: int) -> None: ...

    @override
    def _sample(self, n_obs: int) -> Iterator[LoadRequest]:
        for step in range(len(self._sampler)):
            rows = np.sort(self._sampler.batch(0, step))
            yield {"requests": rows, "splits": [np.arange(len(rows))]}


@dataclass
class Arm:
    """Something to measure: how a pass is made, and how many batches of it are timed."""

    name: str
    make: Callable[[], annbatch.abc.Sampler]
    batches: int
    sampler: ChunkedBatchSampler | None = None
    axes: tuple[str, ...] = ()


def arms(frame: pd.DataFrame, cells: CellTable, leaky: float) -> list[Arm]:
    n = len(frame)
    sizes: dict[str, Any] = {"chunk_size": CHUNK, "preload_nchunks": PRELOAD, "batch_size": BATCH}
    by_class: dict[str, Any] = {"classes": pd.Categorical(frame.condition), "num_samples": n, "drop_last": True}
    found = [Arm("RandomSampler", lambda: RandomSampler(**sizes, drop_last=True, rng=np.random.default_rng(0)), 160)]
    for kind in (ClassSampler, WeightedClassSampler):

        def make(kind: Any = kind) -> annbatch.abc.Sampler:
            return kind(**sizes, **by_class, rng=np.random.default_rng(0))

        try:
            next(make().sample(n))
        except ValueError as error:
            print(f"  {kind.__name__}: {error}")
            continue
        found.append(Arm(kind.__name__, make, 160))
    for name, axes in AXES.items():
        made = {axis: MADE[axis](leaky) for axis in axes}
        for preload in (PRELOAD, 2 * PRELOAD, 4 * PRELOAD, 8 * PRELOAD):
            try:
                sampler = ChunkedBatchSampler(cells, made, BATCH, CHUNK, preload)
            except ValueError as error:
                print(f"  {name}: {error}")
                continue
            found.append(Arm(f"chunked, {name}", lambda s=sampler: s, 160, sampler, tuple(axes)))  # type: ignore[misc]
            if reading(sampler, WINDOWS).amplification < TOLERABLE * sampler.least_amplification:
                break
    every = BatchSampler(cells, {axis: MADE[axis](leaky) for axis in AXES["all three"]}, BATCH)
    return [*found, Arm("row by row, all three", lambda: RowByRow(every), 4)]


def speeds(work: Callable[[], int]) -> tuple[float, float]:
    """Rows per second of wall time and of CPU time."""
    wall, cpu = time.perf_counter(), time.process_time()
    n = work()
    return n / (time.perf_counter() - wall), n / (time.process_time() - cpu)


def decode(array: Any) -> int:
    """Decode rows in their order, as many at once as a window has, and return how many."""
    n, window = min(160 * BATCH, array.shape[0]), PRELOAD * CHUNK
    return sum(array[begin : min(begin + window, n)].shape[0] for begin in range(0, n, window))


def speed(array: Any, arm: Arm) -> tuple[float, float]:
    """Return `speeds` of an arm: of this package with its own reader, of others with annbatch's loader."""
    if arm.sampler is not None:
        requests = islice(arm.sampler.sample(array.shape[0]), -(-arm.batches // arm.sampler.per_window))
        windows = read_ahead(WindowReader([array]).read, requests)
        return speeds(lambda: sum(batch["X"].shape[0] for batches in windows for batch in batches))
    loader: Any = annbatch.Loader(batch_sampler=arm.make(), preload_to_gpu=False)
    batches = iter(loader.add_dataset(array))
    try:
        return speeds(lambda: sum(next(batches)["X"].shape[0] for _ in range(arm.batches)))
    finally:
        batches.close()


def amplification(sampler: annbatch.abc.Sampler, n: int, windows: int = WINDOWS) -> tuple[float, list[np.ndarray]]:
    """Rows read per row delivered, and the rows of every batch."""
    read, batches = 0, list[np.ndarray]()
    for _, request in zip(range(windows), sampler.sample(n), strict=False):
        asked: Any = request["requests"]
        one_by_one = isinstance(asked, np.ndarray) and asked.dtype != object
        rows = asked if one_by_one else np.concatenate([np.arange(run.start, run.stop) for run in asked])
        read += len(np.unique(rows // CHUNK)) * CHUNK if one_by_one else len(rows)
        batches += [rows[split] for split in request["splits"]]
    return read / sum(map(len, batches)), batches


def error(frame: pd.DataFrame, batches: list[np.ndarray], arm: Arm, leaky: float) -> float:
    """Return the most cells by which a batch misses a quota of the arm's axes, or an even share of the conditions."""
    condition, worst = frame.condition.cat.codes.to_numpy(), 0.0
    experiment, hours = frame.experiment.cat.codes.to_numpy(), frame.hours_post_infection.to_numpy()
    for number, rows in enumerate(batches):
        if "condition" in arm.axes or not arm.axes:
            worst = max(worst, np.abs(np.bincount(condition[rows], minlength=4) - len(rows) / 4).max())
        if arm.sampler is not None:
            asked = arm.sampler.asked(arm.sampler.epoch, number)
            if asked.experiment is not None:
                worst = max(worst, abs((experiment[rows] == asked.experiment).sum() - len(rows) * (1 - leaky)))
            if "temporal" in arm.axes:
                near = np.abs(hours[rows] - asked.focal_hours) <= asked.window_hours + 1e-4
                worst = max(worst, abs(near.sum() - len(rows) * asked.inside))
    return worst


def planning(sampler: ChunkedBatchSampler) -> float:
    """Microseconds per batch for choosing chunks and cells and for writing the requests; the best of three epochs."""
    best, n = np.inf, len(sampler.cells)
    for epoch in (1, 2, 3):  # the windows of epoch 0 were planned before, and some are remembered
        start = time.perf_counter()
        planned = sum(len(sampler.load_request(rows, n)["splits"]) for _, rows in sampler.requests(epoch))
        best = min(best, (time.perf_counter() - start) / planned)
    return best * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--leaky", type=float, default=0.0)
    parser.add_argument("--sparse", action="store_true")
    parser.add_argument("--prepared", action="store_true", help="leave out the store in random order")
    options = parser.parse_args()
    frame = make_frame(options.rows, experiments=5)
    with tempfile.TemporaryDirectory() as folder, decoding():  # for annbatch, too, which opens sparse arrays by itself
        array = write(Path(folder) / "store.zarr", options.rows, options.features, options.sparse)
        layouts = {"(i) prepared": prepared(frame)} | ({} if options.prepared else {"(ii) random order": frame})
        for layout, table in layouts.items():
            print(f"{layout}, {'sparse' if options.sparse else 'dense'}, leaky {options.leaky:g}")
            report(array, table, options.rounds, options.leaky)


def report(array: Any, frame: pd.DataFrame, rounds: int, leaky: float) -> None:
    cells = CellTable.from_frame(frame)
    measured = arms(frame, cells, leaky)
    decode(array)
    # both baselines before every sampler, so that all meet the same machine
    rounds_of = [
        [(speeds(lambda: decode(array)), speed(array, measured[0]), speed(array, arm)) for arm in measured]
        for _ in range(rounds)
    ]
    found = np.array(rounds_of)  # (rounds, arms, [decoding, RandomSampler, arm], [wall, CPU])
    rates = np.median(found[:, :, 2, 0], axis=0)
    to_decoding, to_random = (np.median(found[:, :, 2] / found[:, :, i], axis=0) for i in (0, 1))
    print(f"  decoding from end to end: {np.median(found[:, :, 0, 0]):,.0f} rows/s")
    print(
        f"  {'':<32}{'rows/s':>9}{'x Random (CPU)':>16}{'x decoding (CPU)':>18}{'bound':>7}{'rows read':>11}"
        f"{'least':>7}{'error':>7}{'us/batch':>10}{'coverage':>10}{'shared':>8}{'max rows':>9}"
    )
    for arm, rate, random, decoded in zip(measured, rates, to_random, to_decoding, strict=True):
        if arm.sampler is not None:
            arm.sampler.set_epoch(0)
        read, batches = amplification(arm.make(), len(frame))
        line = f"  {arm.name:<32}{rate:>9,.0f}{random[0]:>8.2f} ({random[1]:.2f}){decoded[0]:>11.2f} ({decoded[1]:.2f})"
        line += f"{1 / read:>7.2f}{read:>11.2f}"
        missed = error(frame, batches, arm, leaky) if "row by row" not in arm.name else 0.0
        if arm.sampler is None:
            print(f"{line}{'':>7}{missed:>7.1f}")
            continue
        cost = reading(arm.sampler)
        by_row = coverage(BatchSampler(cells, arm.sampler.axes, BATCH)).share
        print(
            f"{line}{cost.least:>7.2f}{missed:>7.1f}{planning(arm.sampler):>10.0f}"
            f"{coverage(arm.sampler).share / by_row:>10.3f}{cost.shared:>8.2%}{cost.most_rows:>9,}",
            flush=True,
        )


if __name__ == "__main__":
    main()
