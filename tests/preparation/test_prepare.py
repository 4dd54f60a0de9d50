"""A store holds the rows of its source, each once, in the order asked for; or it is not there."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import runpy
import shlex
import shutil
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import annbatch
import anndata
import dask
import numpy as np
import pandas as pd
import pytest
import zarr
from dask.distributed import Client
from distributed.client import FuturesCancelledError
from scipy import sparse

from cellcohort.cells import CellTable
from cellcohort.data.anndata import load_anndata
from cellcohort.data.patches import load_patches
from cellcohort.data.timelapse import Timelapse
from cellcohort.datasets.stored.store import Store
from cellcohort.preparation import cluster as preparation_workers
from cellcohort.preparation import job as plans
from cellcohort.preparation import pipeline, prepare, stored_order, tasks
from cellcohort.preparation.pipeline import _lost_workers
from cellcohort.sources.anndata import AnnDataFiles
from cellcohort.sources.planted import Planted
from cellcohort.sources.timelapse import Patches
from launches import new_process
from plates import entry, two_plates, write_collection
from stores import FEATURES, QUIET, cells, dense, local_cluster, prepared, write

pytestmark = QUIET
ROOT = Path(__file__).parents[2]
REAL = ROOT.parent / "shared" / "data" / "bodenmiller_cytof" / "bodenmiller.h5ad"
needs_real = pytest.mark.skipif(not REAL.exists(), reason="the bodenmiller cells are not beside the repository")
SMALL = {"chunk_rows": 16, "shard_rows": 64, "dataset_rows": 384}
THREE = {**SMALL, "dataset_rows": 256}  # datasets of 700 cells


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> AnnDataFiles:
    """The file of :func:`cells`, which no test changes."""
    return AnnDataFiles(write(cells(), tmp_path_factory.mktemp("source") / "cells.h5ad"))


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store of :func:`cells`; copy it before changing it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return prepared(tmp_path_factory.mktemp("stored"), **SMALL)


def check(store: Store, adata: anndata.AnnData, seed: int = 0) -> None:
    """A store holds the cells in the order of its seed."""
    order, _ = stored_order(adata.obs, ["experiment", "condition"], seed=seed)
    assert np.array_equal(store.obs()["source_row"], order)
    assert np.array_equal(store.read(0, len(store)), dense(adata.X)[order])


def content(store: Path) -> dict[str, str]:
    """Checksum of every file."""
    files = [file for file in store.rglob("*") if file.is_file()]
    return {str(file.relative_to(store)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.mark.parametrize("stored_sparse", [False, True])
def test_every_row_is_that_of_its_source_and_there_once(tmp_path: Path, stored_sparse: bool) -> None:
    one, two = cells(400, 0, stored_sparse), cells(300, 1, stored_sparse)
    two.obs["condition"] = two.obs["condition"].cat.reorder_categories(["mock", "drug"])  # other codes, same labels
    two = two[:, FEATURES[::-1]].copy()
    files = [write(one, tmp_path / "one.h5ad"), write(two, tmp_path / "two.zarr")]
    store = prepare(AnnDataFiles(files), tmp_path / "out.zarr", **SMALL)
    obs, inputs = store.obs(), store.read(0, len(store))
    assert store.sparse == stored_sparse and len(obs) == 700 and len(store.arrays) == 2
    if stored_sparse:
        assert len({array.group["indices"].dtype for array in store.arrays}) == 1
    sources = {str(files[0]): one, str(files[1]): two[:, FEATURES].copy()}
    assert len(obs.groupby(["source_file", "source_row"], observed=True)) == 700
    for file, rows in obs.groupby("source_file", observed=True):
        adata = sources[str(file)]
        assert np.array_equal(inputs[rows.index], dense(adata.X)[rows.source_row])
        for column in ("experiment", "condition", "hours", "track"):
            assert (
                rows[column].astype(object).to_numpy() == adata.obs[column].astype(object).to_numpy()[rows.source_row]
            ).all()


def test_strata_follow_each_other_and_are_shuffled_inside(tmp_path: Path) -> None:
    obs = cells().obs.assign(row=np.arange(700))
    order, sizes = stored_order(obs, ["experiment", "condition"], seed=3)
    laid = obs.iloc[order]
    label = laid.experiment.astype(str) + laid.condition.astype(str)
    assert (label != label.shift()).sum() == len(sizes) == 6
    assert sorted(order) == list(range(700)) and sum(sizes.values()) == 700
    largest = order[label == label.mode()[0]]
    assert abs(np.corrcoef(largest, np.arange(len(largest)))[0, 1]) < 0.2
    assert not np.array_equal(order, stored_order(obs, ["experiment", "condition"], seed=4)[0])
    assert np.array_equal(order, stored_order(obs, ["experiment", "condition"], seed=3)[0])


def test_groups_stay_together_in_their_own_order() -> None:
    obs = cells().obs.assign(experiment="a", condition="mock")
    order, _ = stored_order(obs, ["experiment"], together="track")
    track = obs.track.to_numpy()[order]
    assert (track[1:] != track[:-1]).sum() == len(set(track)) - 1
    assert (np.diff(order)[track[1:] == track[:-1]] == 1).all() and not np.array_equal(order, np.arange(700))


def test_annbatch_reads_a_store_as_its_own_collection(stored: Store) -> None:
    loader = annbatch.Loader(chunk_size=16, preload_nchunks=8, batch_size=64, preload_to_gpu=False)
    loader.use_collection(annbatch.DatasetCollection(stored.path, mode="r"))
    read = list(loader)
    assert np.array_equal(np.concatenate([batch["X"] for batch in read]), stored.read(0, 700))
    assert list(pd.concat([batch["obs"] for batch in read]).source_row) == list(stored.obs().source_row)


def test_chunks_and_files_are_as_asked(stored: Store) -> None:
    assert [array.chunks[0] for array in stored.arrays] == [16, 16]
    assert [array.shards[0] for array in stored.arrays] == [64, 64] and list(stored.ends) == [384, 700]
    assert not stored.path.with_suffix(".partial").exists()


def test_rows_are_taken_in_any_order_and_repeated(tmp_path: Path) -> None:
    store = prepared(tmp_path, stored_sparse=True)
    rows = np.random.default_rng(0).integers(0, 700, 300)
    assert np.array_equal(store.take(rows), store.read(0, 700)[rows])
    assert store.take(rows[:0]).shape == (0, 7)


KILLED = """
import faulthandler, os, signal, sys, warnings
from pathlib import Path
from cellcohort.preparation import job as plan, prepare
from cellcohort.sources.anndata import AnnDataFiles

