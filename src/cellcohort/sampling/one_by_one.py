"""Every cell once: one window of chunks after another."""

from __future__ import annotations

import numpy as np

from cellcohort.cells import CellTable
from cellcohort.sampling.keyed import key_of, uniform
from cellcohort.sampling.schedule import Schedule


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
        # cells of every chunk, which follow each other in `_in_order`
        self._first = np.searchsorted(rows[self._in_order], np.arange(rows.max() // chunk_size + 2) * chunk_size)
        self.per_window, self._shuffle = per_window, shuffle
        self._pass: tuple[tuple[int, int], np.ndarray, np.ndarray] | None = None

    @property
    def least_amplification(self) -> float:
        """Rows that must be read per row used."""
        return 1.0

    def draw(self, epoch: int, number: int, share: int = 0, shares: int = 1) -> np.ndarray:
        """Positions of a batch, or of every `shares`-th of its places; int64 of shape (places / shares,)."""
        lap, number = divmod(number, self.n_batches)
        window, place = divmod(number, self.per_window)
        size = self.per_window * self._places
        positions = self._cells(epoch, lap, window * size, (window + 1) * size)
        if self._shuffle:
            key = key_of(self._seed, epoch, lap, 1, window)
            positions = positions[np.argsort(uniform(key, np.arange(len(positions), dtype=np.uint64)))]
        return positions[place * self._places : (place + 1) * self._places][share::shares].astype(np.int64)

    def run(self, epoch: int, number: int, n: int) -> np.ndarray:
        """Positions of `n` batches, int64 of shape (n, places)."""
        return np.stack([self.draw(epoch, number + i) for i in range(n)])

    def _cells(self, epoch: int, lap: int, start: int, stop: int) -> np.ndarray:
        """Some cells in the order of one of an epoch's passes over all of them."""
        if not self._shuffle:
            return self._in_order[start:stop]
        chunks, ends = self._chunks(epoch, lap)
        some = chunks[np.searchsorted(ends, start, "right") : np.searchsorted(ends, stop) + 1]
        cells = np.concatenate([self._in_order[self._first[chunk] : self._first[chunk + 1]] for chunk in some])
        skipped = start - np.concatenate([[0], ends])[np.searchsorted(ends, start, "right")]
        return cells[skipped : skipped + stop - start]

    def _chunks(self, epoch: int, lap: int) -> tuple[np.ndarray, np.ndarray]:
        """The chunks in the order of a pass, and how many cells there are up to and with each."""
        if self._pass is None or self._pass[0] != (epoch, lap):
            n = np.arange(len(self._first) - 1, dtype=np.uint64)
            chunks = np.argsort(uniform(key_of(self._seed, epoch, lap, 0), n), kind="stable")
            self._pass = (epoch, lap), chunks, np.cumsum(np.diff(self._first)[chunks])
        return self._pass[1:]
