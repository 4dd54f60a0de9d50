from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import wandb_file
from cellcohort.comparison.wandb_workspace import STEP, logged, specification, workspace

# wandb-workspaces says this of itself when it is imported
pytestmark = pytest.mark.filterwarnings("ignore:Pydantic V1 style:DeprecationWarning")

Call = Callable[..., str]
NAMES = (
    *("composition/global/condition/share/dead", "composition/global/condition/share/alive"),
    *("composition/global/condition/distance", "composition/global/leak/asked", "composition/global/leak/held"),
    *("composition/global/duplicates", "train/loss", "val/loss", "eval/hours_r2"),
)


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """``call(*arguments)``: what scripts/dashboard.py prints, without a key."""

    def run(*arguments: object) -> str:
        monkeypatch.delenv("WANDB_API_KEY", raising=False)
        monkeypatch.setenv("NETRC", str(tmp_path / "no_netrc"))
        monkeypatch.setattr(sys, "argv", ["dashboard.py", *map(str, arguments)])
        runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "dashboard.py"), run_name="__main__")
        return capsys.readouterr().out

    return run


def log_to_wandb(run: Path) -> None:
    """Leave what a run leaves that was logged to W&B."""
    (run / "wandb" / "offline-run-1").mkdir(parents=True)
    (run / "config.yaml").write_text(yaml.safe_dump({"logger": {"wandb": {"project": "cells", "group": "monday"}}}))


def panels(text: str) -> dict[str, list[dict[str, Any]]]:
    """The panels of each section of a specification."""
    sections = json.loads(text)["spec"]["section"]["panelBankConfig"]["sections"]
    return {section["name"]: [panel["config"] for panel in section["panels"]] for section in sections}


def test_there_are_panels_of_composition_training_and_scores() -> None:
    shown = panels(specification(workspace(NAMES, "me", "cells", "sweep")))
    assert list(shown) == ["What batches held", "Training", "Scores"]
    metrics = [[panel["metrics"] for panel in own] for own in shown.values()]
    assert sorted(name for section in metrics for own in section for name in own) == sorted(NAMES)
    assert ["composition/global/leak/asked", "composition/global/leak/held"] in metrics[0]
    assert list(NAMES[:2]) in metrics[0]


def test_panels_need_no_clicking() -> None:
    shown = panels(specification(workspace(NAMES, "me", "cells", "sweep")))
    every = [panel for own in shown.values() for panel in own]
    assert all(panel["groupBy"] == "strategy.value" for panel in every)
    lines = [panel for name in ("What batches held", "Training") for panel in shown[name]]
    assert all(panel["xAxis"] == STEP for panel in lines)


@pytest.mark.parametrize("group", ["sweep", None])
def test_only_the_runs_of_the_sweep_are_shown(group: str | None) -> None:
    (runs,) = json.loads(specification(workspace(NAMES, "me", "cells", group)))["spec"]["section"]["runSets"]
    found = [each["value"] for each in runs["filters"]["filters"]]
    assert found == ([group] if group else [])


def test_without_a_key_the_specification_is_written_and_the_way_on_is_said(tmp_path: Path, call: Call) -> None:
    for name, loss in (("a", "train/loss"), ("b", "eval/hours_r2")):
        (tmp_path / "sweep" / name).mkdir(parents=True)
        (tmp_path / "sweep" / name / "metrics.csv").write_text(f"epoch,step,{loss}\n0,0,1.0\n")
        log_to_wandb(tmp_path / "sweep" / name)
    said = call(tmp_path / "sweep", "--entity", "me")
    assert "there is no key" in said and f"wandb sync --entity me {tmp_path}/sweep/*/wandb/offline-run-*" in said
    written = tmp_path / "sweep" / "dashboard.json"
    assert said.splitlines()[-1] == f"dashboard: {written}"
    assert set(panels(written.read_text())) == {"Training", "Scores"}
    assert logged(tmp_path / "sweep") == ["train/loss", "eval/hours_r2"]


