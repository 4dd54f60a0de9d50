"""The batch sampler: axes composed into one pure sequence of batches."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from cellcohort.cells import CellTable, table_of
from cellcohort.messages import whole_number
from cellcohort.sampling.axes.base import Axis
from cellcohort.sampling.batch import Asked
from cellcohort.sampling.description import Description
from cellcohort.sampling.drawing.row_picker import RowPicker
from cellcohort.sampling.passes import Passes, naming_validation
from cellcohort.sampling.planning.epoch_length import batches_per_rank, number_or_cover
from cellcohort.sampling.planning.plan import Plan
from cellcohort.sampling.planning.shortfalls import ShortfallWarning, grouped
from cellcohort.sampling.protocol import Picker
from cellcohort.sampling.schedule import Schedule, ScheduledPicker

if TYPE_CHECKING:
    from pydantic import NonNegativeInt, PositiveInt


class BatchSampler(Passes, Description):
    """Yield batches of cell positions that hold what the axes ask, the same on every process.

    A batch is a function of the cells, the axes, `batch_size`, `seed`, the epoch and its place in
    the global sequence of batches, and of nothing else: :meth:`batch` draws any batch of any rank, without a state and
    without communication.

    Parameters
    ----------
    cells : CellTable
        The cells to draw from.
    axes : dict of str to Axis, optional
        What batches are to hold; the names are free and their order does not matter. At most one
        axis may group batches and at most one may window them. None or empty draws at random.
    batch_size : int
        Cells per batch and rank.
    seed : int
        Key of all randomness, >= 0.
    rank, world_size : int
        This process and the number of processes that train together.
    scope : {"rank", "global"}
        What the axes rule: each rank's batch by itself ("rank"), or the union of all ranks'
        batches of a step ("global"), which then share one experiment and one focal time, as
        negatives gathered across ranks require.
    num_batches : int or "cover", optional
        Batches per epoch and rank. By default as many as the cells fill: an epoch without axes
        repeats no cell and misses less than one batch of every rank. "cover" makes the epoch as
        long as it takes to draw every cell at least once; `notes` then says what that costs.
    fixed : bool
        Yield the batches of epoch 0 in every pass, as validation wants. A larger `batch_size` than the cells of each
        rank is then these.
    schedule : dict of str to (sequence or dict), optional
        Options of axes that change from epoch to epoch, ``{"<axis>.<option>": values}``: a value for each epoch, of
        which the last one stays, or ``{"from": a, "to": b, "epochs": n}``. A batch is then a function of the schedule,
        too; `axes` are those of epoch 0.
    index_cache : path, optional
        Directory in which the sorted cells are kept: one process sorts and writes them, and all processes, also of
        later runs with the same columns, share them in memory. Batches are the same without.

    Attributes
    ----------
    warnings, notes : tuple of str
        What the table cannot give as asked (rank 0 also issues these as one `ShortfallWarning`), and
        what else is worth knowing.

    Raises
    ------
    ValueError
        An option is out of range, does not fit the labels of the table, or asks for more cells
        or batches than there are.
    OSError
        Nothing can be written to `index_cache`.
    """

    reads_chunks = False
    drop_last = True  # every batch is full; accelerate, which asks for it, then repeats none to even out ranks

    def __init__(
        self,
        cells: CellTable,
        axes: Mapping[str, Axis] | None = None,
        batch_size: PositiveInt = 256,
        seed: NonNegativeInt = 0,
        rank: int = 0,
        world_size: int = 1,
        scope: Literal["rank", "global"] = "rank",
        num_batches: PositiveInt | Literal["cover"] | None = None,
        fixed: bool = False,
        schedule: Mapping[str, Any] | None = None,
        index_cache: str | Path | None = None,
    ) -> None:
        if scope not in ("rank", "global"):
            raise ValueError(f"scope={scope!r} is not a choice; use 'rank' or 'global'.")
        if not isinstance(axes, Mapping | None):
            raise ValueError(f"axes={axes!r} must map names to axes, such as {{'experiment': ExperimentAware()}}.")
        if not isinstance(schedule, Mapping | None):
            raise ValueError(f"schedule={schedule!r} must map options to values: {{'temporal.window_hours': [8, 2]}}.")
        self.schedule = Schedule(schedule, axes or {}) if schedule else None
        self.cells, self.scope, self.index_cache = table_of(cells), scope, index_cache
        self.axes = dict(axes or {}) if self.schedule is None else self.schedule.axes(0)
        if self.schedule is not None and num_batches == "cover":
            raise ValueError("num_batches='cover' cannot be promised with a schedule; set a number.")
        self.batch_size = whole_number("batch_size", batch_size, 1)
        self.seed = whole_number("seed", seed, 0)
        super().__init__(fixed)
        self._per_epoch = number_or_cover(num_batches)
        whole_number("world_size", world_size, 1)
        if fixed:  # few cells are held out of few
            self.batch_size = min(self.batch_size, max(len(cells) // world_size, 1))
        with naming_validation(fixed, len(cells)):
            self._picker = self._make_picker(world_size)
            self._take_place(rank, world_size)
        self.warnings = self._shortfalls()
        if self.rank == 0 and self.warnings:
            warnings.warn(grouped(self.warnings, "validation batches" if fixed else ""), ShortfallWarning, stacklevel=2)

    def _make_picker(self, world_size: int) -> Picker:
        places = self.batch_size * (world_size if self.scope == "global" else 1)
        if self.schedule is not None:
            return ScheduledPicker(self.schedule, self.cells, places, self.seed, self.index_cache)
        return RowPicker(Plan(self.cells, self.axes, places, self.seed, self.index_cache))

    def _take_place(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = whole_number("rank", rank, 0), whole_number("world_size", world_size, 1)
        if rank >= world_size:
            raise ValueError(f"rank={rank} does not exist with world_size={world_size}; ranks count from 0.")
        ranks = 1 if self.scope == "global" else world_size
        self.num_batches, self.notes = batches_per_rank(self._picker.plan, self._per_epoch, ranks)

    def for_rank(self, rank: int, world_size: int) -> Self:
        """Return the sampler of another rank, which shares the index of this one where it is the same.

        Parameters
        ----------
        rank, world_size : int
            The other process and the number of processes.

        Returns
        -------
        BatchSampler
        """
        twin = copy.copy(self)
        if self.scope == "global" and world_size != self.world_size:
            twin._picker = self._make_picker(whole_number("world_size", world_size, 1))
        twin._take_place(rank, world_size)
        return twin

    def batch(self, epoch: int, step: int) -> np.ndarray:
        """Draw one batch, without changing the state of the sampler.

        Parameters
        ----------
        epoch, step : int
            The place of the batch, >= 0.

        Returns
        -------
        numpy.ndarray of int64, shape (batch_size,)
            Positions of its cells.

        Notes
        -----
        Without a time window, a batch takes the cells that follow those of earlier batches of its epoch. A jump counts
        these first: at once, however many it passes over, unless cells leak or a batch has several primary labels.
        What these batches take is not known without planning each one, which takes a few microseconds (tens with
        thousands of labels). With a time window nothing is counted.
        """
        return self._draw(whole_number("epoch", epoch, 0), whole_number("step", step, 0))

    def asked(self, epoch: int, step: int) -> Asked:
        """Return what the axes ask of one batch (with ``scope="global"``, of the union over ranks).

        Parameters
        ----------
        epoch, step : int
            The place of the batch, >= 0.

        Returns
        -------
        Asked
        """
        return self._picker.asked(whole_number("epoch", epoch, 0), self._number(whole_number("step", step, 0)))

    def _draw(self, epoch: int, step: int) -> np.ndarray:
        positions = self._picker.pick(epoch, self._number(step))
        return positions[self.rank :: self.world_size].copy() if self.scope == "global" else positions

    def _number(self, step: int) -> int:
        """Return the place of this rank's batch in the sequence that all ranks share."""
        return step if self.scope == "global" else step * self.world_size + self.rank
