"""How many groups share a chunk window, and how many batches of each it holds: found by planning windows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from cellcohort.cells import CellTable
from cellcohort.messages import joined
from cellcohort.sampling.chunked.planner import MOST_ATTEMPTS, PREFERRED_ATTEMPTS, WindowPlanner, drawn_per_batch
from cellcohort.sampling.chunked.reach import due, missed
from cellcohort.sampling.chunked.rotation import Rotation

COMPARED_WINDOWS, COMPARED_ROWS = 24, 2**17  # windows, and rows of them, by which layouts are compared
CHECKED_WINDOWS, CHECKED_ROWS = 48, 2**19  # windows, and rows of them, that must load no more chunks than allowed
ALIKE = 1.02  # layouts whose chunks per batch differ by less rank alike
AFFORDABLE = 1.6  # times the least chunks per batch, for a layout with which ranks meet every group
WORLD_SIZES = (4, 2, 1)  # for which it is checked that every rank meets every group
MOST_LATE = 1 / 24  # of the windows that are checked, those of which no preferred attempt does
MIXED = 1.5  # strata per chunk above which most chunks hold several strata
NEXT_SIZE = 0.94  # batches per window of one layout over those of the layout before it


@dataclass(frozen=True)
class LayoutSearch:
    """The search for the layout of the windows of a table in chunks.

    Attributes
    ----------
    planner : WindowPlanner
        Plans windows of any rotation.
    limit : int
        Chunks that a window may load.
    cells : CellTable
        The cells, for the text of an error.
    """

    planner: WindowPlanner
    limit: int
    cells: CellTable

    def best(self) -> Rotation:
        """Return the layout that loads the fewest chunks per batch, of those that fit.

        A layout with which every rank meets every group in an epoch ranks higher, if it loads few more. If cells leak,
        several groups share a window wherever they can, as cells leak among these.

        Raises
        ------
        ValueError
            No batch can be cut from so few chunks.
        """
        plan = self.planner.plan
        n_groups = int((plan.weights > 0).sum())
        several = sorted({min(n, n_groups) for n in (2, 4, n_groups)})
        if self._mixed and n_groups > 1:
            several.append(self._most_batches)  # in proportion to their weights
        for sizes in [several, [1]] if plan.leaky else [sorted({1, *several})]:
            found = [candidate for groups in sizes for candidate in self._candidates(groups, n_groups)]
            ranked = self._ranked(found)
            for most_late in (MOST_LATE, 1.0):
                for rotation in ranked:
                    if self._late(rotation) <= most_late:
                        return rotation
        raise ValueError(self._too_few_chunks())

    def _ranked(self, found: list[tuple[Rotation, float]]) -> list[Rotation]:
        """Sort layouts by how many ranks they suit, chunks per batch, and batches per window; the best first."""
        least = min((cost for _, cost in found), default=0.0)
        affordable = AFFORDABLE * max(least, least_cost(self.planner))

        def rank(candidate: tuple[Rotation, float]) -> tuple[int, float, int]:
            rotation, cost = candidate
            reach = self._reach(rotation) if cost <= affordable else 0
            return -reach, max(cost, ALIKE * least), -rotation.batches_per_window

        return [rotation for rotation, _ in sorted(found, key=rank)]

    @property
    def _mixed(self) -> bool:
        """Whether most chunks hold several strata, as in a store that was not laid out for the axes."""
        return len(self.planner.table.chunks.stratum) > MIXED * self.planner.n_chunks

    @property
    def _most_batches(self) -> int:
        """Batches that the rows of a window fill."""
        return max(1, self._window_rows // self.planner.plan.places)

    @property
    def _window_rows(self) -> int:
        return self.limit * self.planner.chunk_size

    def _rotation(self, groups: int, batches_per_group: int) -> Rotation:
        """Return a rotation; its stride is set to the least that is possible."""
        plan = self.planner.plan
        rotation = Rotation(plan.batches.groups, plan.batches.key, groups, batches_per_group, plan.n_batches)
        stride = least_cost(self.planner) * rotation.batches_per_window / self.planner.n_chunks
        return replace(rotation, stride=stride) if self._mixed else rotation

    def _candidates(self, groups: int, n_groups: int) -> Iterator[tuple[Rotation, float]]:
        """Yield layouts of so many groups per window that load few enough chunks on average, and chunks per batch.

        If `groups` are more than there are, each has one batch, and they come as often as their weights say.
        """
        size = self._most_batches if groups > n_groups else self._most_batches // groups
        while size:
            rotation = self._rotation(size, 1) if groups > n_groups else self._rotation(groups, size)
            most_chunks = int(1.2 * self.limit) + 1
            windows = [self.planner.window(rotation, 0, 0, 0, most_chunks)]
            if windows[0].chunks <= 1.05 * self.limit:  # otherwise the others are not worth the time
                n = min(COMPARED_WINDOWS, max(2, COMPARED_ROWS // self._window_rows))
                windows += [self.planner.window(rotation, 0, i, 0, most_chunks) for i in range(1, n)]
            chunks = float(np.mean([window.chunks for window in windows]))
            if chunks <= self.limit:
                stride = float(np.mean([window.passed for window in windows]))
                yield replace(rotation, stride=stride), chunks / rotation.batches_per_window
            size = min(size - 1, int(size * NEXT_SIZE))

    def _reach(self, rotation: Rotation) -> int:
        """Return how many ranks there may be so that each meets every group in every epoch; 0 if not even one does."""
        plan = self.planner.plan
        groups = due(plan.weights, plan.n_batches)
        return next((n for n in WORLD_SIZES if not missed(rotation, groups, plan.n_batches // n, n)), 0)

    def _late(self, rotation: Rotation) -> float:
        """Return the share of the first windows whose early attempts all load too many chunks.

        Early attempts begin where the window before stopped. Infinite if the late ones of a window load too many too.
        """
        n, late = min(CHECKED_WINDOWS, max(2, CHECKED_ROWS // self._window_rows)), 0
        for i in range(n):
            epoch, number = divmod(i, rotation.windows_per_epoch)
            for attempt in range(MOST_ATTEMPTS):
                if self.planner.window(rotation, epoch, number, attempt, self.limit + 1).chunks <= self.limit:
                    late += attempt >= PREFERRED_ATTEMPTS
                    break
            else:
                return np.inf
        return late / n

    def _too_few_chunks(self) -> str:
        """Return the text of the error if no layout fits."""
        places, chunk_size, n_chunks = self.planner.plan.places, self.planner.chunk_size, self.planner.n_chunks
        alone = self._rotation(1, 1)
        needed = [self.planner.window(alone, 0, i, 0, n_chunks).chunks for i in range(COMPARED_WINDOWS)]
        enough = min(max(self.limit + 1, -(-max(needed) * 5 // 4)), n_chunks)
        plan = self.planner.plan
        columns = [self.cells.column(name).name for name in plan.columns] + [plan.time_column] * plan.timed
        by = joined(list(dict.fromkeys(columns)))
        prepare = "" if self._laid_out else f"lay the store out by {by} (scripts/prepare.py), or "
        return (
            f"a batch of {places} cells as the axes ask for takes {min(needed)} to {max(needed)} chunks of "
            f"{chunk_size} rows, which is not always within preload_nchunks={self.limit}; {prepare}use "
            f"batch_sampler.preload_nchunks={enough}{' or more' if enough < n_chunks else ''}, or a smaller batch_size."
        )

    @property
    def _laid_out(self) -> bool:
        """Whether each chunk holds one stratum, as far as possible; without regard to times."""
        plan, chunks = self.planner.plan, self.planner.table.chunks
        return not plan.timed and len(chunks.stratum) < chunks.n_chunks + len(plan.strata.size)


def least_cost(planner: WindowPlanner) -> float:
    """Chunks per batch if each is read as often as the cells of its most requested stratum are drawn."""
    chunks, often = planner.table.chunks, np.zeros(planner.n_chunks)
    np.maximum.at(often, chunks.chunk, (drawn_per_batch(planner.plan) / planner.plan.strata.size)[chunks.stratum])
    return float(often.sum())
