"""A stored run is data: configs of version 0.1.0 are read, and nothing that a file names is called unless it may be."""

from __future__ import annotations

import errno
import io
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hydra.utils import get_object

from cellcohort.comparison.runs import read_run
from cellcohort.evaluation import load_run
from cellcohort.module import ContrastiveModule
from cellcohort.runtime import checkpoint_files
from cellcohort.runtime.checkpoint_files import CheckpointFiles, newest_whole, read_checkpoint
from cellcohort.runtime.stored_config import check_targets, new_target, read_config

STORED = Path(__file__).parents[1] / "data"
RUNS = ("run_0.1.0", "run_timelapse_0.1.0")
TARGETS_OF_0_1 = (
    *("augment.Augment", "chunked_loader.make_chunked_loader", "loader.make_loader", "module.ContrastiveModule"),
    *("sampling.BatchSampler", "sampling.ChunkedBatchSampler", "sampling.ChunksInOrder", "sampling.ChunksShuffled"),
    *("sampling.ExperimentAware", "sampling.ConditionBalanced", "sampling.TemporallyEnriched", "sampling.TrackCapped"),
    *("split.split", "telemetry.CompositionLogger", "views.expression.ExpressionViews", "views.image.ImageViews"),
    *("data.anndata.load_anndata", "data.demo.load_demo", "data.demo_timelapse.load_demo_timelapse"),
    *("data.patches.load_patches", "data.timelapse.load_timelapse", "data.tracks.load_tracks", "evaluation.Evaluation"),
    *("models.Conv1d", "models.Conv2d", "models.Conv3d", "models.MLP", "models.ResNet", "objectives.NTXent"),
)


pytestmark = pytest.mark.filterwarnings("ignore:the run was made by cellcohort 0.1.0")


