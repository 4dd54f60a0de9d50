"""Warnings of the package on a script's command line: once, as sentences, and without a file of a library."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cellcohort.cells import CellTable
from cellcohort.runtime.cli import run_command
from cellcohort.sampling import BatchSampler, ConditionBalanced, ExperimentAware, ShortfallWarning
from cellcohort.sampling.axes.base import Axis
from tables import table

BOTH: dict[str, Axis] = {"experiment": ExperimentAware(), "condition": ConditionBalanced()}


def nested(n: int) -> CellTable:
    """`n` experiments of one condition each, of two conditions."""
    return CellTable.from_frame(table({(f"e{i}", "xy"[i % 2]): 60 for i in range(n)}))


def printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, work: Any) -> list[str]:
    monkeypatch.setattr(sys, "argv", ["script.py"])
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        run_command(work, Path())
    return capsys.readouterr().err.splitlines()


def test_what_a_table_lacks_is_one_warning() -> None:
    with pytest.warns(ShortfallWarning) as caught:
        sampler = BatchSampler(nested(9), BOTH, 20)
    (one,) = caught
    lines = str(one.message).splitlines()
    assert len(sampler.warnings) == 9 and len(lines) == 8
    assert lines[0] == "batches: the table has too few cells for what is asked:"
    assert lines[1] == f"  - {sampler.warnings[0]}" and lines[-1] == "  - and 3 more of this kind."


def test_it_is_printed_once_without_a_file(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> None:
        for rank in (0, 0, 1):
            BatchSampler(nested(2), BOTH, 20, rank=rank, world_size=2)
        BatchSampler(nested(2), BOTH, 20, fixed=True)

    lines = printed(capsys, monkeypatch, work)
    first, *_ = (i for i, line in enumerate(lines) if line.startswith("warning: validation batches: "))
    assert first == 3 and len(lines) == 6 and lines[0].startswith("warning: batches: ")
    assert not any(".py" in line for line in lines)


def test_warnings_of_others_are_shown_as_ever(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[type[Warning]] = []
    monkeypatch.setattr(warnings, "showwarning", lambda message, category, *_: shown.append(category))
    before = warnings.showwarning
    assert printed(capsys, monkeypatch, lambda: np.array([1.0]) / np.array([0.0])) == []
    assert shown == [RuntimeWarning] and warnings.showwarning is before
