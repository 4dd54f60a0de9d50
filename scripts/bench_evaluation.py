"""Time of the scores at the end of a training: all of them, and the share of each.

    python scripts/bench_evaluation.py [--cells 20000] [--experiments 20]

Cells lie on tracks of 25 frames; every experiment has the same three conditions. Vectors hold an offset of the
experiment, a direction of the condition, the hours, an offset of the track, and noise. Three representations are
scored, as at the end of a training: 64, 64 and 96 numbers long.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable

import numpy as np
import pandas as pd
import psutil
from joblib import cpu_count
from threadpoolctl import threadpool_limits

from cellcohort.cells import CellTable
from cellcohort.evaluation.evaluation import Evaluation
from cellcohort.evaluation.selection import Chosen, choose
from cellcohort.messages import several

FRAMES = 25
LENGTHS = {"model": 64, "untrained": 64, "features": 96}


def make_cells(n: int, experiments: int, rng: np.random.Generator) -> tuple[CellTable, np.ndarray]:
    """Return a table of cells, and which of them are for training: three in five tracks."""
    track = np.arange(n) // FRAMES
    frame = pd.DataFrame(
        {
            "experiment": [f"plate_{i:02}" for i in track % experiments],
            "condition": np.array(["mock", "drug", "virus"])[track // experiments % 3],
            "hours": np.arange(n) % FRAMES * 0.5,
            "track": track,
        }
    )
    training = rng.random(track[-1] + 1) < 0.6
    return CellTable.from_frame(frame, hours="hours", track="track"), training[track]


def make_vectors(cells: CellTable, dim: int, rng: np.random.Generator) -> np.ndarray:
    parts = [(cells.column(role), size) for role, size in (("experiment", 1.0), ("condition", 0.15), ("track", 0.5))]
    vectors = rng.normal(size=(len(cells), dim))
    for column, size in parts:
        vectors += size * rng.normal(size=(len(column.labels), dim))[column.codes]
    if cells.hours is not None:
        vectors += np.outer(cells.hours / 12, rng.normal(size=dim))
    return vectors.astype(np.float32)


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds on the clock, and of computing, all threads together."""
    start, used = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - start, time.process_time() - used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=20_000)
    parser.add_argument("--experiments", type=int, default=20)
    parser.add_argument("--threads", type=int, default=max(1, cpu_count() // 2), help="as many as an evaluation takes")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    cells, training = make_cells(options.cells, options.experiments, rng)
    chosen: Chosen = choose(cells, training, "track", options.cells, seed=0)
    evaluation, spent = Evaluation(), dict[str, np.ndarray]()
    for length in LENGTHS.values():
        vectors = make_vectors(chosen.cells, length, rng)
        few = vectors[-2000:]
        with threadpool_limits(options.threads):
            for step, scores in evaluation.steps(vectors, chosen, (few, few + 0.1)).items():
                spent[step] = spent.get(step, np.zeros(2)) + timed(scores)
    seconds, computing = np.sum(list(spent.values()), axis=0)
    print(
        f"{platform.processor() or platform.machine()}, {psutil.cpu_count()} cores: {len(cells):,} cells, "
        f"{options.experiments} experiments, {len(LENGTHS)} representations, {several(options.threads, 'thread')}: "
        f"{seconds:.1f} s ({computing:.1f} s of computing)"
    )
    for step, (own, used) in sorted(spent.items(), key=lambda item: -item[1][0]):
        print(f"  {step:20}{own:7.1f} s  {own / seconds:6.1%}  ({used:.1f} s of computing)")


if __name__ == "__main__":
    main()
