"""Faults that take minutes to see: ``uv run pytest -n 0 -m slow tests/faults``."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import psutil
import pytest
import torch
from dask.distributed import Client

from cellcohort.composition.log import read_composition
from cellcohort.preparation import prepare
from cellcohort.sources.anndata import AnnDataFiles
from launches import SCRIPTS, kill_with_all_it_started, new_process
from stores import QUIET, local_cluster, write

pytestmark = [pytest.mark.slow, *QUIET]
LONG = (
    "trainer.max_epochs=400",
    "trainer.limit_train_batches=20",
    "logger=none",
    "callbacks.last.every_n_train_steps=10",
)


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """``started(directory, *command)``: a process, which has ended after the test."""
    processes: list[subprocess.Popen[str]] = []

    def start(directory: Path, *command: str, **environment: str) -> subprocess.Popen[str]:
        full = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        process = subprocess.Popen(
            command, cwd=directory, env=full, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            kill_with_all_it_started(process.pid)


def wait_for(there: Callable[[], object], seconds: float = 180) -> None:
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.2)


def ranks_of(agent: subprocess.Popen[str]) -> list[psutil.Process]:
    """The ranks of a torchrun, in their order."""
    children = psutil.Process(agent.pid).children()
    return sorted((child for child in children if "train.py" in " ".join(child.cmdline())), key=lambda child: child.pid)


def steps(run: Path) -> list[int]:
    rows = read_composition(run)
    return sorted(rows.loc[rows["rank"] == 0, "global_step"])


def free_port() -> int:
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])


def test_two_nodes_that_are_stopped_and_started_again_go_on(
    quick: tuple[str, ...], tmp_path: Path, started: Callable[..., subprocess.Popen[str]]
) -> None:
    """As SLURM does it: SIGTERM to all, then the same job again, in the same directory."""

    def launch(**environment: str) -> list[subprocess.Popen[str]]:
        meet = ["--rdzv-id=job", "--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{free_port()}"]
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", *meet]
        typed = [str(SCRIPTS / "train.py"), *quick, "logger=none", "hydra.run.dir=run", "trainer.max_epochs=60"]
        return [started(tmp_path, *torchrun, *typed, **environment) for _ in range(2)]

    run = tmp_path / "run"
    nodes = launch()
    wait_for((run / "checkpoints/previous.ckpt").exists)
    for node in nodes:
        for process in (*ranks_of(node), psutil.Process(node.pid)):
            process.send_signal(signal.SIGTERM)
    said = "".join(node.communicate(timeout=120)[0] for node in nodes)
    assert (
        run / "stopped"
    ).exists() and "stopped by SIGTERM. To go on: torchrun --nnodes=2 --nproc-per-node=1 " in said
    done = int(torch.load(run / "checkpoints/last.ckpt", weights_only=True)["global_step"])
    assert done < 300
    nodes = launch(SLURM_RESTART_COUNT="1")
    said = "".join(node.communicate(timeout=300)[0] for node in nodes)
    assert [node.returncode for node in nodes] == [0, 0], said
    assert f"goes on from {tmp_path / 'unfinished/run-1/checkpoints/last.ckpt'}" in said and (run / "finished").exists()
    assert steps(tmp_path / "unfinished/run-1") + steps(run) == list(range(300))


def test_a_rank_that_is_stopped_is_named(
    quick: tuple[str, ...], tmp_path: Path, started: Callable[..., subprocess.Popen[str]]
) -> None:
    agent = started(
        tmp_path, sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
        str(SCRIPTS / "train.py"), *quick, *LONG, "hydra.run.dir=run",
    )  # fmt: skip
    wait_for((tmp_path / "run/checkpoints/last.ckpt").exists)
    first, second = ranks_of(agent)
    second.suspend()
    begun = time.monotonic()
    first.wait(60)
    assert 15 < time.monotonic() - begun < 60
    second.kill()
    said = agent.communicate(timeout=60)[0]
    assert agent.returncode == 1 and re.search(
        r"error: Nothing is heard of rank \d \(process \d+ on \S+; after step", said
    )
    assert f"Run directory: {tmp_path / 'run'}. To go on: torchrun --standalone" in said


def source(directory: Path) -> AnnDataFiles:
    rng, n = np.random.default_rng(0), 20_000
    obs = pd.DataFrame({"experiment": rng.choice(["a", "b"], n), "condition": rng.choice(["x", "y"], n)})
    adata = anndata.AnnData(rng.normal(size=(n, 100)).astype(np.float32), obs.set_axis([str(i) for i in range(n)]))
    return AnnDataFiles(write(adata, directory / "cells.h5ad"))


SMALL = {"group_by": ["experiment", "condition"], "chunk_rows": 64, "shard_rows": 256, "dataset_rows": 512}


def test_a_preparation_outlives_a_worker(tmp_path: Path) -> None:
    """One of two workers dies while blocks are read: one that holds the source, which was sent to them."""
    with local_cluster(n_workers=2, threads_per_worker=1, processes=True) as cluster:
        address = cluster.scheduler_address

        def kill_holder() -> None:
            wait_for(lambda: list(tmp_path.glob("out.partial/pieces/*/*.npz")))
            with Client(address, timeout=60, set_as_default=False) as client:
                holders = next(who for key, who in client.who_has().items() if "AnnDataFiles" in str(key))
                psutil.Process(client.run(os.getpid, workers=[holders[0]])[holders[0]]).kill()

        with ThreadPoolExecutor() as pool:
            killed = pool.submit(kill_holder)
            store = prepare(source(tmp_path), tmp_path / "out.zarr", **SMALL, cluster=address)
            killed.result(60)
    assert len(store) == 20_000
    rows = store.obs()["source_row"].to_numpy()
    assert np.array_equal(np.sort(rows), np.arange(20_000))


def test_a_preparation_without_workers_tells_how_to_go_on(tmp_path: Path) -> None:
    with local_cluster(n_workers=1, threads_per_worker=1, processes=True) as cluster:

        def close() -> None:
            wait_for(lambda: list(tmp_path.glob("out.partial/pieces/*/*.npz")))
            cluster.close(timeout=60)

        closer = threading.Thread(target=close)
        closer.start()
        with pytest.raises(
            RuntimeError, match=r"the workers of the cluster were lost .* start workers, and the same comm"
        ):
            prepare(source(tmp_path), tmp_path / "out.zarr", **SMALL, cluster=cluster.scheduler_address)
        closer.join()
    assert len(prepare(source(tmp_path), tmp_path / "out.zarr", **SMALL)) == 20_000


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="only root may become another user")
def test_another_user_trains_with_read_only_code_and_data(quick: tuple[str, ...]) -> None:
    """The user may read everything, since the interpreter may lie in a home directory, and write to one directory."""
    reads = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *reads]
    with tempfile.TemporaryDirectory() as folder:
        place, out = Path(folder), Path(folder, "out")
        out.mkdir()
        shutil.copytree(quick[0].removeprefix("data.path="), place / "demo")
        for name in ("conf", "scripts", "src"):
            shutil.copytree(SCRIPTS.parent / name, place / "code" / name)
        subprocess.run(["chmod", "-R", "a-w,a+rX", str(place / "demo"), str(place / "code")], check=True)
        place.chmod(0o755)
        os.chown(out, 65534, 65534)
        environment = {
            **{"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PYTHONPATH": str(place / "code/src")},
            **{"WANDB_MODE": "offline", "OMP_NUM_THREADS": "1"},
        }

        def run(script: str, *typed: str) -> subprocess.CompletedProcess[str]:
            command = [*user, sys.executable, str(place / "code/scripts" / script), *typed]
            return new_process(out, *command, limit=600, environment=environment)  # all is compiled first

        refused = subprocess.run([*user, "touch", str(place / "demo/new")], capture_output=True)
        assert refused.returncode != 0
        options = [f"data.path={place / 'demo'}", *quick[1:], "trainer.max_epochs=1"]
        done = run("train.py", *options)
        assert done.returncode == 0, done.stderr
        directory = Path(done.stdout.splitlines()[-1].removeprefix("run: "))
        assert (directory / "finished").exists() and directory.is_relative_to(out)
        shown = run("show.py", f"run={directory}", "step=1")
        assert shown.returncode == 0, shown.stderr
        directory.chmod(0o555)
        (directory / "batches").chmod(0o555)
        said = run("show.py", f"run={directory}", "step=1").stderr
        assert "Permission denied" in said, said
