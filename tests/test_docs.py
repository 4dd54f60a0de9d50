"""The examples of the handbook run."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("example", sorted(path.stem for path in (DOCS / "examples").glob("*.py")))
def test_an_example_runs(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(DOCS / "examples" / f"{example}.py"), run_name="__main__")
