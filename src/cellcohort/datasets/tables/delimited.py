"""A table from a text file: its encoding, separator, decimal mark and header are found; labels stay as typed."""

from __future__ import annotations

import codecs
import csv
import gzip
import re
import warnings
import zlib
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import IO

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from cellcohort.messages import listed, several, spelled_plainly
from cellcohort.missing_values import WORDS_FOR_MISSING

_SEPARATORS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a vertical bar"}
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_DECIMAL_COMMA = r"^[+-]?\d*,\d+([eE][+-]?\d+)?$"
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
_MEASURED = 1000  # values of which more than half differ are measurements, and no labels


@dataclass(frozen=True)
class _Layout:
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

    def line(self, row: int) -> str:
        return f"line {self.skipped + row + 1} of {self.path.name}"


def read_delimited(
    path: Path,
    wanted: Collection[str],
    only: Collection[str] | None = None,
    text: Collection[str] = (),
    numbers: Collection[str] = (),
    besides: Collection[str] = (),
) -> pd.DataFrame:
    """Read a text file with one row per line.

    The file may be UTF-8, UTF-16 or cp1252, with fields separated by commas, semicolons, tabs or vertical bars, and
    with decimal points or commas; a warning tells what was found where it is not UTF-8 with commas and points.

    Parameters
    ----------
    path : pathlib.Path
        Compressed if it ends in ``.gz``.
    wanted : collection of str
        The header is the first of the first 20 lines that holds these; without such a line, that with most fields.
    only : collection of str, optional
        Columns to read; all are read if there are none, or one of these is not there.
    text : collection of str
        Columns of labels. Their values are the text of the file, and only an empty field is a missing value.
    numbers : collection of str
        Columns of numbers. Up to three lines below the header that hold names or units in their place are skipped.
    besides : collection of str
        Columns to read with `only` if they are there, by their names as `spelled_plainly` gives them.

    Returns
    -------
    pandas.DataFrame
        Other columns hold numbers if all of their values are numbers and no two different texts are the same number,
        and else text. In a column of numbers, words such as "NA" are missing values; ``attrs["words"]`` has the words
        that were found, by column.

    Raises
    ------
    ValueError
        The file is empty, of another encoding, has rows of another length than its header, a wanted column twice, or
        text in a column of numbers.
    """
    layout = _layout(path, set(wanted), set(numbers))
    names = _told_apart(layout, wanted)
    every = not only or not set(only) <= set(names)  # without columns there would be no rows
    read = [i for i, name in enumerate(names) if every or name in (only or ()) or spelled_plainly(name) in besides]
    columns: dict[str, pd.Series] = {}
    words: dict[str, Counter[str]] = {}
    commas: set[str] = set()
    for i, column in zip(read, _fields(layout, read), strict=True):
        name = names[i]
        if not name and i >= layout.named and (filled := _filled(column)):
            raise ValueError(
                f"{path} has rows with another number of fields than its header: {several(filled, 'row')} with "
                f"{len(names)} instead of {layout.named}. Correct these rows."
            )
        if not name and not _filled(column):
            continue
        columns[name], words[name], mark = _typed(column, name in text, name in numbers, layout, name)
        commas |= {name} if mark == "," else set()
    if layout.separator != "," or commas:
        mark = f" and a decimal comma (in {listed(sorted(commas))})" if commas else ""
        warnings.warn(f"{path} is read with {_SEPARATORS[layout.separator]} between fields{mark}.", stacklevel=3)
    table = pd.DataFrame(columns)
    table.attrs["words"] = {name: dict(found) for name, found in words.items() if found}
    return table


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
    return _layout(path, set(wanted), set(numbers)).names


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
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


