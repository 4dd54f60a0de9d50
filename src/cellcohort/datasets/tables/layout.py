"""How a text file is written: its encoding, separator and header, which are found."""

from __future__ import annotations

import codecs
import csv
import gzip
import re
import warnings
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import IO

from cellcohort.missing_values import WORDS_FOR_MISSING

NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
DECIMAL_COMMA = r"^[+-]?\d*,\d+([eE][+-]?\d+)?$"
SEPARATORS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a vertical bar"}
_NO_TEXT = {  # how files begin that are no text: what they are, and what to do
    b"\x1f\x8b": ("a gzip file", "let its name end in .csv.gz or .tsv.gz"),
    b"PAR1": ("a parquet file", "let its name end in .parquet"),
    b"ARROW1": ("a Feather (Arrow) file", "convert it to parquet"),
    b"PK\x03\x04": ("a zip or Excel file", "save the table as CSV"),
    b"\x89HDF": ("an HDF5 file", "convert it to parquet, or use data=anndata for an AnnData"),
}
_PREAMBLE = 20  # lines among which the header is looked for
_BELOW = 3  # lines of names and units that may follow it
_BLOCK = 2**24  # bytes that are checked at once


@dataclass(frozen=True)
class Layout:
    """How a file is written: `skipped` lines, the last of them the header or below it, and then rows of fields.

    The first `named` of the names are those of the header; others are empty. In a `spaced` file a space follows each
    separator, and is no part of names and labels.
    """

    path: Path
    encoding: str
    separator: str
    skipped: int
    names: list[str]
    named: int
    header: int
    spaced: bool


def header(path: Path, wanted: Collection[str], numbers: Collection[str] = ()) -> list[str]:
    """Return the names of the columns of a text file.

    Parameters
    ----------
    path, wanted, numbers
        As for :func:`read_delimited`.

    Raises
    ------
    ValueError
        The file is empty or of another encoding.
    """
    return layout_of(path, set(wanted), set(numbers)).names


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, compressed if its name ends in ``.gz``; errors of its compression are a ValueError."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            yield file  # type: ignore[misc]  # a gzip file reads as any other
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is no gzip file, or cut off ({error}). Rename it, or compress it again.") from error


def _check_kind(path: Path, start: bytes) -> None:
    """Raise ValueError where a file is no text, whatever its name says."""
    for mark, (kind, remedy) in _NO_TEXT.items():
        if start.startswith(mark):
            raise ValueError(f"{path} is {kind} by its content, and no text; {remedy}.")


def layout_of(path: Path, wanted: set[str], numbers: set[str]) -> Layout:
    """Find out how a file is written; `wanted` and `numbers` are as for ``read_delimited``."""
    encoding = _encoding(path)
    try:
        with opened(path) as file:
            head = list(islice(codecs.getreader(encoding)(file), _PREAMBLE + _BELOW))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text that can be read: it holds zero bytes, and is no UTF-16.") from error
    if not any(line.strip() for line in head):
        raise ValueError(f"{path} is empty; a header and one row per cell and frame are needed.")
    best = (False, 0, 0)  # whether a line holds the wanted names, how many fields it has, and which line it is
    separator, rows, ends = ",", [[""]], [1]
    for one in SEPARATORS:
        split, lines = _records(head, one)
        for number, fields in enumerate(split[:_PREAMBLE]):
            names = _names(fields, wanted)
            found = wanted <= set(names)
            if (found, len(names)) > best[:2]:
                best, separator, rows, ends = (found, len(names), number), one, split, lines
            if found:
                break
    number = best[2]
    names = _names(rows[number], wanted)
    spaced = len(names) > 1 and all(field.startswith(" ") for field in rows[number][1:])
    numbers = numbers or _columns_of_numbers(names, rows[number + 1 + _BELOW :])
    below = number + 1
    cells = [dict(zip(names, row)) for row in rows[number + 1 :]]  # noqa: B905  # a line may be short
    while below <= number + min(_BELOW, len(cells)) and _is_header(cells[below - number - 1], numbers, cells[_BELOW:]):
        below += 1
    more = len(rows[below]) - len(names) if below < len(rows) else 0  # commas at the end of every row
    header = ends[number - 1] + 1 if number else 1
    return Layout(path, encoding, separator, ends[below - 1], [*names, *[""] * more], len(names), header, spaced)


