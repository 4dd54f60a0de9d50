"""How often the cells of each stratum are drawn in one epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from cellcohort.sampling.batch_sampler import BatchSampler


@dataclass(frozen=True)
class Coverage:
    """How many cells one epoch of all ranks draws 0, 1, 2, ... times.

    Attributes
    ----------
    labels : tuple
        The strata: one label per stratum, or a tuple where several columns tell them apart. Cells
        to which an axis gives weight or ratio 0 are counted too.
    drawn : numpy.ndarray of int, shape (n_strata, most + 1)
        ``drawn[s, k]`` cells of stratum `s` are drawn exactly `k` times.
    """

    labels: tuple[Any, ...]
    drawn: np.ndarray

    @property
    def share(self) -> float:
        """Share of all cells drawn at least once."""
        return float(1 - self.drawn[:, 0].sum() / self.drawn.sum())

    def table(self) -> pd.DataFrame:
        """One row per stratum: cells, the share drawn at least once, and draws per cell."""
        cells = self.drawn.sum(axis=1)
        return pd.DataFrame(
            {
                "stratum": [" x ".join(map(str, x)) if isinstance(x, tuple) else str(x) for x in self.labels],
                "cells": cells,
                "drawn": 1 - self.drawn[:, 0] / np.maximum(cells, 1),
                "draws per cell": self.drawn @ np.arange(self.drawn.shape[1]) / np.maximum(cells, 1),
            }
        )


def coverage(sampler: BatchSampler, epoch: int = 0) -> Coverage:
    """Count the draws of every cell in one epoch of all ranks, finished or planned.

    Walks through the epoch's batches, which takes about as long as drawing them; needs four bytes a
    cell while it does.

    Parameters
    ----------
    sampler : BatchSampler
    epoch : int
    """
    times = np.zeros(len(sampler.cells), np.uint32)
    for rank in range(sampler.world_size):
        twin = sampler.for_rank(rank, sampler.world_size)
        for step in range(len(sampler)):
            np.add.at(times, twin.batch(epoch, step), 1)
    return coverage_of(sampler, times)


def coverage_of(sampler: BatchSampler, times: np.ndarray) -> Coverage:
    """Sort counted draws by the strata of a sampler.

    Parameters
    ----------
    sampler : BatchSampler
    times : numpy.ndarray of int, shape (n_cells,)
        How often each cell was drawn.
    """
    columns = sampler.strata_columns
    if not columns:
        labels, code = ("all cells",), np.zeros(len(times), np.int64)
    else:
        column = sampler.cells.column(columns[0] if len(columns) == 1 else columns)
        labels, code = column.labels, column.codes.astype(np.int64)
    most = int(times.max()) + 1
    drawn = np.bincount(code * most + times, minlength=len(labels) * most).reshape(len(labels), most)
    return Coverage(labels, drawn)
