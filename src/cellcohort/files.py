"""Files and directories that are there whole, or not at all."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A place to write a file or directory, which becomes `path` at the end and not before.

    A file that is there is replaced; a directory stays as it is, since another process wrote the same meanwhile.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{uuid.uuid4().hex}{path.suffix}")
    try:
        yield beside
        try:
            beside.rename(path)
        except OSError:
            if not path.exists():
                raise
    finally:
        if beside.is_dir():
            shutil.rmtree(beside)
        else:
            beside.unlink(missing_ok=True)
