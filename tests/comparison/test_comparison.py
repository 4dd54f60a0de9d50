from __future__ import annotations

import errno
import os
import re
import runpy
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.weightstats import DescrStatsW

from cellcohort.comparison import (
    arms_of,
    compare,
    continued,
    counted,
    coverage_of_intervals,
    estimate,
    holm,
    markdown,
    read_runs,
    remarks,
    scored_otherwise,
    terminal,
)
from cellcohort.comparison.text import interval
from cellcohort.evaluation.scores_file import read_scores, write_scores
from sweep import AXES, make_run, make_sweep

Call = Callable[..., str]
EFFECTS = {
    "random": {"probe": 0.6, "mixing": 0.3},
    "experiment": {"probe": 0.7, "mixing": 0.3},
    "temporal": {"probe": 0.6, "mixing": 0.4},
}
LOWER = {"mixing": False}


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """``call(*arguments)``: what scripts/compare.py prints."""

    def run(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["compare.py", *map(str, arguments), "--no-umap"])
        runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "compare.py"), run_name="__main__")
        return capsys.readouterr().out

    return run


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let scripts/compare.py draw none, which takes most of its time."""
    monkeypatch.setattr("cellcohort.comparison.figures.pictures", lambda *arms, **options: [])


@pytest.fixture(autouse=True)
def no_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the garbage collection that statsmodels starts at every correction, which is slow in a test run."""
    monkeypatch.setattr("gc.collect", lambda: 0)


def table_of(*places: Path, **options: Any) -> pd.DataFrame:
    return compare(arms_of(read_runs(places)[0]), **options)


def models(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["representation"] == "model"]


@pytest.mark.parametrize("n", [3, 4, 5, 12])
@pytest.mark.parametrize("key", range(5))
def test_the_interval_and_the_test_are_those_of_statsmodels(n: int, key: int) -> None:
    values = np.random.default_rng(key).normal(0.3, 1.0, n)
    found, known = estimate(values), DescrStatsW(values)
    np.testing.assert_allclose((found.low, found.high), known.tconfint_mean(alpha=0.05))
    np.testing.assert_allclose(found.p, known.ttest_mean(0)[1])
    assert found.mean == pytest.approx(values.mean()) and found.n == n


def test_values_that_are_missing_do_not_count() -> None:
    assert estimate([1.0, np.nan, 2.0, 4.0]) == estimate([1.0, 2.0, 4.0])


def test_no_value_and_one_value_have_no_interval() -> None:
    assert (estimate([]).n, estimate([np.nan]).n, estimate([2.0]).n) == (0, 0, 1)
    assert estimate([2.0]).mean == 2.0
    assert np.isnan([estimate([2.0]).low, estimate([2.0]).high, estimate([2.0]).p, estimate([]).mean]).all()


def test_values_that_are_all_alike_are_no_evidence_of_a_difference() -> None:
    assert estimate([0.0, 0.0, 0.0]).p == 1.0
    assert np.isnan(estimate([0.1, 0.1, 0.1 + 1e-16]).p)


@pytest.mark.parametrize("n", [1, 2, 7, 40])
@pytest.mark.parametrize("key", range(5))
def test_corrected_p_values_are_those_of_statsmodels(n: int, key: int) -> None:
    p = np.random.default_rng(key).uniform(0, 0.2, n).round(2)
    np.testing.assert_allclose(holm(p), multipletests(p, method="holm")[1])


def test_what_was_not_tested_does_not_weaken_the_correction() -> None:
    np.testing.assert_array_equal(holm([0.01, np.nan, 0.04]), [0.02, np.nan, 0.04])
    assert holm([]).shape == (0,)


DRAWS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "uniform": lambda rng, shape: rng.uniform(size=shape),
    "skewed": lambda rng, shape: rng.exponential(size=shape),
    "recall of 40 cells": lambda rng, shape: rng.binomial(40, 0.7, size=shape) / 40,
}


@pytest.mark.parametrize("draw", DRAWS)
def test_at_most_one_null_sweep_in_twenty_has_any_false_call(draw: str) -> None:
    """2,000 sweeps of 6 strategies, 8 scores and 5 seeds without any difference; seeds and the reference are shared."""
    sweeps, seeds, arms, scores = 2000, 5, 6, 8
    rng = np.random.default_rng(7)
    values = DRAWS[draw](rng, (sweeps, seeds, arms, scores)) + rng.normal(size=(sweeps, seeds, 1, 1)).round(1)
    differences = (values[:, :, 1:] - values[:, :, :1]).round(9)
    varies = np.ptp(differences, axis=1) > 0  # as in estimate(), which the next test goes through
    differences[:, 0][~varies], differences[:, 1][~varies] = -1, 1  # no call; keeps scipy from warning
    p = np.where(varies, stats.ttest_1samp(differences, 0.0, axis=1).pvalue, np.nan)
    false = sum(bool(np.nanmin(holm(each)) <= 0.05) for each in p.reshape(sweeps, -1))
    assert false <= stats.binom(sweeps, 0.05).ppf(0.999)


