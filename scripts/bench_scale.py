"""What tables of 10^8 and 10^9 cells need on 8, 64 and 512 ranks, from costs measured on smaller ones.

    python scripts/bench_scale.py [--cells 1e6 1e7 1e8] [--chunks 1e6 1e7] [--prepared 20000 40000]

The table is that of bench_sampler.py, with all three axes and batches of 256. Costs that grow with the cells are fitted
by a line through the two smallest tables; what it predicts for the largest one stands beside what is measured there.
Costs that grow with the ranks are fitted in the same way to 8 and 64 ranks, and compared with what 512 take.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas as pd
import psutil
from scipy import sparse

from bench_chunked import prepared
from bench_composition import run as log_steps
from bench_index import FEW, OfStore, together, write_store
from bench_sampler import AXES, BATCH, Peak, make_frame
from cellcohort.cells import CellTable
from cellcohort.preparation import prepare
from cellcohort.sampling import BatchSampler, ChunkedBatchSampler
from cellcohort.sources.anndata import AnnDataFiles

ALL, NO_TIME = AXES["all three"], {name: axis for name, axis in AXES["all three"].items() if name != "temporal"}
RANKS = (8, 64, 512)
NODE = 8  # ranks of a machine
SIZES = (1e8, 1e9)
STEPS, LOGGED, FEATURES = 100, 10, 512
Costs = dict[str, float]


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    made = work()
    return time.perf_counter() - start, made


def held() -> int:
    gc.collect()
    return int(psutil.Process().memory_full_info().uss)


def of_cells(n: int) -> Costs:
    """Seconds and bytes of a table and of its index."""
    before = held()
    costs: Costs = {}
    frame = make_frame(n)
    costs["s: table"], cells = seconds(lambda: CellTable.from_frame(frame))
    costs["B: table"] = held() - before
    with Peak() as peak:
        costs["s: index"], sampler = seconds(lambda: BatchSampler(cells, ALL, BATCH))
    costs["B: index"], costs["B: peak while sorting"] = sampler.nbytes, peak.bytes
    del sampler
    with tempfile.TemporaryDirectory(dir=".") as cache:
        BatchSampler(cells, ALL, BATCH, index_cache=cache)
        costs["s: index of a later run"], _ = seconds(lambda: BatchSampler(cells, ALL, BATCH, index_cache=cache))
    return costs


def of_chunks(n: int) -> Costs:
    """Seconds and bytes of the index of a prepared store."""
    cells = CellTable.from_frame(prepared(make_frame(n)))
    with Peak() as peak:
        spent, sampler = seconds(lambda: ChunkedBatchSampler(cells, ALL, BATCH, chunk_size=64, preload_nchunks=128))
    return {"s: chunks": spent, "B: chunks": sampler.nbytes, "B: peak with chunks": peak.bytes}


def of_store(n: int) -> Costs:
    """Bytes of a process that has read the labels of a store, divided its cells and sorted those for training."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        stores = write_store(Path(folder, "store.zarr"), n), write_store(Path(folder, "few.zarr"), FEW)
        return {"B: labels, split and index": together(1, OfStore(stores, "all three"), None)[1]}


