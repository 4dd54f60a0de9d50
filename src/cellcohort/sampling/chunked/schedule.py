"""Axes applied to a table in chunks: the endless sequence of windows, and the batches cut from each."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from cellcohort.cells import CellTable
from cellcohort.sampling.axes.base import Axis
from cellcohort.sampling.batch import Asked
from cellcohort.sampling.chunked.chunk_index import Walks, build_census
from cellcohort.sampling.chunked.demand import turns_of
from cellcohort.sampling.chunked.layout_search import ANEW, AT_MOST_ANEW, Layouts
from cellcohort.sampling.chunked.planner import cut_window
from cellcohort.sampling.chunked.reach import unreached
from cellcohort.sampling.chunked.rotation import Rota
from cellcohort.sampling.chunked.window import Window
from cellcohort.sampling.chunked.window_spec import Heads, Times, heads_of
from cellcohort.sampling.planning.plan import Plan
from cellcohort.sampling.planning.shortfalls import ShortfallWarning
from cellcohort.sampling.planning.strata import CompiledStrata
from cellcohort.sampling.rng import key_of, unit

REMEMBERED = 32  # windows kept: one of every rank of a node, and more


class ChunkedSchedule:
    """What batch number 0, 1, 2, ... of an epoch holds, where cells are read in chunks.

    Batches are cut from windows of chunks; how many, and how many groups lead in one window, is found
    by trying: the layout that loads the fewest chunks per batch and stays within `preload_nchunks`.

    Parameters
    ----------
    cells, axes, places, seed
        As for :class:`Plan`.
    chunk_size, preload_nchunks : int
        Rows per chunk, and chunks that a window may load.

    Raises
    ------
    ValueError
        As for :class:`Plan`, or no batch can be cut from so few chunks.
    """

    def __init__(
        self, cells: CellTable, axes: Mapping[str, Axis], places: int, seed: int, chunk_size: int, preload_nchunks: int
    ) -> None:
        self.plan = plan = Plan(cells, axes, places, seed)
        self.warnings = plan.warnings
        self._census = build_census(self.plan.strata, cells.rows, chunk_size)
        self._chunk_size, self._limit = chunk_size, preload_nchunks
        self._fullest = self._census.fullest
        self._walks: tuple[tuple[int, Walks], ...] = ()
        self._recent: tuple[tuple[tuple[int, int], Window], ...] = ()
        self._layers = CompiledStrata.of(self.plan.strata, self.plan.capped.astype(np.int32))
        self._turns = turns_of(self.plan.cycle, len(self.plan.weights))
        self._times = self._times_of_groups()
        self._pace = self._walked_per_batch()
        self._told = False  # of a window that loads more chunks than it may
        self._rota = Layouts(
            self._planned, plan.weights, plan.leaky > 0, places, plan.n_batches, seed, chunk_size, preload_nchunks,
            self.n_chunks, self.least_amplification * places / chunk_size, self._census.mixed,
            self._columns_of(cells),
        ).best()  # fmt: skip

    def _columns_of(self, cells: CellTable) -> list[str]:
        """The columns that axes look at, as the table calls them; none if a chunk is of one stratum as it is."""
        if not self.plan.timed and len(self._census.stratum) < self.n_chunks + len(self.plan.strata.size):
            return []
        flat = [name for names in self.plan.columns for name in ([names] if isinstance(names, str) else names)]
        times = [] if not self.plan.timed else [self.plan.time_column]
        return list(dict.fromkeys([*(cells.column(name).name for name in flat), *times]))

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return self.plan.nbytes + self._census.nbytes

    @property
    def n_chunks(self) -> int:
        """Chunks that the cells lie in."""
        return self._census.n_chunks

    @property
    def per_window(self) -> int:
        """Batches cut from one window."""
        return self._rota.n_batches

    def unreached(self, per_rank: int, world_size: int) -> tuple[str, ...]:
        """What to say where ranks do not meet all groups in every epoch of `per_rank` batches."""
        return tuple(unreached(self._rota, self.plan.weights, self.plan.group, per_rank, world_size))

    @property
    def least_amplification(self) -> float:
        """Rows read per row used if a chunk is read as often as the cells of its hungriest stratum are drawn."""
        census, drawn = self._census, self.plan.cycle.total / len(self.plan.cycle)
        often = np.zeros(census.n_chunks)
        np.maximum.at(often, census.chunk, (drawn / self.plan.strata.size)[census.stratum])
        return float(often.sum() * self._chunk_size / self.plan.places)

    def pick(self, epoch: int, number: int) -> np.ndarray:
        """Positions of a batch, int64 of shape (places,)."""
        return self.run(epoch, number, 1)[0]

    def run(self, epoch: int, number: int, n: int) -> np.ndarray:
        """Positions of `n` batches of one window, int64 of shape (n, places)."""
        window, place = divmod(number, self.per_window)
        return self.window(epoch, window).positions[place : place + n].copy()

    def asked(self, epoch: int, number: int) -> Asked:
        """What the axes asked of a batch."""
        number, place = divmod(number, self.per_window)
        window = self.window(epoch, number)
        return self.plan.asked(int(window.group[place % len(window.group)]), float(window.focal[place]))

    def window(self, epoch: int, number: int) -> Window:
        """The batches of one window."""
        for place, window in self._recent:
            if place == (epoch, number):
                return window
        window = self._cut(self._rota, epoch, number)
        self._recent = (*self._recent[1 - REMEMBERED :], ((epoch, number), window))
        return window

    def _heads(self, rota: Rota, epoch: int, number: int, elsewhere: float, key: np.uint64) -> Heads:
        """What the batches of a window are built around."""
        lap, i = rota.row(epoch, number)
        leader, everyone = rota.leader[i], rota.groups >= np.count_nonzero(self.plan.weights)
        block, shift = rota.block[i] + lap * rota.blocks[leader], int(rota.shift(epoch, np.array([number]))[0])
        heads: Heads = heads_of(
            leader, block, rota.turns, number, shift, rota.stride, everyone, elsewhere, self._times, key
        )
        return heads

    def _cut(self, rota: Rota, epoch: int, number: int) -> Window:
        """Plan one window: the first of some plans that fits, or the one that loads the fewest chunks."""
        for attempt in range(AT_MOST_ANEW):
            window = self._planned(rota, epoch, number, attempt, self._limit + 1)
            if window.chunks <= self._limit:
                return window
        plans = [self._planned(rota, epoch, number, attempt, self.n_chunks) for attempt in range(ANEW)]
        window = min(plans, key=lambda window: window.chunks)
        if not self._told:
            self._told = True
            warnings.warn(
                f"window {number} of epoch {epoch} loads {window.chunks} chunks, since its batches cannot be cut from "
                f"preload_nchunks={self._limit}; others may too. Where memory is short, use a larger preload_nchunks, "
                "with which windows are planned anew.",
                ShortfallWarning,
                stacklevel=2,
            )
        return window

    def _planned(self, rota: Rota, epoch: int, number: int, attempt: int, most_chunks: int) -> Window:
        """A window of at most `most_chunks`; with one chunk more than there are if these do not do."""
        key = key_of(self.plan.seed, epoch, 2, number, attempt)
        elsewhere = unit(key, np.uint64(1)) if attempt >= ANEW else 0.0
        heads = self._heads(rota, epoch, number, elsewhere, key)
        positions = np.empty((rota.n_batches, self.plan.places), np.int64)
        chunks, filled, passed = cut_window(
            self._census, self._walk(epoch), self._layers, self._turns, self._pace, heads,
            self.plan.half_width if self.plan.timed else 0.0, self.plan.cap, most_chunks, self._fullest, key, positions,
        )  # fmt: skip
        chunks = chunks if filled == self.plan.places else self.n_chunks + 1
        return Window(positions, heads.group, heads.focal, chunks, passed)

    def _walk(self, epoch: int) -> Walks:
        for place, walk in self._walks:
            if place == epoch:
                return walk
        walk = self._census.walks(key_of(self.plan.seed, epoch, 3))
        self._walks = (*self._walks[-1:], (epoch, walk))
        return walk

    def _walked_per_batch(self) -> np.ndarray:
        """Chunks of each stratum's walk that a batch which its group leads uses up, shape (n_strata,)."""
        plan, strata = self.plan.cycle, self.plan.strata
        turns = plan.occurrences[strata.group]
        per_batch = plan.total / np.where(turns > 0, turns, len(plan))
        return per_batch * np.diff(self._census.walk_ptr) / strata.size

    def _times_of_groups(self) -> Times:
        if not self.plan.timed:
            return Times(np.empty(0), np.zeros(len(self.plan.weights) + 1, np.int64), False, 0.0)
        plan, bounds = self.plan, self.plan.times_of_group
        hours = [np.unique(plan.strata.times[a:b]) for a, b in pairwise(bounds)]
        hours = [times[np.isfinite(times)] for times in hours]
        return Times(np.concatenate(hours), np.cumsum([0, *map(len, hours)]), True, plan.places * plan.share_inside)