def test_the_whole_comparison_keeps_to_that_too(tmp_path: Path) -> None:
    """Through the table itself, on runs that are read once and given new scores of no difference."""
    place = make_sweep(tmp_path, {name: dict.fromkeys("abc", 0.5) for name in AXES})
    arms = arms_of(read_runs([place])[0])
    rng = np.random.default_rng(3)
    false, sweeps = 0, 20
    for _ in range(sweeps):
        for arm in arms:
            for run in arm.runs.values():
                run.scores["value"] = rng.normal(size=len(run.scores))
        false += bool(compare(arms)["verdict"].isin(["better", "worse"]).any())
    assert false <= stats.binom(sweeps, 0.05).ppf(0.999)


def test_planted_differences_are_called_in_the_right_direction(tmp_path: Path) -> None:
    table = models(table_of(make_sweep(tmp_path, EFFECTS, higher=LOWER))).set_index(["score", "strategy"])
    verdicts = table["verdict"].unstack().to_dict("index")
    assert verdicts == {
        "probe": {"random": "", "experiment": "better", "temporal": "not told apart"},
        "mixing": {"random": "", "experiment": "not told apart", "temporal": "worse"},
    }
    difference = table.loc[("probe", "experiment")]
    assert difference["difference_low"] < 0.1 < difference["difference_high"]
    assert (table["n"] == 5).all() and (table["steps"] == 6).all()


def test_pairing_is_by_seed_and_not_by_order(tmp_path: Path) -> None:
    make_sweep(tmp_path, EFFECTS)
    shutil.rmtree(tmp_path / "experiment-s1")
    runs, _ = read_runs([tmp_path])
    table = models(compare(arms_of(runs[::-1])))
    row = table[(table["score"] == "probe") & (table["strategy"] == "experiment")].iloc[0]
    value = {(run.strategy, run.seed): run.scores.loc[0, "value"] for run in runs}
    pairs = [[value[name, seed] for seed in (0, 2, 3, 4)] for name in ("experiment", "random")]
    assert row["p"] == pytest.approx(stats.ttest_rel(*pairs).pvalue)
    assert (row["pairs"], row["n"]) == (4, 4)


def test_the_family_is_the_table_and_named_scores_make_it_smaller(tmp_path: Path) -> None:
    place = make_sweep(tmp_path, EFFECTS)
    whole, one = table_of(place), table_of(place, scores=["probe"])
    tested = whole[whole["p"].notna()]
    np.testing.assert_allclose(tested["p_holm"], multipletests(tested["p"], method="holm")[1])
    assert len(tested) == 4 and set(one["score"]) == {"probe"} and one["p"].notna().sum() == 2
    with pytest.raises(ValueError, match=r"no run has the score prob; there are: probe, mixing"):
        table_of(place, scores=["prob"])


def test_a_score_that_is_a_p_value_is_shown_and_not_tested(tmp_path: Path) -> None:
    effects = {name: {**scores, "experiment_mmd_p": 0.3} for name, scores in EFFECTS.items()}
    whole, without = (table_of(make_sweep(tmp_path / str(i), e)) for i, e in enumerate((effects, EFFECTS)))
    rows = models(whole).set_index(["score", "strategy"]).loc["experiment_mmd_p"]
    assert rows["verdict"].to_dict() == {"random": "", "experiment": "not tested", "temporal": "not tested"}
    assert rows[["mean", "low", "high"]].notna().all(axis=None) and rows[["difference", "p"]].isna().all(axis=None)
    assert whole["p"].notna().sum() == without["p"].notna().sum() == 4
    for text in (terminal(whole, "random"), markdown(whole, "random")):
        assert text.count("not tested") == 2 and text.count("is the p-value of a test already") == 1
    said = remarks(whole, "random", [])
    assert len(said) == 1 and "4 paired t tests" in said[0]
    only = table_of(tmp_path / "0", scores=["experiment_mmd_p"])
    assert remarks(only, "random", []) == ["Nothing was tested."]


def test_baselines_stand_in_the_table_and_are_not_tested(tmp_path: Path) -> None:
    table = table_of(make_sweep(tmp_path, EFFECTS))
    baselines = table[table["representation"] != "model"]
    assert set(baselines["strategy"]) == {"untrained", "features"}
    assert (baselines["n"] == 5).all() and baselines["p"].isna().all()


