from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import wandb
from omegaconf import OmegaConf

import wandb_file
from cellcohort.runtime.trackers import finish_trackers, wandb_mode

Train = Callable[..., Path]


def only_file(directory: Path) -> Path:
    (file,) = directory.glob("wandb/offline-run-*/run-*.wandb")
    return file


def test_wandb_holds_the_config_every_row_and_the_end(train: Train) -> None:
    directory = train("logger=wandb", "sampler=temporal")
    found = wandb_file.records(only_file(directory))
    config, rows = wandb_file.config(found), wandb_file.history(found)

    resolved = OmegaConf.to_container(OmegaConf.load(directory / "config.yaml"))
    assert isinstance(resolved, dict)
    assert {key: config[key] for key in resolved} == resolved
    assert wandb_file.of(found, "run")[0].display_name == "temporal-s0"

    steps = [row["trainer/global_step"] for row in rows]
    assert steps == sorted(steps) and [row["_step"] for row in rows] == list(range(len(rows)))
    written = pd.read_csv(directory / "metrics.csv")
    for key in ("train/loss", "train/learning_rate", "val/loss", "composition/global/window/held"):
        logged = [row[key] for row in rows if key in row]
        assert logged == pytest.approx(written[key].dropna().tolist()), key
    assert steps[-1] == 14 and len([row for row in rows if "train/loss" in row]) == 15
    assert [end.exit_code for end in wandb_file.of(found, "exit")] == [0]


def test_a_failed_job_says_so_to_wandb(train: Train, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        train("logger=wandb", "module.learning_rate=1e30", "trainer.gradient_clip_val=null")
    (directory,) = tmp_path.glob("outputs/*/*")
    found = wandb_file.records(only_file(directory))
    assert [end.exit_code for end in wandb_file.of(found, "exit")] == [1]
    assert wandb_file.history(found) and (directory / "metrics.csv").exists()
    assert wandb.run is None


@pytest.mark.parametrize("logger", ["csv", "none"])
def test_metrics_are_written_without_wandb(train: Train, whole: Path, logger: str) -> None:
    directory = whole if logger == "none" else train(f"logger={logger}", "trainer.max_epochs=1")
    assert {"train/loss", "val/loss", "composition/global/experiment/distance_to_table"} <= set(
        pd.read_csv(directory / "metrics.csv")
    )
    assert not (directory / "wandb").exists()


def test_a_disabled_wandb_writes_nothing(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert not (train("logger=wandb", "trainer.max_epochs=1") / "wandb").exists()


@pytest.fixture
def no_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No mode and no key; the netrc file that would be read."""
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    return tmp_path / "netrc"


def test_without_a_key_wandb_is_offline(no_key: Path) -> None:
    assert wandb_mode() == "offline"
    no_key.write_text("machine elsewhere.org login user password secret\n")
    no_key.chmod(0o600)
    assert wandb_mode() == "offline"


def test_with_a_key_wandb_decides(no_key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_key.write_text("machine api.wandb.ai login user password " + "0" * 40 + "\n")
    no_key.chmod(0o600)
    assert wandb_mode() is None
    no_key.unlink()
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    assert wandb_mode() is None


def test_a_key_of_another_server_counts_for_that_server(no_key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    no_key.write_text("machine api.wandb.ai login user password secret\n")
    no_key.chmod(0o600)
    assert wandb_mode() == "offline"
    no_key.write_text("machine wandb.example.org login user password secret\n")
    assert wandb_mode() is None


@pytest.mark.parametrize("mode", ["offline", "disabled", "shared"])
def test_a_chosen_mode_is_respected(no_key: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    monkeypatch.setenv("WANDB_MODE", mode)
    assert wandb_mode() == mode


def test_online_without_a_key_is_refused_instead_of_asking(no_key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    with pytest.raises(ValueError, match=r"there is no key.*wandb login"):
        wandb_mode()
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    assert wandb_mode() == "online"


def test_finishing_without_a_run_does_nothing() -> None:
    finish_trackers(0)
    assert wandb.run is None


@pytest.mark.filterwarnings("ignore:The dirpath has changed")
def test_a_run_that_continues_another_names_its_wandb_run_and_the_step(train: Train) -> None:
    begun = train("logger=wandb", "trainer.max_epochs=1")
    rest = train("logger=wandb", f"resume={begun / 'checkpoints' / 'last.ckpt'}")
    told = {"run": begun.name, "wandb": wandb_file.of(wandb_file.records(only_file(begun)), "run")[0].run_id, "step": 5}
    assert OmegaConf.load(rest / "config.yaml")["continues"] == told
    assert wandb_file.config(wandb_file.records(only_file(rest)))["continues"] == told
