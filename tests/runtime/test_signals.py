"""SIGTERM and SIGINT: the step in hand is saved, files are closed, and the last line tells how to go on."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from cellcohort.composition.log import read_composition
from cellcohort.module import ContrastiveModule
from cellcohort.runtime import signals
from cellcohort.runtime.cli import run_command
from cellcohort.runtime.restart import command
from cellcohort.runtime.stop_on_signal import StopOnSignal
from launches import SCRIPTS, torchrun

Train = Callable[..., Path]


@pytest.fixture
def signalled(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``signalled(number, hook, step)``: this process gets a signal in a hook of the module at a step, once."""

    def at(number: signal.Signals, hook: str = "training_step", step: int = 6) -> None:
        plain, sent = getattr(ContrastiveModule, hook), []

        def send(module: ContrastiveModule, *arguments: Any) -> Any:
            if not sent and module.global_step == step and not module.trainer.sanity_checking:
                sent.append(step)
                os.kill(os.getpid(), number)
            return plain(module, *arguments)

        monkeypatch.setattr(ContrastiveModule, hook, send)

    return at


def losses(directory: Path) -> list[float]:
    return list(pd.read_csv(directory / "metrics.csv")["train/loss"].dropna())


@pytest.mark.filterwarnings("ignore:The dirpath has changed")
@pytest.mark.parametrize(
    ("number", "code", "hook", "step", "saved"),
    [
        (signal.SIGTERM, 143, "training_step", 6, 7),
        (signal.SIGTERM, 143, "training_step", 4, 5),
        (signal.SIGTERM, 143, "validation_step", 5, 5),
        (signal.SIGINT, 130, "training_step", 6, 7),
    ],
)
def test_a_stopped_training_saves_its_step_and_goes_on_as_it_would_have(
    train: Train, whole: Path, tmp_path: Path, signalled: Callable[..., None],
    capsys: pytest.CaptureFixture[str], number: signal.Signals, code: int, hook: str, step: int, saved: int,
) -> None:  # fmt: skip
    before = signal.getsignal(signal.SIGINT)
    signalled(number, hook, step)
    with pytest.raises(SystemExit) as stop:
        train("hydra.run.dir=begun")
    assert stop.value.code == code
    begun, last = tmp_path / "begun", Path("begun/checkpoints/last.ckpt")
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"stopped by {number.name}. To go on: python ") and "scripts/train.py " in said
    assert torch.load(last, weights_only=True)["global_step"] == saved == len(losses(begun))
    rows = read_composition(begun)
    assert sorted(rows.loc[rows["rank"] == 0, "global_step"]) == list(range(saved))
    assert not (begun / "finished").exists() and not list(begun.glob("error-*"))
    (typed,) = [word for word in shlex.split(said) if word.startswith("resume=")]
    rest = train(typed)
    assert losses(begun) + losses(rest) == losses(whole)
    assert signal.getsignal(signal.SIGINT) is before and signals.received() is None


