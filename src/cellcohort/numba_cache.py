"""Where numba keeps compiled code if no folder of its own choice is writable, and which of that code is outdated."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from xxhash import xxh3_64

RECORD = "cellcohort.json"  # beside compiled code: the digests of its modules

_DECORATED = re.compile(rb"^@(compiled|inlined)$", re.MULTILINE)  # see cellcohort.compiled


def choose_numba_cache() -> None:
    """Let numba write to the folder for temporary files where it would find no other place, and refuse to compile.

    A relative path in NUMBA_CACHE_DIR is made absolute, so that it names one folder when the working directory changes.
    """
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        _use(os.path.abspath(chosen))
    if not any(map(_writable, _places(Path(__file__).parent))):
        _use_folder_for_temporary_files()


def _use_folder_for_temporary_files() -> None:
    folder = Path(tempfile.gettempdir(), f"cellcohort-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        folder = Path(tempfile.mkdtemp(prefix="cellcohort-"))  # others could put code into the one that is there
    _use(str(folder))


def _use(folder: str) -> None:
    os.environ["NUMBA_CACHE_DIR"] = folder
    if "numba" in sys.modules:  # it has read its environment
        sys.modules["numba"].config.CACHE_DIR = folder


def _writable(folder: Path) -> bool:
    """Whether a folder, or the one in which it would be made, can be written to."""
    there = next(each for each in (folder, *folder.absolute().parents) if os.path.exists(each))
    return os.path.isdir(there) and os.access(there, os.W_OK)


def remove_outdated_code(package: Path = Path(__file__).parent) -> None:
    """Remove compiled code of this package that was made of other sources than there are now.

    Numba compares code with the file of its function alone, while the code contains functions of other modules too.
    After an upgrade that changes these, it would go on with what they were. So a file beside the code holds the digest
    of every module with compiled functions and of all that it imports from this package, as it was at the last import.
    Times of files play no part: an upgrade may bring older ones. Where code cannot be removed, as that of another
    user, numba writes to the folder for temporary files.

    Parameters
    ----------
    package : Path
        Folder of the package, which imports its own modules by their full names.
    """
    texts = {}  # by full name; that of a folder for its __init__.py
    for folder, _, files in os.walk(package):
        for file in files:
            if file.endswith(".py"):
                path = os.path.join(folder, file)
                name = path[len(str(package.parent)) + 1 : -3].replace(os.sep, ".").removesuffix(".__init__")
                with open(path, "rb") as opened:
                    texts[name] = opened.read()
    parts = _parts(texts, package.name)
    own = {name: xxh3_64(text).digest() for name, text in texts.items()}
    now: dict[str, dict[str, str]] = {}
    for name, text in texts.items():
        if _DECORATED.search(text):
            found = xxh3_64(b"".join(part.encode() + own[part] for part in sorted(parts(name))))
            folder, _, stem = name.rpartition(".")
            now.setdefault(folder, {})[stem] = found.hexdigest()
    try:
        _keep_up(package, now)
    except OSError:
        _use_folder_for_temporary_files()
        with suppress(OSError):  # of a full disk
            _keep_up(package, now)


def _parts(texts: dict[str, bytes], package: str) -> Callable[[str], set[str]]:
    """Return a function that gives a module and all that it imports, and that these import."""
    imported = re.compile(rb"^from (%b\.[\w.]+) import" % package.encode(), re.MULTILINE)

    @cache
    def imports(name: str) -> set[str]:
        return {found for each in imported.findall(texts[name]) if (found := each.decode()) in texts}

    def parts(name: str) -> set[str]:
        found, left = {name}, [name]
        while left:
            new = imports(left.pop()) - found
            found |= new
            left += new
        return found

    return parts


def _places(folder: Path) -> list[Path]:
    """Return where numba would keep the code of the modules in a folder; it takes the first that it can write to."""
    path = os.path.abspath(folder)
    below = f"{os.path.basename(path)}_{hashlib.sha1(path.encode(), usedforsecurity=False).hexdigest()}"
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    of_user = os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return [*([Path(chosen, below)] if chosen else []), folder / "__pycache__", Path(of_user, "numba", below)]


def _place(folder: Path) -> Path:
    """Return where numba keeps the code of the modules in a folder."""
    places = _places(folder)
    return next(filter(_writable, places), places[0])


def _keep_up(package: Path, now: dict[str, dict[str, str]]) -> None:
    """Remove the code of modules whose digest is not the one that is recorded beside it, and record those of now."""
    for folder, modules in now.items():
        place = _place(package.parent.joinpath(*folder.split(".")))
        record, known = place / RECORD, {}
        with suppress(FileNotFoundError, ValueError, TypeError):
            known = dict(json.loads(record.read_bytes() if record.is_file() else b"{}"))
        if known == modules:
            continue
        for code in place.glob("*.nb[ic]"):
            module = code.name.split(".")[0]
            if module not in modules or known.get(module) != modules[module]:
                code.unlink(missing_ok=True)
        place.mkdir(parents=True, exist_ok=True)
        beside = record.with_name(f".{os.getpid()}.{RECORD}")
        beside.write_text(json.dumps(modules))
        beside.replace(record)
