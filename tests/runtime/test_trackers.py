"""MLflow and Trackio, which are installed on request: what they hold after a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from omegaconf import OmegaConf

pytestmark = pytest.mark.filterwarnings("default")  # of the libraries of both
Train = Callable[..., Path]
KEYS = ("train/loss", "val/loss", "composition/global/experiment/distance_to_table")


def test_mlflow_holds_the_config_every_row_and_the_end(train: Train, tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    from mlflow import MlflowClient

    directory = train("logger=mlflow")
    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("cellcohort")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    config = OmegaConf.load(directory / "config.yaml")
    assert run.info.run_name == config.run_name == "random-s0"
    assert run.data.params["batch_sampler/batch_size"] == str(config.batch_sampler.batch_size)
    assert run.info.status == "FINISHED"
    written = pd.read_csv(directory / "metrics.csv")
    for key in KEYS:
        logged = [point.value for point in client.get_metric_history(run.info.run_id, key)]
        assert logged == pytest.approx(written[key].dropna().tolist()), key


def test_trackio_holds_the_config_every_row_of_each_job(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trackio = pytest.importorskip("trackio")
    from trackio import utils
    from trackio.sqlite_storage import SQLiteStorage

    for module in (trackio, utils, __import__("trackio.sqlite_storage", fromlist=["TRACKIO_DIR"])):
        monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path / "trackio", raising=False)
    sweep = train("-m", "sampler=random,temporal", "logger=trackio", "trainer.max_epochs=1").parent
    assert sorted(SQLiteStorage.get_runs("cellcohort")) == ["random-s0", "temporal-s0"]
    for name in ("random-s0", "temporal-s0"):
        config = SQLiteStorage.get_run_config("cellcohort", name)
        assert config is not None and config["run_name"] == name
        rows = SQLiteStorage.get_logs("cellcohort", name)
        written = pd.read_csv(sweep / name / "metrics.csv")
        for key in KEYS:
            assert [row[key] for row in rows if key in row] == pytest.approx(written[key].dropna().tolist()), key
