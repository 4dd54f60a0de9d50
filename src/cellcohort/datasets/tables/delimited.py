"""A table from a text file: its encoding, separator, decimal mark and header are found; labels stay as typed."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Collection
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from cellcohort.datasets.tables.layout import DECIMAL_COMMA, NUMBER, SEPARATORS, Layout, layout_of, opened
from cellcohort.datasets.tables.said_rows import said_rows
from cellcohort.messages import listed, several, spelled_plainly
from cellcohort.missing_values import WORDS_FOR_MISSING

_MEASURED = 1000  # values of which more than half differ are measurements, and no labels


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
        that were found, by column, and ``attrs["lines"]`` the lines above the rows and the number of rows.

    Raises
    ------
    ValueError
        The file is empty, of another encoding, has rows of another length than its header, a wanted column twice, or
        text in a column of numbers.
    """
    layout = layout_of(path, set(wanted), set(numbers))
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
        warnings.warn(f"{path} is read with {SEPARATORS[layout.separator]} between fields{mark}.", stacklevel=3)
    table = pd.DataFrame(columns)
    table.attrs["lines"] = (layout.skipped, len(table))
    table.attrs["words"] = {name: dict(found) for name, found in words.items() if found}
    return table


def _told_apart(layout: Layout, wanted: Collection[str]) -> list[str]:
    """Return the names of the columns; a name that is there again gets a number, if nobody asked for it."""
    seen: Counter[str] = Counter()
    names = []
    for name in layout.names:
        seen[name] += 1
        names.append(f"{name}.{seen[name] - 1}" if seen[name] > 1 and name else name)
    if twice := sorted(name for name in wanted if seen[name] > 1):
        raise ValueError(f"{layout.path} has {listed(twice)} more than once in its header; rename all but one.")
    return names


def _fields(layout: Layout, read: list[int]) -> list[pa.ChunkedArray]:
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
    with opened(layout.path) as file:
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
    column: pa.ChunkedArray, label: bool, number: bool, layout: Layout, name: str
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
        rows = min((_unlike(found, form) for form, _ in _forms(layout.separator)), key=len)
        one, about = int(rows[0]), {"path": str(layout.path), "lines": (layout.skipped, len(column))}
        raise ValueError(
            f"{name!r} holds no number in {several(len(rows), 'row')} of {len(column):,}, such as "
            f"{texts[one].as_py()!r} in {said_rows(about, [one])}. Correct these, or name another column."
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
    for pattern, mark in _forms(separator):
        if pc.all(pc.match_substring_regex(texts, pattern)).as_py():
            plain = pc.replace_substring_regex(texts, r"^\+", "")
            return pc.replace_substring(plain, ",", ".").cast(pa.float64()), mark
    return None, ""


def _forms(separator: str) -> list[tuple[str, str]]:
    """Return how numbers may be written, and the decimal mark; a comma between fields is no decimal mark."""
    forms = [(NUMBER, "."), (f"{DECIMAL_COMMA}|^[+-]?\\d+$", ",")]
    return forms[:1] if separator == "," else forms


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
