"""Axes applied to a table in chunks: the endless sequence of windows, and the batches cut from each."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np

from cellcohort.cells import CellTable
from cellcohort.sampling.asks import turns_of, window_asks
from cellcohort.sampling.axis import Axis
from cellcohort.sampling.batch import Asked
from cellcohort.sampling.census import Walks, build_census
from cellcohort.sampling.cut import cut_window
from cellcohort.sampling.keyed import key_of, permuted_each, uniform
from cellcohort.sampling.layouts import ANEW, AT_MOST_ANEW, Layouts
from cellcohort.sampling.reach import unreached
from cellcohort.sampling.rota import Rota
from cellcohort.sampling.schedule import Schedule
from cellcohort.sampling.shortfall import ShortfallWarning
from cellcohort.sampling.strata import Layers
from cellcohort.sampling.window import Heads, Window

REMEMBERED = 32  # windows kept: one of every rank of a node, and more


class ChunkedSchedule(Schedule):
    """What batch number 0, 1, 2, ... of an epoch holds, where cells are read in chunks.

    Batches are cut from windows of chunks; how many, and how many groups lead in one window, is found
    by trying: the layout that loads the fewest chunks per batch and stays within `preload_nchunks`.

    Parameters
    ----------
    cells, axes, places, seed
        As for :class:`Schedule`.
    chunk_size, preload_nchunks : int
        Rows per chunk, and chunks that a window may load.

    Raises
    ------
    ValueError
        As for :class:`Schedule`, or no batch can be cut from so few chunks.
    """

    def __init__(
        self, cells: CellTable, axes: Mapping[str, Axis], places: int, seed: int, chunk_size: int, preload_nchunks: int
    ) -> None:
        super().__init__(cells, axes, places, seed)
        self._census = build_census(self._strata, cells.rows, chunk_size)
        self._chunk_size, self._limit = chunk_size, preload_nchunks
        self._walks: tuple[tuple[int, Walks], ...] = ()
        self._recent: tuple[tuple[tuple[int, int], Window], ...] = ()
        self._layers = Layers.of(self._strata, self._capped)
        self._turns = turns_of(self._plan, len(self._weights))
        self._times = [np.empty(0)] * len(self._weights)
        if self._window is not None:
            knots = [self._strata.knot[a:b] for a, b in zip(self._knots_of, self._knots_of[1:], strict=False)]
            self._times = [np.unique(times[np.isfinite(times)]) for times in knots]
        self._pace = self._walked_per_batch()
        self._told = False  # of a window that loads more chunks than it may
        self._rota = Layouts(
            self._planned, self._weights, self._leaky > 0, places, self.n_batches, seed, chunk_size, preload_nchunks,
            self.n_chunks, self.least_amplification * places / chunk_size, self._census.mixed,
            self._columns_of(cells),
        ).best()  # fmt: skip

    def _columns_of(self, cells: CellTable) -> list[str]:
        """The columns that axes look at, as the table calls them; none if a chunk is of one stratum as it is."""
        if self._window is None and len(self._census.stratum) < self.n_chunks + len(self._strata.size):
            return []
        flat = [name for names in self.columns for name in ([names] if isinstance(names, str) else names)]
        times = [] if self._window is None else [str(self._window.column)]
        return list(dict.fromkeys([*(cells.column(name).name for name in flat), *times]))

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return super().nbytes + self._census.nbytes

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
        return tuple(unreached(self._rota, self._weights, self._group, per_rank, world_size))

    @property
    def least_amplification(self) -> float:
        """Rows read per row used if a chunk is read as often as the cells of its hungriest stratum are drawn."""
        census, drawn = self._census, self._plan.total / len(self._plan)
        often = np.zeros(census.n_chunks)
        np.maximum.at(often, census.chunk, (drawn / self._strata.size)[census.stratum])
        return float(often.sum() * self._chunk_size / self._places)

    def draw(self, epoch: int, number: int, share: int = 0, shares: int = 1) -> np.ndarray:
        """Positions of a batch, or of every `shares`-th of its places; int64 of shape (places / shares,)."""
        return self.run(epoch, number, 1)[0, share::shares]

    def run(self, epoch: int, number: int, n: int) -> np.ndarray:
        """Positions of `n` batches of one window, int64 of shape (n, places)."""
        window, place = divmod(number, self.per_window)
        return self.window(epoch, window).positions[place : place + n]

    def asked(self, epoch: int, number: int) -> Asked:
        """What the axes asked of a batch."""
        number, place = divmod(number, self.per_window)
        window = self.window(epoch, number)
        return self._asked_of(int(window.leaders[place]), float(window.focal[place]))

    def window(self, epoch: int, number: int) -> Window:
        """The batches of one window."""
        for place, window in self._recent:
            if place == (epoch, number):
                return window
        window = self._cut(self._rota, epoch, number)
        self._recent = (*self._recent[1 - REMEMBERED :], ((epoch, number), window))
        return window

    def _heads(self, rota: Rota, epoch: int, number: int, key: np.uint64) -> Heads:
        """What the batches of a window are built around."""
        lap, i = rota.row(epoch, number)
        shift = int(rota.shift(epoch, np.array([number]))[0])
        groups = np.roll(rota.leader[i], -shift)
        blocks = np.roll(rota.block[i], -shift) + lap * rota.blocks[groups]
        focal = np.full((rota.turns, rota.groups), np.nan)
        if self._window is not None:
            turn = np.arange(rota.turns)
            turn = permuted_each(turn, np.full(rota.turns, rota.turns), np.zeros(rota.turns, np.int64), key)
            when = (turn + uniform(key, np.zeros(1, np.uint64))) / rota.turns
            for k, leader in enumerate(groups):
                times = self._times[leader]
                focal[:, k] = times[(when * len(times)).astype(int)] if len(times) else -np.inf
        first = number * rota.n_batches
        inside = np.array([self._inside(n) for n in range(first, first + rota.n_batches)])
        return Heads(groups, blocks, self._passed(rota, number, blocks), focal.reshape(-1), inside, first)

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
        key = key_of(self._seed, epoch, 2, number, attempt)
        heads, n_labels = self._heads(rota, epoch, number, key), len(self._strata.levels)
        asks = window_asks(heads.group, heads.block, rota.turns, self._turns, self._layers, n_labels, key)
        if attempt >= ANEW:
            elsewhere = uniform(key, np.ones(1, np.uint64))[0]
            moved = (
                {"passed": np.full(rota.groups, elsewhere)}
                if rota.stride
                else {"block": heads.block + int(elsewhere * self.n_chunks)}
            )
            heads = heads._replace(**moved)
        positions = np.empty((rota.n_batches, self._places), np.int64)
        chunks, filled, passed = cut_window(
            self._census, self._walk(epoch), self._layers, self._pace * rota.turns, heads, asks,
            self._window.half_width if self._window else 0.0, self._most, most_chunks, self._chunk_size, key, positions,
        )  # fmt: skip
        chunks = chunks if filled == self._places else self.n_chunks + 1
        return Window(positions, np.tile(heads.group, rota.turns), heads.focal, chunks, passed)

    def _walk(self, epoch: int) -> Walks:
        for place, walk in self._walks:
            if place == epoch:
                return walk
        walk = self._census.walks(key_of(self._seed, epoch, 3))
        self._walks = (*self._walks[-1:], (epoch, walk))
        return walk

    def _walked_per_batch(self) -> np.ndarray:
        """Chunks of each stratum's walk that a batch which its group leads uses up, shape (n_strata,)."""
        plan, strata = self._plan, self._strata
        turns = plan.turns[strata.group]
        per_batch = plan.total / np.where(turns > 0, turns, len(plan))
        return per_batch * np.diff(self._census.walk_ptr) / strata.size

    def _passed(self, rota: Rota, number: int, blocks: np.ndarray) -> np.ndarray:
        """Share of all chunks that each group of a window passed before; negative where strata walk by themselves."""
        if not rota.stride:
            return np.full(rota.groups, -1.0)
        everyone = rota.groups >= np.count_nonzero(self._weights)
        return np.full(rota.groups, number * rota.stride) if everyone else blocks * rota.stride
