from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import submitit
import wandb
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import DictConfig

import wandb_file
from cellcohort.composition.log import CompositionLog
from cellcohort.runtime.run import Run
from cellcohort.runtime.run_directory import digest
from hydra_plugins.cellcohort_sweeps.sweeper import Job, _unfinished, _wandb_group, launched
from launches import SCRIPTS, alone, new_process

Train = Callable[..., Path]
Start = Callable[..., subprocess.CompletedProcess[str]]
ONLY_TRAIN = ("evaluation=none", "trainer.max_epochs=1", "trainer.limit_train_batches=1", "trainer.limit_val_batches=1")
WRONG_AND_RIGHT = "objective.temperature=-1,0.5"  # the first is refused before slow libraries are imported


@pytest.fixture
def sweep(train: Train, tmp_path: Path) -> Callable[..., Path]:
    """``sweep(*arguments)``: the directory of a sweep of quick jobs, always the same one."""

    def run(*arguments: str) -> Path:
        train("-m", *ONLY_TRAIN, "hydra.sweep.dir=sweep", *arguments)
        return tmp_path / "sweep"

    return run


@pytest.fixture
def start(quick: tuple[str, ...], tmp_path: Path) -> Start:
    """``start(*arguments)``: scripts/train.py in a process of its own."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return alone(tmp_path, "train.py", *arguments, *quick, *ONLY_TRAIN, "hydra.sweep.dir=sweep")

    return run


def times(directory: Path) -> dict[str, int]:
    """When each job of a sweep finished."""
    return {path.parent.name: path.stat().st_mtime_ns for path in directory.glob("*/finished")}


def test_a_finished_job_is_skipped_whatever_its_place_in_the_sweep(sweep: Callable[..., Path]) -> None:
    first = times(sweep("sampler=random,[experiment_aware,temporal]"))
    assert set(first) == {"random-s0", "experiment-temporal-s0"}
    more = times(sweep("sampler=[experiment_aware,temporal],temporal", "seed=0"))
    assert set(more) == {*first, "temporal-s0"}
    assert {name: more[name] for name in first} == first
    assert times(sweep("sampler=random,temporal")) == more


def test_jobs_of_one_name_are_refused_with_a_name_that_the_shell_and_hydra_read(
    sweep: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        sweep("sampler=random,temporal", "run_name=same")
    said = capsys.readouterr().err
    assert "several jobs of the sweep are called same" in said and times(tmp_path / "sweep") == {}
    (advice,) = shlex.split(said[said.index("'run_name=") : said.rindex("'") + 1])
    (override,) = OverridesParser.create().parse_overrides([advice])
    assert override.get_key_element() == "run_name" and "${strategy:" in override.get_value_element_as_str()


def test_an_option_that_one_strategy_lacks_names_its_job_and_the_way_out(
    sweep: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        sweep("sampler=temporal,random", "seed=0", "sampler.temporal.window_hours=4")
    said = capsys.readouterr().err
    assert "sampler has no key temporal. temporal is the axis of sampler=temporal" in said
    assert "This is said of the job sampler=random. An option is given to every job" in said
    assert "start two sweeps, with and without it" in said and not (tmp_path / "sweep").exists()
    both = sweep("sampler=temporal,[temporal,condition]", "sampler.temporal.window_hours=4")
    assert set(times(both)) == {"temporal-s0", "condition-temporal-s0"}, "an option that all have"
    for config in both.glob("*/config.yaml"):
        assert yaml.safe_load(config.read_text())["sampler"]["temporal"]["window_hours"] == 4


def test_lists_can_be_values_of_a_sweep(sweep: Callable[..., Path]) -> None:
    directory = sweep("run_name=5", "data.tau_hours=[0.5,1.0],[0.5,2.0]")
    files = directory.glob("*/config.yaml")
    taus = {file.parent.name: yaml.safe_load(file.read_text())["data"]["tau_hours"] for file in files}
    assert taus == {"5-tau_hours0.5_1.0": [0.5, 1.0], "5-tau_hours0.5_2.0": [0.5, 2.0]}


def test_a_failed_job_is_named_does_not_stop_others_and_is_done_again(
    sweep: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = "+trainer.profiler=wrong,simple"
    with pytest.raises(SystemExit) as stop:
        sweep("sampler=random,temporal", wrong)
    out, said = capsys.readouterr()
    assert out.splitlines()[-1] == "sweep: sweep (2 of 4 jobs finished, 2 failed)", "none has scores to compare"
    assert stop.value.code == 1
    assert "2 of 4 jobs failed" in said and "hydra.sweep.dir=sweep" in said
    failed = ("random-s0-profilerwrong", "temporal-s0-profilerwrong")
    (line,) = [line for line in said.splitlines() if line.startswith(f"  {', '.join(failed)}: ")]
    assert "MisconfigurationException" in line and f"traceback: sweep/{failed[0]}/error-rank0.txt" in said
    assert all("Traceback" in (tmp_path / "sweep" / name / "error-rank0.txt").read_text() for name in failed)
    good = times(tmp_path / "sweep")
    assert set(good) == {"random-s0-profilersimple", "temporal-s0-profilersimple"}
    with pytest.raises(SystemExit):
        sweep("sampler=random,temporal", wrong)
    said = capsys.readouterr().err
    assert "all 2 jobs that were run failed for one cause." in said and said.count("    traceback: ") == 1
    assert "hydra.sweep.dir" not in said and times(tmp_path / "sweep") == good
    aside = {path.name for path in (tmp_path / "sweep" / "unfinished").iterdir()}
    assert aside == {f"{name}-1" for name in failed}


def test_a_sweep_whose_first_jobs_fail_for_one_cause_stops_and_states_it_once(
    sweep: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        sweep("sampler=random,temporal", "seed=0,1", "split.by=experiment", "split.held_out=[no_such]")
    said = capsys.readouterr().err
    assert stop.value.code == 1
    assert "all 2 jobs that were run failed for one cause. The other 2 jobs were not started." in said
    assert said.count("'no_such'") == 1 and "To run only these again" not in said
    assert {path.name for path in (tmp_path / "sweep").iterdir() if path.is_dir()} == {"random-s0", "random-s1"}


def test_jobs_that_would_meet_the_cause_of_two_others_are_not_started(
    sweep: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not even later on; those without the option that failed are."""
    with pytest.raises(SystemExit):
        sweep("split.by=track,no_such", "seed=0,1,2", "sampler=random")
    out, said = capsys.readouterr()
    assert out.splitlines()[-1] == "sweep: sweep (3 of 6 jobs finished, 2 failed, 1 not started)"
    assert "2 of 6 jobs failed" in said and said.count("'no_such'") == 1
    assert "1 job not started, since the last 2 jobs with split.by=no_such failed for one cause: random-s2" in said
    assert {name.rpartition("by")[2] for name in times(tmp_path / "sweep")} == {"track"}


