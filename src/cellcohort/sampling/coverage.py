"""How often the cells are drawn: the one definition of coverage, for training and preview."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from cellcohort.compiled import compiled
from cellcohort.sampling.protocol import Sampler


class DrawCounter:
    """Counts how often each cell is drawn.

    Parameters
    ----------
    n_cells : int

    Attributes
    ----------
    draws : numpy.ndarray of uint32, shape (n_cells,)
        How often each cell was drawn.
    n_drawn : int
        Cells that were drawn at least once.
    """

    def __init__(self, n_cells: int) -> None:
        self.draws, self.n_drawn = np.zeros(n_cells, np.uint32), 0

    @property
    def share(self) -> float:
        """Share of all cells that were drawn at least once: the coverage."""
        return self.n_drawn / len(self.draws)

    def add(self, positions: np.ndarray) -> np.ndarray:
        """Count the cells of some batches.

        Parameters
        ----------
        positions : numpy.ndarray of int64, shape (n, ...)

        Returns
        -------
        numpy.ndarray of int64, shape (n,)
            `n_drawn` after each of the n entries.
        """
        so_far = self.n_drawn + np.cumsum(_count_draws(self.draws, positions.reshape(len(positions), -1)))
        self.n_drawn = int(so_far[-1])
        return so_far


@dataclass(frozen=True)
class Coverage:
    """How many cells of each stratum are drawn 0, 1, 2, ... times.

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

    @cached_property
    def names(self) -> list[str]:
        """The strata as texts."""
        return [" x ".join(map(str, x)) if isinstance(x, tuple) else str(x) for x in self.labels]

    @cached_property
    def cells(self) -> np.ndarray:
        """Cells of each stratum."""
        return self.drawn.sum(axis=1)

    @cached_property
    def draws_per_cell(self) -> np.ndarray:
        """Mean number of draws of a cell of each stratum; 0 for a stratum without cells."""
        return self.drawn @ np.arange(self.drawn.shape[1]) / np.maximum(self.cells, 1)

    def table(self) -> pd.DataFrame:
        """Return one row per stratum: cells, the share drawn at least once, and draws per cell."""
        return pd.DataFrame(
            {
                "stratum": self.names,
                "cells": self.cells,
                "drawn": 1 - self.drawn[:, 0] / np.maximum(self.cells, 1),
                "draws per cell": self.draws_per_cell,
            }
        )


def coverage(sampler: Sampler, epoch: int = 0) -> Coverage:
    """Count the draws of every cell in one epoch of all ranks, finished or planned.

    Draws all batches of the epoch. Uses four bytes of memory per cell.

    Parameters
    ----------
    sampler : Sampler
        The sampler of any rank.
    epoch : int

    Returns
    -------
    Coverage
    """
    counter = DrawCounter(len(sampler.cells))
    for rank in range(sampler.world_size):
        twin = sampler.for_rank(rank, sampler.world_size)
        for step in range(len(sampler)):
            counter.add(twin.batch(epoch, step)[None])
    return coverage_of(sampler, counter.draws)


def coverage_of(sampler: Sampler, draws: np.ndarray) -> Coverage:
    """Sort counted draws by the strata of a sampler.

    Parameters
    ----------
    sampler : Sampler
    draws : numpy.ndarray of int, shape (n_cells,)
        How often each cell was drawn.

    Returns
    -------
    Coverage
    """
    columns = sampler.strata_columns
    if not columns:
        labels, code = ("all cells",), np.zeros(len(draws), np.int64)
    else:
        column = sampler.cells.column(columns[0] if len(columns) == 1 else columns)
        labels, code = column.labels, column.codes.astype(np.int64)
    most = int(draws.max()) + 1
    drawn = np.bincount(code * most + draws, minlength=len(labels) * most).reshape(len(labels), most)
    return Coverage(labels, drawn)


@compiled
def _count_draws(draws: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Add 1 to the draws of every position; return how many were 0 before, per row."""
    new = np.zeros(len(positions), np.int64)
    for row in range(len(positions)):
        for position in positions[row]:
            new[row] += draws[position] == 0
            draws[position] += 1
    return new
