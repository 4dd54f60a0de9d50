"""Options of the wrong kind are refused in one sentence, by training and preview alike, before anything is made."""

from __future__ import annotations

import copy
import inspect
import sys
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import hydra
import pandas as pd
import pytest
import yaml
from annotated_types import Gt, Lt
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

from cellcohort.extras import require
from cellcohort.runtime.distributed import check_choices
from cellcohort.runtime.kinds import in_words
from cellcohort.runtime.options import check_kinds
from cellcohort.runtime.run_directory import check_name
from cellcohort.runtime.signatures import declared
from launches import new_process

CONF = Path(__file__).parents[2] / "conf"
OPTIONS = {group.name: sorted(file.stem for file in group.glob("*.yaml")) for group in CONF.iterdir() if group.is_dir()}
AXES = "sampler=[experiment_aware,condition,temporal,track_capped]"


@cache
def compose(*overrides: str, name: str = "train") -> DictConfig:
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra.compose(name, list(overrides))


def with_axes(*overrides: str) -> DictConfig:
    """A config of features with all axes, in which these options have other values."""
    config = copy.deepcopy(compose("data=demo", AXES))
    for override in overrides:
        option, _, value = override.partition("=")
        OmegaConf.update(config, option, yaml.safe_load(value))
    return config


@pytest.mark.parametrize(
    ("data", "reading"),
    [
        *((data, "rows") for data in OPTIONS["data"]),
        *(("anndata", each) for each in OPTIONS["reading"] if each != "rows"),
    ],
)
def test_every_default_is_of_the_kind_that_the_code_takes(data: str, reading: str) -> None:
    check_kinds(compose(f"data={data}", f"reading={reading}", AXES))


@pytest.mark.parametrize("name", OPTIONS["batch_sampler"])
def test_a_sampler_of_another_library_is_refused_what_it_does_not_take(name: str) -> None:
    check_kinds(compose("data=demo", f"batch_sampler={name}"))
    chunked = compose("data=demo", f"batch_sampler={name}", "reading=chunks")
    if name in ("default", "annbatch_class", "annbatch_weighted_class"):
        check_kinds(chunked)
    else:
        with pytest.raises(ValueError, match=r"chunk_size is no option of .*, which has .*: use reading=rows\."):
            check_kinds(chunked)


