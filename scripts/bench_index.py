"""Cost of the sampler's index with and without a cache: to build, to start again, and in several processes.

    python scripts/bench_index.py [--cells 1e7] [--processes 2 4 8] [--axes "all three"] [--store]

The table is that of bench_sampler.py; processes share it, so that what is counted is the index. With --store every
process reads the labels of a store, divides its cells into those for training and validation, and sorts the former:
what is counted is the table, its two parts and the index. Memory is the sum of the proportional set sizes (PSS) of all
processes, in which a page that several processes share counts once.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import anndata as ad
import numpy as np
import psutil
import zarr

from bench_sampler import AXES, BATCH, make_frame
from cellcohort.cells import CellTable
from cellcohort.data.anndata import AnnData
from cellcohort.datasets.split import split
from cellcohort.sampling import BatchSampler

MB = 1e6
FEW = 100_000  # cells of what is compiled and imported with
HOURS = "hours_post_infection"
DRAWN = 500  # batches


@dataclass(frozen=True)
class OfTable:
    """Sort a table that all processes have in common."""

    cells: CellTable
    axes: str

    def __call__(self, few: bool, cache: Path | None) -> tuple[BatchSampler, Any]:
        cells = self.cells.take(np.arange(min(FEW, len(self.cells)))) if few else self.cells
        return BatchSampler(cells, AXES[self.axes], BATCH, index_cache=cache), cells


@dataclass(frozen=True)
class OfStore:
    """Read the labels of a store, divide its cells and sort those for training."""

    stores: tuple[Path, Path]  # the one that is measured, and one of few cells
    axes: str

    def __call__(self, few: bool, cache: Path | None) -> tuple[BatchSampler, Any]:
        dataset: Any = AnnData(self.stores[few], {"hours": HOURS}, index_cache=cache).dataset()
        training, validation = split(dataset)
        sampler = BatchSampler(training.cells, AXES[self.axes], BATCH, index_cache=cache)
        return sampler, (dataset, training, validation)


Start = Callable[[bool, Path | None], tuple[BatchSampler, Any]]


def hold(asked: Connection, start: Start, cache: Path | None) -> None:
    """Start when asked to, say how long that and a batch took, and keep all until asked to end."""
    for _ in range(2):  # first with few cells: what Python and numba take for themselves does not count
        few = asked.recv()
        begun = time.perf_counter()
        sampler, kept = start(few, None if few else cache)
        seconds = time.perf_counter() - begun
        begun = time.perf_counter()
        for step in range(DRAWN):
            sampler.batch(0, step)
        batch = (time.perf_counter() - begun) / DRAWN
        gc.collect()
        asked.send((seconds, batch))
    asked.recv()
    del kept


def together(n: int, start: Start, cache: Path | None) -> tuple[tuple[float, float], float]:
    """Start n processes, one after another: seconds of the last one and for a batch of it, and bytes of all."""
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe() for _ in range(n)]
    children = [context.Process(target=hold, args=(end, start, cache)) for _, end in pipes]
    for child in children:
        child.start()

    def held() -> int:
        everyone = [os.getpid(), *(child.pid for child in children)]
        return sum(psutil.Process(pid).memory_full_info().pss for pid in everyone)

    def ask(few: bool) -> tuple[float, float]:
        for ours, _ in pipes:
            ours.send(few)
            seconds = ours.recv()
        return seconds

    ask(few=True)
    before = held()
    seconds = ask(few=False)
    taken = held() - before
    for child, (ours, _) in zip(children, pipes, strict=True):
        ours.send(True)
        child.join()
    return seconds, taken


def write_store(path: Path, n: int) -> Path:
    """Write the labels of a store of one feature, whose chunks are left out: they are read as zeros."""
    root: Any = zarr.open_group(path, mode="w")
    inputs = root.create_array("X", shape=(n, 1), chunks=(64, 1), shards=(2**22, 1), dtype="f4")
    inputs.attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})
    ad.io.write_elem(root, "obs", make_frame(n))
    return path


def forget(cache: Path) -> None:
    """Take the files out of the memory in which Linux keeps what was read."""
    for file in cache.glob("*.index"):
        descriptor = os.open(file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=float, nargs="+", default=[1e7])
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--axes", nargs="+", choices=AXES, default=["all three"])
    parser.add_argument("--store", action="store_true", help="every process reads the labels of a store")
    asked = parser.parse_args()
    warm = CellTable.from_frame(make_frame(FEW))
    for axes in AXES:
        BatchSampler(warm, AXES[axes], BATCH).batch(0, 0)  # compiles the kernels once
    print(
        f"{'cells':>13} {'axes':<17}{'build s':>9}{'+write s':>9}{'again s':>9}{'disk s':>8}{'us/batch':>9}"
        f"{'cached':>8}{'file MB':>9}{'B/cell':>8}  MB: one process; several with the cache, x one"
    )
    for n in map(int, asked.cells):
        with tempfile.TemporaryDirectory(dir=".") as directory:
            folder = Path(directory)
            if asked.store:
                stores = write_store(folder / "store.zarr", n), write_store(folder / "few.zarr", FEW)
                starts: list[Start] = [OfStore(stores, axes) for axes in asked.axes]
            else:
                cells = CellTable.from_frame(make_frame(n))
                starts = [OfTable(cells, axes) for axes in asked.axes]
            gc.collect()
            for axes, start in zip(asked.axes, starts, strict=True):
                cache = folder / axes
                (alone, batch), one = together(1, start, None)
                (first, _), _ = together(1, start, cache)
                again, cached = min(together(1, start, cache)[0] for _ in range(3))
                forget(cache)
                (disk, _), _ = together(1, start, cache)
                size = sum(file.stat().st_size for file in cache.glob("*.index"))
                shared = {k: together(k, start, cache)[1] for k in asked.processes}
                parts = [f"{k}: {taken / MB:,.0f}, {taken / one:.2f}" for k, taken in shared.items()]
                print(
                    f"{n:>13,} {axes:<17}{alone:>9.2f}{first:>9.2f}{again:>9.2f}{disk:>8.2f}{batch * 1e6:>9.1f}"
                    f"{cached * 1e6:>8.1f}{size / MB:>9,.0f}{one / n:>8.1f}  1: {one / MB:,.0f};  {';  '.join(parts)}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
