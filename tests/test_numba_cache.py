"""Compiled code is kept where it can be written, and where nobody else can put any."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numba
import pytest

from cellcohort.numba_cache import choose_numba_cache


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder for temporary files of a process that may write nowhere else."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", "")
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda *_: False)
    return tmp_path


def test_it_lies_in_the_folder_for_temporary_files_where_no_other_is_writable(place: Path) -> None:
    for _ in range(2):
        choose_numba_cache()
        folder = place / f"cellcohort-{os.getuid()}"
        assert os.environ["NUMBA_CACHE_DIR"] == numba.config.CACHE_DIR == str(folder)
        assert folder.stat().st_mode & 0o777 == 0o700
        os.environ["NUMBA_CACHE_DIR"] = ""


def test_a_folder_that_others_may_write_to_is_not_used(place: Path) -> None:
    theirs = place / f"cellcohort-{os.getuid()}"
    theirs.mkdir()
    theirs.chmod(0o777)
    choose_numba_cache()
    own = Path(os.environ["NUMBA_CACHE_DIR"])
    assert own != theirs and own.parent == place and own.stat().st_mode & 0o777 == 0o700


def test_it_is_left_where_it_is_if_a_place_is_writable_or_named(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) == os.path.expanduser("~"))
    monkeypatch.setenv("XDG_CACHE_HOME", os.path.expanduser("~/that-is-not-there"))
    choose_numba_cache()
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setenv("NUMBA_CACHE_DIR", "named")
    choose_numba_cache()
    assert not list(place.iterdir()) and os.environ["NUMBA_CACHE_DIR"] == "named"