def test_one_seed_has_no_interval_and_that_is_said(tmp_path: Path) -> None:
    table = table_of(make_sweep(tmp_path, EFFECTS, seeds=1))
    assert table[["low", "high", "difference_low", "p"]].isna().all(axis=None)
    compared = models(table)["difference"].notna()
    assert compared.sum() == 4 and set(models(table)["verdict"][compared]) == {"not tested"}
    assert any(
        "There is one seed only: points without an interval, and no test" in remark
        for remark in remarks(table, "random", [])
    )
    assert coverage_of_intervals(read_runs([tmp_path])[0]) == ""


def test_a_score_that_some_runs_lack_keeps_its_note(tmp_path: Path) -> None:
    place = make_sweep(tmp_path, EFFECTS)
    path = place / "temporal-s2" / "scores.csv"
    scores = pd.read_csv(path, keep_default_na=False)
    scores.loc[0, "value"], scores.loc[0, "note"] = np.nan, "plate_3 has no rare_drug"
    scores.to_csv(path, index=False)
    table = models(table_of(place))
    row = table[(table["score"] == "probe") & (table["strategy"] == "temporal")].iloc[0]
    assert (row["n"], row["pairs"], row["note"]) == (4, 4, "plate_3 has no rare_drug")
    for text in (terminal(table, "random"), markdown(table, "random")):
        assert "plate_3 has no rare_drug (temporal)" in text
    assert any("fewer than 5 seeds: temporal" in remark for remark in remarks(table, "random", []))


def longer(config: dict[str, Any]) -> None:
    config["trainer"]["max_epochs"] = 9


def older(config: dict[str, Any]) -> None:
    config["version"] = "0.0.1"


