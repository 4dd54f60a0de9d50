"""The evaluation of a run: at the end of training, by scripts/evaluate.py, and of runs that are not whole."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from omegaconf import OmegaConf
from threadpoolctl import threadpool_info, threadpool_limits

from cellcohort.data.tracks import load_tracks
from cellcohort.datasets.features.windows import TrackWindows
from cellcohort.datasets.split import split
from cellcohort.evaluation import Evaluation, Results, load_run, read_scores
from cellcohort.evaluation.embed import Features
from cellcohort.evaluation.evaluation import NEED_MECHANISM
from cellcohort.evaluation.score import Score
from cellcohort.evaluation.scores_file import MEANINGS, how_scored
from cellcohort.evaluation.selection import training_part
from cellcohort.module import ContrastiveModule
from launches import alone, torchrun

SCRIPT = Path(__file__).parents[2] / "scripts" / "evaluate.py"
pytestmark = pytest.mark.processes  # all, since they share a run
FEW = ("evaluation.max_cells=600", "evaluation.permutations=19")
COLUMNS_OF = {
    **{"replicates.pos_sameby": "condition", "replicates.pos_diffby": "", "replicates.neg_sameby": ""},
    **{"replicates.neg_diffby": "condition", "treatments.compound": "condition", "treatments.treatment": "condition"},
    **{"treatments.batch": "experiment", "treatments.cells": "all"},
}
Train = Callable[..., Path]
Evaluate = Callable[..., str]


@pytest.fixture(scope="module")
def trained(quick: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a quick run that was evaluated at its end; copy it before changing it."""
    directory = tmp_path_factory.mktemp("trained")
    options = [option for option in quick if option != "evaluation=none"]
    done = alone(directory, "train.py", *options, *FEW, "logger=none", f"hydra.run.dir={directory / 'run'}")
    assert done.returncode == 0, done.stderr
    assert "embedding" not in done.stderr, "no progress bar where no terminal is"
    assert re.search(r"^hours_mae_across: hours; predicting the mean", done.stdout, re.M)
    return directory / "run"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture
def evaluate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Evaluate:
    """``evaluate(*arguments)``: what scripts/evaluate.py prints, run in this process."""

    def call(*arguments: str) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["scripts/evaluate.py", *FEW, *arguments])
        runpy.run_path(str(SCRIPT), run_name="__main__")
        return capsys.readouterr().out

    return call


def test_the_end_of_training_leaves_scores_and_the_embedding_of_every_cell(trained: Path) -> None:
    scores = pd.read_csv(trained / "scores.csv")
    assert list(scores.columns) == [
        *("representation", "score", "value", "low", "high", "higher_is_better", "n", "note"),
        *("evaluation.checkpoint", "evaluation.max_cells", "evaluation.permutations", "evaluation.seed"),
        *("evaluation.mechanism", "evaluation.scores", *(f"evaluation.{name}" for name in COLUMNS_OF), "digest"),
    ]
    columns = {f"evaluation.{name}": value for name, value in COLUMNS_OF.items()}
    assert how_scored(read_scores(trained)) == columns | {
        "evaluation.mechanism": "",
        "evaluation.scores": "",
        "evaluation.checkpoint": "last",
        "evaluation.max_cells": 600,
        "evaluation.permutations": 19,
        "evaluation.seed": 0,
    }
    assert list(scores["representation"].unique()) == ["model", "untrained", "features"]
    assert scores.groupby("representation")["score"].apply(tuple).nunique() == 1 and scores["score"].nunique() == 20
    assert scores["higher_is_better"].dtype == bool and scores["value"].dtype == float and scores["n"].dtype == int
    assert scores["value"].notna().all()
    assert not list(trained.glob("*.draft"))

    loaded = load_run(trained)
    every = loaded.training.every_cell()
    table = pq.read_table(trained / "embeddings.parquet")
    assert table.num_rows == len(every) and str(table.schema.field("embedding").type).startswith("fixed_size_list")
    embedding = np.stack(table["embedding"].to_numpy())
    inputs = torch.from_numpy(every.recorded(np.arange(500)))
    assert np.allclose(embedding[:500], loaded.module(inputs).detach().numpy(), atol=1e-5)
    frame = table.select(["experiment", "condition", "track", "hours", "part"]).to_pandas()
    for role in ("experiment", "condition", "track"):
        column = every.cells.column(role)
        assert frame[role].tolist() == [column.labels[code] for code in column.codes]
    assert (frame["hours"] == every.cells.hours).all()
    assert frame["part"].value_counts().to_dict() == {
        "training": len(loaded.training),
        "validation": len(loaded.validation),
    }
    assert set(frame.loc[frame["part"] == "training", "track"]).isdisjoint(
        frame.loc[frame["part"] == "validation", "track"]
    )


