"""The benchmark of the scores still runs."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest


def test_it_times_each_score(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    script = str(Path(__file__).parents[2] / "scripts" / "bench_evaluation.py")
    monkeypatch.setattr(sys, "argv", [script, "--cells", "1200", "--experiments", "2", "--threads", "1"])
    runpy.run_path(script, run_name="__main__")
    first, *steps = capsys.readouterr().out.splitlines()
    assert "1,200 cells, 2 experiments, 3 representations, 1 thread: " in first
    assert {"condition probes", "iLISI", "MMD"} <= {line[2:22].strip() for line in steps}