def elsewhere(config: dict[str, Any]) -> None:
    config["data"]["path"] = "other"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"change": longer}, "trainer.max_epochs is"),
        ({"change": elsewhere}, "data.path is"),
        ({"change": older}, "version is"),
        ({"steps": 4}, "steps is"),
        ({"cells": 99}, "cells is"),
        ({"how": {"evaluation.checkpoint": "best"}}, "evaluation.checkpoint is"),
        ({"how": {"evaluation.seed": 1}}, "evaluation.seed is"),
    ],
)
def test_runs_of_other_data_or_budget_are_refused_or_said(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    make_sweep(tmp_path, EFFECTS)
    for seed in range(5):
        make_run(tmp_path / f"condition-s{seed}", AXES["condition"], seed, EFFECTS["random"], **options)
    runs, _ = read_runs([tmp_path])
    with pytest.raises(ValueError, match=rf"differ in data, scoring, budget or version.*{said}.*--allow-different"):
        arms_of(runs)
    arms = arms_of(runs, allow_different=True)
    names = [arm.name for arm in arms]
    shown = terminal(compare(arms), "random")
    assert re.search(r"^  random .*  reference  ", shown, re.M) and not re.search(r"^  exp.*  reference  ", shown, re.M)
    assert all(said.split()[0] in name for name in names) and names[0].startswith("random ")
    table = models(compare(arms)).set_index("strategy")
    other = next(name for name in names if name.startswith("condition"))
    assert table.loc[other, "p"].isna().all()  # no random run is like it
    assert table.loc[[name for name in names if name.startswith("experiment")], "p"].notna().all()


def test_other_options_are_part_of_the_name_and_compared_among_their_like(tmp_path: Path) -> None:
    def conv(config: dict[str, Any]) -> None:
        config["model"]["_target_"] = "Conv"

    make_sweep(tmp_path / "mlp", EFFECTS)
    make_sweep(tmp_path / "conv", EFFECTS, change=conv, key=1)
    table = models(table_of(tmp_path / "mlp", tmp_path / "conv"))
    alone = models(table_of(tmp_path / "conv"))
    mine = table[table["strategy"] == "experiment model._target_=Conv"]
    np.testing.assert_array_equal(mine["p"], alone.loc[alone["strategy"] == "experiment", "p"])


def test_knobs_that_vary_tell_the_arms_of_one_strategy_apart(tmp_path: Path) -> None:
    make_sweep(tmp_path, {"random": {"probe": 0.5}})
    for leaky in (0.0, 0.25):
        axes = {"experiment": {**AXES["experiment"]["experiment"], "leaky": leaky}}
        for seed in range(5):
            make_run(tmp_path / f"experiment-leaky{leaky}-s{seed}", axes, seed, {"probe": 0.5})
    arms = arms_of(read_runs([tmp_path])[0])
    assert [arm.name for arm in arms] == [
        "random",
        "experiment leaky=0.0",
        "experiment leaky=0.25",
    ]
    named = models(compare(arms, reference=arms[1].name))
    assert named["p"].isna().tolist() == [False, True, False]


def test_a_schedule_is_a_knob_of_its_strategy_and_no_other_budget(tmp_path: Path) -> None:
    def scheduled(config: dict[str, Any]) -> None:
        config["schedule"] = config["batch_sampler"]["schedule"] = {"sampler.experiment.leaky": [0.5, 0]}

    make_sweep(tmp_path, {"random": {"probe": 0.5}, "experiment": {"probe": 0.5}})
    for seed in range(5):
        make_run(tmp_path / f"scheduled-s{seed}", AXES["experiment"], seed, {"probe": 0.5}, change=scheduled)
    names = [arm.name for arm in arms_of(read_runs([tmp_path])[0])]
    assert names == [
        "random",
        "experiment sampler.experiment.leaky=None",
        "experiment sampler.experiment.leaky=[0.5, 0]",
    ]


def test_samplers_of_other_libraries_are_compared_with_ours_and_told_apart_by_their_options(tmp_path: Path) -> None:
    def default(config: dict[str, Any]) -> None:
        config["reading"] = {"batch_sampler": "cellcohort.sampling.BatchSampler"}
        config["batch_sampler"] |= {"_target_": "cellcohort.sampling.BatchSampler", "_convert_": "all"}

    def of_classes(config: dict[str, Any]) -> None:
        default(config)
        del config["batch_sampler"]["scope"]
        target = "cellcohort.sampling.baselines.m_per_class.MPerClass"
        config["batch_sampler"] |= {"_target_": target, "m": m, "column": "condition"}

    make_sweep(tmp_path, {"random": {"probe": 0.5}}, change=default)
    for m in (2, 4):
        for seed in range(5):
            make_run(tmp_path / f"m_per_class-m{m}-s{seed}", {}, seed, {"probe": 0.6 + seed / 1e4}, change=of_classes)
    arms = arms_of(read_runs([tmp_path])[0])
    assert [arm.name for arm in arms] == ["random", "m_per_class m=2", "m_per_class m=4"]
    assert models(compare(arms))["p"].notna().tolist() == [False, True, True]


def test_scores_made_in_training_or_afterwards_are_alike_if_made_in_the_same_way(tmp_path: Path) -> None:
    def in_training(config: dict[str, Any]) -> None:
        config["evaluation"] = {"_target_": "cellcohort.evaluation.Evaluation", "max_cells": 50, "seed": 0}
        config["evaluation"] |= {"_convert_": "all", "replicates": {"_target_": "cellcohort.evaluation.Replicates"}}

    how = {"evaluation.max_cells": 50, "evaluation.seed": 0, "evaluation.checkpoint": "last"}
    make_run(tmp_path / "a", AXES["random"], 0, EFFECTS["random"], change=in_training)
    make_run(tmp_path / "b", AXES["random"], 1, EFFECTS["random"], how=how)
    (arm,) = arms_of(read_runs([tmp_path])[0])
    assert sorted(arm.runs) == [(0, 0, -1), (1, 0, -1)] and arm.name == "random"


@pytest.mark.parametrize("scored", ["last", "best"])
def test_how_checkpoints_are_made_counts_only_where_the_last_is_not_what_is_scored(tmp_path: Path, scored: str) -> None:
    def by_steps(config: dict[str, Any]) -> None:
        config["callbacks"]["checkpoint"] |= {"every_n_train_steps": 100, "monitor": None}
        config["logger"] = {"wandb": {"project": "mine"}}
        config["batch_sampler"]["index_cache"] = "outputs/index"

    how = {"evaluation.checkpoint": scored}
    make_run(tmp_path / "a", AXES["random"], 0, EFFECTS["random"], how=how)
    make_run(tmp_path / "b", AXES["random"], 1, EFFECTS["random"], how=how, change=by_steps)
    arms = arms_of(read_runs([tmp_path])[0])
    names = ["random callbacks.checkpoint.monitor=val/loss callbacks.checkpoint.every_n_train_steps=None",
             "random callbacks.checkpoint.monitor=None callbacks.checkpoint.every_n_train_steps=100"]  # fmt: skip
    assert [arm.name for arm in arms] == (["random"] if scored == "last" else names)


def test_labels_with_markup_are_shown_as_they_are(tmp_path: Path) -> None:
    table = table_of(make_sweep(tmp_path, {"random": {"a|b <script>x</script> [u](v) *c*": 0.5}}, seeds=2))
    assert "a|b <script>x</script> [u](v) *c* (higher is better)" in terminal(table, "random")
    lines = markdown(table, "random", ["left out: `x` <b>"]).splitlines()
    assert r"a\|b \<script\>x\</script\> \[u\](v) \*c\* (higher is better)" in lines[2]
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 9 for line in lines[:5])
    assert lines[-1] == r"- left out: \`x\` \<b\>"


