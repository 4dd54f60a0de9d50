"""Axes applied to a table in chunks: the endless sequence of windows, and the batches cut from each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import gcd

import numpy as np

from cellcohort.cells import CellTable
from cellcohort.sampling.asks import turns_of, window_asks
from cellcohort.sampling.axis import Axis
from cellcohort.sampling.batch import Asked
from cellcohort.sampling.census import Walks, build_census
from cellcohort.sampling.cut import cut_window
from cellcohort.sampling.keyed import key_of, permuted_each, uniform
from cellcohort.sampling.reach import due, missed, unreached
from cellcohort.sampling.rota import Rota, build_rota
from cellcohort.sampling.schedule import Schedule
from cellcohort.sampling.strata import Layers
from cellcohort.sampling.window import Heads, Window

REHEARSED, REHEARSED_ROWS = 24, 2**17  # windows, and rows of them, by which a layout is judged at first
TRIED, TRIED_ROWS = 48, 2**19  # windows, and rows of them, that the chosen layout must fit into its chunks
ALIKE = 1.02  # layouts whose chunks per batch differ by less are as good as each other
AFFORDABLE = 1.6  # times the least chunks per batch, for a layout with which ranks meet every group
RANKS = (4, 2, 1)  # for which that is looked at
ANEW = 4  # plans of a window, under another key each, one of which must fit for a layout to be chosen gladly
AT_MOST_ANEW = 32  # plans of a window before it may load more chunks; those after the first few are elsewhere
FINER = 0.94  # by how much one layout's batches per window differ from the next one's
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
        self._rota = self._choose()

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
        groups = rota.leader[i]
        blocks = rota.block[i] + lap * rota.blocks[groups]
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
        return min(plans, key=lambda window: window.chunks)

    def _fits(self, rota: Rota, anew: int) -> bool:
        """Whether the first windows of a layout, of several epochs where these are short, load few enough chunks."""
        tried = min(TRIED, max(2, TRIED_ROWS // (self._limit * self._chunk_size)))
        places = [divmod(i, -(-self.n_batches // rota.n_batches)) for i in range(tried)]
        return all(
            any(self._planned(rota, *place, attempt, self._limit + 1).chunks <= self._limit for attempt in range(anew))
            for place in places
        )

    def _planned(self, rota: Rota, epoch: int, number: int, attempt: int, most_chunks: int) -> Window:
        """A window of at most `most_chunks`; with one chunk more than there are if these do not do."""
        key = key_of(self._seed, epoch, 2, number, attempt)
        heads, n_labels = self._heads(rota, epoch, number, key), len(self._strata.levels)
        if attempt >= ANEW:
            heads = heads._replace(passed=np.full(rota.groups, uniform(key, np.ones(1, np.uint64))[0]))
        asks = window_asks(heads.group, heads.block, rota.turns, self._turns, self._layers, n_labels, key)
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

    def _choose(self) -> Rota:
        """The layout of windows that loads the fewest chunks per batch, of those that fit.

        Before it come layouts, if they load few more, in which an epoch of every rank meets every group that leads.
        Where cells leak, several groups share a window if they can: so they leak into each other's batches.
        """
        n_leaders = int((self._weights > 0).sum())
        several = sorted({min(n, n_leaders) for n in (2, 4, n_leaders)})
        if self._census.mixed and n_leaders > 1:
            several.append(max(1, self._limit * self._chunk_size // self._places))  # in proportion to their weights
        for choices in [several, [1]] if self._leaky else [sorted({1, *several})]:
            found = [one for groups in choices for one in self._layouts(groups, n_leaders)]
            best = min((cost for cost, _ in found), default=0.0)
            most = AFFORDABLE * max(best, self.least_amplification * self._places / self._chunk_size)
            reach = {id(rota): self._reach(rota) if cost <= most else 0 for cost, rota in found}
            found.sort(key=lambda one: (-reach[id(one[1])], max(one[0], ALIKE * best), -one[1].n_batches))
            for anew in (ANEW, AT_MOST_ANEW):
                for _, rota in found:
                    if self._fits(rota, anew):
                        return rota
        one = build_rota(self._weights, 1, 1, self.n_batches, self._seed)
        needed = [self._planned(one, 0, i, 0, self.n_chunks).chunks for i in range(REHEARSED)]
        step = self._places // gcd(self._places, self._chunk_size)  # chunks that whole batches can be cut from
        enough = max(self._limit // step + 1, -(-max(needed) * 5 // (4 * step))) * step
        enough = min(enough, self.n_chunks // step * step)
        raise ValueError(
            f"a batch of {self._places} cells as the axes ask for takes {min(needed)} to {max(needed)} chunks of "
            f"{self._chunk_size} rows, which is not always within preload_nchunks={self._limit}; lay the store out "
            f"for these axes (scripts/prepare.py), or use preload_nchunks={enough} or more."
        )

    def _reach(self, rota: Rota) -> int:
        """How many ranks there may be so that each meets every group in every epoch; 0 if not even one does."""
        groups = due(self._weights, self.n_batches)
        return next((n for n in RANKS if not missed(rota, groups, self.n_batches // n, n)), 0)

    def _layouts(self, groups: int, n_leaders: int) -> Iterator[tuple[float, Rota]]:
        """Layouts with so many groups in a window that fit, each after the chunks that it loads per batch.

        Groups that are more than lead at all, each with one turn, come as often as their weights say.
        """
        many = groups > n_leaders
        most = max(1, self._limit * self._chunk_size // self._places) // (1 if many else groups)
        n = most
        while n:
            rota = build_rota(self._weights, n if many else groups, 1 if many else n, self.n_batches, self._seed)
            if self._census.mixed:
                least = rota.n_batches * self._places / self._chunk_size * self.least_amplification
                rota = replace(rota, stride=least / self.n_chunks)
            windows, allowed = [self._planned(rota, 0, 0, 0, int(1.2 * self._limit) + 1)], 1.05 * self._limit
            if windows[0].chunks <= allowed:  # otherwise the others are not worth the time
                tried = min(REHEARSED, len(rota), max(2, REHEARSED_ROWS // (self._limit * self._chunk_size)))
                windows += [self._planned(rota, 0, i, 0, int(1.2 * self._limit) + 1) for i in range(1, tried)]
            chunks = float(np.mean([window.chunks for window in windows]))
            if chunks <= self._limit:
                passed = float(np.mean([window.passed for window in windows]))
                yield chunks / rota.n_batches, replace(rota, stride=passed)
            n = min(n - 1, int(n * FINER))
