from __future__ import annotations

import copy
import errno
import importlib
import inspect
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hydra
import pandas as pd
import pytest
from hydra._internal.hydra import Hydra
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import InstantiationException
from hydra.utils import get_class, get_method, instantiate
from omegaconf import DictConfig, OmegaConf

from cellcohort import sampling
from cellcohort.cells import CellTable
from cellcohort.messages import whole_number
from cellcohort.runtime.cli import _of_each_job, explain, run_command
from cellcohort.runtime.options import check_kinds
from cellcohort.runtime.resolvers import stamp, strategy
from cellcohort.runtime.run import Run
from cellcohort.runtime.run_directory import digest
from cellcohort.runtime.unknown_keys import _choices_of_axes, _renamed, refuse_unread
from cellcohort.sampling import ConditionBalanced, ExperimentAware, TemporallyEnriched
from cellcohort.sampling.axes.base import Axis

ROOT = Path(__file__).parents[2]
CONF = ROOT / "conf"
OPTIONS = {group.name: sorted(file.stem for file in group.glob("*.yaml")) for group in CONF.iterdir() if group.is_dir()}


@cache
def compose(*overrides: str) -> DictConfig:
    """A config that tests share: copy it before changing it."""
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra.compose("train", list(overrides))


Shell = Callable[..., list[str]]


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Shell:
    """``shell(*arguments)``: the run names of the jobs that a script started with these arguments runs."""

    def call(*arguments: str) -> list[str]:
        names: list[str] = []

        def job(config: DictConfig) -> None:
            refuse_unread(config, hydra.core.hydra_config.HydraConfig.get().overrides.task)
            names.append(config.run_name)

        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["scripts/train.py", *arguments])
        main = hydra.main(config_path=str(CONF), config_name="train", version_base="1.3")(job)
        with monkeypatch.context() as patch:
            if not any(argument.startswith(("sweep=", "hydra.mode=")) for argument in arguments):
                # for it, Hydra would compose all options twice
                patch.setattr(Hydra, "get_mode", lambda *arguments, **options: None)
            run_command(main, CONF)
        return names

    return call