def test_a_zero_has_no_sign() -> None:
    assert interval(-0.001, -0.2, 0.4) == "0.00 [-0.20, 0.40]"
    assert interval(-0.001, -0.2, 0.4, "+") == "+0.00 [-0.20, +0.40]"


def test_fewer_than_three_seeds_are_points(tmp_path: Path) -> None:
    assert estimate([1.0, 2.0]).mean == 1.5 and np.isnan([estimate([1.0, 2.0]).low, estimate([1.0, 2.0]).p]).all()
    table = table_of(make_sweep(tmp_path, EFFECTS, seeds=2))
    assert table[["low", "high", "difference_low", "p"]].isna().all(axis=None)
    assert any("There are 2 seeds only: points without" in remark for remark in remarks(table, "random", []))


def test_an_interval_stays_in_the_range_of_its_score(tmp_path: Path) -> None:
    place = make_sweep(tmp_path, {"random": {"condition_probe_across": 0.99, "hours_mae_across": 0.05}})
    table = table_of(place).set_index(["score", "representation"])
    assert table.loc[("condition_probe_across", "model"), "high"] == 1.0
    assert table.loc[("hours_mae_across", "model"), "low"] == 0.0


def test_features_that_are_the_same_for_all_seeds_have_no_seeds(tmp_path: Path) -> None:
    for path in make_sweep(tmp_path, EFFECTS).glob("*/scores.csv"):
        scores = pd.read_csv(path)
        scores.loc[scores["representation"] == "features", "value"] = 0.4
        scores.to_csv(path, index=False)
    table = table_of(tmp_path)
    features = table[table["representation"] == "features"]
    assert (features["n"] == 0).all() and features["low"].isna().all() and np.allclose(features["mean"], 0.4)
    lines = [line.split() for line in terminal(table, "random").splitlines() if line.startswith("  features")]
    assert all(line[-2:] == ["-", "-"] for line in lines)


def test_scores_that_are_nan_are_not_said_to_lack_seeds(tmp_path: Path) -> None:
    table = table_of(make_sweep(tmp_path, {name: {"probe": 0.5, "lost": np.nan} for name in ("random", "temporal")}))
    said = " ".join(remarks(table, "random", []))
    assert "Not measured on these data: lost;" in said and "fewer than" not in said
    assert "lost: not measured" in terminal(table, "random") and "lost (higher" not in terminal(table, "random")


def test_a_score_that_one_strategy_lacks_is_not_said_to_be_measured_nowhere(tmp_path: Path) -> None:
    scores = {"random": {"probe": 0.5, "part": 0.5}, "temporal": {"probe": 0.5, "part": np.nan}}
    said = " ".join(remarks(table_of(make_sweep(tmp_path, scores)), "random", []))
    assert "part was not measured for temporal;" in said and "on these data" not in said


def resplit(config: dict[str, Any]) -> None:
    config["split"]["seed"] = config["validation_sampler"]["seed"] = 1  # as conf/train.yaml ties them


@pytest.mark.parametrize("same_seed", [True, False])
def test_strategies_that_are_scored_on_other_labels_are_told(tmp_path: Path, same_seed: bool) -> None:
    """One run left the label "missing" out of a score."""
    place = make_sweep(tmp_path, EFFECTS)
    for name in ("experiment-s1", "random-s2" if same_seed else "random-s1"):
        scores = read_scores(place / name)
        left_out = "chance 0.5; left out: 40 cells without a condition, X of P1 (no held-out cells)"
        ours = scores["score"].eq("probe") & scores["representation"].eq("model")
        scores.loc[ours, ["n", "note"]] = 10, left_out
        scores.to_csv(place / name / "scores.csv", index=False)
    arms = arms_of(read_runs([place])[0])
    said = scored_otherwise(arms, "random", ["probe", "mixing"])
    if not same_seed:  # both runs of seed 1 are scored alike
        assert [one.partition(" ")[0] for one in said] == ["temporal"]
        return
    own = "10 cells (left out: 40 cells without a condition, X of P1 (no held-out cells))"
    first, second = said
    assert first == (
        "experiment is not scored on the same cells or labels as random, so that a difference may be one of these: "
        f"probe of experiment-s1 on {own}, random-s1 on 50 cells."
    )
    assert second.endswith(f"probe of temporal-s2 on 50 cells, random-s2 on {own}.")