def test_the_runs_say_their_project_and_group_and_a_run_by_itself_is_found(tmp_path: Path, call: Call) -> None:
    run = tmp_path / "sweep" / "random-s0"
    log_to_wandb(run)
    (run / "metrics.csv").write_text("epoch,step,train/loss\n0,0,1.0\n")
    for directory, pattern in ((run, "wandb"), (run.parent, "*/wandb")):
        said = call(directory)
        assert f"wandb sync --entity <user or team> {directory}/{pattern}/offline-run-*" in said
        made = json.loads((directory / "dashboard.json").read_text())
        (runs,) = made["spec"]["section"]["runSets"]
        assert made["project"] == "cells" and [each["value"] for each in runs["filters"]["filters"]] == ["monday"]


def test_a_run_and_its_continuation_are_shown_once(tmp_path: Path, call: Call) -> None:
    for name in ("first", "rest"):
        log_to_wandb(tmp_path / name)
        (tmp_path / name / "metrics.csv").write_text("epoch,step,eval/probe\n0,0,1.0\n")
    config = yaml.safe_load((tmp_path / "rest" / "config.yaml").read_text())
    config["continues"] = {"run": "first", "wandb": "abc123", "step": 10}
    (tmp_path / "rest" / "config.yaml").write_text(yaml.safe_dump(config))
    said = call(tmp_path).splitlines()
    assert said[0] == "rest continues first at step 10: W&B run abc123, its first part, is not shown."
    (runs,) = json.loads((tmp_path / "dashboard.json").read_text())["spec"]["section"]["runSets"]
    (shown, left_out) = runs["filters"]["filters"]
    assert shown["value"] == "monday" and (left_out["op"], left_out["value"]) == ("!=", "abc123")
    assert left_out["key"]["name"] == "name", "what W&B calls the id of a run"


def test_runs_that_were_not_logged_to_wandb_are_refused(tmp_path: Path, call: Call) -> None:
    (tmp_path / "metrics.csv").write_text("epoch,step,train/loss\n0,0,1.0\n")
    (tmp_path / "config.yaml").write_text("logger: {}\n")
    with pytest.raises(SystemExit, match=r"none of 1 run in .* was logged to W&B; train with logger=wandb"):
        call(tmp_path)


def test_what_wandb_does_not_take_is_written_all_the_same(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def save(self: object) -> None:
        raise ConnectionError("no route to W&B")

    log_to_wandb(tmp_path)
    (tmp_path / "metrics.csv").write_text("epoch,step,train/loss\n0,0,1.0\n")
    monkeypatch.setattr("wandb_workspaces.workspaces.Workspace.save", save)
    monkeypatch.setenv("WANDB_IDENTITY_TOKEN_FILE", "a key")
    with pytest.raises(SystemExit) as stop:
        call(tmp_path, "--entity", "me")
    assert stop.value.code == 1 and (tmp_path / "dashboard.json").exists()
    assert "Not sent to W&B: ConnectionError: no route to W&B. To send" in capsys.readouterr().out


def test_a_directory_without_metrics_is_refused(tmp_path: Path, call: Call) -> None:
    with pytest.raises(SystemExit, match=r"has no metrics\.csv"):
        call(tmp_path)


def test_what_panels_rely_on_is_in_the_runs(train: Callable[..., Path]) -> None:
    """Every metric has the step as its axis, and the config says the strategy to group by."""
    directory = train("logger=wandb", "sampler=temporal", "trainer.max_epochs=1", "evaluation=none")
    (file,) = directory.glob("wandb/offline-run-*/*.wandb")
    found = wandb_file.records(file)
    metrics = {each.name or each.glob_name: each.step_metric for each in wandb_file.of(found, "metric")}
    assert metrics["*"] == STEP
    rows = wandb_file.history(found)
    assert all(STEP in row for row in rows if any(key.startswith(("train/", "composition/")) for key in row))
    told = {item.key: item.value_json for each in wandb_file.of(found, "config") for item in each.update}
    told |= {item.key: item.value_json for each in wandb_file.of(found, "run") for item in each.config.update}
    assert json.loads(told["strategy"]) == "temporal"
