"""Where numba keeps compiled code if neither the folder of this package nor the home of the user is writable."""

from __future__ import annotations

import os
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