def test_the_scores_of_the_model_reach_the_loggers(trained: Path) -> None:
    scores = read_scores(trained).query("representation == 'model'").set_index("score")["value"]
    logged = pd.read_csv(trained / "metrics.csv").filter(like="eval/").dropna(how="all")
    assert len(logged) == 1
    assert logged.iloc[0].rename(lambda name: name.removeprefix("eval/")).to_dict() == pytest.approx(scores.to_dict())
    assert pd.read_csv(trained / "metrics.csv")["step"].iloc[-1] == 15


def test_evaluating_again_finds_the_same_and_says_how_much_it_does(run: Path, evaluate: Evaluate) -> None:
    before = read_scores(run)
    (run / "scores.csv").unlink()
    said = evaluate(f"run={run}")
    pd.testing.assert_frame_equal(read_scores(run), before, rtol=1e-4, atol=1e-5)
    first, *_, last = said.splitlines()
    assert last == f"run: {run}" and "condition_probe_across" in said and "W&B" not in said
    n_cells = len(pd.read_parquet(run / "embeddings.parquet"))
    counts = re.fullmatch(
        r"evaluation: embedding ([\d,]+) cells and scoring (\d+) of them; "
        r"probes are fitted on (\d+) others \(evaluation\.max_cells=600\)",
        first,
    )
    assert counts and int(counts[1].replace(",", "")) == n_cells > 600
    assert int(counts[2]) + int(counts[3]) == 600 and int(counts[2]) > 0


def test_scores_made_later_say_that_they_do_not_reach_wandb(run: Path, evaluate: Evaluate) -> None:
    changed(run, "logger.wandb", {"_target_": "lightning.pytorch.loggers.WandbLogger"})
    assert "These scores are in the run directory alone: the W&B run has those" in evaluate(f"run={run}")


def test_a_run_that_was_not_evaluated_says_how(run: Path) -> None:
    (run / "scores.csv").unlink()
    with pytest.raises(FileNotFoundError, match=r"python scripts/evaluate.py run=.*run"):
        read_scores(run)


@pytest.mark.parametrize(
    ("break_it", "arguments", "said"),
    [
        (
            lambda run: shutil.rmtree(run / "checkpoints"),
            [],
            "has no checkpoint 'last'; it has none. The run ended before its first check",
        ),
        (lambda run: None, ["checkpoint=lost"], "no checkpoint 'lost'; it has best, last, previous. Choose one"),
        (lambda run: (run / "config.yaml").unlink(), [], "holds no run: no config.yaml ("),
        (lambda run: (run / "config.yaml").write_text("seed: 0\n"), [], "is not that of a training run, or is cut off"),
        (lambda run: shutil.rmtree(run), [], "no such directory"),
        (lambda run: os.truncate(run / "checkpoints" / "last.ckpt", 20_000), [], "last.ckpt cannot be loaded: "),
        (lambda run: (run / "checkpoints" / "last.ckpt").write_text(""), [], "last.ckpt cannot be loaded: "),
        (lambda run: None, ["evaluation.max_cells=5"], "max_cells must be an integer >= 100, got 5"),
        (lambda run: None, ["evaluation.seed=a"], "evaluation.seed must be an integer >= 0, got 'a'"),
        (lambda run: None, ["checkpont=best"], "evaluation, run, checkpoint, export, packages."),
        (lambda run: (run / "config.yaml").write_text("seed: 0\nda"), [], "config.yaml is damaged: "),
    ],
)
def test_what_cannot_be_evaluated_is_refused(
    run: Path,
    evaluate: Evaluate,
    capsys: pytest.CaptureFixture[str],
    break_it: Callable[[Path], None],
    arguments: list[str],
    said: str,
) -> None:
    break_it(run)
    with pytest.raises(SystemExit) as stop:
        evaluate(f"run={run}", *arguments)
    assert stop.value.code == 1
    assert said in capsys.readouterr().err