@pytest.fixture
def planned(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """``planned(*arguments)``: the run names that a sweep gives to its jobs, which are not run."""
    names: list[str] = []

    def launch(jobs: Sequence[Sequence[str]], initial_job_idx: int) -> list[JobReturn]:
        given = [dict(override.split("=", 1) for override in job) for job in jobs]
        assert all(job["run_name"] == job["hydra.sweep.subdir"] for job in given)
        names.extend(job["run_name"] for job in given)
        return [JobReturn(status=JobStatus.COMPLETED) for _ in jobs]

    launcher = SimpleNamespace(launch=launch)
    monkeypatch.setattr(Plugins, "instantiate_launcher", lambda *_, **__: launcher)

    def call(*arguments: str) -> list[str]:
        names.clear()
        assert shell(*arguments) == []
        return [*names]

    return call


@pytest.mark.parametrize(
    ("override", "axes"),
    [
        ("sampler=random", {}),
        ("sampler=[]", {}),
        ("sampler=experiment_aware", {"experiment_aware": ExperimentAware}),
        ("sampler=condition", {"condition": ConditionBalanced}),
        ("sampler=temporal", {"temporal": TemporallyEnriched}),
        ("sampler=[temporal]", {"temporal": TemporallyEnriched}),
        (
            "sampler=[experiment_aware,condition,temporal]",
            {"experiment_aware": ExperimentAware, "condition": ConditionBalanced, "temporal": TemporallyEnriched},
        ),
    ],
)
def test_one_word_or_a_list_of_words_chooses_the_axes(override: str, axes: dict[str, type]) -> None:
    made = instantiate(compose(override).batch_sampler.axes, _convert_="all")
    assert {name: type(axis) for name, axis in made.items()} == axes


def test_without_a_word_batches_are_random() -> None:
    assert compose().sampler == {} and compose("sampler=[]").batch_sampler.axes == {}


def test_knobs_of_several_axes_reach_them() -> None:
    config = compose(
        "sampler=[experiment_aware,condition,temporal,track_capped]",
        "sampler.experiment_aware.leaky=0.1",
        "sampler.experiment_aware.weights={a:2,b:1}",
        "sampler.experiment_aware.column=plate",
        "sampler.condition.ratio={dead:0.3,alive:0.7}",
        "sampler.condition.column=[condition,cell_type]",
        "sampler.temporal.window_hours=4",
        "sampler.temporal.global_fraction=0.5",
        "sampler.track_capped.max_cells=2",
    )
    axes = OmegaConf.to_container(config.batch_sampler.axes, resolve=True)
    assert isinstance(axes, dict)
    arguments = {name: {k: v for k, v in axis.items() if k != "_target_"} for name, axis in axes.items()}
    assert arguments == {
        "experiment_aware": {
            **{"leaky": 0.1, "weights": {"a": 2, "b": 1}, "temper": 1.0},
            **{"experiments": 1, "column": "plate"},
        },
        "condition": {"ratio": {"dead": 0.3, "alive": 0.7}, "column": ["condition", "cell_type"]},
        "temporal": {"window_hours": 4, "global_fraction": 0.5, "column": "hours"},
        "track_capped": {"max_cells": 2, "column": "track"},
    }


def test_one_axis_can_be_used_twice_under_two_names(shell: Shell) -> None:
    more = "+sampler.sites={_target_:cellcohort.sampling.ConditionBalanced,column:cell_type}"
    frame = pd.DataFrame({"condition": ["x", "y"] * 8, "cell_type": ["T", "T", "B", "B"] * 4})
    cells = CellTable.from_frame(frame, experiment=None, hours=None)
    sampler = instantiate(compose("sampler=condition", more, "batch_sampler.batch_size=4").batch_sampler, cells)
    assert {name: axis.column for name, axis in sampler.axes.items()} == {
        "condition": "condition",
        "sites": "cell_type",
    }
    assert (frame.iloc[sampler.batch(0, 0)].value_counts() == 1).all()
    assert shell("sampler=condition", more) == ["condition-sites-s0"]


@pytest.mark.parametrize("values", ["[0.5, 0.25, 0]", "{from: 0.5, to: 0, epochs: 3}"])
def test_a_schedule_changes_an_option_from_epoch_to_epoch(values: str) -> None:
    config = compose("sampler=experiment_aware", f"schedule={{sampler.experiment_aware.leaky: {values}}}")
    check_kinds(config)
    frame = pd.DataFrame({"experiment": list("abcd") * 300})
    sampler = instantiate(config.batch_sampler, CellTable.from_frame(frame, condition=None, hours=None), batch_size=20)
    assert [sampler.asked(epoch, 0).leaky for epoch in range(5)] == [0.5, 0.25, 0, 0, 0]


def test_batches_of_one_cluster_of_a_column() -> None:
    config = compose("sampler=[experiment_aware,condition]", "sampler.experiment_aware.column=cluster")
    frame = pd.DataFrame({"condition": list("xy") * 300, "cluster": [f"k{i // 2 % 5}" for i in range(600)]})
    sampler = instantiate(config.batch_sampler, CellTable.from_frame(frame, None, hours=None), batch_size=20)
    held = [frame.iloc[sampler.batch(0, step)] for step in range(30)]
    assert all(len(set(batch.cluster)) == 1 and (batch.condition == "x").sum() == 10 for batch in held)
    assert {batch.cluster.iloc[0] for batch in held} == {f"k{i}" for i in range(5)}


def test_weights_of_numbered_experiments_keep_their_type() -> None:
    config = compose("sampler=experiment_aware", "sampler.experiment_aware.weights={1:2.0,4:1.0}")
    assert dict(config.sampler.experiment_aware.weights) == {1: 2.0, 4: 1.0}


def test_the_order_of_the_words_does_not_matter() -> None:
    one, other = compose("sampler=[temporal,condition]"), compose("sampler=[condition,temporal]")
    assert OmegaConf.to_container(one, resolve=False) == OmegaConf.to_container(other, resolve=False)
    assert one.run_name == other.run_name == "condition-temporal-s0" and digest(one) == digest(other)


def test_axes_do_not_change_the_budget() -> None:
    keys = ("batch_size", "num_batches", "scope", "seed")
    samplers = [compose(f"sampler={option}").batch_sampler for option in OPTIONS["sampler"]]
    assert all([each[key] for key in keys] == [samplers[0][key] for key in keys] for each in samplers)
    others = [compose(f"batch_sampler={option}").batch_sampler for option in OPTIONS["batch_sampler"]]
    assert all([other[key] for key in keys if key != "scope"] == [256, None, 0] for other in others)


def test_the_run_name_tells_the_strategy_and_the_seed_and_can_be_chosen() -> None:
    assert compose("seed=3").run_name == "random-s3"
    assert compose("sampler=temporal").run_name == "temporal-s0"
    assert compose("run_name=mine").run_name == "mine"
    assert strategy({"b": 1, "a": 2}) == "a-b"
    assert compose("sampler=temporal", "reading=chunks").run_name == "temporal-s0"
    for option in OPTIONS["batch_sampler"]:
        assert compose(f"batch_sampler={option}").run_name == ("random-s0" if option == "default" else f"{option}-s0")


def test_one_seed_reaches_batches_views_and_weights() -> None:
    config = compose("seed=7")
    assert config.batch_sampler.seed == config.data.seed == config.module.seed == 7
    assert config.split.seed == config.validation_sampler.seed == 0


def test_a_sweep_runs_one_job_per_choice_in_directories_of_their_own_under_one(shell: Shell, tmp_path: Path) -> None:
    assert shell("-m", "sampler=random,experiment_aware") == ["random-s0", "experiment-s0"]
    (sweep,) = tmp_path.glob("outputs/*/*-sweep")
    there = sorted(path.name for path in sweep.iterdir())
    assert there == [".lock", "experiment-s0", "multirun.yaml", "random-s0"]


def test_a_sweep_runs_samplers_of_other_libraries_beside_ours(shell: Shell) -> None:
    assert shell("-m", "batch_sampler=default,m_per_class", "batch_sampler.num_batches=8") == [
        "random-s0",
        "m_per_class-s0",
    ]
    assert shell("batch_sampler=m_per_class", "batch_sampler.m=4") == ["m_per_class-s0"]


def test_a_sweep_may_choose_lists(planned: Shell) -> None:
    assert planned("-m", "sampler=random,[experiment_aware,temporal]", "seed=0,1") == [
        "random-s0",
        "random-s1",
        "experiment-temporal-s0",
        "experiment-temporal-s1",
    ]


def test_a_named_sweep_needs_no_flag_and_mixes_with_others(planned: Shell) -> None:
    alone = ["random", "experiment", "condition", "temporal", "track"]
    pairs = ["condition-experiment", "experiment-temporal", "condition-temporal"]
    every = [*alone, *pairs, "condition-experiment-temporal"]
    assert planned("sweep=strategies", "seed=3") == [f"{name}-s3" for name in every]
    assert planned("sweep=strategies", "sampler=random") == [f"random-s{seed}" for seed in range(5)]
    assert planned("sweep=strategies", "sampler=random,temporal", "seed=1") == ["random-s1", "temporal-s1"]


@pytest.mark.parametrize(
    ("sweep", "option", "values"),
    [
        ("leaky", "sampler.experiment_aware.leaky", [0.0, 0.05, 0.1, 0.2, 0.4]),
        ("temporal_window", "sampler.temporal.window_hours", [0.5, 1.0, 2.0, 4.0, 8.0]),
    ],
)
def test_jobs_are_named_after_the_options_that_vary(
    planned: Shell, sweep: str, option: str, values: list[float]
) -> None:
    _, axis, knob = option.split(".")
    name = strategy([axis])
    assert planned(f"sweep={sweep}", "seed=4") == [f"{name}-s4-{knob}{value}" for value in values]
    assert planned(f"sweep={sweep}", f"sampler={axis}", f"{option}={values[0]}", "seed=0,1") == [
        f"{name}-s0",
        f"{name}-s1",
    ]


def test_a_named_sweep_holds_each_experiment_out_in_turn(planned: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    assert planned("sweep=leave_one_experiment_out", "split.folds=3") == [f"random-s0-fold{fold}" for fold in range(3)]
    with pytest.raises(SystemExit):
        planned("sweep=leave_one_experiment_out")
    assert "split.folds=None is not a number of folds; give as many as the data have" in capsys.readouterr().err


def test_one_job_of_a_named_sweep_can_be_run_alone(shell: Shell) -> None:
    assert shell("sweep=strategies", "sampler=temporal", "hydra.mode=RUN") == ["temporal-s0"]


def test_launches_of_the_same_second_have_names_of_their_own(shell: Shell, tmp_path: Path) -> None:
    assert len({stamp() for _ in range(20)}) == 20
    for _ in range(2):
        shell()
    assert len(list(tmp_path.glob("outputs/*/*-random-s0"))) == 2


def test_hydra_leaves_nothing_else_behind(shell: Shell, tmp_path: Path) -> None:
    shell()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["sampler=temporal", "sampler.experiment_aware.leaky=0.1"],
            ["experiment_aware is the axis of sampler=experiment_aware", "axes of sampler are: temporal"],
        ),
        (["model=conv1d", "model.hidden=3"], ["hidden comes with model=mlp", "channels"]),
        (["sampler=temporal", "sampler.temporal.windw_hours=1"], ["keys of sampler.temporal are: window_hours"]),
        (["batch_sampler.batchsize=1"], ["keys of batch_sampler are", "batch_size"]),
        (["sede=1"], ["keys of the config are", "seed"]),
        (["sampler=temporl"], OPTIONS["sampler"]),
        (["sampler=[experiment_aware,temporl]"], OPTIONS["sampler"]),
        (["smapler=temporal"], ["keys of the config are", "sampler"]),
        (["-m", "sampler=random,temporal", "sampler.temporal.window_hours=4"], ["the axis of sampler=temporal"]),
        (["+sampler.leaky=0.1"], ["adds a key that nothing reads"]),
        (["sampler=temporal", "++sampler.leaky=0.1"], ["adds a key that nothing reads", "sampler=experiment_aware"]),
        (["+sampler.experiment_aware.leaky=0.1"], ["adds a key that nothing reads"]),
        (["+speed=fast"], ["adds a key that nothing reads"]),
        (["sampler=random,temporal"], ["key=[value1,value2]", "--multirun"]),
        (
            ["data=tracks", "data.columns.features=[Area (px),b]"],
            ["data.columns.features=[Area (px),b]", '["Area (px)",'],
        ),
    ],
)
def test_a_wrong_command_line_is_refused_with_what_there_is(
    shell: Shell, capfd: pytest.CaptureFixture[str], arguments: list[str], said: list[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        shell(*arguments)
    assert stop.value.code == 1
    errors = capfd.readouterr().err
    assert all(word in errors for word in said), errors


@pytest.mark.parametrize(
    ("argument", "first"),
    [
        ("batch_size=64", "Did you mean batch_sampler.batch_size, validation_sampler.batch_size?"),
        ("bach_size=64", "Did you mean batch_sampler.batch_size, validation_sampler.batch_size?"),
        ("batch_sampler.batchsize=64", "Did you mean batch_sampler.batch_size?"),
        ("sampler.window_hour=4", "Did you mean sampler.temporal.window_hours? It comes with sampler=temporal"),
        ("sampler=temporl", "sampler has no choice temporl. Did you mean sampler=temporal?"),
        ("sampler=[temporl,condition]", "sampler has no choice temporl. Did you mean sampler=temporal?"),
    ],
)
def test_what_may_have_been_meant_is_said_first(
    shell: Shell, capfd: pytest.CaptureFixture[str], argument: str, first: str
) -> None:
    with pytest.raises(SystemExit):
        shell(argument)
    errors = capfd.readouterr().err
    assert first in errors.splitlines()[0] and f"+{argument}" not in errors


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("sampler.leaky=0.1", "sampler.experiment_aware.leaky"),
        ("sampler.axes={}", "sampler.experiment_aware.leaky"),
        ("+sampler.axes.track.column=lineage", "sampler.track_capped.column"),
        ("+sampler.leaky=0.1", "sampler.experiment_aware.leaky"),
        ("checkpoint.monitor=null", "callbacks.checkpoint.monitor"),
        ("composition.every_n_steps=2", "callbacks.composition.every_n_steps"),
    ],
)
def test_a_key_of_the_first_version_is_refused_with_the_new_one(
    shell: Shell, capfd: pytest.CaptureFixture[str], old: str, new: str
) -> None:
    with pytest.raises(SystemExit):
        shell(old)
    assert new in capfd.readouterr().err