def test_runs_are_paired_by_seed_and_split(tmp_path: Path) -> None:
    make_sweep(tmp_path / "one", EFFECTS, seeds=3)
    make_sweep(tmp_path / "other", EFFECTS, seeds=3, key=1, change=resplit, cells=97)
    runs, _ = read_runs([tmp_path / "one", tmp_path / "other"])
    table = models(compare(arms_of(runs)))
    assert (table["n"] == 6).all() and set(table["pairs"]) == {0, 6}
    value = {(run.strategy, run.pairing): run.scores.loc[0, "value"] for run in runs}
    row = table[(table["score"] == "probe") & (table["strategy"] == "experiment")].iloc[0]
    seeds = [(seed, split, -1) for seed in range(3) for split in range(2)]
    pairs = [[value[name, each] for each in seeds] for name in ("experiment", "random")]
    assert row["p"] == pytest.approx(stats.ttest_rel(*pairs).pvalue)
    assert "2 splits of the cells together" in coverage_of_intervals(runs)
    assert "share one split" in coverage_of_intervals([run for run in runs if run.split_seed == 0])


def test_the_seeds_of_a_fold_count_once_and_intervals_are_over_folds(tmp_path: Path) -> None:
    for fold in range(4):

        def refold(config: dict[str, Any], fold: int = fold) -> None:
            config["split"] |= {"by": "experiment", "folds": 4, "fold": fold}

        make_sweep(tmp_path / str(fold), EFFECTS, seeds=3, key=fold, change=refold, cells=90 + fold)
    runs, _ = read_runs([tmp_path / str(fold) for fold in range(4)])
    arms = arms_of(runs)
    assert len(arms) == 3 and {run.fold for run in runs} == {0, 1, 2, 3}
    table = compare(arms)
    frame = pd.DataFrame([(run.strategy, run.fold, run.scores.loc[0, "value"]) for run in runs])
    means = frame.groupby([0, 1])[2].mean()
    row = table.query("score == 'probe' and strategy == 'experiment'").iloc[0]
    assert (row["n"], row["pairs"], row["unit"]) == (4, 4, "fold")
    assert row["mean"] == pytest.approx(means["experiment"].mean())
    assert row["p"] == pytest.approx(stats.ttest_rel(means["experiment"], means["random"]).pvalue)
    low, high = stats.ttest_1samp(means["experiment"], 0).confidence_interval()
    assert (row["low"], row["high"]) == pytest.approx((low, high))
    baseline = table.query("score == 'probe' and representation == 'untrained'").iloc[0]
    assert baseline["n"] == 4
    said = coverage_of_intervals(runs)
    assert "4 folds (held out: groups of experiment), each the mean of 3 seeds of the training" in said
    assert "4 folds" in terminal(table, "random")
    assert any("paired by seed and fold" in remark for remark in remarks(table, "random", []))
    two = compare(arms_of([run for run in runs if run.fold < 2]))
    assert two["p"].isna().all() and any("There are 2 folds only" in said for said in remarks(two, "random", []))
    with pytest.raises(ValueError, match="with seed 0 and fold 1; a seed counts once"):
        arms_of([*runs, next(run for run in runs if run.pairing == (0, 0, 1))])


@pytest.mark.usefixtures("no_pictures")
def test_scores_that_all_runs_named_before_are_those_that_count(tmp_path: Path, call: Call) -> None:
    make_sweep(tmp_path, EFFECTS, seeds=3, how={"evaluation.scores": "mixing"})
    assert counted(read_runs([tmp_path])[0]) == ["mixing"]
    text = call(tmp_path)
    assert "The scores that count were named before training: mixing." in text and "probe (" not in text
    assert "probe (" in call(tmp_path, "--scores", "all")
    make_run(tmp_path / "another", AXES["random"], 7, EFFECTS["random"], how={"evaluation.scores": "probe"})
    assert counted(read_runs([tmp_path])[0]) == []


