"""A table from a file: parquet or CSV."""

from __future__ import annotations

import csv
import gzip
import warnings
from itertools import islice
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq

_PREAMBLE = 20  # lines among which the header of a CSV is looked for


def read_table(path: str | Path | None, wanted: set[str], only: set[str] | None = None) -> pd.DataFrame:
    """Read a table whose columns are known in part.

    Parameters
    ----------
    path : str or Path
        A ``.parquet``, ``.csv`` or ``.csv.gz`` file. The header of a CSV is the first of its first
        20 lines that holds every wanted column, so lines of a preamble are skipped; an empty column
        without a name, as trailing commas make, is dropped.
    wanted : set of str
        Columns that the header is known by. Whether they are there is for the caller to check: without
        such a line, the first of those with most fields is taken for the header.
    only : set of str, optional
        Columns to read; all are read if one of these is not there, so that a caller can say what is.

    Raises
    ------
    FileNotFoundError, ValueError
        There is no such file, or it is not a table of one of these kinds.
    """
    if path is None:
        raise ValueError("no table is given: say data.path=<file>, a .parquet, .csv or .csv.gz.")
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no file {path} (seen from {Path.cwd()}); give a .parquet, .csv or .csv.gz.")
    if path.suffix == ".parquet":
        columns = sorted(only) if only and only <= set(pq.read_schema(path).names) else None
        table = pd.read_parquet(path, columns=columns)
        return table if isinstance(table.index, pd.RangeIndex) else table.reset_index()
    if not path.name.endswith((".csv", ".csv.gz")):
        raise ValueError(f"{path.name} is none of .parquet, .csv and .csv.gz; convert it to one of these.")
    header, names = _header(path, wanted)
    columns = sorted(only) if only and only <= set(names) else None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # it says that fields would be dropped
            table = pd.read_csv(
                path, skiprows=header, encoding="utf-8-sig", index_col=False, low_memory=False, usecols=columns
            )
    except (pd.errors.ParserError, pd.errors.ParserWarning) as error:
        raise ValueError(
            f"{path} has rows with another number of fields than its header, taken to be line {header + 1}: "
            f"{str(error).strip()} Correct these rows."
        ) from error
    unnamed = [name for name in table.columns if name.startswith("Unnamed: ")]
    return table.drop(columns=[name for name in unnamed if table[name].isna().all()])


def _header(path: Path, wanted: set[str]) -> tuple[int, list[str]]:
    """Lines before the header, and its names."""
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        text = b"".join(islice(file, _PREAMBLE)).decode("utf-8-sig")
    lines = [next(csv.reader([line]), []) for line in text.splitlines()]
    if not any(lines):
        raise ValueError(f"{path} is empty; a header and one row per cell and frame are needed.")
    for number, names in enumerate(lines):
        if wanted <= set(names):
            return number, names
    number = max(range(len(lines)), key=lambda number: len(lines[number]))
    return number, lines[number]