def test_every_option_of_an_axis_of_the_first_version_is_told_with_its_axis() -> None:
    axes = _choices_of_axes(CONF)
    for old, new in {
        "weights": "experiment_aware.weights",
        "window_hours": "temporal.window_hours",
        "global_fraction": "temporal.global_fraction",
        "ratio": "condition.ratio",
        "max_cells": "track_capped.max_cells",
        "column": "experiment_aware.column",
        "axes.experiment.leaky": "experiment_aware.leaky",
        "axes.condition.column": "condition.column",
    }.items():
        assert f"sampler.{new}" in _renamed(f"sampler.{old}", axes)


@pytest.mark.parametrize("old", ["sampler.leaky=0.1", "sampler.axes.experiment.leaky=0.1", "+sampler.leaky=0.1"])
def test_a_key_of_the_first_version_is_refused_beside_its_axis_too(
    shell: Shell, capfd: pytest.CaptureFixture[str], old: str
) -> None:
    with pytest.raises(SystemExit):
        shell("sampler=[experiment_aware,condition]", old)
    assert "sampler.experiment_aware.leaky" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("trainer.profiler=simple", "Other arguments of lightning.Trainer are added by +trainer.profiler=<value>."),
        ("trainer.min_epochs=3", "Other arguments of lightning.Trainer are added by +trainer.min_epochs=<value>."),
        ("trainer.epochs=3", "Did you mean trainer.max_epochs?"),
        ("trainer.unheard_of=3", "Other arguments of lightning.Trainer are added by +trainer.<name>=<value>."),
        ("data.unheard_of=3", ""),
    ],
)
def test_only_arguments_of_other_packages_can_be_added_as_is_said(
    shell: Shell, capfd: pytest.CaptureFixture[str], typed: str, hint: str
) -> None:
    """Those that a class declares, even where another key has nearly their name, and none that is mistyped."""
    with pytest.raises(SystemExit):
        shell(typed)
    said = capfd.readouterr().err
    key = typed.partition("=")[0]
    assert f"{key.split('.')[0]} has no key {key.split('.')[1]}. {hint}" in said
    assert "added by" in hint or "added by" not in said
    assert "Did you mean" in hint or "Did you mean" not in said


