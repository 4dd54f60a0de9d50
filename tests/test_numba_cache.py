"""Compiled code is kept where it can be written, and where nobody else can put any."""

from __future__ import annotations

import errno
import importlib
import os
import runpy
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numba
import pytest

from cellcohort import numba_cache
from cellcohort.numba_cache import RECORD, _place, choose_numba_cache, remove_outdated_code


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
    named = place / "named"
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) == str(place))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(named))
    choose_numba_cache()
    assert not list(place.iterdir()) and os.environ["NUMBA_CACHE_DIR"] == str(named)


def test_a_named_place_stays_where_the_working_directory_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", "code")
    monkeypatch.setenv("NUMBA_CACHE_DIR", "code")
    monkeypatch.chdir(tmp_path)
    choose_numba_cache()
    assert os.environ["NUMBA_CACHE_DIR"] == numba.config.CACHE_DIR == str(tmp_path / "code")


def test_a_named_place_that_cannot_be_written_is_not_the_only_one(
    place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "read only"))
    choose_numba_cache()
    assert os.environ["NUMBA_CACHE_DIR"] == str(place / f"cellcohort-{os.getuid()}")


@pytest.fixture(params=["beside the sources", "NUMBA_CACHE_DIR", "of the user"])
def package(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Modules a -> b -> c and d, of which all but c have compiled functions, and the code of these."""
    sources = {
        "a": "import os\n\nfrom pkg.below.b import f\n@compiled\n",
        "below/b": "from pkg.c import (\n    g,\n)\n@compiled\n",
        "c": "",
        "d": "@compiled\n",
    }
    package = tmp_path / "pkg"
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "code") if request.param == "NUMBA_CACHE_DIR" else "")
    if request.param == "of the user":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
        writable = numba_cache._writable
        monkeypatch.setattr(numba_cache, "_writable", lambda place: package not in place.parents and writable(place))
    monkeypatch.setattr(numba.config, "CACHE_DIR", os.environ["NUMBA_CACHE_DIR"])
    for name, text in sources.items():
        source = package / f"{name}.py"
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text(text, encoding="utf-8")
    remove_outdated_code(package)
    for name in ("a", "below/b", "d"):
        place, stem = _place((package / name).parent), name.rpartition("/")[2]
        for end in ("nbi", "1.nbc"):
            (place / f"{stem}.kernel-3.py312.{end}").write_bytes(b"code")
    return package


def left(package: Path) -> list[str]:
    remove_outdated_code(package)
    found = [path.name.partition(".")[0] for path in package.parent.rglob("*.nb[ic]")]
    assert all(found.count(name) == 2 for name in found)  # the index and the code
    return sorted(set(found))


def test_code_is_removed_where_a_module_that_it_contains_functions_of_has_changed(package: Path) -> None:
    assert left(package) == ["a", "b", "d"]
    (package / "c.py").write_text("x = 1")
    os.utime(package / "c.py", ns=(0, 10**9))  # as an upgrade that keeps the times of its files
    assert left(package) == ["d"]


def test_code_is_kept_where_other_modules_or_times_have_changed(package: Path) -> None:
    (package / "other.py").write_text("x = 1")
    os.utime(package / "c.py")
    assert left(package) == ["a", "b", "d"]


def test_code_of_a_module_that_is_gone_is_removed(package: Path) -> None:
    (package / "d.py").unlink()
    assert left(package) == ["a", "b"]
    (package / "c.py").unlink()
    assert left(package) == []


@pytest.mark.parametrize("text", [None, "", "{", "{}", "[]", "7", "null", '"text"'])
def test_code_of_unknown_sources_is_removed(package: Path, text: str | None) -> None:
    record = _place(package) / RECORD
    record.unlink() if text is None else record.write_text(text)
    assert left(package) == ["b"]


def test_code_is_removed_where_numba_goes_if_the_named_place_cannot_be_written(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (package.parent / "file").write_text("")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(package.parent / "file"))
    place = _place(package)
    assert place.name == "__pycache__" or package.parent / "home" in place.parents
    place.mkdir(exist_ok=True)
    (place / RECORD).unlink(missing_ok=True)
    (place / "a.kernel-3.py312.nbi").write_bytes(b"code")
    remove_outdated_code(package)
    assert not list(place.glob("a.*"))


def test_code_that_cannot_be_removed_is_not_used(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of another user in a folder that all may write to."""
    unlink, kept = Path.unlink, _place(package)

    def refused(path: Path, missing_ok: bool = False) -> None:
        if path.parent == kept:
            raise PermissionError(errno.EPERM, "Operation not permitted", str(path))
        unlink(path, missing_ok)

    monkeypatch.setattr(tempfile, "tempdir", str(package.parent))
    monkeypatch.setattr(Path, "unlink", refused)
    (package / "c.py").write_text("x = 1")
    remove_outdated_code(package)
    own = package.parent / f"cellcohort-{os.getuid()}"
    assert os.environ["NUMBA_CACHE_DIR"] == numba.config.CACHE_DIR == str(own)
    assert _place(package).is_relative_to(own) and not list(own.rglob("*.nb[ic]"))


def test_numba_keeps_code_where_it_is_looked_for(package: Path) -> None:
    source = package / "a.py"
    source.write_text("def f(): ...")
    if os.environ.get("XDG_CACHE_HOME", "").endswith("home"):
        (package / "__pycache__").touch()  # a file, so that numba can make no folder beside the sources
    compiled = numba.njit(cache=True)(runpy.run_path(str(source))["f"])
    assert Path(compiled.stats.cache_path) == _place(package)


@pytest.fixture
def doubled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], float]:
    """A compiled function, called as in a process that has not compiled anything; its code is in ``tmp_path``."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", "")
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    name = f"doubled_{os.getpid()}"
    (tmp_path / f"{name}.py").write_text(
        "from cellcohort.compiled import compiled\n\n\n@compiled\ndef doubled(x):\n    return x * 2\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def call(number: float) -> float:
        monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name).doubled(number)

    return call


def hits(tmp_path: Path) -> int:
    """How often code was loaded in the last call."""
    (source,) = tmp_path.glob("doubled_*.py")
    return sum(sys.modules[source.stem].doubled.stats.cache_hits.values())


def code_of(tmp_path: Path, ending: str) -> list[Path]:
    return sorted((tmp_path / "__pycache__").glob(f"doubled_*.doubled*.{ending}"))


def test_code_of_other_types_is_not_taken(tmp_path: Path, doubled: Callable[[float], float]) -> None:
    """Numba may leave the index of one process with the code of another that compiled for other types meanwhile."""
    assert doubled(2) == 4
    code = [file.read_bytes() for file in code_of(tmp_path, "nbc")]
    for file in [*code_of(tmp_path, "nbi"), *code_of(tmp_path, "nbc")]:
        file.unlink()
    assert doubled(2.5) == 5.0
    assert len(code) == len(code_of(tmp_path, "nbc")) == 1
    code_of(tmp_path, "nbc")[0].write_bytes(code[0])
    assert doubled(2.5) == 5.0, "not 4, by the code of whole numbers"
    assert doubled(2) == 4
    assert doubled(2.5) == 5.0
    assert hits(tmp_path) == 1, "code of its own types is loaded"


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
@pytest.mark.parametrize("size", [0, 5, 60])
def test_files_of_code_that_were_cut_are_made_again(
    tmp_path: Path, doubled: Callable[[float], float], ending: str, size: int
) -> None:
    assert doubled(2) == 4
    os.truncate(code_of(tmp_path, ending)[0], size)
    assert doubled(2) == 4 and hits(tmp_path) == 0
    assert doubled(2) == 4 and hits(tmp_path) == 1


def test_a_changed_byte_of_code_is_seen(tmp_path: Path, doubled: Callable[[float], float]) -> None:
    assert doubled(2) == 4
    (file,) = code_of(tmp_path, "nbc")
    bytes_of = bytearray(file.read_bytes())
    bytes_of[len(bytes_of) // 2] ^= 1
    file.write_bytes(bytes_of)
    assert doubled(2) == 4 and hits(tmp_path) == 0
    assert doubled(2) == 4 and hits(tmp_path) == 1
