"""Where numba keeps compiled code if no folder of its own choice is writable, and which of that code is outdated."""

from __future__ import annotations

import glob
import os
import re
import stat
import sys
import tempfile
from pathlib import Path


def choose_numba_cache() -> None:
    """Let numba write to the folder for temporary files where it would find no other place, and refuse to compile.

    Numba tries ``NUMBA_CACHE_DIR``, the folder of the source and the cache of the user, in this order.
    """
    of_user = Path(os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache"))
    if os.environ.get("NUMBA_CACHE_DIR") or _writable(Path(__file__).parent) or _writable(of_user):
        return
    folder = Path(tempfile.gettempdir(), f"cellcohort-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        folder = Path(tempfile.mkdtemp(prefix="cellcohort-"))  # others could put code into the one that is there
    os.environ["NUMBA_CACHE_DIR"] = str(folder)
    if "numba" in sys.modules:  # it has read its environment
        sys.modules["numba"].config.CACHE_DIR = str(folder)


def _writable(folder: Path) -> bool:
    """Whether a folder, or the one in which it would be made, can be written to."""
    there = next(each for each in (folder, *folder.parents) if os.path.exists(each))
    return os.access(there, os.W_OK)


def remove_outdated_code(package: Path = Path(__file__).parent) -> None:
    """Remove compiled code that numba kept in the folders of this package, and that is older than a source of it.

    Numba compares code with the file of its function alone, while the code contains functions of other modules too.
    After an upgrade that changes these, it would go on with what they were.

    Parameters
    ----------
    package : Path
        Folder of the package, which imports its own modules by their full names.
    """
    changed: dict[Path, int] = {}
    for index in package.rglob("__pycache__/*.nbi"):
        source = index.parent.parent / f"{index.name.split('.')[0]}.py"
        try:
            if index.stat().st_mtime_ns >= _last_change(source, package, changed):
                continue
            for code in index.parent.glob(f"{glob.escape(index.stem)}.*.nbc"):
                code.unlink(missing_ok=True)
            index.unlink()
        except OSError:  # another process removes it, or it is of another user
            continue


def _last_change(source: Path, package: Path, changed: dict[Path, int]) -> int:
    """When a module, or one that it imports from this package, was changed last; in ns, and for ever if it is gone."""
    if source in changed:
        return changed[source]
    try:
        last, text = source.stat().st_mtime_ns, source.read_text(encoding="utf-8")
    except FileNotFoundError:
        return sys.maxsize
    changed[source] = last
    for name in re.findall(rf"^from {package.name}\.([\w.]+) import", text, re.MULTILINE):
        imported = package.joinpath(*name.split("."))
        imported = imported / "__init__.py" if imported.is_dir() else imported.with_suffix(".py")
        last = max(last, _last_change(imported, package, changed))
    changed[source] = last
    return last