@pytest.mark.parametrize("finished", [True, False])
def test_a_run_and_its_continuation_are_one_training(tmp_path: Path, finished: bool) -> None:
    make_sweep(tmp_path, EFFECTS, seeds=3)
    first, rest = tmp_path / "first", tmp_path / "temporal-s0"
    make_run(first, AXES["temporal"], 0, EFFECTS["temporal"], steps=4)
    file = rest / "composition.parquet"
    kept = pd.read_parquet(file).query("global_step >= 3")
    about = pq.read_schema(file).metadata
    pq.write_table(pa.Table.from_pandas(kept, preserve_index=False).replace_schema_metadata(about), file)
    config = yaml.safe_load((rest / "config.yaml").read_text())
    config["resume"] = str(first / "checkpoints" / "last.ckpt")
    (rest / "config.yaml").write_text(yaml.safe_dump(config))
    if not finished:
        (first / "finished").unlink()

    runs, (left_out,) = read_runs([tmp_path])
    assert (left_out.directory.name, left_out.reason) == ("first", "temporal-s0 continues it and counts for both")
    (run,) = (run for run in runs if run.directory == rest)
    assert [part.name for part in run.parts] == ["first", "temporal-s0"]
    own = run.composition().query("rank == 0")
    assert own["global_step"].tolist() == list(range(6))
    held = pd.read_parquet(first / "composition.parquet").query("rank == 0")["leak/held"]
    assert own["leak/held"].tolist()[:3] == held.tolist()[:3]
    assert continued(runs) == ["temporal-s0 continues first: the batches of both are counted as one training."]
    shutil.rmtree(first)
    (said,) = continued(read_runs([tmp_path])[0])
    assert "whose run directory is not there" in said


@pytest.mark.parametrize(
    ("name", "text"), [("metrics.csv", ""), ("embeddings.parquet", ""), ("embeddings.parquet", "PAR1")]
)
def test_a_damaged_file_of_pictures_is_named(tmp_path: Path, call: Call, name: str, text: str) -> None:
    make_sweep(tmp_path, EFFECTS, seeds=1)
    path = tmp_path / "temporal-s0" / name
    path.write_text(text)
    with pytest.raises(SystemExit, match=rf"{path} is damaged: .*remove it: the report then lacks its pictures"):
        call(tmp_path)


@pytest.mark.parametrize("cut", [3, 40, "line", "lines"])
def test_scores_that_were_cut_are_named_as_damaged(tmp_path: Path, cut: int | str) -> None:
    make_sweep(tmp_path, EFFECTS, seeds=3)
    path = tmp_path / "temporal-s1" / "scores.csv"
    write_scores(read_scores(path.parent), path)
    assert len(read_runs([tmp_path])[0]) == 9
    text = path.read_text()
    lines = text.splitlines(keepends=True)
    path.write_text("".join(lines[:-1] if cut == "line" else lines[:3]) if isinstance(cut, str) else text[:-cut])
    runs, (left_out,) = read_runs([tmp_path])
    assert len(runs) == 8 and left_out.directory == path.parent
    assert f"{path} is damaged" in left_out.reason and f"scripts/evaluate.py run={path.parent}" in left_out.reason


def test_a_damaged_config_is_named(tmp_path: Path) -> None:
    make_sweep(tmp_path, EFFECTS, seeds=1)
    (tmp_path / "temporal-s0" / "config.yaml").write_text("data: {path: [")
    _, (left_out,) = read_runs([tmp_path])
    assert f"{tmp_path / 'temporal-s0' / 'config.yaml'} is damaged" in left_out.reason


def test_two_runs_of_one_seed_are_refused(tmp_path: Path) -> None:
    make_sweep(tmp_path, EFFECTS)
    make_run(tmp_path / "again", AXES["random"], 0, EFFECTS["random"])
    with pytest.raises(ValueError, match=r"again and .*random-s0 are both random with seed 0|random-s0 and .*again"):
        arms_of(read_runs([tmp_path])[0])


def test_without_the_reference_there_is_no_difference_and_that_is_said(tmp_path: Path) -> None:
    table = table_of(make_sweep(tmp_path, {name: EFFECTS[name] for name in ("experiment", "temporal")}))
    assert table["difference"].isna().all()
    with pytest.raises(ValueError, match=r"there is no strategy 'randon'; there are: experiment, temporal"):
        table_of(tmp_path, reference="randon")
    assert any("No runs of 'random'" in remark for remark in remarks(table, "random", []))


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("finished", "did not finish"),
        ("scores.csv", "scripts/evaluate.py run="),
        ("composition.parquet", "no composition"),
    ],
)
def test_a_run_that_is_not_whole_is_named_and_left_out(tmp_path: Path, missing: str, said: str) -> None:
    make_sweep(tmp_path, EFFECTS)
    (tmp_path / "temporal-s3" / missing).unlink()
    runs, (left_out,) = read_runs([tmp_path])
    assert len(runs) == 14 and left_out.directory.name == "temporal-s3" and said in left_out.reason
    assert any(
        "temporal-s3" in remark and said in remark for remark in remarks(table_of(tmp_path), "random", [left_out])
    )


def test_a_directory_without_runs_is_refused(tmp_path: Path) -> None:
    for place, said in ((tmp_path, "holds no run"), (tmp_path / "nowhere", "is not there")):
        with pytest.raises(FileNotFoundError, match=said):
            read_runs([place])


