"""What tests of several modules share."""

from __future__ import annotations

import gc
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from launches import LIMIT, processes

if find_spec("torch"):  # tests of the sampler need the base installation only
    import torch
    from hydra._internal.hydra import Hydra
    from torch import distributed

    from cellcohort.runtime import resolvers

    resolvers.register()  # of the configs that tests compose, as scripts do

# of properties that hold everywhere, the suite tries the same few examples each time;
# pytest --hypothesis-profile=thorough tries many that change
settings.register_profile("suite", max_examples=8, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=100, deadline=None)
settings.load_profile("suite")
os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # in the workers of xdist too, as in pyproject.toml


def pytest_addoption(parser: pytest.Parser) -> None:
    """Tests that need an extra which is not installed fail, unless this is given."""
    parser.addoption("--missing-extras", action="store_true", help="skip tests whose libraries are not installed")


def pytest_configure(config: pytest.Config) -> None:
    """Lightning 2.6 says this of itself with torch 2.15 and later; all other warnings are errors."""
    config.addinivalue_line("filterwarnings", "ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning")
    if find_spec("absl"):  # by scib-metrics; when Hydra sets logging up, it would close the stream that pytest captures
        import absl.logging

        absl.logging.get_absl_handler().python_handler.stream = sys.__stderr__


def pytest_xdist_auto_num_workers() -> int:
    """One process more than there are cores, since tests wait for files and for processes that they start."""
    return len(os.sched_getaffinity(0)) + 1


class ModuleOfTests(pytest.Module):
    """A module of tests, whose imports may be of an extra that is not installed."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        try:
            return super().collect()
        except self.CollectError as error:
            skip_if_missing(self.config, error.__cause__)
            raise


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    return ModuleOfTests.from_parent(parent, path=module_path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    return (yield from _skipped(item.config))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    return (yield from _skipped(item.config))


def _skipped(config: pytest.Config) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        skip_if_missing(config, error)
        raise


def skip_if_missing(config: pytest.Config, error: BaseException | None) -> None:
    """Skip what raised an error that a library is not installed, or one made of it, where the option asks for it."""
    while error is not None and not isinstance(error, ModuleNotFoundError):
        error = error.__cause__ or error.__context__
    missing = error.name if error else None
    if config.getoption("missing_extras") and missing and not missing.startswith("cellcohort"):
        pytest.skip(f"needs {missing}, which is not installed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let tests that start processes come first, so that in most cases one worker has them, and one server forks."""
    items.sort(key=lambda item: item.get_closest_marker("processes") is None)


def pytest_collection_finish() -> None:
    """Leave modules and tests, which stay to the end, out of all garbage collections, and collect less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, *gc.get_threshold()[1:])


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test asks the network for anything, takes more than one core, or sees the launcher of the tests."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for name in [name for name in os.environ if name.startswith("TORCHELASTIC")]:
        monkeypatch.delenv(name)
    if not find_spec("torch"):
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def on_ranks(tmp_path: Path) -> Callable[..., list[Any]]:
    """``on_ranks(function, world_size, *arguments)``: what `function` gives on each rank of a gloo process group.

    The function must stand at the top level of a module; every rank is a process of its own.
    """

    def run(function: Callable[..., Any], world_size: int, *arguments: Any) -> list[Any]:
        context = processes()
        store = f"file://{tmp_path / 'store'}"
        pipes = [context.Pipe(duplex=False) for _ in range(world_size)]
        ranks = [
            context.Process(target=_on_rank, args=(sending, store, rank, world_size, function, arguments))
            for rank, (_, sending) in enumerate(pipes)
        ]
        for process, (_, sending) in zip(ranks, pipes, strict=True):
            process.start()
            sending.close()  # so that the end of a rank is the end of its pipe
        found = [_received(receiving) for receiving, _ in pipes]
        for process in ranks:
            process.join(LIMIT / 10)
            process.kill()
        for rank, (_, error) in enumerate(found):
            if error:
                pytest.fail(f"rank {rank} failed:\n{error}")
        return [value for value, _ in found]

    return run


def _received(pipe: Connection) -> tuple[Any, str | None]:
    """What a rank gave, and its error; ranks wait for each other, and so without end for one that hangs."""
    try:
        return pipe.recv() if pipe.poll(LIMIT) else (None, f"nothing came from it within {LIMIT:.0f} seconds")
    except EOFError:
        return None, "it ended without a word"


def _on_rank(
    pipe: Connection, store: str, rank: int, world_size: int, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    try:
        distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)
        pipe.send((function(*arguments), None))
    except BaseException:
        pipe.send((None, traceback.format_exc()))
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()


SCRIPTS = Path(__file__).parents[1] / "scripts"
QUICK = (
    "data=demo",
    "data.founders=40",
    "batch_sampler.batch_size=32",
    "trainer.max_epochs=3",
    "trainer.limit_train_batches=5",
    "trainer.limit_val_batches=2",
    "trainer.log_every_n_steps=1",
    "trainer.enable_progress_bar=false",
    "evaluation=none",
)


@pytest.fixture(scope="session")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Overrides of a training run that takes a second, on a small demo that all tests share."""
    return (f"data.path={tmp_path_factory.mktemp('demo')}", *QUICK)


@pytest.fixture
def train(
    quick: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Path]:
    """``train(*arguments)``: the directory of the last run of a quick scripts/train.py, in this process."""

    def run(*arguments: str) -> Path:
        monkeypatch.chdir(tmp_path)
        flags = [argument for argument in arguments if argument.startswith("-")]
        overrides = [argument for argument in arguments if not argument.startswith("-")]
        monkeypatch.setattr(sys, "argv", ["scripts/train.py", *flags, *quick, "logger=none", *overrides])
        with monkeypatch.context() as patch:
            if not any(override.startswith(("sweep=", "hydra.mode=")) for override in overrides):
                # for it, Hydra would compose all options twice
                patch.setattr(Hydra, "get_mode", lambda *arguments, **options: None)
            runpy.run_path(str(SCRIPTS / "train.py"), run_name="__main__")
        runs = [line for line in capsys.readouterr().out.splitlines() if line.startswith("run: ")]
        return Path(runs[-1].removeprefix("run: ") if runs else "")  # a sweep may have no job to run

    return run


WHOLE: list[Path] = []


@pytest.fixture
def whole(train: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a quick run without further options, which the tests of a process share: leave it as it is."""
    if not WHOLE:
        directory = tmp_path_factory.mktemp("whole") / "run"
        train(f"hydra.run.dir={directory}")
        WHOLE.append(directory)
    return WHOLE[0]
