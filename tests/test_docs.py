"""The examples and the tutorials of the handbook run, and the commands of its pages are options that there are."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from importlib.util import find_spec, module_from_spec
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser

from cellcohort.sampling.baselines.base import module_of

DOCS = Path(__file__).parents[1] / "docs"
PAGES = ("data", "choosing", "data/tracks", "data/timelapse", "data/anndata", "data/profiles")
SAID = {
    "loop_accelerate": "epoch 1: 10 batches in this process",
    "loop_sentence_transformers": "labels: [(0, 20), (1, 20), (2, 20)]",
    "loop_stateful_loader": "the rest follows: True",
    "loop_torch": "stopped and resumed, the losses are the same: True",
    "loop_transformers": "the resumed run draws the batches of the second epoch: True",
    "moving_metric_learning": "cellcohort: Counter({" + ", ".join(["'compound_N': 4"] * 8) + "})",
    "moving_sentence_transformers": "most of one text in any batch: 1",
    "moving_viscy": "'infected': 34",
    "moving_weighted_random": "cellcohort: [16, 16, 16, 16, 16, 16, 16, 16]",
    "moving_annbatch": "'DMSO': 32, 'drug': 32",
}
LOOPS = {  # of a group of dependencies that is not installed by default
    "loop_accelerate": "accelerate",
    "loop_sentence_transformers": "sentence_transformers",
    "loop_transformers": "transformers",
}
NEEDED = {"data_anndata": "h5py", "moving_annbatch": "annbatch", "moving_viscy": "viscy_data"}  # of extras
SMALL = {
    "table_to_decision": {"FOUNDERS": "40", "EPOCHS": "1", "BATCHES": "6", "SCORED": "300", "SEEDS": "1"},
    "million_cells_in_chunks": {"CELLS": "6000", "STEPS": "4"},
}


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("example", sorted(path.stem for path in (DOCS / "examples").glob("*.py")))
def test_an_example_runs(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    if example in LOOPS:
        pytest.importorskip(LOOPS[example])
    if example in NEEDED and not find_spec(NEEDED[example]):
        raise ModuleNotFoundError(f"no module named {NEEDED[example]!r}", name=NEEDED[example])
    if example == "moving_viscy":  # the module alone: the package is slow to load, and changes how iohub reads images
        spec = find_spec("viscy_data")
        assert spec is not None
        monkeypatch.setitem(sys.modules, "viscy_data.sampler", module_of("viscy_data", "sampler.py"))
        monkeypatch.setitem(sys.modules, "viscy_data", module_from_spec(spec))
    runpy.run_path(str(DOCS / "examples" / f"{example}.py"), run_name="__main__")
    assert SAID.get(example, "") in re.sub(r"compound_\d", "compound_N", capsys.readouterr().out)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("tutorial", sorted(path.stem for path in (DOCS / "tutorials").glob("*.py")))
def test_a_tutorial_runs_at_a_small_size(tutorial: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in SMALL[tutorial].items():
        monkeypatch.setenv(name, value)
    runpy.run_path(str(DOCS / "tutorials" / f"{tutorial}.py"), run_name="__main__")


def commands(page: str) -> list[tuple[str, list[str]]]:
    """Script and arguments of the commands of a page that stand as blocks."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8").replace("\\\n", " ").replace("$PLATES", "plates.yaml")
    found = re.findall(r"^    uv run python scripts/(train|preview|prepare)\.py(.*)$", text, re.MULTILINE)
    return [(script, [word for word in shlex.split(rest) if word != "-m"]) for script, rest in found]


def test_the_commands_of_pages_name_options_that_there_are() -> None:
    parser, seen = OverridesParser.create(), 0
    with initialize_config_dir(str(DOCS.parent / "conf"), version_base="1.3"):
        for script, words in (command for page in PAGES for command in commands(page)):
            first = [
                next(iter(one.sweep_string_iterator())) if one.is_sweep_override() else one.get_value_string()
                for one in parser.parse_overrides(words)
            ]
            names = [word.partition("=")[0] for word in words]
            compose(script, [f"{name}={value}" for name, value in zip(names, first, strict=True)])
            seen += 1
    assert seen >= 18


def test_how_it_works_names_every_module_of_the_sampler_and_no_other() -> None:
    sampling = DOCS.parent / "src" / "cellcohort" / "sampling"
    there = {str(path.relative_to(sampling)) for path in sampling.rglob("*.py") if path.name != "__init__.py"}
    named = set(re.findall(r"`([a-z_/]+\.py)`", (DOCS / "how_it_works.md").read_text(encoding="utf-8")))
    beside = {name for name in there if name.startswith(("axes/", "baselines/"))}
    assert named <= there
    assert there - named - beside == {"coverage.py", "flexible.py", "protocol.py"}, "what is not needed to make a batch"


def test_few_modules_say_how_a_batch_is_made() -> None:
    """6 of at most 900 lines row by row, and 12 of at most 1,900 by chunk."""
    sampling = DOCS.parent / "src" / "cellcohort" / "sampling"
    text = (DOCS / "how_it_works.md").read_text(encoding="utf-8").split("## Where to read")[1]
    tables = [re.findall(r"^\| `([a-z_/]+\.py)` \|", part, re.MULTILINE) for part in text.split("\n\n")]
    rows, chunks = [table for table in tables if table]
    for path, n_files, n_lines in ((rows, 6, 900), (rows[:-1] + chunks, 12, 1900)):
        lines = sum(len((sampling / name).read_text(encoding="utf-8").splitlines()) for name in path)
        assert len(path) <= n_files and lines <= n_lines, f"{len(path)} modules of {lines} lines"