def test_the_script_prints_the_table_and_leaves_it_as_csv_and_markdown(tmp_path: Path, call: Call) -> None:
    make_sweep(tmp_path / "sweep", EFFECTS, higher=LOWER)
    (tmp_path / "sweep" / "temporal-s4" / "finished").unlink()
    os.truncate(tmp_path / "sweep" / "temporal-s3" / "finished", 30)
    printed = call(tmp_path / "sweep")
    place = tmp_path / "sweep" / "comparison"
    assert printed.splitlines()[-1] == f"comparison: {place}"
    assert "mixing (lower is better)" in printed and "temporal-s4: did not finish" in printed
    assert "temporal-s3: its file finished is damaged; copy the run again" in printed
    written = pd.read_csv(place / "scores.csv", keep_default_na=False, na_values={"p": [""]})
    assert written["verdict"].tolist() == table_of(tmp_path / "sweep")["verdict"].tolist()
    assert (place / "scores.md").read_text().count("| probe") == 5
    assert len(read_runs([tmp_path / "sweep"])[1]) == 2, "its own output is no run"


@pytest.mark.usefixtures("no_pictures")
def test_a_comparison_is_written_to_the_first_directory_or_where_out_names_one(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_sweep(tmp_path / "sweep", {"random": {"probe": 0.5}}, seeds=2)
    runs, before = sorted((tmp_path / "sweep").iterdir()), sorted((tmp_path / "sweep").rglob("*"))
    monkeypatch.chdir(tmp_path)
    assert call(*runs, "--out", "mine").endswith("comparison: mine\n") and Path("mine", "report.html").exists()
    assert sorted((tmp_path / "sweep").rglob("*")) == before
    assert call(*runs).endswith(f"comparison: {runs[0] / 'comparison'}\n")
    assert (runs[0] / "comparison" / "report.html").exists()


@pytest.mark.parametrize("out", ["file", "file/below", 300 * "x"])
def test_a_place_where_no_directory_can_be_is_told(tmp_path: Path, call: Call, out: str) -> None:
    make_sweep(tmp_path / "sweep", {"random": {"probe": 0.5}}, seeds=1)
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match=rf"^error: .*{out}\. Name a place that may be written to: --out <directory>"):
        call(tmp_path / "sweep", "--out", tmp_path / out)


def test_a_full_disk_leaves_the_files_of_the_last_comparison(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(table: pd.DataFrame, file: Path, **options: object) -> None:
        file.write_text("half of")
        raise OSError(errno.ENOSPC, "No space left on device")

    make_sweep(tmp_path / "sweep", {"random": {"probe": 0.5}}, seeds=1)
    place = tmp_path / "sweep" / "comparison"
    place.mkdir()
    (place / "scores.csv").write_text("as before")
    monkeypatch.setattr(pd.DataFrame, "to_csv", full)
    with pytest.raises(SystemExit, match=f"^error: the disk of {place} is full: scores.csv was not written"):
        call(tmp_path / "sweep")
    assert (place / "scores.csv").read_text() == "as before" and len(list(place.iterdir())) == 1


@pytest.mark.usefixtures("no_pictures")
def test_a_reader_who_has_seen_enough_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_sweep(tmp_path / "sweep", {"random": {"probe": 0.5}}, seeds=1)
    read, write = os.pipe()
    os.close(read)
    monkeypatch.setattr(sys, "argv", ["compare.py", str(tmp_path / "sweep"), "--no-umap"])
    with open(write, "w") as pipe:  # closing it would tell of the reader once more, as the end of a process does
        monkeypatch.setattr(sys, "stdout", pipe)
        runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "compare.py"), run_name="__main__")
    assert (tmp_path / "sweep" / "comparison" / "report.html").exists()


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize(("installed", "flags"), [(True, []), (True, ["--no-umap"]), (False, [])])
def test_umap_is_announced_only_where_it_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    installed: bool, flags: list[str],
) -> None:  # fmt: skip
    make_sweep(tmp_path / "sweep", {"random": {"probe": 0.5}}, seeds=1)
    monkeypatch.setattr("cellcohort.comparison.maps.has_umap", lambda: installed)
    monkeypatch.setattr("cellcohort.comparison.maps.umap", lambda embeddings: embeddings[:, :2])
    monkeypatch.setattr(sys, "argv", ["compare.py", str(tmp_path / "sweep"), *flags])
    runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "compare.py"), run_name="__main__")
    assert ("UMAP among them, which takes longest (--no-umap" in capsys.readouterr().err) == (installed and not flags)


def test_the_script_says_what_is_wrong_in_one_line(tmp_path: Path, call: Call) -> None:
    with pytest.raises(SystemExit, match=r"error: .*nowhere is not there"):
        call(tmp_path / "nowhere")