def test_jobs_beside_each_other_stop_for_one_cause_too(
    sweep: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = ("objective.temperature=-1", "hydra/launcher=joblib", "hydra.launcher.n_jobs=1")
    with pytest.raises(SystemExit) as stop:
        sweep("sampler=random,temporal", "seed=0,1", *wrong)
    said = capsys.readouterr().err
    assert stop.value.code == 1 and said.count("temperature must be a number > 0, got -1") == 1
    assert "all 2 jobs that were run failed for one cause. The other 2 jobs were not started." in said
    assert {path.name for path in (tmp_path / "sweep").iterdir() if path.is_dir()} == {"random-s0", "random-s1"}


def test_long_values_make_short_names_that_differ_and_the_config_keeps_the_value(
    sweep: Callable[..., Path], tmp_path: Path
) -> None:
    ratios = ["{" + ",".join(f"no_compound_{i}:{1 + i * k}" for i in range(30)) + "}" for k in (0, 1)]
    with pytest.raises(SystemExit):  # there are no such conditions
        sweep("sampler=condition", f"sampler.condition.ratio={','.join(ratios)}")
    found = {file.parent.name: yaml.safe_load(file.read_text()) for file in (tmp_path / "sweep").glob("*/config.yaml")}
    assert len(found) == 2 and max(map(len, found)) < 100
    assert all(len(config["sampler"]["condition"]["ratio"]) == 30 for config in found.values())


@pytest.mark.parametrize(("option", "times_"), [("tasks_per_node=2", 2), ("nodes=4", 4)])
def test_tasks_that_are_no_ranks_are_refused_before_anything_runs(
    sweep: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, times_: int
) -> None:
    with pytest.raises(SystemExit):
        sweep("seed=0", "hydra/launcher=submitit_slurm", f"hydra.launcher.{option}")
    said = capsys.readouterr().err
    assert f"hydra.launcher.{option}" in said and "hydra/launcher=torchrun" in said and f"{times_} times" in said
    assert not (tmp_path / "sweep").exists()


def test_finished_jobs_of_other_options_are_not_taken_for_these(
    sweep: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    sweep("sampler=random", "seed=0")
    with pytest.raises(SystemExit):
        sweep("sampler=random", "seed=0", "module.projection=8")
    assert "other options" in capsys.readouterr().err


def test_a_job_of_another_version_is_another_job(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"seed": 0, "run_name": "one", "version": "${version:}"}
    before = digest(DictConfig(options))
    assert digest(DictConfig(options | {"run_name": "other"})) == before != digest(DictConfig(options | {"seed": 1}))
    monkeypatch.setattr("cellcohort.runtime.run_directory.version", lambda _: "99.0")
    assert digest(DictConfig(options)) != before


@pytest.mark.parametrize(("own", "group"), [(None, "sweep"), ("mine", "mine")])
def test_a_wandb_group_of_the_user_is_kept(own: str | None, group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_RUN_GROUP", raising=False)
    if own:
        monkeypatch.setenv("WANDB_RUN_GROUP", own)
    with _wandb_group("sweep"):
        assert os.environ["WANDB_RUN_GROUP"] == group
    assert os.environ.get("WANDB_RUN_GROUP") == own


def finished_with(sweep: Path, world_size: int) -> None:
    """A finished job of a sweep that ran in so many processes."""
    directory = sweep / "random-s9"
    directory.mkdir(parents=True)
    log = CompositionLog(directory, [], {"world_size": world_size})
    log.add(0, 0, [0], [[None] * 2], np.zeros((1, 2, 0)))
    log.close()
    (directory / "finished").write_text("d" * 64)


@pytest.mark.parametrize(
    ("before", "way", "now", "remedy"),
    [
        (2, [], 1, "with hydra/launcher=torchrun hydra.launcher.nproc_per_node=2"),
        (1, ["hydra/launcher=torchrun"], 2, "without hydra/launcher=torchrun"),
    ],
)
def test_a_sweep_does_not_go_on_with_another_number_of_processes(
    sweep: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    before: int,
    way: list[str],
    now: int,
    remedy: str,
) -> None:
    finished_with(tmp_path / "sweep", before)
    with pytest.raises(SystemExit):
        sweep("sampler=random", "seed=0", *way)
    said = capsys.readouterr().err
    assert f"jobs of world size {before} (random-s9)" in said and f"world size {now}," in said and remedy in said
    assert set(times(tmp_path / "sweep")) == {"random-s9"}


def test_a_number_of_processes_that_cannot_be_told_is_refused(
    sweep: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        sweep("sampler=random,temporal", "hydra/launcher=torchrun", "hydra.launcher.nproc_per_node=many")
    assert "hydra.launcher.nproc_per_node=many: " in capsys.readouterr().err
    assert not list((tmp_path / "sweep").glob("*/config.yaml"))


def test_a_sweep_goes_on_with_the_number_of_processes_that_it_has(sweep: Callable[..., Path], tmp_path: Path) -> None:
    finished_with(tmp_path / "sweep", 1)
    assert set(times(sweep("sampler=random", "seed=0"))) == {"random-s9", "random-s0"}


def test_a_job_that_a_cluster_begins_again_is_done_from_its_start(
    sweep: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """SLURM stops a job while it runs and begins it again, without the sweep being asked."""
    inside = Run.__enter__
    left = tmp_path / "sweep" / "random-s0" / "config.yaml"

    def stopped_before(run: Run) -> Run:
        left.write_text("what the first start left")
        return inside(run)

    monkeypatch.setattr(Run, "__enter__", stopped_before)
    with pytest.raises(SystemExit):
        sweep("sampler=random", "seed=0")
    assert "random-s0 holds a run already" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "sweep")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert set(times(sweep("sampler=random", "seed=0"))) == {"random-s0"}
    aside = tmp_path / "sweep" / "unfinished" / "random-s0-1" / "config.yaml"
    assert aside.read_text() == "what the first start left" and "batch_sampler" in left.read_text()


def test_a_sweep_is_not_started_twice_at_once(
    sweep: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sweep").mkdir()
    with open(tmp_path / "sweep" / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(SystemExit):
            sweep("sampler=random,temporal")
    assert "is running already" in capsys.readouterr().err
    assert times(tmp_path / "sweep") == {}


def wandb_runs(sweep: Path) -> dict[str, str]:
    """Name and group of the one W&B run of each job."""
    runs: list[Any] = []
    for file in sorted(sweep.glob("*/wandb/offline-run-*/*.wandb")):
        runs += wandb_file.of(wandb_file.records(file), "run")[:1]
    return {run.display_name: run.run_group for run in runs}


def test_jobs_are_one_group_to_wandb(sweep: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_RUN_GROUP", raising=False)
    assert wandb_runs(sweep("sampler=random,temporal", "logger=wandb")) == {
        "random-s0": "sweep",
        "temporal-s0": "sweep",
    }
    assert "WANDB_RUN_GROUP" not in os.environ and wandb.run is None


JOB = """
import os, sys, time
from pathlib import Path
import hydra
from hydra.core.hydra_config import HydraConfig
from cellcohort.runtime import resolvers
from cellcohort.runtime.cli import run_command

resolvers.register()
CONF = Path(os.environ["CONF"])

@hydra.main(config_path=str(CONF), config_name="train", version_base="1.3")
def main(config):
    if config.objective.temperature < 0:
        raise ValueError("too cold")
    place, (rank, size) = Path(HydraConfig.get().runtime.output_dir), map(os.environ.get, ("RANK", "WORLD_SIZE"))
    (place / f"begun-{rank}").write_text(f"{os.getpid()} {os.environ['WANDB_RUN_GROUP']} {size}")
    end = time.monotonic() + 100
    while len(list(place.parent.glob("*/begun-*"))) < 2 and time.monotonic() < end:
        time.sleep(0.1)
    if time.monotonic() >= end:
        raise RuntimeError("the other process did not begin")

if __name__ == "__main__":
    run_command(main, CONF)
"""


def at_once(directory: Path, *options: str) -> tuple[subprocess.CompletedProcess[str], list[list[str]]]:
    """A sweep of jobs that only wait until two processes are there: how it ended, and what each process told."""
    (directory / "job.py").write_text(JOB)
    done = new_process(  # whose end ends the workers of joblib
        directory, sys.executable, "job.py", "-m", "hydra.sweep.dir=sweep", *options,
        environment={**os.environ, "OMP_NUM_THREADS": "1", "CONF": str(SCRIPTS.parent / "conf")},
    )  # fmt: skip
    files = sorted((directory / "sweep").glob("*/begun-*"))
    return done, [[file.parent.name, *file.read_text().split()] for file in files]


def test_two_jobs_run_at_once_in_processes_of_one_wandb_group(tmp_path: Path) -> None:
    done, told = at_once(tmp_path, "sampler=random,temporal", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    assert done.returncode == 0, done.stderr
    names, processes, groups, _ = zip(*told, strict=True)
    assert names == ("random-s0", "temporal-s0") and processes[0] != processes[1] and {*groups} == {"sweep"}


def test_each_job_can_have_a_torchrun_of_its_own(tmp_path: Path) -> None:
    """One of the two jobs fails."""
    done, told = at_once(tmp_path, "sampler=random", WRONG_AND_RIGHT, "hydra/launcher=torchrun")
    assert done.returncode == 1 and "1 of 2 jobs failed" in done.stderr, done.stderr
    assert "random-s0-temperature-1: RuntimeError: torchrun ended with exit code 1" in done.stderr
    names, processes, groups, sizes = zip(*told, strict=True)
    assert names == ("random-s0-temperature0.5",) * 2 and processes[0] != processes[1]
    assert {*groups} == {"sweep"} and {*sizes} == {"2"}


@pytest.mark.processes
def test_jobs_can_be_given_to_submitit(start: Start, tmp_path: Path) -> None:
    """One of the two jobs fails; the other has a W&B run of its own."""
    done = start("-m", "sampler=random", WRONG_AND_RIGHT, "logger=wandb", "hydra/launcher=submitit_local")
    assert done.returncode == 1 and "random-s0-temperature-1: ValueError: " in done.stderr, done.stderr
    assert set(times(tmp_path / "sweep")) == {"random-s0-temperature0.5"}
    assert len(pd.read_csv(tmp_path / "sweep" / "random-s0-temperature0.5" / "metrics.csv")) > 0
    assert list(wandb_runs(tmp_path / "sweep").values()) == ["sweep"]


def failures(launch: Callable[[list[list[str]]], list[JobReturn]], names: str, directory: Path) -> dict[str, str]:
    """The errors of jobs that failed, with a launcher that does `launch`."""

    class Launcher:
        def launch(self, job_overrides: list[list[str]], initial_job_idx: int) -> list[JobReturn]:
            return launch(job_overrides)

    _, failed = launched(Launcher(), [Job(name, [name], "") for name in names], directory)
    return {name: str(error) for name, error in failed.items()}


def test_a_job_that_a_cluster_killed_leaves_the_others(tmp_path: Path) -> None:
    """The launcher asks job after job for its result, as that of Hydra does."""

    def launch(overrides: list[list[str]]) -> list[JobReturn]:
        executor = submitit.LocalExecutor(tmp_path)
        jobs = [executor.submit(os.abort), executor.submit(JobReturn, status=JobStatus.COMPLETED)]
        return [job.results()[0] for job in jobs]

    failed = failures(launch, "ab", tmp_path)
    assert set(failed) == {"a"} and "has not produced any output" in failed["a"]


def test_a_sweep_needs_no_library_for_clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    assert not failures(lambda overrides: [JobReturn(status=JobStatus.COMPLETED)] * len(overrides), "ab", tmp_path)


def test_jobs_that_were_not_begun_when_a_worker_died_are_begun_again(tmp_path: Path) -> None:
    asked: list[str] = []

    def launch(overrides: list[list[str]]) -> list[JobReturn]:
        asked.append("".join(name for (name,) in overrides))
        for (name,) in overrides:
            (tmp_path / name).mkdir()
            (tmp_path / name / "config.yaml").touch()
            if name == "b":
                raise RuntimeError("a worker was killed")
            (tmp_path / name / "finished").write_text("d" * 64)
        return [JobReturn(status=JobStatus.COMPLETED) for _ in overrides]

    assert failures(launch, "abcd", tmp_path) == {"b": "a worker was killed"}
    assert asked == ["abcd", "cd"]


def test_jobs_that_ran_beside_one_that_was_killed_are_done_again(tmp_path: Path) -> None:
    asked: list[str] = []

    def launch(overrides: list[list[str]]) -> list[JobReturn]:
        names = [name for (name,) in overrides]
        asked.append("".join(names))
        for name in names[:2]:  # two at once
            (tmp_path / name).mkdir()
            (tmp_path / name / "config.yaml").touch()
        if "b" in names:
            raise RuntimeError("a worker was killed")
        for name in names:
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / "finished").write_text("d" * 64)
        return [JobReturn(status=JobStatus.COMPLETED) for _ in overrides]

    assert failures(launch, "abcd", tmp_path) == {"b": "a worker was killed"}
    assert asked == ["abcd", "cd", "a", "b"] and set(times(tmp_path)) == {"a", "c", "d"}
    assert {path.name for path in (tmp_path / "unfinished").iterdir()} == {"a-1", "b-1"}


@pytest.mark.parametrize("end", [30 * b"b", 64 * b"\0", b""])
def test_a_job_whose_end_was_copied_in_part_is_done_again(tmp_path: Path, end: bytes) -> None:
    jobs = [Job(name, [], name * 64) for name in "ab"]
    for job in jobs:
        (tmp_path / job.name).mkdir()
        (tmp_path / job.name / "config.yaml").touch()
        (tmp_path / job.name / "finished").write_text(job.digest)
    assert _unfinished(jobs, tmp_path, 1) == []
    (tmp_path / "a" / "finished").write_text(jobs[0].digest + "\n")
    (tmp_path / "b" / "finished").write_bytes(end)
    assert [job.name for job in _unfinished(jobs, tmp_path, 1)] == ["b"]
    assert (tmp_path / "unfinished" / "b-1").is_dir() and not (tmp_path / "b").exists()


def test_a_launcher_that_begins_nothing_is_not_asked_again(tmp_path: Path) -> None:
    def launch(overrides: list[list[str]]) -> list[JobReturn]:
        raise ValueError("no such queue")

    assert failures(launch, "ab", tmp_path) == {"a": "no such queue", "b": "no such queue"}