def of_prepare(n: int) -> Costs:
    """Seconds of one process with two threads, and bytes on disk, for profiles of 512 features, a tenth not 0."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        path, obs = Path(folder), make_frame(n)
        obs.index = obs.index.astype(str)
        values = sparse.random(n, FEATURES, density=0.1, format="csr", dtype=np.float32, random_state=1)
        anndata.AnnData(values, obs=obs, var=pd.DataFrame(index=[f"g{i}" for i in range(FEATURES)])).write_h5ad(
            path / "cells.h5ad"
        )
        columns = ["experiment", "condition", "hours_post_infection"]
        source: Any = AnnDataFiles(str(path / "cells.h5ad"))
        with redirect_stdout(None):
            spent, store = seconds(lambda: prepare(source, path / "store.zarr", columns, threads=2))
        return {"s: prepare": spent, "B: store": sum(store.manifest["files"].values())}


def of_ranks(cells: CellTable, ranks: int) -> Costs:
    """Microseconds of a step: of a rank for its batch, and of rank 0 for what it logs of all ranks; bytes logged."""
    costs: Costs = {}
    for name, axes in {"us: batch": ALL, "us: batch, no time window": NO_TIME}.items():
        sampler = BatchSampler(cells, axes, BATCH, rank=ranks - 1, world_size=ranks, num_batches=STEPS)
        sampler.batch(0, 0)
        spent, _ = seconds(lambda s=sampler: [s.batch(0, step) for step in range(STEPS)])  # type: ignore[misc]
        costs[name] = spent / STEPS * 1e6
    sampler = BatchSampler(cells, ALL, BATCH, world_size=ranks, num_batches=STEPS)
    with tempfile.TemporaryDirectory(dir=".") as folder:
        spent = log_steps(sampler, [], Path(folder), LOGGED, lambda: None).mean(axis=0)[0]
        file = Path(folder) / "composition.parquet"
        costs["us: log"], costs["B: composition of a step"] = spent * 1e6, file.stat().st_size / (LOGGED + 1)
    return costs


def fit(measured: dict[int, Costs]) -> dict[str, tuple[float, float]]:
    """Return a line through the two smallest, (begin, slope), of each cost; print what it predicts of the largest."""
    (a, first), (b, second), *_ = sorted(measured.items())
    largest, there = max(measured.items())
    lines = {}
    for name in first:
        slope = (second[name] - first[name]) / (b - a)
        lines[name] = first[name] - slope * a, slope
        each = "  ".join(f"{n:,}: {costs[name]:,.4g}" for n, costs in sorted(measured.items()))
        predicted = lines[name][0] + slope * largest
        said = f"  predicted {predicted:,.4g}, measured x {there[name] / predicted:.2f}" if len(measured) > 2 else ""
        print(f"  {name:<28}{slope:>12.4g} each   {each}{said}", flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=float, nargs="+", default=[1e6, 1e7, 1e8])
    parser.add_argument("--chunks", type=float, nargs="+", default=[1e6, 1e7])
    parser.add_argument("--prepared", type=float, nargs="+", default=[20_000, 40_000])
    options = parser.parse_args()
    few = CellTable.from_frame(make_frame(100_000))
    of_ranks(few, 1)  # compiles
    ChunkedBatchSampler(CellTable.from_frame(prepared(make_frame(100_000))), ALL, BATCH, 64, 128)
    warnings.filterwarnings("ignore", "X looks like logarithms")
    print("costs that grow with the cells")
    lines = fit({int(n): of_cells(int(n)) for n in options.cells})
    lines |= fit({int(n): of_chunks(int(n)) for n in options.chunks})
    lines |= fit({int(n): of_store(int(n)) for n in options.chunks})
    lines |= fit({int(n): of_prepare(int(n)) for n in options.prepared})
    print("costs that grow with the ranks")
    lines |= fit({ranks: of_ranks(few, ranks) for ranks in RANKS})

    def at(name: str, n: float) -> float:
        return lines[name][0] + lines[name][1] * n

    print(
        f"\n{'cells':>13}{'ranks':>7}{'GB of a node':>14}{'with cache':>12}{'chunks':>9}{'start s':>9}{'later s':>9}"
        f"{'batch us':>10}{'log ms':>8}{'log MB/1000':>13}{'prepare h':>11}"
    )
    for n in SIZES:
        rank, index, chunks = at("B: labels, split and index", n), at("B: index", n), at("B: chunks", n)
        memory = NODE * rank, rank, rank - index + chunks
        start, later = at("s: index", n), at("s: index of a later run", n)
        for ranks in RANKS:
            batch, log = at("us: batch, no time window", ranks), at("us: log", ranks) / 1e3
            print(
                f"{int(n):>13,}{ranks:>7}{memory[0] / 1e9:>14.1f}{memory[1] / 1e9:>12.1f}{memory[2] / 1e9:>9.1f}"
                f"{at('s: table', n) + start:>9.1f}{at('s: table', n) + later:>9.1f}{batch:>10.0f}{log:>8.1f}"
                f"{at('B: composition of a step', ranks) / 1e3:>13.1f}{at('s: prepare', n) / 3600:>11.1f}"
            )


if __name__ == "__main__":
    main()
