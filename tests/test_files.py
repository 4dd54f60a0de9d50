"""A file is there whole or not at all, and a lock that a disk does not have is no lock that another process holds."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from cellcohort.files import locked, whole


def test_a_full_disk_keeps_what_was_there_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "scores.csv").write_text("of before")
    with (
        pytest.raises(OSError, match=rf"the disk of {tmp_path} is full: scores\.csv was not written.*unchanged"),
        whole(tmp_path / "scores.csv") as beside,
    ):
        beside.write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert (tmp_path / "scores.csv").read_text() == "of before"
    assert os.listdir(tmp_path) == ["scores.csv"]


def test_what_is_renamed_was_synced_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done, fsync, rename = [], os.fsync, Path.rename
    monkeypatch.setattr(os, "fsync", lambda descriptor: (done.append("sync"), fsync(descriptor))[1])
    monkeypatch.setattr(Path, "rename", lambda path, target: (done.append("rename"), rename(path, target))[1])
    with whole(tmp_path / "scores.csv") as beside:
        beside.write_text("all of it")
    assert done == ["sync", "rename", "sync"]
    done.clear()
    with whole(tmp_path / "store") as beside:
        beside.mkdir()
        (beside / "chunk").write_text("all of it")
    assert done == ["sync", "sync", "rename", "sync"]  # the directory and the file in it, then where they are named


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
def test_a_disk_without_locks_is_not_a_lock_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refused(file: object, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refused)
    with pytest.warns(UserWarning, match=r"has no file locks .*no other process"), locked(tmp_path / "lock") as alone:
        assert alone


def test_a_lock_is_held_by_one(tmp_path: Path) -> None:
    with locked(tmp_path / "lock") as first, locked(tmp_path / "lock") as second:
        assert first and not second
    with locked(tmp_path / "lock") as again:
        assert again


def test_a_full_disk_that_numpy_tells_without_a_number_is_one_too(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"is full: a\.npy was not written"), whole(tmp_path / "a.npy") as beside:
        beside.write_text("half")
        raise OSError("960 requested and 512 written")
    assert not list(tmp_path.iterdir())