@pytest.mark.parametrize(("script", "group", "own"), [("prepare", "recipe", "source"), ("train", "source", "sampler")])
def test_a_group_of_another_script_is_refused_with_the_own_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str],
    script: str, group: str, own: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [f"scripts/{script}.py", f"{group}={OPTIONS[group][0]}"])
    with pytest.raises(SystemExit):
        run_command(hydra.main(config_path=str(CONF), config_name=script, version_base="1.3")(lambda _: None), CONF)
    assert f"{script}.py has no group {group}; its groups are: {own}" in capfd.readouterr().err


def test_help_of_a_preparation_shows_its_own_groups() -> None:
    text = OmegaConf.load(CONF / "prepare.yaml").hydra.help.template
    assert f"\nsource: {', '.join(OPTIONS['source'])}\n" in text and "$APP_CONFIG_GROUPS" not in text


@pytest.mark.parametrize(("full", "ours"), [("0", True), ("1", True), ("0", False)])
def test_only_errors_of_the_user_are_told_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str], full: str, ours: bool
) -> None:
    def job(config: DictConfig) -> None:
        with Run(config):
            whole_number("seed", -1, 0) if ours else pd.to_datetime("no date")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", full)
    monkeypatch.setattr(sys, "argv", ["scripts/train.py", "data=demo", "logger=csv", "evaluation=none"])  # no extras
    main = hydra.main(config_path=str(CONF), config_name="train", version_base="1.3")(job)
    with pytest.raises(ValueError if full == "1" else SystemExit):
        run_command(main, CONF)
    assert os.environ["HYDRA_FULL_ERROR"] == full
    errors = capfd.readouterr().err
    (kept,) = tmp_path.glob("outputs/*/*/error-rank0.txt")
    assert "Traceback" in kept.read_text()
    if full == "1":
        return
    assert ("Traceback" not in errors) == ours
    if ours:
        assert errors.startswith("error: seed must be an integer") and errors.splitlines()[-1] == f"traceback: {kept}"
    else:
        assert f"traceback: {kept}" in errors


