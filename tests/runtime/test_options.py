"""Options of the wrong kind are refused in one sentence, by training and preview alike, before anything is made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import hydra
import pytest
from hydra.utils import get_object
from omegaconf import DictConfig

from cellcohort.runtime import options
from cellcohort.runtime.options import check_kinds

CONF = Path(__file__).parents[2] / "conf"
OPTIONS = {group.name: sorted(file.stem for file in group.glob("*.yaml")) for group in CONF.iterdir() if group.is_dir()}
AXES = "sampler=[experiment_aware,condition,temporal,track_capped]"


def compose(*overrides: str, name: str = "train") -> DictConfig:
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra.compose(name, list(overrides))


@pytest.mark.parametrize("data", OPTIONS["data"])
@pytest.mark.parametrize("reading", OPTIONS["reading"])
def test_every_default_is_of_the_kind_that_the_code_takes(data: str, reading: str) -> None:
    check_kinds(compose(f"data={data}", f"reading={reading}", AXES))


@pytest.mark.parametrize("name", OPTIONS["batch_sampler"])
def test_a_sampler_of_another_library_is_refused_what_it_does_not_take(name: str) -> None:
    check_kinds(compose("data=demo", f"batch_sampler={name}"), ["batch_sampler"])
    chunked = compose("data=demo", f"batch_sampler={name}", "reading=chunks")
    if name in ("default", "annbatch_class", "annbatch_weighted_class"):
        check_kinds(chunked, ["batch_sampler"])
    else:
        with pytest.raises(ValueError, match=r"chunk_size is no option of .*, which has .*: use reading=rows\."):
            check_kinds(chunked, ["batch_sampler"])


@pytest.mark.parametrize("source", OPTIONS["source"])
def test_every_default_of_a_preparation_is_of_the_kind_that_the_code_takes(source: str) -> None:
    check_kinds(compose(f"source={source}", name="prepare"))


@pytest.mark.parametrize(
    "overrides",
    [
        ["data=tracks", "data.frames=5", "data.columns.condition={column: dye, above: 10, labels: [alive, dead]}"],
        ["data=tracks", "data.start_hours={a: 1, b: 2.5}", "data.merge_labels={condition: {1: one}}"],
        ["split.held_out=[1,2]", "split.by=experiment"],
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
        (["split.fraction=abc"], r"split\.fraction='abc' is of the wrong kind: input should be a valid num"),
        (["data.tau_hours=null"], r"data\.tau_hours=null is of the wrong kind: input should be a valid "),
        (["data.tau_hours=[1,b]"], r"data\.tau_hours=\[1, 'b'\] is of the wrong kind: input should be a valid num"),
        (["data.frames=abc"], r"data\.frames='abc' is of the wrong kind: input should be a valid int"),
        (["data.frames=2.5"], r"data\.frames=2\.5 is of the wrong kind: input should be a valid int"),
        (
            ["module.learning_rate=fast"],
            r"module\.learning_rate='fast' is of the wrong kind: input should be a ",
        ),
        (["model.hidden=[1,2]"], r"model\.hidden=\[1, 2\] is of the wrong kind: input should be a valid int"),
        (["data.augment.noise=loud"], r"data\.augment\.noise='loud' is of the wrong kind: input should be "),
        (
            ["loader.num_workers=two"],
            r"loader\.num_workers='two' is of the wrong kind: input should be a valid int",
        ),
        (
            [AXES, "sampler.temporal.window_hours=[1]"],
            r"sampler\.temporal\.window_hours=\[1\] is of the wrong kind: input should be a valid num",
        ),
        ([AXES, "sampler.condition.column={a: b}"], r"sampler\.condition\.column=\{'a': 'b'\} is of the wrong kind"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_in_one_sentence(overrides: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check_kinds(compose("data=demo", *overrides))


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["batch_sampler.batch_size=x"], "batch_sampler.batch_size='x' is of the wrong kind"),
        (["split.fraction=abc"], "split.fraction='abc' is of the wrong kind"),
        (["sampler=temporal", "sampler.temporal.window_hours=-1"], "window_hours must be"),
    ],
)
def test_options_of_batches_are_refused_before_torch_is_imported(
    typed: list[str],
    said: str,
    train: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    imported: list[str] = []
    monkeypatch.setattr(options, "get_object", lambda name: imported.append(name) or get_object(name))
    with pytest.raises(SystemExit):
        train(*typed, "hydra.run.dir=run")
    assert said in capsys.readouterr().err
    assert imported and all(name.startswith(("cellcohort.sampling", "cellcohort.datasets.split")) for name in imported)


def test_a_script_refuses_it_before_a_directory_is_made(
    train: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        train("split.fraction=abc", "hydra.run.dir=run")
    assert "error: split.fraction='abc' is of the wrong kind" in capsys.readouterr().err
    assert not (tmp_path / "run" / "config.yaml").exists()
