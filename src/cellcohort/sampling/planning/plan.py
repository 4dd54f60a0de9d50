"""Axes applied to a table: what each batch of an epoch is to hold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cellcohort.cells import CellTable
from cellcohort.sampling.axes.base import Axis, by_kind
from cellcohort.sampling.batch import Asked
from cellcohort.sampling.planning.epoch_plan import BatchSpec, EpochPlan
from cellcohort.sampling.planning.index_cache import find_strata
from cellcohort.sampling.planning.label_shares import shares_and_cells
from cellcohort.sampling.planning.leaks import build_leaks
from cellcohort.sampling.planning.primary_sets import PrimarySets, check_blocks
from cellcohort.sampling.planning.shortfalls import shortfalls


class Plan:
    """What batch number 0, 1, 2, ... of an epoch is to hold.

    Parameters
    ----------
    cells : CellTable
    axes : dict of str to Axis
    places : int
        Cells per batch.
    seed : int
    index_cache : path, optional
        Directory of files from which processes share what they sort.

    Attributes
    ----------
    n_cells : int
        Cells that may be drawn: those to which no axis gives weight or ratio 0.
    n_batches : int
        Batches that these cells fill.
    strata : Strata
        The cells that may be drawn, by stratum.
    weights : numpy.ndarray of float, shape (n_groups,)
        How often each group is the primary one, on any scale.
    leaky : float
        Share of a batch that comes from other groups.
    timed : bool
        Whether there is a window axis.
    time_column : str
        The column of times; empty without a window axis.
    half_width, share_inside : float
        Half-width of the time window in hours, and share of a batch inside it; NaN without a window axis.
    cap : int
        Cells of one label of ``strata.capped`` in a batch; 0 for no cap.
    batches : EpochPlan
        Which group is primary and what each stratum gives, batch by batch.
    group : str or tuple of str or None
        The column of the group axis.
    columns : list of str
        The columns that tell strata apart, in the order of the axes.
    warnings : tuple of str
        What the table cannot give as asked.

    Raises
    ------
    ValueError
        The axes do not go together or do not fit the table, or no batch can be filled.
    """

    def __init__(
        self, cells: CellTable, axes: Mapping[str, Axis], places: int, seed: int, index_cache: Path | str | None = None
    ) -> None:
        self.places, self.seed, self.index_cache = places, seed, index_cache
        group, shares, window, cap = by_kind(cells, axes)
        column, weights, requested, drawable = shares_and_cells(cells, group, shares, places)
        self.n_cells = len(cells) if drawable is None else int(np.count_nonzero(drawable))
        self.n_batches = self.n_cells // places
        hours = window.values(cells) if window else None
        self.timed = window is not None
        self.time_column = str(window.column) if window else ""
        self.half_width, self.share_inside = (window.half_width, window.inside) if window else (np.nan, np.nan)
        capped = cells.column(cap.column) if cap else None
        self.cap = cap.most if cap else 0
        positions = None if drawable is None else np.flatnonzero(drawable)
        labels = [one.column for one in requested]
        strata = find_strata(index_cache, column, labels, hours, capped, positions, len(cells))
        self.strata = strata if capped is None else strata._replace(capped=capped.codes)
        weights = self.weights = np.where(np.isin(np.arange(len(weights)), self.strata.group), weights, 0.0)
        self.leaky = group.leaky if group else 0.0
        ratios = [one.share for one in requested]
        self.batches: EpochPlan
        if group is not None and column is not None and group.n_primary > 1:
            check_blocks(column, np.bincount(self.strata.group, self.strata.size, len(weights)), group, places)
            self.batches = PrimarySets(self.strata, ratios, weights, group, places, seed, self.n_batches)
        else:
            targets, leaks = build_leaks(self.strata, ratios, self.leaky, places, len(weights))
            self.batches = EpochPlan(self.strata, targets, leaks, weights, places, seed, self.n_batches)
        self.warnings = shortfalls(self.strata, self.batches, column, requested, group, window)
        self._shares = {axis.key: one for axis, one in zip(shares, requested, strict=True)}
        self.group = group.key if group else None
        telling = ([group] if group else []) + shares
        self.columns = list(dict.fromkeys(name for axis in telling for name in axis.columns))
        self._weight = np.where(weights > 0, column.counts(), 0.0) if column else np.ones(1)

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return self.strata.nbytes + self.batches.nbytes

    def spec(self, epoch: int, number: int) -> BatchSpec:
        """Return what one batch is to hold."""
        return self.batches.spec(epoch, number)

    def asked(self, primary: int | np.ndarray, focal: float) -> Asked:
        """Return what the axes ask of a batch with this primary group (or several) and focal time."""
        each = np.atleast_1d(primary)
        shares: dict[Any, np.ndarray] = {name: one.in_batch(each, self.leaky) for name, one in self._shares.items()}
        if self.group is not None:
            others = self._weight.copy()
            others[each] = 0
            share = self.leaky * others / max(others.sum(), 1)
            share[each] = (1 - share.sum()) / len(each)
            shares[self.group] = share
        experiments = () if self.group is None else tuple(each.tolist())
        if not self.timed:
            return Asked(shares, experiments, self.leaky)
        focal = focal if np.isfinite(focal) else np.nan
        return Asked(shares, experiments, self.leaky, focal, self.half_width, self.share_inside)