@pytest.fixture(params=RUNS)
def old(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run directory of version 0.1.0."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(STORED / request.param, tmp_path / "run"))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(STORED / RUNS[0], tmp_path / "run"))


def change(run: Path, key: str, value: object) -> None:
    config = yaml.safe_load((run / "config.yaml").read_text())
    node = config
    *path, last = key.split(".")
    for name in path:
        node = node[name]
    node[last] = value
    (run / "config.yaml").write_text(yaml.safe_dump(config))


@pytest.mark.parametrize("target", TARGETS_OF_0_1)
def test_every_target_of_version_0_1_0_has_a_name_today(target: str) -> None:
    assert get_object(new_target(f"cellcohort.{target}")).__name__ == target.rpartition(".")[2]


def test_a_run_of_version_0_1_0_is_loaded(old: Path) -> None:
    loaded = load_run(old)
    state = torch.load(old / "checkpoints" / "last.ckpt", weights_only=True)
    assert all(torch.equal(value, state["state_dict"][name]) for name, value in loaded.module.state_dict().items())
    assert loaded.step == state["global_step"]
    sampler = state["loops"]["fit_loop"]["state_dict"]["combined_loader"][0]["sampler"]
    assert len(loaded.training.cells) == sampler["cells"]


def test_the_strategy_of_a_run_of_version_0_1_0_is_compared_under_todays_names(old: Path) -> None:
    found = read_run(old)
    assert found.strategy == "condition-experiment-temporal"
    assert found.knobs["experiment_aware.leaky"] == 0.1 and found.knobs["temporal.column"] == "hours"
    assert not any(key.startswith(("checkpoint", "composition")) for key in found.options)


def test_a_flat_sampler_of_version_0_1_0_becomes_its_axes(old: Path) -> None:
    config = read_config(old)
    assert list(config["sampler"]) == ["experiment_aware", "condition", "temporal"]
    assert config["sampler"] == config["batch_sampler"]["axes"]
    assert set(config["callbacks"]) == {"checkpoint", "composition"}


def test_what_this_version_does_not_know_is_refused_with_the_version(run: Path) -> None:
    change(run, "data.speed_of_light", 3e8)
    with pytest.raises(ValueError, match=r"made by cellcohort 0\.1\.0; this is .*data\.speed_of_light"):
        load_run(run)


HARMFUL = [
    "joblib.load",
    "pandas.read_pickle",
    "numpy.load",
    "shutil.copy",
    "os.system",
    "cellcohort_evil.load",
    "cellcohort.data.tracks.pd.read_pickle",
    "cellcohort.files.shutil.copy",
    "cellcohort.preparation.prepare",
]


@pytest.mark.parametrize("target", HARMFUL)
@pytest.mark.parametrize("key", ["data", "split", "module", "module.model", "data.augment"])
def test_a_config_that_names_what_is_of_another_package_is_refused(run: Path, key: str, target: str) -> None:
    change(run, f"{key}._target_", target)
    with pytest.raises(ValueError, match=rf"{key}\._target_={target} is not called: .*packages=\["):
        load_run(run)


@pytest.mark.parametrize("target", HARMFUL)
@pytest.mark.parametrize("key", ["model", "objective"])
def test_a_checkpoint_that_names_what_is_of_another_package_is_refused(run: Path, key: str, target: str) -> None:
    file = run / "checkpoints" / "last.ckpt"
    state = torch.load(file, weights_only=True)
    state["hyper_parameters"][key]["_target_"] = target
    torch.save(state, file)
    for load in (load_run, lambda run: ContrastiveModule.load_from_checkpoint(file)):
        with pytest.raises(ValueError, match=rf"hyper_parameters\.{key}\._target_={target} is not called"):
            load(run)


def test_an_expression_in_a_stored_config_is_refused(run: Path) -> None:
    change(run, "data.path", "${oc.env:HOME}")
    with pytest.raises(ValueError, match=r"data\.path='\${oc\.env:HOME}' is an expression"):
        load_run(run)


class Runs:
    """Runs code when it is read."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.file),)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_checkpoint_that_would_run_code_is_refused_without_advice_to_allow_it(
    run: Path, tmp_path: Path, zipped: bool
) -> None:
    file, made = run / "checkpoints" / "last.ckpt", tmp_path / "made"
    torch.save({"state_dict": Runs(made)}, file) if zipped else file.write_bytes(pickle.dumps(Runs(made)))
    with pytest.raises(ValueError, match=r"last\.ckpt cannot be loaded: it ") as refused:
        load_run(run)
    assert "weights_only" not in str(refused.value) and "best.ckpt" in str(refused.value)
    assert not made.exists()


def test_packages_that_the_user_names_may_be_called(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def load():\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    node = {"_target_": "mine.load", "views": [{"_target_": "cellcohort.augment.features.Augment"}]}
    check_targets(node, "data", ["mine"])
    with pytest.raises(ValueError, match=r"data\._target_=mine\.load is not called"):
        check_targets(node, "data", ["min"])


State = dict[str, Any]
FILE = {"epoch": 3, "state_dict": {"weight": torch.arange(1000.0)}}


def test_a_checkpoint_is_read_as_it_was_written(tmp_path: Path) -> None:
    CheckpointFiles().save_checkpoint(FILE, tmp_path / "last.ckpt")
    for read in (read_checkpoint, lambda path: torch.load(path, weights_only=True)):
        found: State = read(tmp_path / "last.ckpt")
        assert found["epoch"] == 3 and torch.equal(found["state_dict"]["weight"], FILE["state_dict"]["weight"])
    assert zipfile.ZipFile(tmp_path / "last.ckpt").testzip() is None
    assert [path.name for path in tmp_path.iterdir()] == ["last.ckpt"]


@pytest.mark.parametrize("place", [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.97, 0.999])
def test_one_flipped_byte_is_refused_and_the_checkpoint_before_is_offered(tmp_path: Path, place: float) -> None:
    for name in ("last.ckpt", "previous.ckpt"):
        CheckpointFiles().save_checkpoint(FILE, tmp_path / name)
    flip(tmp_path / "last.ckpt", place)
    with pytest.raises(ValueError, match=r"last\.ckpt cannot be loaded: it is .*Use another .*previous\.ckpt\."):
        read_checkpoint(tmp_path / "last.ckpt")
    assert newest_whole(tmp_path) == tmp_path / "previous.ckpt"
    flip(tmp_path / "previous.ckpt", place)
    assert newest_whole(tmp_path) is None


def flip(file: Path, place: float) -> None:
    data = bytearray(file.read_bytes())
    data[int(place * len(data))] ^= 0xFF
    file.write_bytes(data)


def test_a_flipped_byte_of_a_checkpoint_without_a_digest_is_refused(run: Path) -> None:
    flip(run / "checkpoints" / "last.ckpt", 0.5)
    with pytest.raises(ValueError, match=r"last\.ckpt cannot be loaded: it is .*Use another .*best\.ckpt"):
        read_checkpoint(run / "checkpoints" / "last.ckpt")


class FullOnce(io.FileIO):
    """A file on a disk that is full at one write and then has room again, when the file is closed."""

    writes = 0

    def write(self, data: Any) -> int:
        self.writes += 1
        if self.writes == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data)


@pytest.mark.parametrize("opened", [lambda path, mode: io.open("/dev/full", mode), FullOnce])  # noqa: SIM115, UP020
def test_a_full_disk_keeps_the_checkpoint_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: Callable[..., Any]
) -> None:
    CheckpointFiles().save_checkpoint(FILE, tmp_path / "last.ckpt")
    with monkeypatch.context() as full:
        full.setattr(checkpoint_files, "open", opened, raising=False)
        with pytest.raises(OSError, match=rf"the disk of {tmp_path} is full: last\.ckpt was not written.*unchanged"):
            CheckpointFiles().save_checkpoint({"weight": torch.zeros(100_000)}, tmp_path / "last.ckpt")
    assert read_checkpoint(tmp_path / "last.ckpt")["epoch"] == 3
    assert [path.name for path in tmp_path.iterdir()] == ["last.ckpt"]
