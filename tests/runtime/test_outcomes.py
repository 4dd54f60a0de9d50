"""Which jobs of a sweep are not started, after others failed, and what is left of those that ended."""

from __future__ import annotations

import errno
import gc
import sys
import weakref
from pathlib import Path
from types import FunctionType
from typing import Any

import cloudpickle
import hydra
import pytest
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig

from cellcohort.runtime.cli import explain, run_command
from cellcohort.runtime.outcomes import Checked, NotStartedError, Outcomes, cause_of, said


def refused(directory: Path, ended: list[tuple[str, str]], job: str) -> str:
    """Why a job is not started after those that ended, each with its options and its cause; empty where it is."""
    outcomes = Outcomes(directory)
    outcomes.forget()
    for options, cause in ended:
        outcomes.add(options.split(), cause)
    try:
        outcomes.check(job.split())
    except NotStartedError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("ended", "said"),
    [
        ([], ""),
        ([("a=1 s=0", "full")], ""),
        ([("a=1 s=0", "full"), ("a=1 s=1", "full")], "all jobs before it failed"),
        ([("a=1 s=0", "full"), ("a=1 s=1", "other")], ""),
        ([("a=1 s=0", "full"), ("a=1 s=1", ""), ("a=3 s=0", "full")], ""),
        ([("a=1 s=0", ""), ("a=2 s=0", "full"), ("a=3 s=1", "full")], "the last 2 jobs failed"),
        ([("a=1 s=0", ""), ("a=2 s=0", "full"), ("a=2 s=1", "full")], ""),  # what a=2 needs is not there
        ([("a=1 s=0", ""), ("a=3 s=0", "full"), ("a=3 s=1", "full")], "the last 2 jobs with a=3 failed"),
        ([("a=1 s=0", ""), ("a=3 s=0", "full"), ("a=3 s=1", "full"), ("a=2 s=0", "")], ""),
        ([("a=1 s=0", "one"), ("a=2 s=0", "full"), ("a=2 s=1", "full")], "all jobs before it failed"),
    ],
)
def test_a_job_is_not_started_where_two_in_a_row_failed_for_a_cause_that_it_would_meet(
    tmp_path: Path, ended: list[tuple[str, str]], said: str
) -> None:
    same = [(f"{options} path=here", cause) for options, cause in ended]
    assert refused(tmp_path, same, "a=3 s=7 path=here") == said


def test_causes_of_two_jobs_are_equal_but_for_their_names(tmp_path: Path) -> None:
    causes = set()
    for job in ("random-s0", "random-s1"):
        (tmp_path / job).mkdir()
        (tmp_path / job / "error-rank0.txt").write_text(f"Traceback\nOSError: {job} is full\n")
        causes.add(cause_of(RuntimeError(f"no room in {job}"), tmp_path / job))
    assert causes == {"RuntimeError: no room in <job> OSError: <job> is full"}


def test_what_a_job_runs_can_be_sent_to_another_process() -> None:
    sent = cloudpickle.loads(cloudpickle.dumps((Checked(DictConfig), NotStartedError("all failed"))))
    assert isinstance(sent[0], Checked) and str(sent[1]) == "all failed"


def test_what_a_job_held_is_free_when_the_next_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where it failed, and without the collections that Python starts by itself."""
    held: list[weakref.ref[Any]] = []
    alive: list[list[str]] = []

    class Module:
        pass

    def job(config: DictConfig) -> None:
        alive.append([type(thing).__name__ for thing in (ref() for ref in held) if thing is not None])
        module: Any = Module()
        module.trainer = {"module": module}
        held.extend([weakref.ref(module), weakref.ref(config)])
        if config.seed == 1:
            try:
                raise KeyError(config.seed)
            except KeyError as error:
                raise ValueError(f"no seed {config.seed}") from error

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py", "-m", "seed=0,1,2"])
    conf = str(Path(__file__).parents[2] / "conf")
    gc.disable()
    try:
        with pytest.raises(SystemExit):
            run_command(hydra.main(config_path=conf, config_name="train", version_base="1.3")(job), Path(conf))
    finally:
        gc.enable()
    assert alive == [[], *[["DictConfig"]] * 2]  # that of the job before, which Hydra holds until the next is set up
    assert "1 of 3 jobs failed" in capsys.readouterr().err


@pytest.mark.parametrize("lost", [False, True])
def test_an_error_that_hydra_wrapped_is_told_as_it_is(lost: bool) -> None:
    target = {"_target_": "cellcohort.sampling.ExperimentAware", "leaky": 2, "column": "it's"}
    with pytest.raises(InstantiationException, match="full_key: axis") as caught:
        instantiate({"axis": target})
    error = InstantiationException(str(caught.value)) if lost else caught.value  # as another process hands it on
    assert said(error) == "ValueError: leaky must be a number in [0, 1), a share of the batch; got 2."
    assert explain(error, Path()) == "error: leaky must be a number in [0, 1), a share of the batch; got 2."


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize(
    "raised", [ValueError("it's"), FileNotFoundError("it's"), RuntimeError("it's"), OSError(errno.ENODEV, "it's")]
)
def test_errors_of_all_kinds_that_this_package_raises_are_told_alike(
    raised: Exception, lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where another process hands on what Hydra wrapped, of which the text alone is left."""

    def fails(*_: object) -> None:
        raise raised

    own = FunctionType(fails.__code__, {"__name__": "cellcohort.datasets.split"}, closure=fails.__closure__)
    monkeypatch.setattr("cellcohort.datasets.split.split", own)
    with pytest.raises(InstantiationException) as caught:
        instantiate({"split": {"_target_": "cellcohort.datasets.split.split"}})
    with pytest.raises(type(raised)) as bare:
        own()
    for error in (InstantiationException(str(caught.value)) if lost else caught.value, bare.value):
        assert explain(error, Path()) == "error: it's"


def test_an_error_of_a_library_keeps_the_target_that_hydra_names() -> None:
    with pytest.raises(InstantiationException) as caught:
        instantiate({"_target_": "json.loads", "s": "{"})
    assert "json.loads" in said(caught.value) and "json.loads" in str(explain(caught.value, Path()))


def test_an_error_of_this_package_that_a_library_caused_is_told_in_its_own_words(tmp_path: Path) -> None:
    (tmp_path / "cut.h5ad").write_text("neither")
    with pytest.raises(InstantiationException) as wrapped:
        instantiate({"_target_": "cellcohort.sources.anndata.AnnDataFiles", "path": str(tmp_path / "cut.h5ad")})
    told = explain(wrapped.value, tmp_path)
    assert told is not None and told.startswith(
        f"error: {tmp_path / 'cut.h5ad'} is no AnnData file (h5ad or zarr) that "
    )
