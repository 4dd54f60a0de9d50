"""Which cells each batch of a plan holds, where cells are read in chunks."""

from __future__ import annotations

import warnings

import numpy as np

from cellcohort.cells import CellTable
from cellcohort.sampling.batch import Asked
from cellcohort.sampling.chunked.layout_search import LayoutSearch, least_cost
from cellcohort.sampling.chunked.planner import MOST_ATTEMPTS, PREFERRED_ATTEMPTS, ChunkWindow, WindowPlanner
from cellcohort.sampling.chunked.reach import unreached
from cellcohort.sampling.kept import Kept
from cellcohort.sampling.planning.plan import Plan
from cellcohort.sampling.planning.shortfalls import ShortfallWarning

KEPT_WINDOWS = 32  # one of every rank of a node, and more


class ChunkPicker:
    """Cut the batches of a plan from chunk windows.

    How many batches are cut from a window, and how many groups are primary in it, is found by trying: the layout that
    loads the fewest chunks per batch and stays within `preload_nchunks`.

    Parameters
    ----------
    plan : Plan
        What each batch is to hold.
    cells : CellTable
        The cells of the plan.
    chunk_size, preload_nchunks : int
        Rows per chunk, and chunks that a window may load.

    Attributes
    ----------
    planner : WindowPlanner
        Plans the windows.
    rotation : Rotation
        The layout of the windows.

    Raises
    ------
    ValueError
        No batch can be cut from so few chunks.
    """

    def __init__(self, plan: Plan, cells: CellTable, chunk_size: int, preload_nchunks: int) -> None:
        self.plan, self._limit = plan, preload_nchunks
        self.planner = WindowPlanner(plan, cells.rows, chunk_size)
        self.rotation = LayoutSearch(self.planner, preload_nchunks, cells).best()
        self._windows = Kept[ChunkWindow](KEPT_WINDOWS)
        self._warned = False

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the table cannot give as requested."""
        return self.plan.warnings

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return self.plan.nbytes + self.planner.table.chunks.nbytes

    @property
    def per_window(self) -> int:
        """Batches cut from one window."""
        return self.rotation.batches_per_window

    @property
    def least_amplification(self) -> float:
        """Rows read per row used if a chunk is read as often as the cells of its most requested stratum are drawn."""
        return least_cost(self.planner) * self.planner.chunk_size / self.plan.places

    def unreached(self, per_rank: int, world_size: int) -> tuple[str, ...]:
        """Say if ranks do not meet all groups in every epoch of `per_rank` batches."""
        return tuple(unreached(self.rotation, self.plan.weights, self.plan.group, per_rank, world_size))

    def pick(self, epoch: int, number: int) -> np.ndarray:
        """Return the positions of a batch, int64 of shape (places,)."""
        return self.pick_run(epoch, number, 1)[0]

    def pick_run(self, epoch: int, number: int, n: int) -> list[np.ndarray]:
        """Return the positions of `n` batches of one window."""
        window, place = divmod(number, self.per_window)
        return list(self.window(epoch, window).positions[place : place + n].copy())

    def asked(self, epoch: int, number: int) -> Asked:
        """Return what the axes ask of a batch."""
        number, place = divmod(number, self.per_window)
        window = self.window(epoch, number)
        return self.plan.asked(int(window.primary[place % len(window.primary)]), float(window.focal[place]))

    def window(self, epoch: int, number: int) -> ChunkWindow:
        """Return a window of an epoch."""
        return self._windows.get((epoch, number), lambda: self._plan_window(epoch, number))

    def _plan_window(self, epoch: int, number: int) -> ChunkWindow:
        """Return the first attempt at a window that loads few enough chunks, or the one that loads the fewest."""
        for attempt in range(MOST_ATTEMPTS):
            window = self.planner.window(self.rotation, epoch, number, attempt, self._limit + 1)
            if window.chunks <= self._limit:
                return window
        n_chunks = self.planner.n_chunks
        attempts = range(PREFERRED_ATTEMPTS)
        windows = [self.planner.window(self.rotation, epoch, number, attempt, n_chunks) for attempt in attempts]
        window = min(windows, key=lambda window: window.chunks)
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"window {number} of epoch {epoch} loads {window.chunks} chunks, since its batches cannot be cut from "
                f"preload_nchunks={self._limit}; others may too. Where memory is short, use a larger preload_nchunks, "
                "with which windows are planned anew.",
                ShortfallWarning,
                stacklevel=2,
            )
        return window
