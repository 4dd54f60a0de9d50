"""What ``scripts/fuzz.py`` found: wrong inputs that ended in an error of a library, and now are explained."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydra
import numpy as np
import pandas as pd
import pytest
import yaml
import zarr
from omegaconf import OmegaConf
from omegaconf.errors import ConfigAttributeError

from cellcohort.cells import CellTable
from cellcohort.comparison import read_runs
from cellcohort.data.table import Table
from cellcohort.datasets.anndata.obs import read_obs
from cellcohort.evaluation import load_run
from cellcohort.evaluation.batches import StoredBatches, outstanding
from cellcohort.runtime.cli import explain
from cellcohort.runtime.options import check_input
from sweep import AXES, make_run

CONF = Path(__file__).parents[2] / "conf"


@pytest.mark.parametrize("odd", [[], {"a": 1}, np.zeros(2)])
def test_labels_that_are_lists_are_refused(odd: object) -> None:
    frame = pd.DataFrame({"experiment": pd.Series(["a", odd, "b"], dtype=object)})
    with pytest.raises(ValueError, match=r"^column 'experiment' holds values that can be no labels, such as .*, a "):
        CellTable.from_frame(frame)


@pytest.mark.parametrize(
    "options",
    [
        {"columns": {"track": "odd"}},
        {"columns": {"experiment": ["experiment", "odd"]}},
        {"columns": {"condition": "odd"}},
        {"merge_labels": {"odd": {"a": "b"}}},
    ],
)
def test_columns_of_a_file_whose_values_are_mappings_are_refused(options: dict[str, Any], tmp_path: Path) -> None:
    frame = pd.DataFrame({"experiment": ["a", "b"], "condition": "x", "odd": [{"a": 1}, {"a": 2}]})
    frame.to_parquet(tmp_path / "cells.parquet")
    with pytest.raises(ValueError, match=r"^column 'odd' holds values that can be no labels, such as {'a': 1}, a dict"):
        Table(tmp_path / "cells.parquet", **options).cells()


def test_an_obs_without_an_index_is_damaged() -> None:
    group = zarr.group()
    group.create_array("column", data=np.zeros(3))
    for obs in (group, group["column"]):
        with pytest.raises(ValueError, match=r"^obs is damaged, since its index cannot be read"):
            read_obs(obs)


def test_a_column_that_is_there_twice_is_refused_where_it_is_used() -> None:
    frame = pd.DataFrame([["a", "x", "1", "2"]] * 4, columns=["experiment", "condition", "track", "track"])
    cells = CellTable.from_frame(frame)
    with pytest.raises(ValueError, match="'track' names 2 columns of the table; rename all but one"):
        cells.column("track")
    with pytest.raises(ValueError, match="track='track' names 2 columns of the table"):
        CellTable.from_frame(frame, track="track")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("sampler=null", "must be a string or a list"),
        ("split=1", "while resolving interpolation"),
        ("seed=${nothing}", "'nothing' not found"),
        ("seed=???", "Missing mandatory value"),
    ],
)
def test_options_that_hydra_cannot_put_together_are_told_in_a_sentence(override: str, said: str) -> None:
    with pytest.raises(Exception, match=said) as error, hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        config = hydra.compose("train", ["data=demo", "model=mlp", override])
        OmegaConf.to_yaml(config, resolve=True)
        _ = config.validation_sampler.seed, config.seed
    text = explain(error.value, CONF)  # type: ignore[arg-type]
    assert text and said in text


def test_a_group_that_is_left_out_and_a_path_that_is_a_number_are_told() -> None:
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        config = hydra.compose("train", ["data=tracks", "data.path=0", "trainer=[]"])
    with pytest.raises(ValueError, match=r"data\.path=0 is of type int; write \./0"):
        check_input(config.data)
    with pytest.raises(ConfigAttributeError) as error:
        _ = config.trainer
    assert explain(error.value, CONF) == (
        "error: trainer is left out, but is needed. The choices of trainer are: ddp, debug, default."
    )


def emptied(directory: Path, name: str) -> None:
    (directory / name).write_bytes(b"")


def logged(directory: Path, lines: str) -> None:
    """Put other lines into the log of losses."""
    (directory / "metrics.csv").write_text(f"epoch,step,train/loss\n{lines}")


def without(directory: Path, *keys: str, put: object = None) -> None:
    """Take a key out of the config of a run, or put another value in its place."""
    config = yaml.safe_load((directory / "config.yaml").read_text())
    node = config
    for key in keys[:-1]:
        node = node[key]
    if put is None:
        del node[keys[-1]]
    else:
        node[keys[-1]] = put
    (directory / "config.yaml").write_text(yaml.safe_dump(config))


def test_a_damaged_composition_or_config_is_named_by_a_comparison(tmp_path: Path) -> None:
    whole = make_run(tmp_path / "whole", AXES["random"], 0, {"probe": 0.5})
    for name, damage in {
        "composition": lambda run: emptied(run, "composition.parquet"),
        "seed": lambda run: without(run, "seed"),
        "axes": lambda run: without(run, "batch_sampler", "axes"),
    }.items():
        shutil.copytree(whole, tmp_path / name)
        damage(tmp_path / name)
    runs, left_out = read_runs([tmp_path])
    assert [run.directory for run in runs] == [whole]
    said = {each.directory.name: each.reason for each in left_out}
    file = tmp_path / "composition" / "composition.parquet"
    assert said.pop("composition").startswith(f"{file} is damaged: Parquet file size is 0 bytes")
    for name, reason in said.items():
        assert f"{tmp_path / name / 'config.yaml'} was changed or is damaged: KeyError: '{name}'" in reason


def test_a_damaged_run_is_named_by_show_and_evaluate(train: Callable[..., Path], tmp_path: Path) -> None:
    whole = train("trainer.max_epochs=1")

    def damaged(name: str, damage: Callable[[Path], None]) -> Path:
        shutil.copytree(whole, tmp_path / name)
        damage(tmp_path / name)
        return tmp_path / name

    cases: list[tuple[Callable[[Path], None], Callable[[Path], Any], str]] = [
        (lambda run: emptied(run, "metrics.csv"), outstanding, r"metrics\.csv is damaged: No columns to parse"),
        (
            lambda run: logged(run, "0,0,1.0\n0,1,train\n"),
            outstanding,
            r"metrics\.csv is damaged: Unable to parse string .train.",
        ),
        (lambda run: emptied(run, "composition.parquet"), outstanding, r"composition\.parquet is damaged: "),
        (
            lambda run: without(run, "module", "seed"),
            lambda run: StoredBatches(run).batch(3),
            "was changed or is damaged",
        ),
        (
            lambda run: without(run, "batch_sampler", "_target_", put="shutil.copy"),
            lambda run: StoredBatches(run).batch(3),
            r"batch_sampler\._target_=shutil\.copy is not called: a stored run is data",
        ),
        (lambda run: without(run, "data", "_target_"), load_run, r"config\.yaml was changed or is damaged"),
        (lambda run: without(run, "data", "augment", put=False), load_run, "augment=False is no Augment"),
        (lambda run: without(run, "trainer"), load_run, r"config\.yaml was changed or is damaged"),
    ]
    begun = damaged("begun", lambda run: logged(run, ""))
    assert outstanding(begun).startswith("No loss is recorded.")
    for number, (damage, read, said) in enumerate(cases):
        with pytest.raises(ValueError, match=said):
            read(damaged(str(number), damage))