def _layout(path: Path, wanted: set[str], numbers: set[str]) -> _Layout:
    encoding = _encoding(path)
    try:
        with _opened(path) as file:
            head = list(islice(codecs.getreader(encoding)(file), _PREAMBLE + _BELOW))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text that can be read: it holds zero bytes, and is no UTF-16.") from error
    if not any(line.strip() for line in head):
        raise ValueError(f"{path} is empty; a header and one row per cell and frame are needed.")
    best = (False, 0, 0)  # whether a line holds the wanted names, how many fields it has, and which line it is
    separator, rows, ends = ",", [[""]], [1]
    for one in _SEPARATORS:
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
    return _Layout(path, encoding, separator, ends[below - 1], [*names, *[""] * more], len(names), header, spaced)


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
        if filled and all(re.match(f"{_NUMBER}|{_DECIMAL_COMMA}", field) for field in filled):
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
        number = f"{_NUMBER}|{_DECIMAL_COMMA}"
        return not any(re.match(number, field) or field.lower() in WORDS_FOR_MISSING for field in filled)
    units = [field.strip() for field in row.values() if field.strip()]
    return bool(fields) and all(re.match(r"^[(\[].*[)\]]$", unit) for unit in units)


def _encoding(path: Path) -> str:
    with _opened(path) as file:
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
    with _opened(path) as file:
        while True:
            block = file.read(_BLOCK)
            try:
                decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                return line + error.object[: error.start].count(b"\n")
            if not block:
                return None
            line += block.count(b"\n")


def _told_apart(layout: _Layout, wanted: Collection[str]) -> list[str]:
    """Return the names of the columns; a name that is there again gets a number, if nobody asked for it."""
    seen: Counter[str] = Counter()
    names = []
    for name in layout.names:
        seen[name] += 1
        names.append(f"{name}.{seen[name] - 1}" if seen[name] > 1 and name else name)
    if twice := sorted(name for name in wanted if seen[name] > 1):
        raise ValueError(f"{layout.path} has {listed(twice)} more than once in its header; rename all but one.")
    return names


def _fields(layout: _Layout, read: list[int]) -> list[pa.ChunkedArray]:
    """Return the texts of some columns."""
    bad: list[arrow_csv.InvalidRow] = []
    comments: list[arrow_csv.InvalidRow] = []

    def note(row: arrow_csv.InvalidRow) -> str:
        text = row.text.strip()
        if text.startswith("#"):
            comments.append(row)
        elif text:
            bad.append(row)
        return "error" if len(bad) > 100 else "skip"

    keys = list(map(str, range(len(layout.names))))
    encoding = "utf8" if layout.encoding == "utf-8-sig" else layout.encoding
    with _opened(layout.path) as file:
        try:
            table = arrow_csv.read_csv(
                file,
                arrow_csv.ReadOptions(
                    column_names=keys, skip_rows=layout.skipped, encoding=encoding, use_threads=False
                ),
                arrow_csv.ParseOptions(delimiter=layout.separator, newlines_in_values=True, invalid_row_handler=note),
                arrow_csv.ConvertOptions(
                    column_types=dict.fromkeys(keys, pa.string()),
                    null_values=[],
                    include_columns=[keys[i] for i in read],
                ),
            )
        except pa.ArrowInvalid as error:
            if not bad:
                raise ValueError(f"{layout.path} cannot be read as a table: {str(error)[:200]}") from error
    if bad:
        first = bad[0]
        raise ValueError(
            f"{layout.path} has rows with another number of fields than its header, taken to be line "
            f"{layout.header}: {first.actual_columns} instead of {first.expected_columns} in line {first.number}. "
            "Correct these rows."
        )
    if comments:
        warnings.warn(
            f"{layout.path}: {several(len(comments), 'line')} that begin with # and are no rows are left out, such as "
            f"{comments[0].text.strip()[:60]!r}.",
            stacklevel=4,
        )
    return [table.column(key) for key in table.column_names]


def _filled(column: pa.ChunkedArray) -> int:
    return len(column) - (pc.sum(pc.equal(column, "")).as_py() or 0)


