"""Axes applied to a table: the endless sequence of batches that they ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cellcohort.cells import CellTable
from cellcohort.sampling.axes.base import Axis, CapAxis, GroupAxis, ShareAxis, WindowAxis
from cellcohort.sampling.batch import Asked
from cellcohort.sampling.drawing.time_window import draw_windowed, focal_knot
from cellcohort.sampling.drawing.uniform import draw, draw_capped
from cellcohort.sampling.planning.cycle import build_plan
from cellcohort.sampling.planning.quotas import quotas
from cellcohort.sampling.planning.rounding import golden_step
from cellcohort.sampling.planning.shortfalls import shortfalls
from cellcohort.sampling.planning.strata import build_strata
from cellcohort.sampling.rng import key_of


class Schedule:
    """What batch number 0, 1, 2, ... of an epoch is asked to hold, and the cells it holds.

    Parameters
    ----------
    cells : CellTable
    axes : dict of str to Axis
    places : int
        Cells per batch.
    seed : int

    Attributes
    ----------
    n_cells : int
        Cells that may be drawn: those to which no axis gives weight or ratio 0.
    n_batches : int
        Batches that these cells fill.
    columns : tuple of (str or tuple of str)
        The columns that tell strata apart.
    warnings : tuple of str
        What the table cannot give as asked.

    Raises
    ------
    ValueError
        The axes do not go together or do not fit the table, or no batch can be filled.
    """

    def __init__(self, cells: CellTable, axes: Mapping[str, Axis], places: int, seed: int) -> None:
        self._places, self._seed = places, seed
        group, shares, self._window, cap = _by_kind(cells, axes)
        column = cells.column(group.column) if group else None
        weights = self._weights = group.weights(column) if group and column else np.ones(1)
        asked = [(cells.column(axis.column), axis.shares(cells.column(axis.column))) for axis in shares]
        drawable = np.ones(len(cells), bool)
        for part, share in ([(column, weights)] if column else []) + asked:
            if not share[part.counts() > 0].all():
                drawable &= (share > 0)[part.codes]
        self.n_cells = int(drawable.sum())
        if places > self.n_cells:
            raise ValueError(
                f"a batch of {places} cells is larger than the number of cells that may be drawn, "
                f"{self.n_cells} of {len(cells)}; use a smaller batch_size (batch_sampler.batch_size)."
            )
        self.n_batches = self.n_cells // places
        hours = self._window.values(cells) if self._window else None
        self._inside = places * self._window.inside if self._window else 0.0  # cells of a batch, around its focal time
        capped = cells.column(cap.column) if cap else None
        self._capped: np.ndarray
        self._capped, self._most = (capped.codes, cap.most) if cap and capped else (np.empty(0, np.int8), 0)
        positions = None if self.n_cells == len(cells) else np.flatnonzero(drawable)
        self._strata = build_strata(column, [c for c, _ in asked], hours, capped, positions, len(cells))
        weights = self._weights = np.where(np.isin(np.arange(len(weights)), self._strata.group), weights, 0.0)
        self._leaky = group.leaky if group else 0.0
        groups = np.searchsorted(self._strata.group, np.arange(len(weights) + 1))
        self._knots_of = self._strata.knot_ptr[groups]
        ratios = [share for _, share in asked]
        parts = quotas(self._strata, ratios, self._leaky, places)
        self._plan = build_plan(self._strata, weights, parts, self.n_batches, seed)
        self.warnings = shortfalls(self._strata, parts, column, asked, self._leaky, places)
        self._asked = {_name(axis): share for axis, share in zip(shares, ratios, strict=True)}
        self._group = _name(group) if group else None
        self.columns = tuple(_name(axis) for axis in ([group] if group else []) + shares)
        self._weight = np.where(weights > 0, column.counts(), 0.0) if column else np.ones(1)

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return self._strata.nbytes + self._plan.nbytes

    def covering(self) -> tuple[int, str]:
        """Batches that draw every cell at least once, and what that costs, in words."""
        if self._window is not None or self._most:
            raise ValueError(
                "num_batches='cover' cannot be promised with a window around a focal time or a cap on tracks, "
                "which decides what is drawn; set a number, and see with coverage() what it covers."
            )
        n, size = self._plan.length_that_covers(self._strata.size), self._strata.size
        draws = self._plan.total / len(self._plan) * n / size
        least, most = int(draws.argmin()), int(draws.argmax())
        return n, (
            f"{n} batches draw every cell at least once: on average {draws[least]:.1f} times in the least sampled of "
            f"{len(size)} strata ({size[least]:,} cells), {draws[most]:.1f} times in the most sampled "
            f"({size[most]:,} cells); {self.n_batches} batches hold as many cells as there are."
        )

    def draw(self, epoch: int, number: int, share: int = 0, shares: int = 1) -> np.ndarray:
        """Positions of a batch, or of every `shares`-th of its places; int64 of shape (places / shares,)."""
        plan, strata = self._plan, self._strata
        lap, row = divmod(self._start(epoch) + number, len(plan))
        entries = slice(plan.ptr[row], plan.ptr[row + 1])
        stratum, count = plan.stratum[entries], plan.count[entries]
        out = np.empty(self._places // shares, np.int64)
        key = key_of(self._seed, epoch)
        if self._window is not None:
            draw_windowed(
                strata.order, strata.start, strata.knot, strata.knot_start, strata.knot_ptr, self._capped, self._most,
                stratum, count, self._focal(epoch, lap, row), self._window.half_width, self._inside, number,
                key, share, shares, out,
            )  # fmt: skip
            return out
        before = plan.before[entries].astype(np.int64) + lap * plan.total[stratum]
        if self._most:
            draw_capped(
                strata.order, strata.start, self._capped, self._most, stratum, count, before, key, share, shares, out
            )
        else:
            draw(strata.order, strata.start, stratum, count, before, key, share, shares, out)
        return out

    def asked(self, epoch: int, number: int) -> Asked:
        """What the axes asked of a batch."""
        lap, row = divmod(self._start(epoch) + number, len(self._plan))
        leader = int(self._plan.leader[row])
        return self._asked_of(leader, self._focal(epoch, lap, row) if self._window is not None else np.nan)

    def _asked_of(self, leader: int, focal: float) -> Asked:
        """What the axes ask of a batch with this leader and focal time."""
        shares: dict[Any, np.ndarray] = dict(self._asked)
        if self._group is not None:
            others = self._weight.copy()
            others[leader] = 0
            share = self._leaky * others / max(others.sum(), 1)
            share[leader] = 1 - share.sum()
            shares[self._group] = share
        led_by = None if self._group is None else leader
        if self._window is None:
            return Asked(shares, led_by, self._leaky)
        focal = focal if np.isfinite(focal) else np.nan
        return Asked(shares, led_by, self._leaky, focal, self._window.half_width, self._window.inside)

    def _start(self, epoch: int) -> int:
        """Where in the cycle of batches an epoch begins: soon everywhere, however short the epochs are."""
        return epoch * golden_step(len(self._plan)) % len(self._plan)

    def _focal(self, epoch: int, lap: int, row: int) -> float:
        """Focal time of a batch: the times of the group that leads it have their turns."""
        plan, strata = self._plan, self._strata
        leader = int(plan.leader[row])
        first, last = self._knots_of[leader], self._knots_of[leader + 1]
        turn = plan.turn[row] + lap * plan.turns[leader]
        knot = focal_knot(strata.knot, first, last, turn, key_of(self._seed, epoch, leader))
        return -np.inf if knot < 0 else float(strata.knot[knot])


def _by_kind(
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


def _name(axis: Axis) -> Any:
    return axis.column if isinstance(axis.column, str) else tuple(axis.column)
