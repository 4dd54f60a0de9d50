"""A pipe or a directory under the name of a file is told, or taken for nothing; no process waits for the pipe."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from omegaconf import OmegaConf

from cellcohort.comparison.maps import some_cells
from cellcohort.comparison.plots import _metrics
from cellcohort.comparison.runs import read_run, read_runs
from cellcohort.comparison.wandb_workspace import logged, place
from cellcohort.composition.log import read_composition
from cellcohort.data.demo import _mark_of
from cellcohort.datasets.images.parquet_cache import cached_table
from cellcohort.datasets.stored.store import Store
from cellcohort.evaluation.batches import _losses
from cellcohort.evaluation.scores_file import read_scores
from cellcohort.files import in_turn, locked, whole
from cellcohort.mapped_arrays import cached_arrays
from cellcohort.numba_cache import RECORD, _place, remove_outdated_code
from cellcohort.preparation import prepare
from cellcohort.runtime.checkpoint_files import newest_whole, read_checkpoint
from cellcohort.runtime.options import check_input
from cellcohort.runtime.outcomes import tracebacks
from cellcohort.runtime.run_directory import same_options, unfinished
from cellcohort.sources.anndata import AnnDataFiles
from hydra_plugins.cellcohort_sweeps.sweeper import Job, _unfinished
from stores import QUIET, cells, write
from sweep import AXES, make_run

pytestmark = QUIET
KINDS: dict[str, Callable[[Path], None]] = {"pipe": os.mkfifo, "directory": os.mkdir}
EACH = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def nobody_waits() -> Iterator[None]:
    """Let a test fail that would wait for a pipe without end."""

    def waited(*_: object) -> None:
        raise AssertionError("waited for a pipe")

    before = signal.signal(signal.SIGALRM, waited)
    signal.alarm(100)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def put(kind: str, file: Path) -> Path:
    """Put something else in the place of a file."""
    file.unlink(missing_ok=True)
    KINDS[kind](file)
    return file


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "sweep" / "run", AXES["random"], 0, {"probe": 0.5})


@EACH
@pytest.mark.parametrize(
    ("name", "read", "said"),
    [
        ("config.yaml", read_run, "holds no run: no config.yaml"),
        ("finished", read_run, "did not finish"),
        ("scores.csv", read_scores, "has no scores.csv"),
        ("composition.parquet", read_composition, "has no composition.parquet"),
        ("metrics.csv", logged, "has no metrics.csv"),
        ("config.yaml", place, "none of 0 runs"),
    ],
)
def test_a_file_of_a_run_that_is_none_is_missing(
    kind: str, name: str, read: Callable[[Path], Any], said: str, run: Path
) -> None:
    put(kind, run / name)
    with pytest.raises((ValueError, FileNotFoundError), match=said):
        read(run)


@EACH
def test_a_file_of_a_run_that_is_none_and_may_be_missing_is_left_out(kind: str, run: Path) -> None:
    read = read_run(run)
    for name in ("metrics.csv", "embeddings.parquet", "error-rank0.txt", "finished"):
        put(kind, run / name)
    assert some_cells(read) is None and _metrics(read).empty and _losses(run).empty and not tracebacks(run)
    assert unfinished(run)
    job = Job("run", [], "digest")
    assert _unfinished([job], run.parent, 1) == [job]
    put(kind, run.parent / "unfinished" / "run-1" / "config.yaml")
    assert same_options(run.parent / "unfinished" / "run-1", OmegaConf.create()) is None
    with pytest.raises(FileNotFoundError, match="holds no run"):
        read_runs([run.parent / "unfinished" / "run-1"])


@EACH
def test_a_checkpoint_that_is_no_file_is_refused(kind: str, tmp_path: Path) -> None:
    put(kind, tmp_path / "last.ckpt")
    with pytest.raises(ValueError, match=r"last\.ckpt cannot be loaded: it is no file\. There is no other"):
        read_checkpoint(tmp_path / "last.ckpt")
    assert newest_whole(tmp_path) is None


@EACH
@pytest.mark.parametrize("end", ["index", "checked"])
def test_what_is_no_file_in_an_index_cache_is_told_or_not_used(kind: str, end: str, tmp_path: Path) -> None:
    arrays = [np.arange(10)]
    put(kind, tmp_path / ".lock")
    cached_arrays(tmp_path, ["x"], lambda: arrays)
    (file,) = tmp_path.glob(f"*.{end}")
    put(kind, file)
    if end == "checked":
        assert np.array_equal(cached_arrays(tmp_path, ["x"], lambda: arrays)[0], arrays[0])
        return
    with pytest.raises(OSError, match=f"{file} is no file, .*Remove it, or name another directory"):
        cached_arrays(tmp_path, ["x"], lambda: arrays)


def test_a_pipe_can_be_locked(tmp_path: Path) -> None:
    put("pipe", tmp_path / "lock")
    with locked(tmp_path / "lock") as first, locked(tmp_path / "lock") as second:
        assert first and not second
    with in_turn(tmp_path / "lock"), locked(tmp_path / "lock") as other:
        assert not other


def test_a_file_that_cannot_replace_a_directory_is_not_lost_in_silence(tmp_path: Path) -> None:
    put("directory", tmp_path / "scores.csv")
    with pytest.raises(IsADirectoryError), whole(tmp_path / "scores.csv") as beside:
        beside.write_text("all of it")


def test_a_pipe_in_a_folder_of_computed_tables_is_replaced(tmp_path: Path) -> None:
    table = pa.table({"x": [1, 2]})
    assert cached_table(put("pipe", tmp_path / "t.parquet"), lambda: table).equals(table)
    assert _mark_of(put("pipe", tmp_path / "tracks.parquet")) is None


def test_a_pipe_in_the_place_of_the_record_of_compiled_code_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", "")
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "a.py").write_text("@compiled\n")
    _place(package).mkdir()
    record = put("pipe", _place(package) / RECORD)
    remove_outdated_code(package)
    assert record.is_file()


@EACH
def test_a_file_of_a_store_that_is_none_is_missing(kind: str, tmp_path: Path) -> None:
    source = AnnDataFiles(write(cells(60), tmp_path / "cells.h5ad"))
    options: dict[str, Any] = {"chunk_rows": 16, "shard_rows": 64, "dataset_rows": 64}
    store = prepare(source, tmp_path / "cells.zarr", **options)
    name = next(name for name in store.manifest["files"] if "/X/c/" in name)
    put(kind, store.path / name)
    with pytest.raises(ValueError, match=rf"{re.escape(name)} is missing: the store is damaged"):
        Store(store.path)
    shutil.rmtree(store.path)
    left = tmp_path / "cells.partial"
    left.mkdir()
    (left / "lock").touch()
    put(kind, left / "name")
    assert len(prepare(source, store.path, **options)) == 60


def test_a_pipe_that_is_named_is_no_input(tmp_path: Path) -> None:
    """As in data.path=<(zcat cells.csv.gz): a table is read several times."""
    pipe = put("pipe", tmp_path / "cells.h5ad")
    for target in ("tracks.Tracks", "anndata.AnnData"):
        with pytest.raises(ValueError, match=rf"data\.path={pipe} is a pipe or a device, which cannot be read again"):
            check_input(OmegaConf.create({"_target_": f"cellcohort.data.{target}", "path": str(pipe)}))
    with pytest.raises(ValueError, match="is a pipe or a device"):
        AnnDataFiles(tmp_path / "*.h5ad")