def test_a_wrong_option_of_the_evaluation_is_told_before_training(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        train("evaluation=default", "evaluation.max_cells=5", "hydra.run.dir=run")
    assert "max_cells must be an integer >= 100, got 5" in capsys.readouterr().err
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_an_evaluation_of_nothing_is_refused(
    run: Path, evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(globals(), "FEW", ("evaluation=none",))
    with pytest.raises(SystemExit):
        evaluate(f"run={run}")
    assert "evaluation=none leaves nothing to do" in capsys.readouterr().err


def test_scores_say_of_which_checkpoint_they_are(run: Path, evaluate: Evaluate) -> None:
    evaluate(f"run={run}", "checkpoint=best")
    assert how_scored(read_scores(run))["evaluation.checkpoint"] == "best"


def test_a_run_is_scored_again_as_it_was_but_for_the_options_that_are_given(
    run: Path, evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = read_scores(run)
    monkeypatch.setitem(globals(), "FEW", ())
    evaluate(f"run={run}", "evaluation.permutations=29")
    after = how_scored(read_scores(run))
    assert after == how_scored(before) | {"evaluation.permutations": 29}
    evaluate(f"run={run}")
    pd.testing.assert_frame_equal(read_scores(run), before)


def test_every_score_is_explained(trained: Path) -> None:
    assert set(MEANINGS) - set(NEED_MECHANISM) == set(read_scores(trained)["score"])


def test_which_run_must_be_said(evaluate: Evaluate, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        evaluate()
    assert "say which run: python scripts/evaluate.py run=" in capsys.readouterr().err


def changed(run: Path, key: str, value: object) -> None:
    config = OmegaConf.load(run / "config.yaml")
    OmegaConf.update(config, key, value)
    OmegaConf.save(config, run / "config.yaml")


def test_the_version_is_kept_with_a_run(run: Path) -> None:
    assert OmegaConf.load(run / "config.yaml")["version"] == version("cellcohort")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("data.speed_of_light", 3e8),
        ("module.model._target_", "cellcohort.models.Transformer"),
        ("data.augment.swirl", 0.5),
    ],
)
def test_a_run_of_another_version_is_refused_with_what_differs(run: Path, key: str, value: object) -> None:
    changed(run, "version", "0.0.7")
    changed(run, key, value)
    with pytest.raises(ValueError, match="made by cellcohort 0.0.7; this is .* does not know: " + key):
        load_run(run)


def test_a_run_of_another_version_that_means_the_same_is_loaded_with_a_warning(run: Path) -> None:
    changed(run, "version", "0.0.7")
    with pytest.warns(UserWarning, match=r"made by cellcohort 0\.0\.7; this is .*every option of its config is still"):
        load_run(run)


def test_a_run_that_was_stopped_is_loaded_with_a_warning(run: Path) -> None:
    changed(run, "trainer.max_epochs", 100)
    with pytest.warns(UserWarning, match="did not end: its checkpoint is of epoch 3 of 100, step 15"):
        assert load_run(run).step == 15


def test_other_data_than_those_of_the_training_are_refused(run: Path) -> None:
    changed(run, "data.frames", 4)
    with pytest.raises(ValueError, match=r"inputs of shape \(16, 4\), but the model was trained on \(16, 6\)"):
        load_run(run)


def test_the_best_checkpoint_can_be_asked_for(run: Path) -> None:
    best = load_run(run, "best")
    state = torch.load(run / "checkpoints" / "best.ckpt", weights_only=True)["state_dict"]
    assert all(torch.equal(state[name], value) for name, value in best.module.state_dict().items())
    assert not best.module.training


def short_tracks(tmp_path: Path) -> TrackWindows:
    """Tracks of which every third has no positive, and two experiments, one of them without a condition."""
    rng = np.random.default_rng(0)
    rows = []
    for track in range(60):
        for frame in range(2 if track % 3 == 0 else 12):
            experiment, condition = "ab"[track % 2], "x" if track % 2 else "xy"[track % 4 // 2]
            rows.append((experiment, condition, frame, track, *rng.normal(size=2)))
    frame = pd.DataFrame(rows, columns=["experiment", "condition", "time", "track", "f", "g"])
    frame.to_parquet(tmp_path / "cells.parquet")
    return load_tracks(
        tmp_path / "cells.parquet", {"features": ["f", "g"]}, 60, frames=2, tau_hours=(2, 3), positive="track"
    )


@pytest.mark.parametrize("options", [{"by": "track", "fraction": 0.4}, {"by": "experiment", "held_out": ["b"]}])
def test_all_cells_are_embedded_those_that_can_be_no_anchor_among_them(
    tmp_path: Path, options: dict[str, object]
) -> None:
    dataset = short_tracks(tmp_path)
    training, validation = split(dataset, **options)  # type: ignore[arg-type]
    module = ContrastiveModule(training.shape, {"_target_": "cellcohort.models.MLP", "hidden": 8, "embedding": 4})
    module.train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    results = Evaluation(100, 19)(module, training, validation)
    assert module.training and all(torch.equal(before[n], v) for n, v in module.state_dict().items())
    every = dataset.every_cell()
    assert results.embeddings.num_rows == len(every) > len(dataset)
    frame = results.embeddings.select(["experiment", "track", "part"]).to_pandas()
    assert (frame.groupby("track")["part"].nunique() == 1).all()
    anchors = {
        "validation": set(frame["track"][frame["part"] == "validation"]),
        "training": set(frame["track"][frame["part"] == "training"]),
    }
    column = validation.cells.column("track")
    assert anchors["validation"] == set(column.present())
    model = results.scores[results.scores["representation"] == "model"].set_index("score")
    assert np.isnan(model.loc["condition_probe_across", "value"])
    said = model.loc["condition_probe_across", "note"]
    assert "needs two conditions that two experiments have" in said
    assert ("y (in a only)" if options["by"] == "track" else "y (no held-out cells)") in said


def test_the_features_baseline_is_scaled_on_the_training_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training, validation = split(short_tracks(tmp_path), fraction=0.4)
    fitted: list[np.ndarray] = []

    class Spy(Features):
        def __init__(self, training: np.ndarray, shape: tuple[int, ...]) -> None:
            fitted.append(training)
            super().__init__(training, shape)

    monkeypatch.setattr("cellcohort.evaluation.evaluation.Features", Spy)
    Evaluation(10_000, 19)(ContrastiveModule(training.shape), training, validation)
    every = training.every_cell()
    part = training_part(every.cells, validation.cells, training.whole)
    own = every.recorded(np.flatnonzero(part)).reshape(part.sum(), -1)
    assert sorted(map(tuple, fitted[0])) == sorted(map(tuple, own))


@pytest.mark.parametrize(("before", "during"), [(5, 3), (2, 2)])
def test_scores_leave_half_of_the_cores_to_others_and_take_no_more_threads_than_there_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int, during: int
) -> None:
    training, validation = split(short_tracks(tmp_path), fraction=0.4)
    seen: list[int] = []

    def spy(*_: object) -> list[Score]:
        seen.extend(pool["num_threads"] for pool in threadpool_info())
        return []

    monkeypatch.setattr("cellcohort.evaluation.evaluation.cpu_count", lambda: 6)
    for name in ("condition_scores", "hours_scores", "experiment_scores"):
        # older OpenBLAS crashes where it has more threads than OMP_NUM_THREADS was at its start
        monkeypatch.setattr(f"cellcohort.evaluation.evaluation.{name}", spy)
    with threadpool_limits(before):
        Evaluation(10_000, 19)(ContrastiveModule(training.shape), training, validation)
        assert set(seen) == {during} and {pool["num_threads"] for pool in threadpool_info()} == {before}


def test_the_table_of_scores_ends_with_the_notes(trained: Path) -> None:
    scores = pd.read_csv(trained / "scores.csv", keep_default_na=False, na_values={"value": [""]})
    text = Results(scores, {}, pq.read_table(trained / "embeddings.parquet")).text()
    table, notes = text.split("\n\n")
    assert len(table.splitlines()) == 21 and table.splitlines()[0].split() == [
        *("score", "better", "model", "untrained", "features"),
    ]
    of, said = zip(*(line.split(": ", 1) for line in notes.splitlines()), strict=True)
    assert len({*said}) == len(said), "what is said of several scores is said once"
    for name, note in (("condition_probe_across", "chance"), ("hours_mae_across", "hours; predicting the mean time")):
        (own,) = (text for names, text in zip(of, said, strict=True) if name in names.split(", "))
        assert own.startswith(note)


def test_an_embedding_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    training, validation = split(short_tracks(tmp_path), fraction=0.4)
    module = ContrastiveModule(training.shape)
    module.mean.fill_(float("nan"))
    with pytest.raises(ValueError, match="embeddings are not finite; did the training diverge"):
        Evaluation(100, 19)(module, training, validation)


def test_the_untrained_baseline_is_the_encoder_before_its_first_step(trained: Path) -> None:
    loaded = load_run(trained)
    fresh = ContrastiveModule(**loaded.module.hparams)  # type: ignore[arg-type]
    fresh.standardise(*loaded.training.statistics())
    scores = Evaluation(600, 19)(fresh, loaded.training, loaded.validation).scores
    model, untrained = (scores[scores["representation"] == name]["value"].to_numpy() for name in ("model", "untrained"))
    assert model == pytest.approx(untrained, abs=1e-6)
    trained_scores = read_scores(trained).query("representation == 'untrained'")["value"].to_numpy()
    assert untrained == pytest.approx(trained_scores, abs=1e-5)


def test_two_processes_end_together_though_one_evaluates(quick: tuple[str, ...], tmp_path: Path) -> None:
    options = [option for option in quick if option != "evaluation=none"]
    done = torchrun(tmp_path, "train.py", *options, *FEW, "trainer.max_epochs=1")
    assert done.returncode == 0, done.stderr
    (directory,) = tmp_path.glob("outputs/*/*")
    assert (directory / "scores.csv").exists() and done.stdout.splitlines()[-1].endswith(
        str(directory.relative_to(tmp_path))
    )
    assert len(list(directory.glob("wandb/offline-run-*"))) == 1
