"""Run a long training and a long sweep of a tiny model, and print how memory, files, services and folders grow.

    uv run python scripts/soak.py                        # 20,000 steps on 2 ranks, and 100 jobs
    uv run python scripts/soak.py --steps 2000 --jobs 10
    uv run python scripts/soak.py --steps 0 --jobs 30 evaluation=default evaluation.max_cells=600

The first fifth of each is left out of the slopes, as libraries load and caches fill there. Each job counts once, by the
median of the looks that were taken until it was finished.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
from scipy.stats import theilslopes

SCRIPTS = Path(__file__).parent
EVERY = 1.0  # seconds from one look to the next
TINY = (
    *("data=demo", "data.founders=40", "batch_sampler.batch_size=32", "trainer.accelerator=cpu", "evaluation=none"),
    *("trainer.enable_progress_bar=false", "trainer.limit_val_batches=1", "model.hidden=16"),
)
MEASURED = {
    **{"resident": " MB", "of it not shared (PSS)": " MB", "resident of services of W&B": " MB", "services of W&B": ""},
    **{"processes": "", "open files": "", "threads": "", "temporary folders": ""},
}


def looked_at(root: psutil.Process, temporary: Path) -> list[float]:
    """Return what is `MEASURED` of a process and all that it started."""
    totals = np.zeros(7)
    for process in [root, *root.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            memory, of_wandb = process.memory_full_info(), "wandb-core" in process.name()
            resident, alone = memory.rss / 2**20, memory.pss / 2**20
            totals += resident, alone, of_wandb * resident, of_wandb, 1, process.num_fds(), process.num_threads()
    return [*totals.tolist(), len(list(temporary.iterdir()))]


def followed(command: list[str], directory: Path) -> tuple[list[list[float]], list[int], float]:
    """Run a command, and look at it every so often.

    Returns
    -------
    rows : list of list of float
        What :func:`looked_at` gave.
    finished : list of int
        How many runs were finished at each look.
    seconds : float
        How long the command took.
    """
    temporary = directory / "tmp"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1", "WANDB_MODE": "offline"}
    rows, finished, begun = [], [], time.monotonic()
    with open(directory / "said.txt", "w") as said:
        process = subprocess.Popen(command, cwd=directory, env=environment, stdout=said, stderr=subprocess.STDOUT)
        watched = psutil.Process(process.pid)
        while process.poll() is None:
            with contextlib.suppress(psutil.Error):
                rows.append(looked_at(watched, temporary))
                finished.append(sum(1 for _ in directory.rglob("finished")))
            time.sleep(EVERY)
    if process.returncode:
        last = (directory / "said.txt").read_text()[-2000:]
        sys.exit(f"the command ended with exit code {process.returncode}; the last of what it printed:\n{last}")
    print(f"  left in the folder for temporary files: {[path.name for path in temporary.iterdir()] or 'nothing'}")
    return rows, finished, time.monotonic() - begun


def told(looks: list[list[float]], finished: list[int], seconds: float, n: int, per: str) -> None:
    """Print the slope of each number after the first fifth, per thousand steps or per ten jobs."""
    rows = np.asarray(looks)
    if per == "job":  # one row for each
        done = np.unique(finished)[:-1]
        rows = np.array([np.median(rows[np.equal(finished, number)], axis=0) for number in done])
        print(f"  of {n:,} jobs, {finished[-1]:,} were finished at the last look")
    else:
        done, rows = np.linspace(0, n, len(rows) - 2), rows[:-2]
    part, done = rows[len(rows) // 5 :], done[len(rows) // 5 :]
    unit = 1000 if per == "step" else 10
    for (name, of), column in zip(MEASURED.items(), part.T, strict=True):
        slope = theilslopes(column, done).slope * unit  # of medians, which the end does not change
        first, last = np.median(column[: len(column) // 5 + 1]), np.median(column[-len(column) // 5 - 1 :])
        print(f"  {name}: {first:.0f} to {last:.0f}{of}, {slope:+.2f} per {unit:,} {per}s")
    print(f"  {n:,} {per}s in {seconds:.0f} s, {len(looks)} looks", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000, help="of a training on 2 ranks; 0: none")
    parser.add_argument("--jobs", type=int, default=100, help="of a sweep in one process; 0: none")
    parser.add_argument("--logger", default="wandb", help="as train.py takes it")
    parser.add_argument("typed", nargs="*", help="further options of train.py, which come before those of this script")
    options = parser.parse_args()
    given = {word.partition("=")[0] for word in options.typed}
    tiny = [word for word in TINY if word.partition("=")[0] not in given]
    typed = [str(SCRIPTS / "train.py"), *tiny, f"logger={options.logger}", *options.typed]
    with tempfile.TemporaryDirectory() as folder:
        if options.steps:
            print(f"a training of {options.steps:,} steps on 2 ranks, with logger={options.logger}", flush=True)
            length = [f"trainer.max_steps={options.steps}", "trainer.max_epochs=-1", "batch_sampler.num_batches=100"]
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
            place = Path(folder, "training")
            place.mkdir()
            told(*followed([*torchrun, *typed, *length], place), options.steps, "step")
        if options.jobs:
            print(f"a sweep of {options.jobs} jobs in one process, with logger={options.logger}", flush=True)
            seeds = f"seed={','.join(map(str, range(options.jobs)))}"
            place = Path(folder, "sweep")
            place.mkdir()
            length = ["trainer.max_epochs=1", "trainer.limit_train_batches=3"]
            told(*followed([sys.executable, *typed, *length, seeds, "-m"], place), options.jobs, "job")


if __name__ == "__main__":
    main()
