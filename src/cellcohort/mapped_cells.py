"""A table of cells in a file, so that all processes of a machine share its memory and a later run need not read it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from cellcohort.cells import CellTable
from cellcohort.coded_columns import coded
from cellcohort.files import stamp
from cellcohort.mapped_arrays import ArrayFiles, as_bytes, from_bytes

PLAIN = "biufmM"  # kinds of numpy types whose values are written as they are; of others, codes and labels


def files_of_table(directory: str | Path | None, path: str | Path | None, *options: Any) -> ArrayFiles:
    """Return the files of what is made of a table in a file, which change when it is written anew."""
    if directory is None or path is None or not Path(path).is_file():  # which whoever reads it refuses
        return ArrayFiles()
    return ArrayFiles(directory).of(str(path), stamp(Path(path)), *options)


def mapped_cells(files: ArrayFiles, make: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return a table of cells and arrays beside it, from the file of their source, which one process writes.

    Texts, and whatever else is no number and no time, are categories in the table that is returned.

    Parameters
    ----------
    files : ArrayFiles
        Those of the source. Without a directory, what `make` gives is returned.
    make : callable
        Reads the source; returns a table of cells, and the arrays.

    Warns
    -----
    UserWarning
        As `make`; or labels are of a kind that no file can hold, and every process has a table of its own.
    """
    if files.directory is None:
        return make()
    made = list[tuple[Any, ...]]()

    def arrays() -> list[np.ndarray]:
        made.append(make())
        return [*_arrays(*made[0])]

    try:
        found = files.arrays(arrays)
    except pa.ArrowException as error:
        warnings.warn(
            f"index_cache={files.directory} cannot hold the table, so every process has one of its own: {error}. Give "
            "the labels of a column one kind, such as text.",
            stacklevel=2,
        )
        return made[0]
    made.clear()
    return _cells(list(found), files)


def _arrays(cells: CellTable, *others: np.ndarray) -> Iterator[np.ndarray]:
    """Give what the table is, the categories of its columns, each column, hours if they are no column, and others."""
    frame = cells.frame
    columns = [_column(frame.iloc[:, number]) for number in range(frame.shape[1])]
    hours = next((i for i, one in enumerate(columns) if _same(one, cells.hours)), None)
    yield as_bytes(
        {
            **{"names": list(map(str, frame.columns)), "roles": cells.roles, "missing": cells.missing},
            **{"hours": hours, "timed": cells.hours is not None, "keys": cells.keys, "chunk_rows": cells.chunk_rows},
        }
    )
    kinds = {
        str(i): pd.Categorical.from_codes([-1], dtype=one.dtype)
        for i, one in enumerate(columns)
        if isinstance(one, pd.Categorical)
    }
    held = pa.Table.from_pandas(pd.DataFrame(kinds, index=[0]), preserve_index=False)
    written = pa.BufferOutputStream()
    with pa.ipc.new_file(written, held.schema) as writer:
        writer.write_table(held)
    yield np.frombuffer(written.getvalue(), np.uint8)
    for one in columns:
        yield one.codes if isinstance(one, pd.Categorical) else one
    if cells.hours is not None and hours is None:
        yield cells.hours
    yield from others


def _column(values: pd.Series) -> np.ndarray | pd.Categorical:
    if isinstance(values.dtype, np.dtype) and values.dtype.kind in PLAIN:
        return values.to_numpy()
    if isinstance(values.dtype, pd.DatetimeTZDtype | pd.PeriodDtype | pd.IntervalDtype):
        raise pa.ArrowNotImplementedError(f"column {values.name!r} is of type {values.dtype}")
    try:
        codes, labels = coded(values)
    except ValueError as error:
        raise pa.ArrowNotImplementedError(str(error)) from error
    kind = values.dtype.categories.dtype if isinstance(values.dtype, pd.CategoricalDtype) else None
    return pd.Categorical.from_codes(codes, pd.Index(labels, dtype=kind))


def _same(column: np.ndarray | pd.Categorical, hours: np.ndarray | None) -> bool:
    return (
        hours is not None
        and isinstance(column, np.ndarray)
        and column.dtype == hours.dtype
        and np.array_equal(column, hours, equal_nan=True)
    )


def _cells(arrays: list[np.ndarray], files: ArrayFiles) -> tuple[Any, ...]:
    about, kinds = from_bytes(arrays[0]), pa.ipc.open_file(pa.py_buffer(arrays[1].tobytes())).read_pandas().dtypes
    n = len(about["names"])
    columns: dict[int, Any] = {}
    for i, array in enumerate(arrays[2 : 2 + n]):
        kind = kinds.get(str(i))
        values = array if kind is None else pd.Categorical.from_codes(array, dtype=kind, validate=False)  # not read
        columns[i] = pd.Series(values, copy=False)
    frame, others = pd.DataFrame(columns, copy=False), arrays[2 + n :]
    frame.columns = pd.Index(about["names"])  # of which some may be there twice
    hours = None
    if about["timed"]:
        hours = others.pop(0) if about["hours"] is None else arrays[2 + about["hours"]]
    cells = CellTable.of_validated(frame, about["roles"], hours, about["missing"], files)
    cells.keys, cells.chunk_rows = tuple(about["keys"]), about["chunk_rows"]
    return cells, *others
