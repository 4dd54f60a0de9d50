"""What takes long shows how far it is, on a terminal; quick work and logs stay as they are."""

from __future__ import annotations

import io
from contextlib import redirect_stderr
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from cellcohort import progress_bar as module
from cellcohort.data.timelapse import load_timelapse
from cellcohort.evaluation.embed import represented
from cellcohort.progress_bar import progress_bar
from plates import two_plates


class Terminal(io.StringIO):
    """What is written to a terminal."""

    def isatty(self) -> bool:
        return True


def test_quick_work_shows_nothing() -> None:
    with redirect_stderr(Terminal()) as terminal:
        assert list(progress_bar(range(5), "counting", "number")) == list(range(5))
    assert not terminal.getvalue()


def test_long_work_shows_what_is_done_and_of_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS", 0)
    with redirect_stderr(Terminal()) as terminal:
        assert list(progress_bar(iter("abcde"), "counting", "letter", 5)) == list("abcde")
    assert "counting" in terminal.getvalue() and "/5" in terminal.getvalue()


def test_nothing_is_shown_where_nobody_watches(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "SECONDS", 0)
    list(progress_bar(range(5), "counting", "number"))
    assert capsys.readouterr() == ("", "")


def test_the_index_brightness_and_embedding_show_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS", 0)
    collection, inputs = two_plates(tmp_path), np.zeros((9, 3), np.float32)
    samples: Any = SimpleNamespace(shape=(3,), recorded=lambda some: inputs[some],
                                   cells=SimpleNamespace(has=lambda name: False))  # fmt: skip
    with redirect_stderr(Terminal()) as terminal:
        load_timelapse(collection, patch=(1, 12, 16), cache=tmp_path / "cache", normalise="frame")
        made = represented(samples, np.arange(9), {"same": torch.nn.Identity()}, torch.device("cpu"))
    assert made["same"].shape == (9, 3)
    for what in ("tracks", "frames", "brightness", "embedding: same"):
        assert what in terminal.getvalue(), what
