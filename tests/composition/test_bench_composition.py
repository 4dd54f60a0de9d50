"""The benchmark of the composition log runs."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest


def test_the_benchmark_prints_a_row_per_logger_and_world_size(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = str(Path(__file__).parents[2] / "scripts" / "bench_composition.py")
    line = [
        script,
        "--cells",
        "20000",
        "--batch-size",
        "32",
        "--steps",
        "2",
        "--world-sizes",
        "1",
        "2",
        "--loggers",
        "csv",
    ]
    monkeypatch.setattr(sys, "argv", line)
    runpy.run_path(script, run_name="__main__")
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[3:]]
    assert [row[:2] for row in rows] == [["1", "csv"], ["2", "csv"]] and all(float(row[2]) > 0 for row in rows)