warnings.simplefilter("ignore")
plan.BYTES_PER_BLOCK = 4 * 7 * 200
folder, rename = Path(sys.argv[1]), Path.rename
for at in sys.argv[2:]:
    def killing(self, target):  # everything becomes real by a rename
        if str(target).endswith(at):
            os.kill(os.getpid(), signal.SIGKILL)
        return rename(self, target)
    child = os.fork()
    if not child:
        Path.rename = killing
        faulthandler.dump_traceback_later(150, exit=True)  # not to be waited for, if it hangs
        sizes = {"chunk_rows": 16, "shard_rows": 64, "dataset_rows": 256}
        prepare(AnnDataFiles(folder / "cells.h5ad"), folder / "cells.zarr", **sizes)
        os._exit(0)
    print("status", os.waitpid(child, 0)[1], (folder / "cells.zarr").exists(), (folder / "cells.partial").exists())
"""


def test_a_killed_preparation_leaves_no_store_and_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plans, "BYTES_PER_BLOCK", 4 * 7 * 200)  # 4 blocks
    (tmp_path / "whole").mkdir()
    wanted = prepared(tmp_path / "whole", **THREE)
    source = AnnDataFiles(write(cells(), tmp_path / "cells.h5ad"))
    # while it is cut, while it is gathered, and before the last rename
    at = ["cut/2.npy", "dataset_1", "cells.zarr"]
    killed = new_process(tmp_path, sys.executable, "-c", KILLED, str(tmp_path), *at)
    states = [line for line in killed.stdout.splitlines() if line.startswith("status")]
    assert states == [f"status {signal.SIGKILL.value} False True"] * 3, killed.stderr
    with pytest.raises(FileNotFoundError, match=r"cells\.partial is there: run scripts/prepare\.py again"):
        Store(tmp_path / "cells.zarr")
    capsys.readouterr()
    store = prepare(source, tmp_path / "cells.zarr", **THREE)
    assert "going on with" in capsys.readouterr().out
    assert np.array_equal(store.read(0, 700), wanted.read(0, 700))
    assert list(store.obs().source_row) == list(wanted.obs().source_row)
    names = [{name for name in content(path) if "obs" not in name} for path in (store.path, wanted.path)]
    assert names[0] == names[1]  # nothing of what was stopped is left in it


def test_blocks_and_datasets_that_are_finished_are_not_done_again(
    source: AnnDataFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "BYTES_PER_BLOCK", 4 * 7 * 200)  # 4 blocks
    done: list[Any] = []

    def until(n: int, work: Callable[..., Any], which: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            if len(done) == n:
                raise OSError("stopped")
            done.append(which(*arguments))
            return work(*arguments)

        return counted

    def stopped_after(n: int, **options: Any) -> list[Any]:
        done.clear()
        with monkeypatch.context() as patch:
            patch.setattr(AnnDataFiles, "read", until(n, AnnDataFiles.read, lambda _, start, stop: (start, stop)))
            patch.setattr(tasks, "_write", until(n, tasks._write, lambda folder, *_: Path(folder).parent.name))
            with pytest.raises(OSError, match="stopped"):
                prepare(source, tmp_path / "out.zarr", **THREE, threads=1)
        return [*done]

    assert stopped_after(2) == [(0, 200), (200, 400)]
    assert stopped_after(3) == [(400, 600), (600, 700), "store"]
    assert stopped_after(1) == ["store"]
    check(prepare(source, tmp_path / "out.zarr", **THREE), cells())


@pytest.mark.parametrize(("losses", "cluster"), [(1, "there"), (2, "there"), (3, "there"), (1, "gone")])
def test_a_source_that_was_lost_with_its_worker_is_sent_again(
    losses: int, cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, wait, left = AnnDataFiles(write(cells(60), tmp_path / "cells.h5ad")), pipeline._wait, [losses]

    def losing(client: Client, futures: list[Any], what: str) -> None:
        if what == "reading" and left[0]:
            left[0] -= 1
            raise FuturesCancelledError([])
        wait(client, futures, what)

    def gone_later(*_: Any, **__: Any) -> None:
        if not left[0]:
            raise OSError("Timed out trying to connect")

    monkeypatch.setattr(pipeline, "_wait", losing)
    with local_cluster(n_workers=1, threads_per_worker=1, processes=False) as workers:
        options: dict[str, Any] = {**SMALL, "cluster": workers.scheduler_address}
        if cluster == "there" and losses < 3:
            assert len(prepare(source, tmp_path / "out.zarr", **options)) == 60
            return
        with monkeypatch.context() as patch:
            if cluster == "gone":
                patch.setattr(Client, "wait_for_workers", gone_later)
            with pytest.raises(RuntimeError, match=r"workers of the cluster were lost .*start workers, and the same"):
                prepare(source, tmp_path / "out.zarr", **options)


def test_what_is_there_already_is_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = AnnDataFiles(write(cells(), tmp_path / "cells.h5ad"))

    def failing(*arguments: Any) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="disk full"):
        patch.setattr("cellcohort.preparation.tasks._write", failing)
        prepare(source, tmp_path / "out.zarr", **SMALL)
    with monkeypatch.context() as patch:
        patch.setattr(AnnDataFiles, "read", failing)  # the source was read through before
        store = prepare(source, tmp_path / "out.zarr", **SMALL)
    before = content(store.path)
    with monkeypatch.context() as patch:
        patch.setattr("cellcohort.preparation.pipeline._work", failing)
        prepare(source, tmp_path / "out.zarr", **SMALL)
        for options, said in (
            ({"seed": 1, "together": "track"}, "has changed: together: null -> track, seed: 0 -> 1 (then -> now)"),
            ({"shard_rows": 128}, "has changed: shard_rows: 64 -> 128 (then"),
            ({"dataset_rows": 128}, "has changed: dataset_rows: 384 -> 128 (then"),
            ({"group_by": ["experiment"]}, "has changed: group_by: [experiment, condition] -> [experiment] (then"),
        ):
            with pytest.raises(ValueError, match=re.escape(said) + r".*prepare\.out.* or delete .*out\.zarr to"):
                prepare(source, tmp_path / "out.zarr", **{**SMALL, **options})
        adata = cells(seed=1)
        adata.layers["log"] = adata.X
        write(adata, tmp_path / "cells.h5ad")
        file = re.escape(str((tmp_path / "cells.h5ad").resolve()))
        said = (
            rf"has changed: source layer: X -> layers/log, source {file}: 700 rows, state \w+ -> 700 rows, state \w+ \("
        )
        with pytest.raises(ValueError, match=said):
            prepare(AnnDataFiles(tmp_path / "cells.h5ad", "log"), tmp_path / "out.zarr", **SMALL)
    assert content(store.path) == before


def test_a_column_of_numbers_in_one_file_and_text_in_another_is_refused(tmp_path: Path) -> None:
    text = cells()
    text.obs["hours"] = text.obs["hours"].astype(str)
    paths = [write(cells(), tmp_path / "a.h5ad"), write(text, tmp_path / "b.h5ad")]
    with pytest.raises(ValueError, match=r"'hours' has numbers in .*a\.h5ad, but text in .*b\.h5ad; write it"):
        prepare(AnnDataFiles(paths), tmp_path / "out.zarr", **SMALL)


def test_work_of_other_options_is_kept_until_it_is_deleted(
    source: AnnDataFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def failing(*arguments: Any) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="disk full"):
        patch.setattr("cellcohort.preparation.tasks._write", failing)
        prepare(source, tmp_path / "out.zarr", **SMALL)
    left = sorted((tmp_path / "out.partial").rglob("*"))
    with pytest.raises(ValueError, match=r"out\.partial holds work on out\.zarr that was stopped, with other options"):
        prepare(source, tmp_path / "out.zarr", **SMALL, seed=1)
    assert sorted((tmp_path / "out.partial").rglob("*")) == left
    shutil.rmtree(tmp_path / "out.partial")
    check(prepare(source, tmp_path / "out.zarr", **SMALL, seed=1), cells(), seed=1)


def test_work_on_source_files_that_were_mended_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(cells(), tmp_path / "cells.h5ad")

    def failing(*arguments: Any) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="disk full"):
        patch.setattr("cellcohort.preparation.tasks._write", failing)
        prepare(AnnDataFiles(path), tmp_path / "out.zarr", **SMALL)
    mended = cells()
    mended.X[3, 2] = 77
    store = prepare(AnnDataFiles(write(mended, path)), tmp_path / "out.zarr", **SMALL)
    assert "the source files have changed since work on out.zarr was stopped: it begins anew" in capsys.readouterr().out
    assert np.array_equal(store.read(0, 700), mended.X[store.obs()["source_row"]])


def test_two_preparations_of_one_store_do_not_mix(source: AnnDataFiles, tmp_path: Path) -> None:
    (tmp_path / "out.partial").mkdir()
    with open(tmp_path / "out.partial" / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(RuntimeError, match=r"another process prepares out\.zarr"):
            prepare(source, tmp_path / "out.zarr", **SMALL)
    (tmp_path / "mine.partial").mkdir()
    (tmp_path / "mine.partial" / "thesis.txt").write_text("all of it")
    with pytest.raises(ValueError, match="is in the way"):
        prepare(source, tmp_path / "mine.zarr", **SMALL)
    assert (tmp_path / "mine.partial" / "thesis.txt").read_text() == "all of it"
    (tmp_path / "mine.partial").rename(tmp_path / "elsewhere")
    (tmp_path / "mine.partial").write_text("all of it")
    with pytest.raises(ValueError, match="is in the way"):
        prepare(source, tmp_path / "mine.zarr", **SMALL)


def test_what_a_preparation_did_not_write_is_not_to_be_deleted(tmp_path: Path) -> None:
    path = write(cells(), tmp_path / "cells.zarr")
    with pytest.raises(ValueError, match="was not written by a preparation; name another out") as refused:
        prepare(AnnDataFiles(path), path, **SMALL)
    assert "delete" not in str(refused.value)


@pytest.mark.parametrize("name", ["cells.h5ad", "cells.zarr"])
def test_a_source_that_was_written_anew_is_another_one(tmp_path: Path, name: str) -> None:
    path = write(cells(60), tmp_path / name)
    before = AnnDataFiles(path).state
    assert AnnDataFiles(path).state == before
    if name.endswith("zarr"):
        zarr.open_group(path)["X"][3] = 7.0  # in a chunk, while all that describes the array stays
    else:
        write(cells(60, seed=1), path)
    assert AnnDataFiles(path).state != before


def test_patches_of_images_that_were_written_anew_are_others(tmp_path: Path) -> None:
    collection = two_plates(tmp_path)

    def fingerprint(**options: Any) -> dict[str, str]:
        return Patches(Timelapse(collection, patch=(1, 16, 16), **options)).state

    before = fingerprint()
    assert fingerprint() == before and fingerprint(normalise="none") != before
    last = max(file for file in (tmp_path / "two.zarr" / "B").rglob("*") if file.is_file() and file.name.isdigit())
    os.utime(last, ns=(1, 1))
    assert fingerprint() != before


def test_how_other_patches_were_made_is_told(tmp_path: Path) -> None:
    collection, patch = two_plates(tmp_path), (1, 16, 16)
    prepare(Patches(Timelapse(collection, patch=patch)), tmp_path / "out.zarr", **SMALL)
    with pytest.warns(UserWarning, match="border='drop' left out"):
        dropped = Patches(Timelapse(collection, patch=patch, border="drop"))
    plain = Patches(Timelapse(collection, patch=patch, normalise="none"))
    for made, said in ((plain, "source normalise: position -> none"), (dropped, "source border: clamp -> drop")):
        with pytest.raises(ValueError, match=rf"What has changed: .*{said}.*\(then -> now\)"):
            prepare(made, tmp_path / "out.zarr", **SMALL)


def test_slices_at_random_are_no_patches_to_store(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"source\.collection\.z=random: .*data\.z=random"):
        Patches(Timelapse(two_plates(tmp_path), patch=(1, 16, 16), z="random"))


def test_labels_of_a_collection_are_columns_of_its_store(tmp_path: Path) -> None:
    two_plates(tmp_path)
    two = entry("two", tracks="two.csv", interval_minutes=60, labels={"cell_line": "Huh7", "dose": "10"})
    collection = write_collection(tmp_path, entry("one", labels={"cell_line": "A549"}), two)
    prepare(Patches(Timelapse(collection, patch=(1, 16, 16))), tmp_path / "out.zarr", **SMALL)
    cells = load_patches(tmp_path / "out.zarr").cells
    line, plate = (cells.column(name) for name in ("cell_line", "experiment"))
    assert {("A549", "one"), ("Huh7", "two")} == {
        (line.labels[a], plate.labels[b]) for a, b in zip(line.codes, plate.codes, strict=True)
    }
    assert (cells.values("dose").notna().to_numpy() == (plate.codes == plate.labels.index("two"))).all()
    assert cells.has("position") and cells.has("well")


def test_strata_that_are_many_are_not_all_printed_and_one_is_told_as_one(
    source: AnnDataFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(*arguments: Any) -> None:
        raise OSError("after all was said")

    monkeypatch.setattr(pipeline, "workers", failing)
    said = []
    for group_by in (["track"], []):
        with pytest.raises(OSError, match="after all was said"):
            prepare(source, tmp_path / f"{len(group_by)}.zarr", group_by, **SMALL)
        said.append(capsys.readouterr().out.splitlines())
    assert said[0][0].endswith("in 100 strata") and said[0][41].strip() == "and 60 more" and len(said[0]) < 45
    assert said[1][0].endswith("in 1 stratum")


def test_a_cluster_without_workers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answers: list[Any] = [TimeoutError(), SimpleNamespace(done={1}, not_done={2}), TimeoutError()]

    def wait(futures: list[int], timeout: float, return_when: str) -> Any:
        assert timeout == preparation_workers.WAIT_SECONDS and return_when == "FIRST_COMPLETED" and 2 in futures
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(preparation_workers, "wait", wait)
    client: Any = SimpleNamespace(nthreads=lambda: {"tcp://a": 1} if answers else {})
    finished = preparation_workers.as_they_finish(client, [1, 2])  # type: ignore[list-item]
    assert next(finished) == 1, "workers that are busy are waited for"
    said = r"lost \(no worker is left, and nothing was finished for 30 seconds\)\. .*kept in .*start workers"
    with pytest.raises(RuntimeError, match=said), _lost_workers(tmp_path):
        next(finished)


def test_a_configuration_of_dask_that_cannot_start_is_nothing_to_threads_of_this_process(tmp_path: Path) -> None:
    """A LocalCluster waits for a preload as long as it takes."""
    preload, begun = tmp_path / "preload.py", tmp_path / "begun"
    preload.write_text(
        f"import asyncio\n\nasync def dask_setup(_):\n    open({str(begun)!r}, 'w').close()\n    await asyncio.sleep(5)"
    )
    with dask.config.set({f"distributed.{who}.preload": [str(preload)] for who in ("scheduler", "worker")}):
        assert len(prepared(tmp_path, 60)) == 60
    assert not begun.exists()


def test_threads_that_cannot_start_are_told_with_their_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "BYTES_PER_BLOCK", 4 * 7 * 100)  # 7 blocks
    source, start = AnnDataFiles(write(cells(), tmp_path / "cells.h5ad")), threading.Thread.start
    left = [2]

    def limited(thread: threading.Thread) -> None:
        if not left[0]:
            raise RuntimeError("can't start new thread")
        left[0] -= 1
        start(thread)

    told = r"threads=4: 2 of 4 threads .*\(can't start new thread\)\. Set prepare\.threads=2, or raise .*`ulimit -u`"
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match=told):
        patch.setattr(threading.Thread, "start", limited)
        prepare(source, tmp_path / "out.zarr", **SMALL, threads=4)
    assert len(prepare(source, tmp_path / "out.zarr", **SMALL, threads=2)) == 700


def test_a_source_that_times_out_is_not_a_lost_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = AnnDataFiles(write(cells(60), tmp_path / "cells.h5ad"))

    def late(*_: Any) -> None:
        raise TimeoutError(110, "Connection timed out")

    monkeypatch.setattr(AnnDataFiles, "read", late)
    with pytest.raises(TimeoutError, match="Connection timed out"):
        prepare(source, tmp_path / "out.zarr", **SMALL)


def test_a_cluster_is_used_by_its_address(source: AnnDataFiles, tmp_path: Path) -> None:
    with local_cluster(n_workers=1, threads_per_worker=1, processes=True) as cluster:
        check(prepare(source, tmp_path / "out.zarr", **SMALL, cluster=cluster.scheduler_address), cells())


def test_a_cluster_that_cannot_work_is_told_with_its_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = AnnDataFiles(write(cells(60), tmp_path / "cells.h5ad"))
    monkeypatch.setattr(preparation_workers, "WAIT_SECONDS", 1)
    with local_cluster(n_workers=0, processes=False) as cluster:
        address = cluster.scheduler_address
        said = rf"cluster={address}: the Dask scheduler there has 0 workers; 1 was waited for, for 1 seconds\. Start"
        with pytest.raises(ValueError, match=said):
            prepare(source, tmp_path / "out.zarr", **SMALL, cluster=address)
    with socket.socket() as taken:  # and does not listen
        taken.bind(("127.0.0.1", 0))
        for nobody in (f"tcp://127.0.0.1:{taken.getsockname()[1]}", "node8786"):
            with pytest.raises(ValueError, match=rf"cluster={nobody}: no Dask scheduler answers there .*prepare\.clus"):
                prepare(source, tmp_path / "out.zarr", **SMALL, cluster=nobody)
    assert len(prepare(source, tmp_path / "out.zarr", **SMALL)) == 60


def test_patches_keep_their_axes(tmp_path: Path) -> None:
    patches = np.random.default_rng(0).random((90, 2, 1, 8, 8)).astype(np.float32)
    adata = cells(90)
    table = CellTable.from_frame(adata.obs, hours="hours", track="track")
    whole: Any = SimpleNamespace(shape=(2, 1, 8, 8), cells=table, recorded=lambda positions: patches[positions])
    whole.every_cell = lambda: whole
    source = Patches(SimpleNamespace(dataset=lambda: whole))  # type: ignore[arg-type]
    store = prepare(
        source, tmp_path / "out.zarr", ["experiment"], together="track", chunk_rows=8, shard_rows=16, cluster=None
    )
    obs = store.obs()
    assert store.shape == (2, 1, 8, 8) and store.arrays[0].chunks == (8, 2, 1, 8, 8)
    assert np.array_equal(store.read(0, 90), patches[obs.source_row])
    assert (obs.hours.to_numpy() == table.hours[obs.source_row]).all()


def broken(tmp_path: Path, kind: str) -> Path:
    """A file of cells with something wrong in it."""
    import h5py  # type: ignore[import-untyped]

    path = write(cells(60), tmp_path / "cells.h5ad")
    with h5py.File(path, "r+") as file:
        if kind == "obs is shorter":
            shortened = file["X"][:]
            del file["X"]
            file["X"] = np.concatenate([shortened, shortened[:3]])
        elif kind == "obs is longer":
            shortened = file["X"][:50]
            del file["X"]
            file["X"] = shortened
        elif kind == "no obs":
            del file["obs"]
        elif kind == "NaN":
            file["X"][5, 2] = np.nan
        elif kind == "no columns":
            del file["X"], file["var"]
            anndata.io.write_elem(file, "X", np.empty((60, 0), np.float32))
            anndata.io.write_elem(file, "var", pd.DataFrame(index=pd.Index([], dtype=str)))
    return path


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("obs is shorter", "X has 63 rows and 7 columns, but obs has 60 rows"),
        ("obs is longer", "X has 50 rows and 7 columns, but obs has 60 rows"),
        ("no obs", "has no obs or no var, only"),
        ("NaN", r"cells\.h5ad: 1 value missing or infinite, in rows 5 of X, counted from 0; fill"),
        ("no columns", "X has no columns, so there is nothing to store"),
    ],
)
def test_what_is_wrong_with_a_source_is_said(tmp_path: Path, kind: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        prepare(AnnDataFiles(broken(tmp_path, kind)), tmp_path / "out.zarr", **SMALL)
    assert not (tmp_path / "out.zarr").exists()


@pytest.mark.parametrize("stored_sparse", [False, True])
@pytest.mark.parametrize(
    ("value", "said"),
    [
        (np.nan, "2 values missing or infinite, in rows 5, 9 of X"),
        (2**24 + 1, r"2 values that 32 bits would round, .* in rows 5, 9 of X, counted from 0; scale them"),
        (2**24 + 2, ""),
    ],
)
def test_values_that_cannot_be_stored_are_told_by_file_and_its_own_rows(
    tmp_path: Path, stored_sparse: bool, value: float, said: str
) -> None:
    write(cells(30, 0, stored_sparse), tmp_path / "a.h5ad")
    wrong = dense(cells(30, 1).X).astype(np.float32 if np.isnan(value) else np.int64)
    wrong[[5, 9], 3] = value
    adata = anndata.AnnData(sparse.csr_matrix(wrong) if stored_sparse else wrong, cells(30, 1).obs, cells(30, 1).var)
    write(adata, tmp_path / "b.h5ad")
    source = AnnDataFiles(str(tmp_path / "*.h5ad"), kinds="any")
    if said:
        with pytest.raises(ValueError, match=r"b\.h5ad: " + said):
            prepare(source, tmp_path / "out.zarr", **SMALL)
    else:
        stored = prepare(source, tmp_path / "out.zarr", **SMALL).read(0, 60)
        assert (stored[:, 3] == value).sum() == 2


def test_a_directory_of_files_is_told_from_a_file(tmp_path: Path) -> None:
    write(cells(30), tmp_path / "one.h5ad")
    with pytest.raises(
        ValueError, match=r"is a directory of 1 h5ad file, such as one\.h5ad; name these, 'source.path=\".*/\*\.h5ad\"'"
    ):
        AnnDataFiles(tmp_path)


def test_files_must_have_the_same_features(tmp_path: Path) -> None:
    write(cells(30), tmp_path / "one.h5ad")
    write(cells(30)[:, FEATURES[:5]].copy(), tmp_path / "two.h5ad")
    with pytest.raises(ValueError, match=r"two.h5ad has 5 features and .*one.h5ad has 7.*'gene_5'"):
        AnnDataFiles(str(tmp_path / "*.h5ad"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"group_by": ["plate"]},
            r"prepare\.group_by names 'plate', .* columns experiment, .* prepare\.group_by=\[\] for",
        ),
        ({"group_by": ["experiment", "track", "experiment"]}, r"prepare\.group_by=\[.*names 'experiment' twice; name"),
        ({"group_by": None}, r"prepare\.group_by=None must be a list of columns; use 'prepare\.group_by=\[\]'"),
        ({"together": "family"}, "together names 'family', but the cells have the columns experiment"),
        ({"chunk_rows": 24}, "a file holds whole chunks"),
        ({"dataset_rows": 100}, "dataset_rows=100 must be a multiple of chunk_rows=16"),
        ({"out": "cells"}, "ending in .zarr"),
        ({"threads": 0}, "threads must be an integer >= 1, got 0"),
        ({"seed": -1}, "seed must be an integer >= 0, got -1"),
        ({"seed": 1.5}, "seed must be an integer >= 0, got 1.5"),
        ({"chunk_rows": 16.0}, "chunk_rows must be an integer >= 1, got 16.0"),
        ({"group_by": "plate"}, r"group_by='plate' must be a list of columns; use 'prepare\.group_by=\[plate\]'"),
    ],
)
def test_options_out_of_range_are_refused(
    source: AnnDataFiles, tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        prepare(source, **{"out": tmp_path / "out.zarr", **SMALL, **options})
    assert not (tmp_path / "out.partial").exists()


@pytest.mark.parametrize("missing", ["error", "label"])
@pytest.mark.parametrize("options", [{"group_by": ["experiment", "condition"]}, {"together": "condition"}])
def test_a_column_that_only_some_files_have_is_refused(tmp_path: Path, options: dict[str, Any], missing: Any) -> None:
    write(cells(30), tmp_path / "a.h5ad")
    other = cells(30)
    other.obs = other.obs.rename(columns={"condition": "Condition"})
    write(other, tmp_path / "b.h5ad")
    source = AnnDataFiles(str(tmp_path / "*.h5ad"))
    said = r"names 'condition', .*in \S*b\.h5ad, as .*mean 'Condition'\? .*Condition.*all files have: experiment"
    with pytest.raises(ValueError, match=said):
        prepare(source, tmp_path / "out.zarr", **SMALL | {"group_by": ["experiment"], "missing": missing} | options)
    assert len(stored_order(source.obs, ["experiment", "source_file"], columns=source.columns)[0]) == 60


def test_cells_without_a_label_are_refused_or_a_stratum_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    adata = cells(60)
    adata.obs["condition"] = adata.obs["condition"].astype(object)
    adata.obs.iloc[::6, adata.obs.columns.get_loc("condition")] = None
    path = write(adata, tmp_path / "cells.h5ad")
    line = [f"source.path={path}", "prepare.out=cells.zarr", "prepare.group_by=[condition]", "prepare.chunk_rows=16"]
    monkeypatch.chdir(tmp_path)

    def run(*more: str) -> None:
        monkeypatch.setattr(sys, "argv", ["scripts/prepare.py", *line, *more])
        runpy.run_path(str(ROOT / "scripts" / "prepare.py"), run_name="__main__")

    with pytest.raises(SystemExit):
        run()
    assert "'condition' in 10 of 60 rows" in (said := capsys.readouterr().err) and "prepare.missing=label" in said
    with pytest.raises(ValueError, match=r"'condition' in 10 of 60 rows\. Fill or drop these rows\.$"):
        stored_order(adata.obs, ["experiment"], together="condition", missing="label")
    run("prepare.missing=label")
    obs = Store(tmp_path / "cells.zarr").obs()
    alone = np.flatnonzero(obs["condition"].isna())
    assert len(alone) == 10 and np.ptp(alone) == 9 and " 10  missing" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("path", "error", "said"),
    [
        (None, ValueError, "source.path is empty"),
        ("no/*.h5ad", FileNotFoundError, r"no such file .*\. Correct source\.path: .* pattern"),
        ([str(ROOT / "README.md")] * 2, ValueError, "named twice"),
        (str(ROOT / "README.md"), ValueError, "no AnnData file"),
    ],
)
def test_paths_that_lead_nowhere_are_refused(path: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        AnnDataFiles(path)


def test_a_layer_is_read_and_a_missing_one_is_refused(tmp_path: Path) -> None:
    adata = cells(60)
    adata.layers["doubled"] = adata.X * 2
    path = write(adata, tmp_path / "cells.h5ad")
    assert np.array_equal(AnnDataFiles(path, "doubled").read(0, 60), dense(adata.X) * 2)
    with pytest.raises(ValueError, match="has no layers/halved; its layers are: doubled"):
        AnnDataFiles(path, "halved")


@needs_real
def test_planted_experiments_distort_real_cells_as_documented() -> None:
    real, planted = AnnDataFiles(REAL), Planted(REAL, experiments=4, seed=1)
    inputs, seen = real.read(0, 51_936).astype(np.float64), planted.read(0, 51_936)
    of = planted.obs["experiment"]
    assert (of.value_counts() > 12_500).all() and list(of.cat.categories) == [f"planted_{e}" for e in range(1, 5)]
    for experiment in of.cat.categories:
        rows = (of == experiment).to_numpy()
        for feature in (0, 11, 22):  # one straight line for each experiment and feature
            slope, offset = np.polyfit(inputs[rows, feature], seen[rows, feature], 1)
            assert np.allclose(seen[rows, feature], slope * inputs[rows, feature] + offset, atol=1e-4) and slope > 0
    assert np.array_equal(seen[100:200], planted.read(100, 200))
    assert np.array_equal(seen, Planted(REAL, experiments=4, seed=1).read(0, 51_936))
    assert planted.options != Planted(REAL, experiments=4, seed=2).options
    with pytest.raises(ValueError, match="experiments=1"):
        Planted(REAL, experiments=1)


def test_experiments_are_not_planted_over_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has a column 'experiment' already"):
        Planted(write(cells(60), tmp_path / "cells.h5ad"))


def test_the_script_says_what_it_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(cells(200), tmp_path / "cells.h5ad")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["scripts/prepare.py", "source.path=cells.h5ad", "prepare.out=outputs/cells.zarr"])
    runpy.run_path(str(ROOT / "scripts" / "prepare.py"), run_name="__main__")
    *_, where, run = capsys.readouterr().out.splitlines()
    assert where == "store: outputs/cells.zarr" and run.startswith("run: ")
    assert len(Store(tmp_path / "outputs" / "cells.zarr")) == 200
    assert (tmp_path / run.removeprefix("run: ") / "config.yaml").exists()


def test_files_that_are_to_be_prepared_first_are_told_from_a_store(tmp_path: Path) -> None:
    write(cells(20), tmp_path / "one.h5ad")
    for path, said in ((tmp_path / "one.h5ad", "outputs/one.zarr"), (tmp_path / "*.h5ad", "outputs/cells.zarr")):
        with pytest.raises(
            ValueError,
            match=r"is no store.*prepare.py '?source.path=.*h5ad.* prepare.out=" + said + r" 'prepare\.group_by",
        ):
            Store(path)
    write(cells(20), tmp_path / "my screen (1).h5ad")
    with pytest.raises(ValueError, match="is no store") as raised:
        Store(tmp_path / "my screen (1).h5ad")
    words = shlex.split(str(raised.value))
    out = 'prepare.out="outputs/my screen (1).zarr"'
    assert f'source.path="{tmp_path}/my screen (1).h5ad"' in words and out in words
    assert words[-1] == 'data.path="outputs/my screen (1).zarr"'
    with pytest.raises(FileNotFoundError, match=r"no such store .*Name one that scripts/prepare\.py wrote"):
        Store(tmp_path / "two.h5ad")


def test_a_store_says_what_is_wrong_with_it(stored: Store, tmp_path: Path) -> None:
    store = Store(shutil.copytree(stored.path, tmp_path / "cells.zarr"))
    file = sorted((store.path / "dataset_1" / "X" / "c").glob("*/0"))[1]
    kept = file.read_bytes()
    file.write_bytes(kept[:-10])
    with pytest.raises(ValueError, match=rf"dataset_1/X/c/1/0 has {len(kept) - 10} bytes of {len(kept)}"):
        Store(store.path)
    file.unlink()
    with pytest.raises(ValueError, match="dataset_1/X/c/1/0 is missing"):
        Store(store.path)
    file.write_bytes(bytes([kept[0] ^ 255]) + kept[1:])
    with pytest.raises(RuntimeError, match="dataset_1/X/c/1/0 is corrupted"):
        Store(store.path).read(0, 700)
    labels = store.path / "dataset_1" / "obs" / "condition" / "codes" / "c" / "0"
    kept = labels.read_bytes()
    labels.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    with pytest.raises(ValueError, match="obs/condition/codes/c/0 is corrupted: labels are lost"):
        Store(store.path).obs()


def test_texts_are_read_as_categories_and_names_of_rows_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, group = [cells(60), cells(30)], zarr.open_group(tmp_path / "store.zarr", mode="w")
    parts[1].obs["condition"] = pd.Categorical(["other", None, "drug"] * 10)
    parts[1].obs["note"] = "late"
    for number, part in enumerate(parts):
        part.obs["well"] = pd.array([f"w{number}{i % 3}" for i in range(len(part))], dtype="str")
        annbatch.write_sharded(group, part, key=f"dataset_{number}", shard_size=64)
    group.update_attributes(annbatch.io.V1_ENCODING)
    whole = pd.concat([part.obs for part in parts], ignore_index=True)
    read_elem = anndata.io.read_elem

    def read(elem: Any) -> Any:
        assert not elem.name.endswith(("obs", "_index"))
        return read_elem(elem)

    monkeypatch.setattr(anndata.io, "read_elem", read)
    obs = Store(tmp_path / "store.zarr").obs()
    pd.testing.assert_frame_equal(obs.astype(object), whole.astype(object))
    texts = ["condition", "experiment", "track", "well"]
    assert [name for name, kind in obs.dtypes.items() if kind == "category"] == [n for n in obs if n in texts]
    numbers = [name for name in obs if name not in (*texts, "note")]
    assert numbers and (obs.dtypes[numbers] == whole.dtypes[numbers]).all()


@pytest.mark.parametrize("what", ["longer", "none"])
def test_a_store_without_its_obs_is_refused(tmp_path: Path, what: str) -> None:
    group = zarr.open_group(tmp_path / "store.zarr", mode="w")
    annbatch.write_sharded(group, cells(60), key="dataset_0", shard_size=64)
    annbatch.write_sharded(group, cells(30), key="dataset_1", shard_size=64)
    group.update_attributes(annbatch.io.V1_ENCODING)
    del group["dataset_1/obs"]
    if what == "longer":
        anndata.io.write_elem(group["dataset_1"], "obs", cells(40).obs)
        said = "dataset_1: obs has 40 rows and the inputs have 30"
    else:
        said = "dataset_1 was written without its obs"
    with pytest.raises(ValueError, match=said):
        Store(tmp_path / "store.zarr").obs()


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    zarr.open_group(tmp_path / "empty.zarr", mode="w")
    (tmp_path / "text.zarr").mkdir()
    (tmp_path / "cells.partial").mkdir()
    write(cells(30), tmp_path / "cells.h5ad")
    for name, error, said in (
        ("empty.zarr", ValueError, "holds no dataset_0 and no obs, but nothing"),
        ("text.zarr", ValueError, "is no zarr group"),
        (
            "cells.h5ad",
            ValueError,
            r"data=anndata reads those.* prepare\.out=outputs/cells\.zarr .*data\.path=outputs/",
        ),
        ("cells.partial", ValueError, r"has not finished; run .* again, with the same options, and name .*cells\.zarr"),
        ("gone.zarr", FileNotFoundError, "no such store"),
    ):
        with pytest.raises(error, match=said):
            Store(tmp_path / name)


def test_one_anndata_in_zarr_is_a_store_too(tmp_path: Path) -> None:
    adata = cells(90, stored_sparse=True)
    store = Store(write(adata, tmp_path / "cells.zarr"))
    assert len(store) == 90 and np.array_equal(store.read(10, 50), dense(adata.X)[10:50])
    assert os.listdir(tmp_path) == ["cells.zarr"]


def test_an_empty_text_is_a_missing_label(tmp_path: Path) -> None:
    for kind in ("str", "category"):
        adata = cells(120)
        adata.obs["condition"] = pd.Series(["", "mock", "drug"] * 40, adata.obs_names).astype(kind)
        source = AnnDataFiles(write(adata, tmp_path / f"{kind}.h5ad"))
        with pytest.raises(ValueError, match="'condition' in 40 of 120 rows"):
            prepare(source, tmp_path / f"{kind}.zarr", chunk_rows=16, shard_rows=64)
        store = prepare(source, tmp_path / f"{kind}.zarr", chunk_rows=16, shard_rows=64, missing="label")
        with pytest.raises(ValueError, match="'condition' in 40 of 120 rows"):
            load_anndata(store.path)
        assert load_anndata(store.path, missing="label").cells.column("condition").labels == ("drug", "missing", "mock")