def test_output_that_nobody_reads_any_more_ends_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["preview.py"])

    def main() -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):  # of another pipe than the output
        run_command(main, CONF)
    before, (read, write) = os.dup(1), os.pipe()
    os.close(read)
    os.dup2(write, 1)
    try:
        with pytest.raises(SystemExit):
            run_command(main, CONF)
    finally:
        os.dup2(before, 1)
        os.close(before)
        os.close(write)
    assert "stopped: nothing reads the output any more" in capfd.readouterr().err


def test_a_full_disk_is_told_in_one_sentence_whatever_it_led_to() -> None:
    def of(error: OSError) -> str | None:
        try:
            try:
                raise error
            except OSError as full:
                raise RuntimeError("the file is damaged") from full
        except RuntimeError as worse:
            return explain(worse, CONF)

    said = "the disk of /there is full: last.ckpt was not written"
    assert of(OSError(errno.ENOSPC, said)) == f"error: {said}"
    assert of(OSError(errno.EIO, said)) is None and of(OSError(errno.ENOSPC, "No space left on device")) is None


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENAMETOOLONG])
def test_a_place_that_may_not_be_written_to_is_named_with_a_way_out(number: int) -> None:
    def of(replace: bool) -> str | None:
        try:
            try:
                raise OSError(number, os.strerror(number), "outputs")
            except OSError as refused:
                if replace:
                    raise ValueError("said better") from None
                raise InstantiationException("Error in call to target") from refused
        except (ValueError, InstantiationException) as error:
            return explain(error, CONF)

    said = of(replace=False)
    assert said is not None and said.startswith(f"error: {os.strerror(number)}: {Path.cwd() / 'outputs'}. ")
    assert "another: hydra.run.dir=<directory>" in said and "outputs" not in str(of(replace=True))


