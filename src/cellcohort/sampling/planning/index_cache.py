"""The sorted index in a file, built by one process and mapped into the memory of all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial

import numpy as np

from cellcohort.cells import Column
from cellcohort.mapped_arrays import cached_arrays
from cellcohort.sampling.planning.strata import Strata, build_strata


def find_strata(
    directory: str | os.PathLike[str] | None,
    group: Column | None,
    shares: Sequence[Column],
    hours: np.ndarray | None,
    cap: Column | None,
    positions: np.ndarray | None,
    n_cells: int,
) -> Strata:
    """Return what `build_strata` does, from the file of the same columns if a directory is named.

    The names of labels do not matter; `directory` is that of :func:`~cellcohort.mapped_arrays.cached_arrays`.
    """
    columns = [None if column is None else (column.codes, len(column.labels)) for column in (group, cap, *shares)]
    parts = [part for column in columns for part in column or [None]]
    inputs = ["strata", *parts, hours, positions, n_cells]
    build = partial(build_strata, group, list(shares), hours, cap, positions, n_cells)
    return Strata(*cached_arrays(directory, inputs, lambda: build()[:-1]))
