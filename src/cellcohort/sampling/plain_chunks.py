"""Batches of chunks as they come: in the order of the store, or in random order. No axis rules them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cellcohort.cells import CellTable
from cellcohort.sampling.axis import Axis
from cellcohort.sampling.chunk_sampler import ChunkSampler
from cellcohort.sampling.keyed import key_of, uniform
from cellcohort.sampling.schedule import Schedule


class ChunksInOrder(ChunkSampler):
    """Yield all cells in the order of their rows, as evaluation wants; an epoch is one pass over the store.

    Parameters
    ----------
    cells, batch_size, chunk_size, preload_nchunks, seed, rank, world_size, num_batches, scope, fixed
        As for :class:`~cellcohort.sampling.chunk_sampler.ChunkSampler`. Cells that do not fill a last batch
        of every rank are left out.
    axes : empty
        There are none: ``sampler=random``.

    Raises
    ------
    ValueError
        As for :class:`~cellcohort.sampling.chunk_sampler.ChunkSampler`; an axis is given, or `num_batches` are more
        than one pass has.
    """

    shuffle = False

    def __init__(
        self,
        cells: CellTable,
        axes: Mapping[str, Axis] | None = None,
        batch_size: int = 256,
        chunk_size: int = 64,
        preload_nchunks: int = 64,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        num_batches: int | None = None,
        scope: str = "rank",
        fixed: bool = False,
    ) -> None:
        if axes:
            raise ValueError(
                f"{type(self).__name__} draws without regard to axes, but was given {', '.join(sorted(axes))}; use "
                "ChunkedBatchSampler (reading=chunks), or no axes (sampler=random)."
            )
        super().__init__(
            cells, axes, batch_size, chunk_size, preload_nchunks, seed, rank, world_size, num_batches, scope, fixed
        )
        one_pass = len(cells) // batch_size // world_size
        if self.num_batches > one_pass:
            raise ValueError(
                f"num_batches={num_batches} is more than the {one_pass} batches per rank of one pass over the "
                f"{len(cells)} cells; use at most these."
            )

    def _number(self, step: int) -> int:
        """The place of this rank's batch in the one pass: windows in turn, and what is left in equal parts."""
        windows, left = divmod(self.num_batches, self.per_window)
        if step < windows * self.per_window:
            return super()._number(step)
        return windows * self.per_window * (self.world_size - 1) + self.rank * left + step

    def _plan(self, world_size: int) -> Schedule:
        return OneByOne(self.cells, self.batch_size, self.seed, self.chunk_size, self.per_window, self.shuffle)


class ChunksShuffled(ChunksInOrder):
    """Yield all cells once per epoch: chunks in random order, and the cells of each window in random order.

    Parameters
    ----------
    cells, axes, batch_size, chunk_size, preload_nchunks, seed, rank, world_size, num_batches, scope, fixed
        As for :class:`ChunksInOrder`.
    """

    shuffle = True


class OneByOne(Schedule):
    """One window of neighbouring chunks after another, in an order that may be keyed by the epoch.

    Parameters
    ----------
    cells, places, seed
        As for :class:`Schedule`.
    chunk_size, per_window : int
        Rows per chunk, and batches per window.
    shuffle : bool
        Whether chunks, and the cells of a window, come in random order.
    """

    def __init__(
        self, cells: CellTable, places: int, seed: int, chunk_size: int, per_window: int, shuffle: bool
    ) -> None:
        super().__init__(cells, {}, places, seed)
        rows = np.arange(len(cells)) if cells.rows is None else cells.rows
        self._in_order = np.argsort(rows, kind="stable")
        self._chunk = rows[self._in_order] // chunk_size
        self._per_window, self._shuffle = per_window, shuffle
        self._epoch: tuple[int, np.ndarray] | None = None

    def draw(self, epoch: int, number: int, share: int = 0, shares: int = 1) -> np.ndarray:
        """Positions of a batch, or of every `shares`-th of its places; int64 of shape (places / shares,)."""
        window, place = divmod(number, self._per_window)
        size = self._per_window * self._places
        positions = self._order(epoch)[window * size : (window + 1) * size]
        if self._shuffle:
            key = key_of(self._seed, epoch, 1, window)
            positions = positions[np.argsort(uniform(key, np.arange(len(positions), dtype=np.uint64)))]
        return positions[place * self._places : (place + 1) * self._places][share::shares].astype(np.int64)

    def _order(self, epoch: int) -> np.ndarray:
        """All cells in the order of an epoch."""
        if not self._shuffle:
            return self._in_order
        if self._epoch is None or self._epoch[0] != epoch:
            place = uniform(key_of(self._seed, epoch, 0), np.arange(self._chunk[-1] + 1, dtype=np.uint64))
            self._epoch = epoch, self._in_order[np.argsort(place[self._chunk], kind="stable")]
        return self._epoch[1]