def test_a_schedule_without_axes_is_refused(train: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        train("schedule={sampler.experiment_aware.leaky: [0.5, 0]}", "batch_sampler=m_per_class")
    assert "schedule changes options of axes, which samplers of other libraries do not have" in capsys.readouterr().err


@pytest.mark.parametrize("source", OPTIONS["source"])
def test_every_default_of_a_preparation_is_of_the_kind_that_the_code_takes(source: str) -> None:
    check_kinds(compose(f"source={source}", name="prepare"))


@pytest.mark.parametrize(
    "overrides",
    [
        ["data=tracks", "data.frames=5", "data.columns.condition={column: dye, above: 10, labels: [alive, dead]}"],
        ["data=tracks", "data.start_hours={a: 1, b: 2.5}", "data.merge_labels={condition: {1: one}}"],
        ["split.held_out=[1,2]", "split.by=experiment"],
        ["split.held_out=e1", "split.by=experiment"],
        [AXES, "sampler.condition.column=[condition,cell_type]", "sampler.experiment_aware.weights={a: 1}"],
        [AXES, "sampler.condition.ratio={a: 1, b: 2.5}", "sampler.temporal.window_hours=2"],
        [AXES, "sampler.experiment_aware.weights=uniform", "batch_sampler.num_batches=7"],
    ],
)
def test_values_of_the_right_kind_are_taken(overrides: list[str]) -> None:
    check_kinds(compose(*overrides))


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["split.fraction=abc"], r"split\.fraction must be a number > 0 and < 1, got 'abc'\.$"),
        (["data.tau_hours=null"], r"data\.tau_hours must be a list of numbers, got null\.$"),
        (["data.tau_hours=1"], r"data\.tau_hours must be a list of numbers, got 1\.$"),
        (["data.tau_hours=[1,b]"], r"data\.tau_hours must be a list of numbers, got \[1, 'b'\]\.$"),
        (["data.frames=abc"], r"data\.frames must be an integer > 0, got 'abc'\.$"),
        (["data.frames=-3"], r"data\.frames must be an integer > 0, got -3\.$"),
        (["data.frames=2.5"], r"data\.frames must be an integer > 0, got 2\.5\.$"),
        (
            ["module.learning_rate=fast"],
            r"module\.learning_rate must be a number > 0, got 'fast'\.$",
        ),
        (["model.hidden=[1,2]"], r"model\.hidden must be an integer > 0, got \[1, 2\]\.$"),
        (["data.augment.noise=loud"], r"data\.augment\.noise must be a number, got 'loud'\.$"),
        (
            ["loader.num_workers=two"],
            r"loader\.num_workers must be an integer >= 0, got 'two'\.$",
        ),
        (
            ["sampler.temporal.window_hours=[1]"],
            r"^sampler\.temporal\.window_hours must be a number >= 0, got \[1\]\.$",
        ),
        (
            ["sampler.experiment_aware.leaky=ten"],
            r"^sampler\.experiment_aware\.leaky must be a number >= 0 and < 1, got 'ten'\.$",
        ),
        (
            ["sampler.temporal.global_fraction=2"],
            r"^sampler\.temporal\.global_fraction must be a number >= 0 and <= 1, got 2\.$",
        ),
        (
            ["sampler.condition.column={a: b}"],
            r"sampler\.condition\.column must be a string or a list of strings, got \{'a': 'b'\}\.$",
        ),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_in_one_sentence(overrides: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check_kinds(with_axes(*overrides))


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("batch_sampler.batch_size=0", r"batch_sampler\.batch_size must be an integer > 0, got 0\.$"),
        (
            "batch_sampler.num_batches=0",
            r"num_batches must be an integer > 0, 'cover' or null, got 0\.$",
        ),
        ("seed=-1", "^seed must be an integer >= 0, got -1"),
        ("split.seed=-1", r"^split\.seed must be an integer >= 0, got -1"),
        ("split.fraction=1.0", "split.fraction must be a number > 0 and < 1, got 1.0"),
        ("module.learning_rate=0", "module.learning_rate must be a number > 0, got 0"),
        ("model.hidden=0", "model.hidden must be an integer > 0, got 0"),
        ("objective.temperature=-1", "objective.temperature must be a number > 0, got -1"),
        ("loader.num_workers=-1", "loader.num_workers must be an integer >= 0, got -1"),
        ("trainer.max_epochs=x", "trainer.max_epochs must be an integer or null, got 'x'"),
        (
            "trainer.limit_train_batches=all",
            "limit_train_batches must be an integer, a number or null, got 'all'",
        ),
        ("trainer.deterministic=maybe", "trainer.deterministic must be true or false, 'warn' or null, got 'maybe'"),
    ],
)
def test_a_value_out_of_range_is_refused_and_those_of_lightning_are_too(override: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check_kinds(with_axes(override))


def test_an_accelerator_or_a_strategy_that_lightning_does_not_know_is_refused() -> None:
    for typed in ("accelerator=cuda", "accelerator=mps", "strategy=ddp_spawn", "strategy=FSDP"):
        check_choices(with_axes(f"trainer.{typed}").trainer)
    with pytest.raises(
        ValueError, match=r"accelerator='gpuu' is not a choice\. Did you mean 'gpu'\? Use one of auto, cpu"
    ):
        check_choices(with_axes("trainer.accelerator=gpuu").trainer)
    with pytest.raises(ValueError, match=r"accelerator='CPU' is not a choice"):
        check_choices(with_axes("trainer.accelerator=CPU").trainer)
    with pytest.raises(ValueError, match=r"trainer\.strategy='ddpp' is not a choice\. .* ddp, "):
        check_choices(with_axes("trainer.strategy=ddpp").trainer)


def targets(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        yield from [str(node["_target_"])] if "_target_" in node else []
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else []:
        yield from targets(child)


def test_the_source_tells_what_inspection_of_the_imported_object_does() -> None:
    require("evaluate")
    every = {"cellcohort.loading.chunks.make_chunked_loader"}
    for file in CONF.rglob("*.yaml"):
        every |= set(targets(OmegaConf.to_container(OmegaConf.load(file))))
    every |= {f"cellcohort.sampling.{name}" for name in ("BatchSampler", "ChunkedBatchSampler", "ChunksShuffled")}
    every = {name for name in every if name.startswith(("cellcohort.", "lightning."))}
    assert len(every) > 40
    for target in every:
        known = inspect.signature(get_object(target)).parameters
        found = declared(target)
        assert set(found) == {name for name in known if not known[name].kind.name.startswith("VAR_")}, target
        for name in set(found) - {"tracking_uri"}:  # whose default is read from the environment
            parameter = found[name]
            assert parameter.may_be_none == (known[name].default in (None, inspect.Parameter.empty)), (target, name)


SLOW = ("torch", "lightning", "monai", "wandb", "kornia", "anndata", "zarr", "matplotlib", "sklearn")
REFUSED = """
import runpy, sys
scripts, slow = sys.argv[1], sys.argv[2].split(",")
for number, typed in enumerate(sys.argv[3:]):
    script = f"{scripts}/{'preview' if number % 2 else 'train'}.py"
    sys.argv = [script, *typed.split()]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as stop:
        assert stop.code or typed == "--help", typed
print("imported:", [name for name in slow if name in sys.modules])
"""


def test_what_is_typed_is_refused_before_slow_libraries_are_imported(tmp_path: Path) -> None:
    pd.DataFrame({"plate": ["a"], "drug": ["b"], "time": [0], "track": [1]}).to_parquet(tmp_path / "cells.parquet")
    lines = {
        "--help": "batch_sampler",
        "batch_sampler.batch_size=0": "batch_sampler.batch_size must be an integer > 0, got 0",
        "trainer.max_epochs=x": "trainer.max_epochs must be an integer",
        "trainer.max_epochs=0": "no batch to train on: trainer.max_epochs=0",
        "sampler=temporal sampler.temporal.window_hours=-1": "window_hours must be a number >= 0, got -1",
        "sampler=temperal": "Did you mean sampler=temporal?",
        "data=tracks data.path=cells.parqet": "data.path=cells.parqet is not there (seen from",
        "data=timelapse data.index=cells.parqet": "data.index=cells.parqet is not there (seen from",
        "data=tracks data.path=cells.parquet data.columns.experiment=palte data.columns.features=[time]": (
            "data.columns.experiment='palte', data.columns.condition='condition': no such column"
        ),
    }
    done = new_process(tmp_path, sys.executable, "-c", REFUSED, str(CONF.parent / "scripts"), ",".join(SLOW), *lines)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "imported: []"
    for said in lines.values():
        assert said in done.stdout + done.stderr, said
    assert "Did you mean cells.parquet?" in done.stderr and "Did you mean 'plate'?" in done.stderr
    assert "Error executing job" not in done.stderr and "overrides" not in done.stderr


def test_a_script_refuses_it_before_a_directory_is_made(
    train: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        train("split.fraction=abc", "hydra.run.dir=run")
    assert "error: split.fraction must be a number" in capsys.readouterr().err
    assert not (tmp_path / "run" / "config.yaml").exists()


@pytest.mark.parametrize("name", ["''", "null", "..", "a/b", "../../x", "'a\udce9'", 170 * "x", f"'{60 * '\u7d30'}'"])
@pytest.mark.parametrize("sweep", [[], ["-m", "seed=0,1"]])
def test_a_run_name_that_is_none_of_a_directory_is_refused(
    train: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, sweep: list[str]
) -> None:
    with pytest.raises(SystemExit):
        train(f"run_name={name}", *sweep)
    said = "cannot be a part of the name of a directory: use 1 to 150 bytes of printable text without a slash"
    assert said in capsys.readouterr().err
    assert not list(tmp_path.glob("**/config.yaml")) and not list(tmp_path.glob("**/multirun.yaml"))


def test_a_number_is_the_name_of_a_run() -> None:
    for name in (0, 1, 0.5, False, "a b"):
        check_name(name)


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (int | None, "an integer or null"),
        (int | float | None, "an integer, a number or null"),
        (float | None | int, "an integer, null or a number"),
        (Annotated[float, Gt(0), Lt(1)], "a number > 0 and < 1"),
        (Literal["mean", True] | Sequence[float], "'mean', true or a list of numbers"),
        (tuple[int, int] | Mapping[str, float], "a list of 2 integers or a mapping of names to numbers"),
        (list[Mapping[str, int]], "a list of values"),
        (typing.List, "a List"),  # noqa: UP006  # as a library may write it
        (Callable[[int], str], "a Callable"),
    ],
)
def test_what_an_annotation_allows_is_said_in_words(annotation: Any, words: str) -> None:
    assert in_words(annotation) == words