def test_no_other_job_of_a_sweep_begins_and_the_sweep_goes_on_from_the_step(
    train: Train, whole: Path, tmp_path: Path, signalled: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    signalled(signal.SIGTERM)
    with pytest.raises(SystemExit) as stop:
        train("-m", "seed=0,1", "hydra.sweep.dir=sweep")
    assert stop.value.code == 143
    assert capsys.readouterr().err.splitlines()[-1].endswith("hydra.sweep.dir=sweep")
    assert {path.name for path in (tmp_path / "sweep").iterdir() if path.is_dir()} == {"random-s0"}
    train("-m", "seed=0,1", "hydra.sweep.dir=sweep")
    begun, rest = tmp_path / "sweep/unfinished/random-s0-1", tmp_path / "sweep/random-s0"
    assert losses(begun) + losses(rest) == losses(whole)
    assert (rest / "finished").read_text() == (whole / "finished").read_text()
    assert (tmp_path / "sweep/random-s1/finished").exists()


def test_wandb_ends_with_the_exit_code(
    train: Train, signalled: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    monkeypatch.setattr("cellcohort.runtime.run.finish_trackers", lambda exit_code: ended.append(exit_code))
    signalled(signal.SIGTERM)
    with pytest.raises(SystemExit):
        train()
    assert ended == [143]


def test_outside_a_training_a_signal_stops_at_once_and_files_are_closed(tmp_path: Path) -> None:
    with pytest.raises(signals.Stopped) as stop, signals.stoppable(), open(tmp_path / "file", "w") as file:
        file.write("all of it")
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("went on")
    assert stop.value.code == 143 and (tmp_path / "file").read_text() == "all of it"


def test_a_signal_that_a_library_catches_is_no_error_of_the_program(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numba ignores what is raised while it compiles, and then lacks what it was to compile."""

    def main() -> None:
        with contextlib.suppress(signals.Stopped):
            os.kill(os.getpid(), signal.SIGTERM)
        raise RuntimeError("no compiled object yet")

    monkeypatch.setattr(sys, "argv", ["train.py"])
    with pytest.raises(signals.Stopped) as stop:
        run_command(main, SCRIPTS.parent / "conf")
    said = capsys.readouterr().err
    assert stop.value.code == 143 and "stopped by SIGTERM. Start the same command again." in said
    assert "no compiled object" not in said


def test_a_signal_that_comes_twice_counts_once_and_a_second_ctrl_c_stops_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds = iter([1.0, 1.1, 1.2, 9.0])
    monkeypatch.setattr(signals.time, "monotonic", lambda: next(seconds))
    with pytest.raises(signals.Stopped) as stop, signals.stoppable(), signals.deferred():
        for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)
        assert signals.received() == signal.SIGINT
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("went on")
    assert stop.value.code == 130


def test_a_rank_that_another_one_stopped_ends_in_peace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torchrun sends SIGTERM to a rank that still writes its files when another one has ended."""
    monkeypatch.setattr(signals, "_received", None)
    callback = StopOnSignal()
    callback.stopping = True
    with signals.stoppable():
        with pytest.raises(signals.Stopped):
            callback.stop_if_decided()
        os.kill(os.getpid(), signal.SIGTERM)
    assert signals.received() is None


def test_a_worker_of_a_sweep_begins_no_other_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "_received", None)
    with pytest.raises(signals.Stopped), signals.stoppable(forget=False):
        os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(signals.Stopped), signals.stoppable(forget=False):
        raise AssertionError("began")


def test_the_command_keeps_what_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["scripts/train.py", "sampler=[a,b]", "resume=old.ckpt", "hydra.run.dir=there"])
    assert command(resume="new (1).ckpt") == "python scripts/train.py 'sampler=[a,b]' 'resume=\"new (1).ckpt\"'"


@pytest.mark.processes
def test_two_ranks_stop_after_the_same_step_and_go_on(quick: tuple[str, ...], tmp_path: Path) -> None:
    """A signal to one rank alone stops both."""
    (tmp_path / "mine.py").write_text(
        "import os, signal, lightning\n"
        "class Kill(lightning.Callback):\n"
        "    def on_train_batch_start(self, trainer, module, batch, index):\n"
        "        if trainer.global_rank == 1 and trainer.global_step == 6:\n"
        "            os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    done = torchrun(
        tmp_path, "train.py", *quick, "logger=none", "hydra.run.dir=run", "+callbacks.kill={_target_: mine.Kill}",
        PYTHONPATH=str(tmp_path),
    )  # fmt: skip
    assert done.returncode != 0
    run = tmp_path / "run"
    assert (run / "stopped").exists(), done.stderr
    assert torch.load(run / "checkpoints/last.ckpt", weights_only=True)["global_step"] in (7, 8)
    assert len(losses(run)) in (7, 8) and "To go on: torchrun --standalone --nproc-per-node=2" in done.stderr


@pytest.mark.processes
def test_a_launch_that_torchrun_restarts_goes_on_in_its_own_directory(quick: tuple[str, ...], tmp_path: Path) -> None:
    """Rank 1 dies without a word in its first start, after a checkpoint within an epoch (test_ranks sees it named)."""
    (tmp_path / "mine.py").write_text(
        "import os, lightning\n"
        "class Die(lightning.Callback):\n"
        "    def on_train_batch_start(self, trainer, module, batch, index):\n"
        "        first = os.environ['TORCHELASTIC_RESTART_COUNT'] == '0'\n"
        "        if first and trainer.global_rank == 1 and trainer.global_step == 9:\n"
        "            os._exit(1)\n"
    )
    done = torchrun(
        tmp_path, "train.py", *quick, "logger=none", "+callbacks.die={_target_: mine.Die}",
        "callbacks.last.every_n_train_steps=4", "callbacks.ranks.hang_seconds=6", restarts=1, PYTHONPATH=str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (run,) = tmp_path.glob("outputs/*/*/finished")
    (begun,) = run.parent.parent.glob("unfinished/*")
    assert begun.name == f"{run.parent.name}-1" and f"goes on from {begun}/checkpoints/last.ckpt" in done.stdout
    rows = read_composition(run.parent)
    assert sorted(rows.loc[rows["rank"] == 0, "global_step"]) == list(range(8, 15))
