"""Cost of the sampler's index with and without a cache: to build, to start again, and in several processes.

    python scripts/bench_index.py [--cells 1e7] [--processes 2 4 8] [--axes "all three"]

The table is that of bench_sampler.py; processes share it, so that what is counted is the index. Memory is the sum of
the proportional set sizes (PSS) of all processes, in which a page that several processes share counts once.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import psutil

from bench_sampler import AXES, BATCH, make_frame
from cellcohort.cells import CellTable
from cellcohort.sampling import BatchSampler

MB = 1e6
DRAWN = 500  # batches


def build(cells: CellTable, axes: str, cache: Path | None) -> tuple[BatchSampler, float]:
    start = time.perf_counter()
    sampler = BatchSampler(cells, AXES[axes], BATCH, index_cache=cache)
    return sampler, time.perf_counter() - start


def hold(asked: Connection, cells: CellTable, axes: str, cache: Path | None) -> None:
    """Build a sampler when asked to, say how long that and a batch took, and keep it until it is asked to end."""
    for _ in range(2):  # first with few cells: what Python and numba take for themselves does not count
        few = asked.recv()
        sampler, seconds = build(
            cells.take(np.arange(min(100_000, len(cells)))) if few else cells, axes, None if few else cache
        )
        start = time.perf_counter()
        for step in range(DRAWN):
            sampler.batch(0, step)
        batch = (time.perf_counter() - start) / DRAWN
        gc.collect()
        asked.send((seconds, batch))
    asked.recv()


def together(n: int, cells: CellTable, axes: str, cache: Path | None) -> tuple[tuple[float, float], float]:
    """Build in n processes, one after another: seconds of the last one and for a batch of it, and bytes of all."""
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe() for _ in range(n)]
    children = [context.Process(target=hold, args=(end, cells, axes, cache)) for _, end in pipes]
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
    asked = parser.parse_args()
    warm = CellTable.from_frame(make_frame(100_000))
    for axes in AXES:
        build(warm, axes, None)[0].batch(0, 0)  # compiles the kernels once
    print(
        f"{'cells':>13} {'axes':<17}{'build s':>9}{'+write s':>9}{'again s':>9}{'disk s':>8}{'us/batch':>9}"
        f"{'cached':>8}{'file MB':>9}{'table s':>9}{'table MB':>10}  MB: one process; several with the cache, x one"
    )
    for n in map(int, asked.cells):
        gc.collect()
        before = psutil.Process().memory_full_info().uss
        frame = make_frame(n)
        start = time.perf_counter()
        cells = CellTable.from_frame(frame)
        table_s = time.perf_counter() - start
        gc.collect()
        table = psutil.Process().memory_full_info().uss - before
        for axes in asked.axes:
            with tempfile.TemporaryDirectory(dir=".") as directory:
                cache = Path(directory)
                (alone, batch), one = together(1, cells, axes, None)
                (first, _), _ = together(1, cells, axes, cache)
                again, cached = min(together(1, cells, axes, cache)[0] for _ in range(3))
                forget(cache)
                (disk, _), _ = together(1, cells, axes, cache)
                size = sum(file.stat().st_size for file in cache.glob("*.index"))
                shared = {k: together(k, cells, axes, cache)[1] for k in asked.processes}
                parts = [f"{k}: {taken / MB:,.0f}, {taken / one:.2f}" for k, taken in shared.items()]
                print(
                    f"{n:>13,} {axes:<17}{alone:>9.2f}{first:>9.2f}{again:>9.2f}{disk:>8.2f}{batch * 1e6:>9.1f}"
                    f"{cached * 1e6:>8.1f}{size / MB:>9,.0f}{table_s:>9.2f}{table / MB:>10,.0f}  "
                    f"1: {one / MB:,.0f};  {';  '.join(parts)}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