@pytest.mark.parametrize("place", ["/dev/null", "/dev/null/run", "/proc/run", 300 * "x"])
def test_a_place_where_no_directory_can_be_is_named_with_a_way_out(
    train: Callable[..., Path], capsys: pytest.CaptureFixture[str], place: str
) -> None:
    with pytest.raises(SystemExit):
        train(f"hydra.run.dir={place}")
    said = capsys.readouterr().err
    assert "Traceback" not in said and f"{place}. Name another: hydra.run.dir=<directory>" in said


@pytest.mark.parametrize(
    ("method", "lost"), [("_begin", "the run was not begun"), ("loggers", "the run could not go on")]
)
def test_a_disk_that_is_full_during_a_run_is_named_with_its_directory(
    train: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    method: str, lost: str,
) -> None:  # fmt: skip
    """Whatever wrote, since libraries write too."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Run, method, full)
    with pytest.raises(SystemExit) as stop:
        train("hydra.run.dir=run")
    said = capsys.readouterr().err
    assert stop.value.code == 1 and "Traceback" not in said
    assert f"error: the disk of {tmp_path / 'run'} is full: {lost}. Files that were there" in said


def test_arguments_of_lightning_and_existing_keys_can_be_added(shell: Shell) -> None:
    shell("+trainer.accumulate_grad_batches=2", "sampler=temporal", "++sampler.temporal.window_hours=3")


def test_the_cause_of_a_failed_import_is_said(
    shell: Shell, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_module.py").write_text("import a_module_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)

    @hydra.main(config_path=str(CONF), config_name="train", version_base="1.3")
    def main(config: DictConfig) -> None:
        instantiate({"_target_": "broken_module.Thing"})

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    with pytest.raises(SystemExit):
        run_command(main, CONF)
    assert "No module named 'a_module_that_is_not_there'" in capfd.readouterr().err


def test_flags_can_stand_between_options(shell: Shell, planned: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    assert planned("sampler=temporal", "-m", "seed=0,1") == ["temporal-s0", "temporal-s1"]
    assert sys.argv == ["scripts/train.py", "-m", "sampler=temporal", "seed=0,1"]
    capsys.readouterr()
    shell("sampler=temporal", "--cfg", "job", "seed=7", "-p", "batch_sampler", "~callbacks.last")
    assert "seed: ${seed}" in capsys.readouterr().out and sys.argv[1:5] == ["--cfg", "job", "-p", "batch_sampler"]
    shell("seed=7", "--info")
    assert sys.argv[1:] == ["--info", "all", "seed=7"]


@pytest.mark.parametrize("option", ["data.scale_by=null", "data.missing='label'", 'data.missing="a, b"', "data.path="])
def test_options_of_a_swept_group_that_no_choice_can_hold_stay_as_they_are(option: str) -> None:
    line = ["-m", "data=profiles,tracks", option, "data.path=cells.csv", "seed=1"]
    assert _of_each_job(line) == [*line[:3], "data.path=choice(cells.csv)", "seed=1"]


@pytest.mark.parametrize("arguments", [["-m", "seed=0,1"], ["--multirun", "seed=0,1"], ["sweep=strategies"]])
def test_a_sweep_under_torchrun_is_refused_with_the_command(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match="torchrun started 2.*python scripts/train.py " + arguments[0] + ".*torchrun"):
        shell(*arguments)


def test_help_shows_groups_choices_and_commands(shell: Shell, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        shell("--help")
    assert not stop.value.code
    text = capfd.readouterr().out
    for group, options in OPTIONS.items():
        assert not options or f"{group}: {', '.join(options)}" in text
    assert "scripts/train.py sampler=temporal" in text and "window_hours" not in text.split("Commands")[0]


def nodes(config: Any) -> list[DictConfig]:
    """Every node of a config that is made into an object of this package."""
    if not isinstance(config, DictConfig):
        return []
    own = [config] if str(config.get("_target_", "")).startswith("cellcohort.") else []
    return own + [node for key in config for node in nodes(None if OmegaConf.is_missing(config, key) else config[key])]


def choices(*groups: str) -> Iterator[tuple[str, ...]]:
    """Overrides with one choice of each group, until every choice was in one of them."""
    options = [[f"{group}={option}" for option in OPTIONS[group]] for group in groups]
    return (tuple(filter(None, each)) for each in itertools.zip_longest(*options))


@pytest.mark.parametrize(
    "overrides",
    [
        *choices("data", "model", "objective", "batch_sampler"),
        *((*each, "sampler=[experiment_aware,condition,temporal,track_capped]") for each in choices("reading")),
    ],
)
def test_defaults_in_yaml_are_those_of_the_code(overrides: tuple[str, ...]) -> None:
    config = copy.deepcopy(compose(*overrides))
    config.validation_sampler.fixed = False  # the one thing that makes it a sampler for validation
    check_defaults(config)


@pytest.mark.parametrize("source", OPTIONS["source"])
def test_defaults_of_a_preparation_are_those_of_the_code(source: str) -> None:
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        check_defaults(hydra.compose("prepare", [f"source={source}"]))


def check_defaults(config: DictConfig) -> None:
    for node in nodes(config):
        target = node._target_
        made = get_class(target) if target.rpartition(".")[2][0].isupper() else get_method(target)
        parameters = inspect.signature(made).parameters
        for key in node:
            if key.startswith("_") or OmegaConf.is_missing(node, key):
                continue
            assert key in parameters, f"{target} has no {key}"
            default, value = parameters[key].default, node[key]
            if not OmegaConf.is_config(value) and default is not inspect.Parameter.empty:
                assert value == default, f"{target}: {key}={value} in YAML, {default} in code"


@pytest.mark.parametrize(
    ("group", "folder"),
    [("data", "data"), ("model", "models"), ("objective", "objectives"), ("source", "sources"), ("augment", "augment")],
)
def test_every_choice_has_a_module_and_every_module_a_choice(group: str, folder: str) -> None:
    modules = sorted(file.stem for file in (ROOT / "src" / "cellcohort" / folder).glob("*.py"))
    assert OPTIONS[group] == [name for name in modules if not name.startswith("_")]


def test_every_axis_has_a_choice_of_the_name_of_its_module() -> None:
    axes = set()
    for file in (Path(inspect.getfile(sampling)).parent / "axes").glob("*.py"):
        module = importlib.import_module(f"cellcohort.sampling.axes.{file.stem}")
        for _, kind in inspect.getmembers(module, inspect.isclass):
            if issubclass(kind, Axis) and kind.__module__ == module.__name__ and kind.__name__ in sampling.__all__:
                axes.add(file.stem)
    assert {"random", *axes} == set(OPTIONS["sampler"])


def test_every_sampler_of_another_library_has_a_choice_of_the_name_of_its_module() -> None:
    folder = Path(inspect.getfile(sampling)).parent / "baselines"
    modules = {file.stem for file in folder.glob("*.py")} - {"__init__", "base"}
    assert {"default", *modules} == set(OPTIONS["batch_sampler"])
    for name in modules:
        assert compose(f"batch_sampler={name}").batch_sampler._target_.startswith(
            f"cellcohort.sampling.baselines.{name}."
        )


def test_no_group_is_called_experiment() -> None:
    assert "experiment" not in OPTIONS


def test_the_run_directory_stays_the_same_within_a_job() -> None:
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        config = hydra.compose("train", return_hydra_config=True)
    assert config.hydra.run.dir == config.hydra.run.dir


def test_axes_look_at_other_columns_and_one_axis_is_used_twice_under_two_names() -> None:
    config = compose(
        "sampler=[experiment_aware,condition]",
        "sampler.experiment_aware.column=marker",
        "sampler.condition.column=[perturbation,cell_type]",
        "+sampler.sites={_target_: cellcohort.sampling.ConditionBalanced, column: site}",
        "batch_sampler.batch_size=24",
    )
    refuse_unread(config, ["+sampler.sites={_target_: cellcohort.sampling.ConditionBalanced, column: site}"])
    names = {"marker": "ab", "perturbation": "xy", "cell_type": "pqr", "site": "st"}
    rows = [dict(zip(names, labels, strict=True)) for labels in itertools.product(*names.values())] * 20
    cells = CellTable.from_frame(pd.DataFrame(rows), experiment=None, condition=None, hours=None)
    sampler = instantiate(config.batch_sampler, cells)
    batch = pd.DataFrame(rows).iloc[sampler.batch(0, 0)]
    assert batch["marker"].nunique() == 1
    assert batch.groupby(["perturbation", "cell_type"]).size().tolist() == [4] * 6
    assert batch["site"].value_counts().tolist() == [12, 12]
    assert config.run_name == "condition-experiment-sites-s0"
