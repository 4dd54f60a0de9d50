"""Scripts in processes of their own that need not import torch and Lightning again, since a server forks them."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

LIMIT = 300.0  # seconds that a launch may take
IDLE, LEAST = 60.0, 3.0  # seconds in which a launch that does not hang uses so many seconds of processors
SCRIPTS = Path(__file__).parents[1] / "scripts"
IMPORTED = [  # by the server, once; nothing that starts threads
    "hydra.utils",
    "lightning.pytorch",
    "monai.data",
    "pyarrow.parquet",
    "pytorch_metric_learning.losses",
    "torch.distributed.run",
    "wandb",
    "cellcohort.composition.callback",
    "cellcohort.data.demo",
    "cellcohort.models",
    "cellcohort.module",
    "cellcohort.objectives",
    "cellcohort.runtime.run",
    "cellcohort.sampling.batch_sampler",
]


def processes() -> multiprocessing.context.ForkServerContext:
    """Where processes come from that have imported what a training needs."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    return context


def torchrun(
    directory: Path, script: str, *arguments: str, restarts: int = 0, **environment: str
) -> subprocess.CompletedProcess[str]:
    """``torchrun --standalone --nproc-per-node=2 scripts/<script> <arguments>``, run in a directory."""
    command = ["--standalone", "--nproc-per-node=2", f"--max-restarts={restarts}", str(SCRIPTS / script), *arguments]
    return _launch(_agent, directory, command, environment)


def alone(directory: Path, script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """``python scripts/<script> <arguments>``, run in a directory; it must end what it starts in the background."""
    return _launch(_alone, directory, [str(SCRIPTS / script), *arguments], environment)


def new_process(
    directory: Path, *command: str, limit: float = LIMIT, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A command in a new process that has imported nothing, run in a directory; its environment is that of the test."""
    written = [directory / "stdout.txt", directory / "stderr.txt"]
    with written[0].open("w") as out, written[1].open("w") as err:
        process = subprocess.Popen(command, cwd=directory, env=environment, stdout=out, stderr=err)

    def code(seconds: float) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        return process.returncode

    return _ended(process.pid, code, command, written, limit)


def _launch(
    target: Callable[..., None], directory: Path, command: list[str], environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    written = [directory / "stdout.txt", directory / "stderr.txt"]
    full = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    launch = processes().Process(target=target, args=(directory, full, written, command))
    launch.start()

    def code(seconds: float) -> int | None:
        launch.join(seconds)
        return launch.exitcode

    return _ended(launch.pid, code, command, written, LIMIT)


def _ended(
    pid: int | None, code: Callable[[float], int | None], command: Sequence[str], written: Sequence[Path], limit: float
) -> subprocess.CompletedProcess[str]:
    """What a command wrote, and the code that it ended with, which `code` waits for so many seconds.

    One that takes too long, or that does nothing with all that it started, is killed with these, and the test fails.
    """
    begun = worked = time.monotonic()
    used = 0.0
    while (ended := code(1.0)) is None:
        now, total = time.monotonic(), _processor_time(pid)
        if total > used + LEAST:
            worked, used = now, total
        if now > min(begun + limit, worked + IDLE):
            break
    if ended is None:
        kill_with_all_it_started(pid)
    out, err = (path.read_text() for path in written)
    for path in written:
        path.unlink()
    if ended is None:
        took = f"no end in {now - begun:.0f} seconds, {total:.0f} of them of a processor"
        pytest.fail(f"{took}: {shlex.join(command)}\n{out[-2000:]}\n{err[-4000:]}")
    return subprocess.CompletedProcess(list(command), ended, out, err)


def _processor_time(pid: int | None) -> float:
    """Seconds that a process and all that it started have used processors."""
    import psutil  # here, since tests of the base installation have none

    total = 0.0
    with suppress(psutil.NoSuchProcess):
        first = psutil.Process(pid)
        for process in [first, *first.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                total += sum(process.cpu_times()[:4])  # with those of children that have ended
    return total


def kill_with_all_it_started(pid: int | None) -> None:
    """Kill a process and its descendants, also where they wait for each other."""
    import psutil  # here, since tests of the base installation have none

    with suppress(psutil.NoSuchProcess):
        first = psutil.Process(pid)
        first.suspend()  # so that it starts no other
        for process in [*first.children(recursive=True), first]:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def _alone(directory: Path, environment: dict[str, str], written: list[Path], command: list[str]) -> None:
    _settle(directory, environment)
    _redirect(written)
    sys.argv = command
    runpy.run_path(command[0], run_name="__main__")


def _agent(directory: Path, environment: dict[str, str], written: list[Path], command: list[str]) -> None:
    """Torchrun itself, whose ranks call `_rank` in place of a new interpreter."""
    from torch.distributed import run

    _settle(directory, environment)
    _redirect(written)
    launch = run.elastic_launch

    def elastic_launch(config: run.LaunchConfig, entrypoint: str) -> Callable[..., object]:
        config.start_method = "fork"  # this process has imported all and has no threads of Python
        return lambda *arguments: launch(config, _rank)(directory, environment, written, *arguments)

    run.elastic_launch = elastic_launch  # type: ignore[misc, assignment]
    run.main(command)


def _rank(directory: Path, environment: dict[str, str], written: list[Path], *command: str) -> None:
    import torch
    from lightning.pytorch.utilities import rank_zero_only

    _settle(directory, environment)
    _redirect(written)
    torch.set_num_threads(1)
    rank_zero_only.rank = int(os.environ["RANK"])  # which Lightning looks up when it is imported
    script = next(i for i, argument in enumerate(command) if argument.endswith(".py"))
    sys.argv = list(command[script:])
    runpy.run_path(sys.argv[0], run_name="__main__")


def _redirect(written: list[Path]) -> None:
    for descriptor, path in enumerate(written, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)


def _settle(directory: Path, environment: dict[str, str]) -> None:
    """Go to the directory, and look for modules where the environment says."""
    os.chdir(directory)
    os.environ.update(environment)
    sys.path[:0] = [str(SCRIPTS), *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