def _typed(
    column: pa.ChunkedArray, label: bool, number: bool, layout: _Layout, name: str
) -> tuple[pd.Series, Counter[str], str]:
    """Return the values of a column, the words that stand for missing ones, and the decimal mark, or ""."""
    if layout.spaced:  # a field in quotes that follows a space
        column = pc.utf8_ltrim_whitespace(column)
        column = pc.replace_substring(pc.replace_substring_regex(column, r'(?s)^"(.*)"$', r"\1"), '""', '"')
    texts = pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)
    if label:
        return texts.to_pandas(), Counter(), ""
    trimmed = pc.utf8_trim_whitespace(texts)
    is_word = pc.is_in(pc.utf8_lower(trimmed), pa.array(WORDS_FOR_MISSING))
    found = pc.if_else(pc.or_(is_word, pc.equal(trimmed, "")), pa.scalar(None, pa.string()), trimmed)
    values, mark = _numbers(found, layout.separator)
    if values is not None and mark and layout.separator != "," and _are_thousands(found, mark):
        if number:
            raise ValueError(
                f"{name!r} of {layout.path} has numbers below 1000 without {mark!r} and others with three digits after "
                f"it, such as {found.filter(pc.match_substring(found, mark))[0].as_py()!r}: whether it marks thousands "
                "or decimals is not known. Write the file without marks for thousands."
            )
        values = None
    if values is None and number:
        rows = min((_unlike(found, form) for form in (_NUMBER, f"{_DECIMAL_COMMA}|^[+-]?\\d+$")), key=len)
        raise ValueError(
            f"{name!r} holds no number in {several(len(rows), 'row')} of {len(column):,}, such as "
            f"{texts[int(rows[0])].as_py()!r} in {layout.line(int(rows[0]))}. Correct these, or name another column."
        )
    if values is None or (not number and (found.null_count == len(found) or _are_labels(found, values))):
        return texts.to_pandas(), Counter(), ""
    words = Counter(trimmed.filter(is_word).to_pylist()) if pc.any(is_word).as_py() else Counter()
    return values.to_pandas(), words, mark


def _numbers(texts: pa.ChunkedArray, separator: str) -> tuple[pa.ChunkedArray | None, str]:
    """Texts as whole numbers, or else as real ones, and their decimal mark; None where one is no number."""
    for kind in (pa.int64(), pa.float64()):
        try:
            return texts.cast(kind), "." if kind == pa.float64() else ""
        except pa.ArrowInvalid:
            pass
    for pattern, mark in ((_NUMBER, "."), (f"{_DECIMAL_COMMA}|^[+-]?\\d+$", ",")):
        if (mark == "." or separator != ",") and pc.all(pc.match_substring_regex(texts, pattern)).as_py():
            plain = pc.replace_substring_regex(texts, r"^\+", "")
            return pc.replace_substring(plain, ",", ".").cast(pa.float64()), mark
    return None, ""


def _unlike(texts: pa.ChunkedArray, form: str) -> np.ndarray:
    """Return the rows whose text is not of a form."""
    return np.flatnonzero(np.equal(pc.invert(pc.match_substring_regex(texts, form)).to_numpy(), True))


def _are_thousands(texts: pa.ChunkedArray, mark: str) -> bool:
    """Whether a decimal mark looks like one of thousands: with it three digits follow, and without it is below 1000."""
    texts = texts.drop_null()
    marked = pc.match_substring(texts, mark)
    some, others = texts.filter(marked), texts.filter(pc.invert(marked))
    if not len(some) or not len(others):
        return False
    grouped = pc.all(pc.match_substring_regex(some, rf"^[+-]?[1-9]\d{{0,2}}[{mark}]\d{{3}}$")).as_py()
    return bool(grouped and pc.all(pc.match_substring_regex(others, r"^[+-]?\d{1,3}$")).as_py())


def _are_labels(texts: pa.ChunkedArray, values: pa.ChunkedArray) -> bool:
    """Whether reading texts as numbers would make two of them one, round them, or lose a zero at their front."""
    rounded = r"|^[+-]?\d{17,}$" if values.type == pa.float64() else ""  # whole numbers that need more than 64 bits
    if pc.any(pc.match_substring_regex(texts, rf"^[+-]?0\d{rounded}")).as_py():
        return True
    some = texts.slice(0, 10 * _MEASURED)
    if len(some) > _MEASURED and pc.count_distinct(some).as_py() > len(some) / 2:
        return False
    return pc.count_distinct(texts).as_py() != pc.count_distinct(values).as_py()