def _names(fields: list[str], wanted: set[str]) -> list[str]:
    """Return the names of a header without spaces around them and a # before the first, unless they are wanted so."""
    names = []
    for number, field in enumerate(fields):
        plain = field.strip()
        if number == 0 and plain not in wanted:
            plain = plain.lstrip("#").strip()
        if len(plain) > 1 and plain[0] == plain[-1] == '"':
            plain = plain[1:-1]
        names.append(field if field in wanted else plain)
    return names


def _records(lines: list[str], separator: str) -> tuple[list[list[str]], list[int]]:
    """Fields of each row, and the number of its last line: a field in quotes may hold line breaks."""
    rows: list[list[str]] = []
    ends, at = [], 0
    while at < len(lines):
        reader = csv.reader(lines[at:], delimiter=separator, strict=True)
        try:
            row, at = next(reader), at + reader.line_num
        except csv.Error:  # a quotation mark that belongs to the text
            row, at = next(csv.reader([lines[at].rstrip("\r\n")], delimiter=separator), []), at + 1
        rows.append(row)
        ends.append(at)
    return rows, ends


def _columns_of_numbers(names: list[str], rows: list[list[str]]) -> set[str]:
    """Columns that hold numbers in some rows, where there are several; none where there is one, which proves little."""
    found = set()
    for i, name in enumerate(names):
        filled = [row[i].strip() for row in rows if i < len(row) and row[i].strip()]
        if filled and all(re.match(f"{NUMBER}|{DECIMAL_COMMA}", field) for field in filled):
            found.add(name)
    return found if len(found) > 1 else set()


def _is_header(row: dict[str, str], numbers: set[str], cells: list[dict[str, str]]) -> bool:
    """Whether a line below the header holds names or units, where a row of cells would hold numbers.

    A line with a label that rows further down have too is a row of cells, whose numbers may be wrong.
    """
    if any(
        field.strip() and row.get(name) == field for one in cells for name, field in one.items() if name not in numbers
    ):
        return False
    fields = [row[name].strip() for name in numbers if name in row]
    filled = [field for field in fields if field]
    if filled:
        number = f"{NUMBER}|{DECIMAL_COMMA}"
        return not any(re.match(number, field) or field.lower() in WORDS_FOR_MISSING for field in filled)
    units = [field.strip() for field in row.values() if field.strip()]
    return bool(fields) and all(re.match(r"^[(\[].*[)\]]$", unit) for unit in units)


def _encoding(path: Path) -> str:
    with opened(path) as file:
        start = file.read(4096)
    _check_kind(path, start)
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if b"\0" in start:
        if 5 * max(start[1::2].count(0), start[::2].count(0)) < len(start) // 2:
            raise ValueError(f"{path} is no text that can be read: it holds zero bytes, and is no UTF-16.")
        return "utf-16-le" if start[1::2].count(0) > start[::2].count(0) else "utf-16-be"
    changed = path.stat().st_mtime_ns
    if (line := _undecoded(path, "utf-8-sig", changed)) is None:
        return "utf-8-sig"
    if (worse := _undecoded(path, "cp1252", changed)) is not None:
        raise ValueError(
            f"{path} is text of an unknown encoding: it is not UTF-8 (see line {line}) and not cp1252 (see line "
            f"{worse}). Save it as UTF-8."
        )
    warnings.warn(
        f"{path} is not UTF-8 (see line {line}) and is read as cp1252, the encoding of Windows; if letters come out "
        "wrong, save it as UTF-8.",
        stacklevel=6,
    )
    return "cp1252"


@lru_cache(4)
def _undecoded(path: Path, encoding: str, changed: int) -> int | None:  # noqa: ARG001  # `changed` is for the cache
    """Return the first line that is not text of an encoding; None if there is none."""
    decoder, line = codecs.getincrementaldecoder(encoding)(), 1
    with opened(path) as file:
        while True:
            block = file.read(_BLOCK)
            try:
                decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                return line + error.object[: error.start].count(b"\n")
            if not block:
                return None
            line += block.count(b"\n")
