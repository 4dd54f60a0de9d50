"""Axes applied to a table: what each batch of an epoch is to hold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cellcohort.cells import CellTable, Column
from cellcohort.sampling.axes.base import Axis, CapAxis, GroupAxis, ShareAxis, WindowAxis
from cellcohort.sampling.batch import Asked
from cellcohort.sampling.planning.epoch_plan import BatchSpec, EpochPlan
from cellcohort.sampling.planning.index_cache import find_strata
from cellcohort.sampling.planning.label_shares import LabelShares
from cellcohort.sampling.planning.leaks import build_leaks
from cellcohort.sampling.planning.primary_sets import PrimarySets, check_blocks, in_every_batch
from cellcohort.sampling.planning.shortfalls import short_windows, shortfalls


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
    columns : tuple of (str or tuple of str)
        The columns that tell strata apart.
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
        self.n_cells = int(np.count_nonzero(drawable))
        self.n_batches = self.n_cells // places
        hours = window.values(cells) if window else None
        self.timed = window is not None
        self.time_column = str(window.column) if window else ""
        self.half_width, self.share_inside = (window.half_width, window.inside) if window else (np.nan, np.nan)
        capped = cells.column(cap.column) if cap else None
        self.cap = cap.most if cap else 0
        positions = None if self.n_cells == len(cells) else np.flatnonzero(drawable)
        labels = [one.column for one in requested]
        strata = find_strata(index_cache, column, labels, hours, capped, positions, len(cells))
        self.strata = strata if capped is None else strata._replace(capped=capped.codes)
        weights = self.weights = np.where(np.isin(np.arange(len(weights)), self.strata.group), weights, 0.0)
        self.leaky = group.leaky if group else 0.0
        ratios = [one.share for one in requested]
        self.batches: EpochPlan
        if group is not None and column is not None and group.n_primary > 1:
            cells_of = np.bincount(self.strata.group, self.strata.size, len(weights)).astype(np.int64)
            check_blocks(column, cells_of, group, places)
            sets = PrimarySets(self.strata, ratios, weights, group, places, seed, self.n_batches)
            self.batches = sets
            self.warnings = shortfalls(self.strata, sets.targets, sets.leaks, column, requested, 0.0)
            self.warnings += in_every_batch(column, weights, sets.n_primary)
        else:
            targets, leaks = build_leaks(self.strata, ratios, self.leaky, places, len(weights))
            self.batches = EpochPlan(self.strata, targets, leaks, weights, places, seed, self.n_batches)
            self.warnings = shortfalls(self.strata, targets, leaks, column, requested, self.leaky)
        if window:
            self.warnings += short_windows(self.strata, self.batches.targets, window.half_width, window.inside)
        self._shares = {_name(axis): one for axis, one in zip(shares, requested, strict=True)}
        self.group = _name(group) if group else None
        self.columns = tuple(_name(axis) for axis in ([group] if group else []) + shares)
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


def shares_and_cells(
    cells: CellTable, group: GroupAxis | None, shares: list[ShareAxis], places: int
) -> tuple[Column | None, np.ndarray, list[LabelShares], np.ndarray]:
    """Return the column of groups, the weight of each, what is asked of labels, and which cells may be drawn."""
    column = cells.column(group.column) if group else None
    weights = group.weights(column) if group and column else np.ones(1)
    requested = [
        LabelShares.of(of, axis.shares(of), column if group and _columns(group) <= _columns(axis) else None)
        for axis in shares
        for of in [cells.column(axis.column)]
    ]
    drawable = np.ones(len(cells), bool)
    for part, share in ([(column, weights)] if column else []) + [(one.column, one.share) for one in requested]:
        if not share[part.counts() > 0].all():
            drawable &= (share > 0)[part.codes]
    n = int(np.count_nonzero(drawable))
    if places > n:
        raise ValueError(
            f"a batch of {places} cells is larger than the number of cells that may be drawn, "
            f"{n} of {len(cells)}; use batch_sampler.batch_size={max(n, 1)} or less (with "
            "scope=global that of all ranks together)."
        )
    return column, weights, requested, drawable


def by_kind(
    cells: CellTable, axes: Mapping[str, Axis]
) -> tuple[GroupAxis | None, list[ShareAxis], WindowAxis | None, CapAxis | None]:
    """Check the axes against the table and sort them by kind; the order of their names decides, not of typing."""
    kinds: dict[type[Axis], list[Any]] = {GroupAxis: [], ShareAxis: [], WindowAxis: [], CapAxis: []}
    for name, axis in sorted(axes.items()):
        kind = next((kind for kind in kinds if isinstance(axis, kind)), None)
        if kind is None:
            raise ValueError(f"axes[{name!r}]={axis!r} is no axis; use one such as ExperimentAware().")
        axis.check(cells)
        kinds[kind].append(axis)
    several = "name several columns in one axis, column=[a, b]"
    for kind, remedy in ((GroupAxis, several), (WindowAxis, "drop one"), (CapAxis, several)):
        if len(kinds[kind]) > 1:
            both = " and ".join(map(repr, kinds[kind]))
            raise ValueError(f"{both} are both a {kind.__name__}, and a batch has room for one; {remedy}.")
    columns = [_name(axis) for axis in kinds[ShareAxis]]
    if len(set(columns)) < len(columns):
        raise ValueError(f"two axes share out one column, {columns}; drop one of them.")
    group, window, cap = (next(iter(kinds[kind]), None) for kind in (GroupAxis, WindowAxis, CapAxis))
    return group, kinds[ShareAxis], window, cap


def _columns(axis: Axis) -> set[str]:
    return {axis.column} if isinstance(axis.column, str) else set(axis.column)


def _name(axis: Axis) -> Any:
    return axis.column if isinstance(axis.column, str) else tuple(axis.column)
