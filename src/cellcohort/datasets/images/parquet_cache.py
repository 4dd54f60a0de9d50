"""Tables that are computed once and read from parquet files afterwards."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from cellcohort.files import whole


def cached_table(file: Path, make: Callable[[], pa.Table]) -> pa.Table:
    """Return the table in a file, which is made if the file is missing or damaged.

    Parameters
    ----------
    file : pathlib.Path
        Its name must change with whatever the table depends on.
    make : callable
        Returns the table.

    Returns
    -------
    pyarrow.Table
    """
    if file.is_file():
        try:
            return pq.read_table(file, page_checksum_verification=True)
        except (OSError, pa.ArrowException):
            warnings.warn(f"{file} was damaged and is made again.", stacklevel=2)
    table = make()
    with whole(file) as beside:
        pq.write_table(table, beside, write_page_checksum=True)
    return pq.read_table(file)
