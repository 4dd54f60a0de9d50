"""A table from a file: parquet, or text with a row per line."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from cellcohort.datasets.tables.delimited import read_delimited
from cellcohort.datasets.tables.layout import header
from cellcohort.messages import listed, spelled_plainly

KINDS = (".parquet", ".csv", ".csv.gz", ".tsv", ".tsv.gz")


def read_table(
    path: str | Path | None,
    wanted: Collection[str],
    only: Collection[str] | None = None,
    text: Collection[str] = (),
    numbers: Collection[str] = (),
    besides: Collection[str] = (),
) -> pd.DataFrame:
    """Read a table whose columns are known in part.

    Parameters
    ----------
    path : str or Path
        A ``.parquet`` file, or a ``.csv`` or ``.tsv`` file, which may be compressed (``.csv.gz``); see
        :func:`~cellcohort.datasets.tables.delimited.read_delimited`.
    wanted : collection of str
        Columns that a header is known by. Whether they are there is for the caller to check.
    only : collection of str, optional
        Columns to read; all are read if one of these is not there, so that a caller can say what is.
    text, numbers : collection of str
        Columns of a text file that hold labels, and those that hold numbers.
    besides : collection of str
        Columns to read with `only` if they are there, by their names as
        :func:`~cellcohort.messages.spelled_plainly` gives them.

    Returns
    -------
    pandas.DataFrame
        The levels of an index are columns too. ``attrs["path"]`` is the path of the file.

    Raises
    ------
    FileNotFoundError, ValueError
        There is no such file, it is not a table of one of these kinds, or its index has the name of a wanted column
        but other values.
    """
    kinds = f"{', '.join(KINDS[:-1])} and {KINDS[-1]}"
    if path is None:
        raise ValueError(f"no table is given: say data.path=<file>, one of {kinds}.")
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no file {path} (seen from {Path.cwd()}); give a file of the kind {kinds}.")
    if not path.name.endswith(KINDS):
        raise ValueError(f"{path.name} is none of {kinds}; convert it to one of these.")
    if path.suffix != ".parquet":
        table = read_delimited(path, wanted, only, text, numbers, besides)
        table.attrs["path"] = str(path)
        return table
    try:
        there = pq.read_schema(path).names
        if twice := sorted({name for name in there if there.count(name) > 1}):
            raise ValueError(f"{path} has {listed(twice)} more than once among its columns; rename all but one.")
        names = set(there)
        also = {name for name in names if spelled_plainly(name) in besides}
        columns = sorted({*only, *also}) if only and set(only) <= names else None
        table = pd.read_parquet(path, columns=columns)
    except pa.ArrowException as error:
        raise ValueError(f"{path} cannot be read as parquet: {str(error)[:200]}") from error
    return index_as_columns(table, wanted, path)


def has_columns(path: str | Path | None, wanted: Collection[str], numbers: Collection[str] = ()) -> bool:
    """Whether the header of a table has some columns; False too where it cannot be told without reading the table.

    Parameters
    ----------
    path, wanted, numbers
        As for :func:`read_table`.
    """
    if path is None or not Path(path).is_file() or not str(path).endswith(KINDS):
        return False
    try:
        names = pq.read_schema(path).names if str(path).endswith(".parquet") else header(Path(path), wanted, numbers)
    except (pa.ArrowException, ValueError):
        return False
    return set(wanted) <= set(names)


def index_as_columns(table: pd.DataFrame, wanted: Collection[str], path: Path) -> pd.DataFrame:
    """Return the table with the levels of its index as columns, where it does not have columns of these names.

    ``attrs["index"]`` of the table lists the columns that it made.

    Raises
    ------
    ValueError
        A level has the name of a wanted column, but other values.
    """
    added = {}
    for number, name in enumerate(table.index.names):
        level = table.index.get_level_values(number)
        if name is None and (isinstance(level, pd.RangeIndex) or "index" in table):
            continue
        name = "index" if name is None else str(name)
        values = level.to_series(index=pd.RangeIndex(len(table)))
        if name not in table:
            added[name] = values
        elif name in wanted and (differ := unequal(values, table[name])):
            raise ValueError(
                f"the index and a column of {path} are both named {name!r}, and differ in {differ:,} of "
                f"{len(table):,} rows; rename or drop one of the two."
            )
    table = table.reset_index(drop=True)
    table = pd.concat([pd.DataFrame(added), table], axis=1) if added else table
    table.attrs |= {"index": list(added), "path": str(path)}
    return table


def unequal(one: pd.Series, other: pd.Series) -> int:
    """In how many rows two columns differ as text; two missing values are equal."""
    texts = [
        values.astype(object).where(values.notna().to_numpy(), None).map(str).to_numpy() for values in (one, other)
    ]
    return int((texts[0] != texts[1]).sum())
