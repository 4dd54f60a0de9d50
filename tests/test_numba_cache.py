"""Compiled code is kept where it can be written, and where nobody else can put any."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numba
import pytest

from cellcohort.numba_cache import choose_numba_cache, remove_outdated_code


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


def package_with_code(place: Path) -> dict[str, Path]:
    """Write modules a -> b -> c and d, and for each the index and the code of a function, newer than all sources."""
    sources = {
        "a": "import os\n\nfrom pkg.below.b import f\n",
        "below/b": "from pkg.c import (\n    g,\n)\n",
        "c": "",
        "d": "",
    }
    package, indexes = place / "pkg", {}
    for name, text in sources.items():
        source = package / f"{name}.py"
        cache = source.parent / "__pycache__"
        cache.mkdir(parents=True, exist_ok=True)
        source.write_text(text, encoding="utf-8")
        os.utime(source, ns=(0, 10**9))
        indexes[source.stem] = cache / f"{source.stem}.kernel-3.py312.nbi"
        for file in (indexes[source.stem], cache / f"{source.stem}.kernel-3.py312.1.nbc"):
            file.write_bytes(b"code")
            os.utime(file, ns=(0, 2 * 10**9))
    return indexes


def test_code_is_removed_where_a_module_that_it_contains_functions_of_has_changed(tmp_path: Path) -> None:
    indexes = package_with_code(tmp_path)
    remove_outdated_code(tmp_path / "pkg")
    assert all(index.exists() for index in indexes.values())
    os.utime(tmp_path / "pkg" / "c.py", ns=(0, 3 * 10**9))
    remove_outdated_code(tmp_path / "pkg")
    assert [name for name, index in indexes.items() if index.exists()] == ["d"]
    assert [path.name for path in tmp_path.rglob("*.nbc")] == ["d.kernel-3.py312.1.nbc"]


def test_code_of_a_module_that_is_gone_is_removed(tmp_path: Path) -> None:
    indexes = package_with_code(tmp_path)
    (tmp_path / "pkg" / "c.py").unlink()
    remove_outdated_code(tmp_path / "pkg")
    assert [name for name, index in indexes.items() if index.exists()] == ["d"]
