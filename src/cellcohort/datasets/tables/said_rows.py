"""Where rows of a table are in its file, as messages tell it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cellcohort.datasets.tables.layout import opened
from cellcohort.messages import listed

_BLOCK = 2**24  # bytes that are read at once


def said_rows(about: Mapping[Any, Any], rows: Sequence[int]) -> str:
    """Return where rows are, such as ``lines 5, 9 of cells.csv`` or ``row 3, counted from 0``.

    Lines of a text file are those that an editor or a spreadsheet shows. Rows are counted from 0, as in the column
    "source_row", where there are no lines, or a row may not be one line: some lines are left out, or hold a line break.

    Parameters
    ----------
    about : mapping
        What a reader of tables left in ``attrs``: "path", and "lines" of a text file.
    rows : sequence of int
        Of the file, from 0.
    """
    s = "" if len(rows) == 1 else "s"
    if "lines" in about:
        skipped, n = about["lines"]
        path = Path(about["path"])
        if _lines(path) == skipped + n:
            return f"line{s} {listed((skipped + row + 1 for row in rows), 10)} of {path.name}"
    return f"row{s} {listed(rows, 10)}, counted from 0"


def _lines(path: Path) -> int:
    """Count the lines of a file without empty ones at its end."""
    n, end = 1, b""
    with opened(path) as file:
        while block := file.read(_BLOCK):
            n, end = n + block.count(b"\n"), (end + block)[-4096:]
    return n - end[len(end.rstrip(b"\0\r\n\t ")) :].count(b"\n")
