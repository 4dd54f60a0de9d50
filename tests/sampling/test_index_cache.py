"""The index in a file: the same batches, one file for one index, and nothing read that is not whole."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from xxhash import xxh3_128

from cellcohort import mapped_arrays
from cellcohort.cells import CellTable
from cellcohort.mapped_arrays import ArrayFiles, cached_arrays
from cellcohort.sampling import (
    BatchSampler,
    ChunkedBatchSampler,
    ChunksShuffled,
    ConditionBalanced,
    ExperimentAware,
    TemporallyEnriched,
    TrackCapped,
)
from launches import LIMIT
from tables import table

SIZES = {(f"e{e}", f"c{c}"): 90 for e in range(3) for c in range(3)}
FRAME = table(SIZES)
CELLS = CellTable.from_frame(FRAME, track="track")
AXES = {"e": ExperimentAware(0.1), "c": ConditionBalanced(), "t": TemporallyEnriched(2.0)}
KINDS: dict[str, tuple[type[BatchSampler], dict[str, Any]]] = {
    "random": (BatchSampler, {}),
    "all axes": (BatchSampler, {"axes": AXES | {"k": TrackCapped()}}),
    "some cells": (BatchSampler, {"axes": {"c": ConditionBalanced({"c0": 1, "c1": 2, "c2": 0})}}),
    "schedule": (BatchSampler, {"axes": AXES, "schedule": {"e.leaky": [0.3, 0.0]}}),
    "chunks": (ChunkedBatchSampler, {"axes": AXES, "chunk_size": 8}),
    "chunks without axes": (ChunkedBatchSampler, {"chunk_size": 8}),
    "chunks shuffled": (ChunksShuffled, {"chunk_size": 8}),
}


def sampler(directory: Path | None, cells: CellTable = CELLS, **options: Any) -> BatchSampler:
    return BatchSampler(cells, index_cache=directory, **{"axes": AXES, "batch_size": 16} | options)


def drawn(made: BatchSampler) -> list[list[int]]:
    return [made.batch(epoch, step).tolist() for epoch in (0, 1) for step in range(8)]


def files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.index"))


def refuse(*_: object, **__: object) -> Any:
    raise AssertionError("the index is there")


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_the_same_and_a_second_run_builds_nothing(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, options = KINDS[kind]
    with monkeypatch.context() as patched:
        patched.setattr(mapped_arrays, "_write", refuse)
        asked = drawn(made(CELLS, batch_size=16, **options))
    cache = tmp_path / "a" / "b"
    first = made(CELLS, batch_size=16, index_cache=cache, **options)
    assert drawn(first) == asked
    assert first.signature == made(CELLS, batch_size=16, **options).signature
    monkeypatch.setattr(mapped_arrays, "_write", refuse)
    assert drawn(made(CELLS, batch_size=16, index_cache=str(cache), **options)) == asked


def test_an_index_is_found_by_all_that_it_depends_on_and_by_nothing_else(tmp_path: Path) -> None:
    frame = FRAME.copy()
    frame["named otherwise"] = frame.experiment.str.upper()
    same = [
        {},
        {"seed": 1, "batch_size": 8, "world_size": 2, "rank": 1},
        {"axes": AXES | {"e": ExperimentAware(0.0, "uniform"), "t": TemporallyEnriched(1.0)}},
        {"cells": CellTable.from_frame(frame, "named otherwise", track="track")},
    ]
    for options in same:
        sampler(tmp_path, **options)
    assert len(files(tmp_path)) == 1

    def changed(**columns: Any) -> CellTable:
        return CellTable.from_frame(FRAME.assign(**columns), track="track")

    swapped = FRAME.condition.where(FRAME.index != 5, "c1" if FRAME.condition[5] == "c0" else "c0")
    more = pd.concat([FRAME, FRAME.iloc[:1]])
    others = [
        {"axes": {"e": AXES["e"], "c": AXES["c"]}},
        {"axes": {"e": AXES["e"], "t": AXES["t"]}},
        {"axes": {"c": AXES["c"], "t": AXES["t"]}},
        {"axes": AXES | {"k": TrackCapped()}},
        {"axes": AXES | {"c": ConditionBalanced({"c0": 1, "c1": 2, "c2": 0})}},
        {"axes": {"e": ExperimentAware(column="condition"), "c": ConditionBalanced(column="experiment")}},
        {"cells": changed(condition=swapped)},
        {"cells": changed(hours_post_infection=FRAME.hours_post_infection.where(FRAME.index != 5, 99.0))},
        {"cells": CellTable.from_frame(more, track="track")},
        {"cells": CELLS.take(np.arange(1, len(CELLS)))},
    ]
    for n, options in enumerate(others, 2):
        sampler(tmp_path, **options)
        assert len(files(tmp_path)) == n, options


def damage(kind: str, file: Path) -> None:
    held, about = bytearray(file.read_bytes()), file.stat()
    if kind == "flipped":
        held[len(held) // 2] ^= 1
    kinds = {"flipped": held, "cut": held[:-100], "short": held[:7], "empty": b"", "a digest": xxh3_128().digest()}
    file.chmod(0o600)  # no user but root writes to it otherwise
    file.write_bytes(kinds[kind])
    os.utime(file, ns=(about.st_atime_ns, about.st_mtime_ns))


@pytest.mark.parametrize("kind", ["flipped", "cut", "short", "empty", "a digest"])
def test_a_damaged_file_is_made_again_and_said(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = drawn(sampler(tmp_path))
    (file,) = files(tmp_path)
    whole = file.read_bytes()
    damage(kind, file)
    with pytest.warns(UserWarning, match=rf"^{file} was damaged and is made again\.$"):
        assert drawn(sampler(tmp_path)) == asked
    assert file.read_bytes() == whole
    monkeypatch.setattr(mapped_arrays, "_write", refuse)
    assert drawn(sampler(tmp_path)) == asked


def test_a_file_under_the_name_of_another_is_not_taken_for_it(tmp_path: Path) -> None:
    asked = drawn(sampler(tmp_path))
    (file,) = files(tmp_path)
    other = tmp_path / "other"
    sampler(other, CellTable.from_frame(FRAME[::-1].reset_index(drop=True), track="track"))
    os.replace(*files(other), file)
    with pytest.warns(UserWarning, match="was damaged"):
        assert drawn(sampler(tmp_path)) == asked


def test_a_file_is_read_whole_once_and_again_when_it_was_changed_or_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, copied = tmp_path / "cache", tmp_path / "copied"
    asked, read = drawn(sampler(cache)), list[str]()
    is_digest_of = mapped_arrays._seeded
    monkeypatch.setattr(mapped_arrays, "_seeded", lambda file: read.append(file.name) or is_digest_of(file))
    assert drawn(sampler(cache)) == asked and not read
    (file,) = files(cache)
    os.utime(file)
    for _ in range(2):
        assert drawn(sampler(cache)) == asked and read == [file.name]
    shutil.copytree(cache, copied)
    for _ in range(2):
        assert drawn(sampler(copied)) == asked and read == [file.name] * 2


CUT_SHORT = """
import os, sys
from pathlib import Path
from cellcohort.mapped_arrays import _read

