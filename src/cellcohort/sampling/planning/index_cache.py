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
    """Return the strata of some columns, from the file of these columns if a directory is named.

    Parameters
    ----------
    directory : path or None
        As for :func:`~cellcohort.mapped_arrays.cached_arrays`.
    group, shares, hours, cap, positions, n_cells
        As for :func:`~cellcohort.sampling.planning.strata.build_strata`. The names of labels do not matter.

    Returns
    -------
    Strata
    """
    columns = [None if column is None else (column.codes, len(column.labels)) for column in (group, cap, *shares)]
    parts = [part for column in columns for part in column or [None]]
    inputs = ["strata", *parts, hours, positions, n_cells]
    build = partial(build_strata, group, list(shares), hours, cap, positions, n_cells)
    return Strata(*cached_arrays(directory, inputs, lambda: build()[:-1]))