file = Path(sys.argv[1])
arrays = _read(file)
file.chmod(0o600)
os.truncate(file, 4096)
print(sum(int(array.view("u1").sum()) for array in arrays))
"""


def test_a_file_that_is_cut_short_in_use_ends_its_process_and_the_next_makes_it_again(tmp_path: Path) -> None:
    cells = CellTable.from_frame(table({name: 2000 for name in SIZES}), track="track")
    sampler(tmp_path, cells)
    (file,) = files(tmp_path)
    assert file.stat().st_mode & 0o222 == 0  # so that root alone can
    cut = subprocess.run([sys.executable, "-c", CUT_SHORT, file], check=False, timeout=LIMIT)
    assert cut.returncode == -signal.SIGBUS
    with pytest.warns(UserWarning, match="was damaged"):
        assert drawn(sampler(tmp_path, cells)) == drawn(sampler(None, cells))


def test_a_process_waits_for_the_one_that_builds_and_uses_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, waits, done = drawn(sampler(tmp_path / "of another")), threading.Event(), threading.Event()
    cache, in_turn = tmp_path / "cache", mapped_arrays.in_turn
    cache.mkdir()

    @contextmanager
    def said(file: Path) -> Iterator[None]:
        waits.set()
        with in_turn(file):
            assert done.is_set()
            yield

    monkeypatch.setattr(mapped_arrays, "in_turn", said)
    monkeypatch.setattr(mapped_arrays, "_write", refuse)
    found: list[list[list[int]]] = []
    second = threading.Thread(target=lambda: found.append(drawn(sampler(cache))))
    with in_turn(cache / ".lock"):
        second.start()
        assert waits.wait(60)
        shutil.copy(*files(tmp_path / "of another"), cache)
        done.set()
    second.join(60)
    assert found == [asked]


def test_what_a_killed_process_began_is_removed_and_what_is_being_written_is_not(tmp_path: Path) -> None:
    left, begun = tmp_path / ".left.index", tmp_path / ".begun.index"
    for file in (left, begun):
        file.write_bytes(b"half")
    os.utime(left, (0, 0))
    sampler(tmp_path)
    assert begun.exists() and not left.exists()


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np.lib.format, "write_array_header_1_0", full)
    with pytest.raises(OSError, match=rf"the disk of {tmp_path} is full"):
        sampler(tmp_path)
    assert os.listdir(tmp_path) == [".lock"]


def test_a_directory_that_cannot_be_written_to_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"index_cache=.*file has no index of these cells.*index_cache=null.*of its own"):
        sampler(tmp_path / "file")
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_directory_is_read(tmp_path: Path) -> None:
    asked = drawn(sampler(tmp_path))
    tmp_path.chmod(0o555)
    assert drawn(sampler(tmp_path)) == asked
    with pytest.raises(OSError, match="Permission denied"):
        sampler(tmp_path, axes={})


ARRAYS = [np.arange(1000), np.zeros(3)]


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
def test_what_a_link_leads_to_is_not_written_to(link: Callable[[Path, Path], None], tmp_path: Path) -> None:
    """As in a directory in which others may make links."""
    theirs, cache = tmp_path / "theirs", tmp_path / "cache"
    theirs.write_text("all of it")
    cache.mkdir()
    link(cache / ".lock", theirs)
    cached_arrays(cache, ["x"], lambda: ARRAYS)
    (checked,) = cache.glob("*.checked")
    checked.unlink()
    link(checked, theirs)
    assert np.array_equal(cached_arrays(cache, ["x"], lambda: ARRAYS)[0], ARRAYS[0])
    assert theirs.read_text() == "all of it" and not checked.is_symlink()


def test_an_error_of_the_source_is_not_one_of_the_directory(tmp_path: Path) -> None:
    def refused() -> list[np.ndarray]:
        raise PermissionError(errno.EACCES, "Unable to open file (name = 'cells.h5')")  # which names no file

    with pytest.raises(PermissionError, match=r"^\[Errno 13\] Unable to open file"):
        cached_arrays(tmp_path, ["x"], refused)


def test_arrays_that_are_made_of_others_tell_once_what_is_wrong_with_the_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    files = ArrayFiles(tmp_path / "file", ("x",))
    with pytest.raises(OSError, match=r"index_cache=.*\(File exists\)") as said:
        files.arrays(lambda: files.of("y").arrays(lambda: ARRAYS))
    assert str(said.value).count("index_cache=/") == 1


@pytest.mark.parametrize("kind", ["a link to itself", "no mapped files"])
def test_a_place_that_can_hold_no_mapped_file_is_an_error_with_a_way_out(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_device(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENODEV, "No such device")

    cached_arrays(tmp_path, ["x"], lambda: ARRAYS)
    (file,) = files(tmp_path)
    if kind == "no mapped files":
        monkeypatch.setattr(mapped_arrays, "_Held", no_device)
    else:
        file.unlink()
        file.symlink_to(file)
    with pytest.raises(OSError, match=r"index_cache=.* has no index .*index_cache=null"):
        cached_arrays(tmp_path, ["x"], lambda: ARRAYS)


def test_a_disk_without_permissions_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "fchmod", refused)
    assert np.array_equal(cached_arrays(tmp_path, ["x"], lambda: ARRAYS)[0], ARRAYS[0])


def test_a_directory_that_is_deleted_in_use_stays_mapped_and_is_made_again(tmp_path: Path) -> None:
    asked, made = drawn(sampler(None)), sampler(tmp_path / "cache")
    shutil.rmtree(tmp_path / "cache")
    assert drawn(made) == asked == drawn(sampler(tmp_path / "cache"))
    assert len(files(tmp_path / "cache")) == 1
    assert (tmp_path / "cache" / ".lock").is_file()  # by which one of several processes makes it and the others wait


def test_the_index_is_the_mapped_file_and_what_is_written_to_it_stays_here(tmp_path: Path) -> None:
    made = sampler(tmp_path)
    asked, order = drawn(made), made._picker.plan.strata.order
    (file,) = files(tmp_path)
    assert str(file) in Path("/proc/self/maps").read_text()
    assert order.flags.aligned and order.flags.writeable  # as those in memory: compiled functions are not compiled anew
    order[:] = 0
    with pytest.warns(UserWarning, match="this process wrote to an array"):
        assert drawn(sampler(tmp_path)) == asked


@pytest.mark.skipif(not Path("/proc/self/pagemap").exists(), reason="only Linux tells which pages were written to")
def test_what_is_made_of_an_array_that_was_changed_does_not_reach_others(tmp_path: Path) -> None:
    def hours() -> np.ndarray:
        (found,) = cached_arrays(tmp_path, ["hours"], lambda: [CELLS.hours])
        return found

    def made_of(array: np.ndarray) -> float:
        (found,) = cached_arrays(tmp_path, ["first", array], lambda: [array[:1].copy()])
        return float(found[0])

    mine = hours()
    before = files(tmp_path)
    assert made_of(mine) == mine[0] != 99
    (made,) = set(files(tmp_path)) - set(before)
    made.unlink()
    mine[0] = 99
    with pytest.warns(UserWarning, match=r"this process wrote to an array that it has from .*\.index, so it makes"):
        assert made_of(mine) == 99
    assert files(tmp_path) == before
    del mine
    assert made_of(hours()) != 99 and made.exists()
