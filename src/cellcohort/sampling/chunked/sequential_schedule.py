"""Every cell once: one window of chunks after another."""

from __future__ import annotations

import numpy as np

from cellcohort.cells import CellTable
from cellcohort.sampling.batch import Asked
from cellcohort.sampling.planning.plan import Plan
from cellcohort.sampling.rng import key_of, uniform

PASSES = 8  # that windows are tried on


class OneByOne:
    """One window of neighbouring chunks after another, in an order that may be keyed by the epoch.

    Parameters
    ----------
    cells, places, seed
        As for :class:`Plan`.
    chunk_size, preload_nchunks : int
        Rows per chunk, and chunks that a window may load.
    shuffle : bool
        Whether chunks, and the cells of a window, come in random order.

    Attributes
    ----------
    per_window : int
        Batches of a window: fewer than `preload_nchunks` have rows for where not all of these are cells.
    """

    def __init__(
        self, cells: CellTable, places: int, seed: int, chunk_size: int, preload_nchunks: int, shuffle: bool
    ) -> None:
        self.plan = Plan(cells, {}, places, seed)
        self.warnings = self.plan.warnings
        rows = np.arange(len(cells)) if cells.rows is None else cells.rows
        self._in_order = np.argsort(rows, kind="stable")
        # cells of every chunk, which follow each other in `_in_order`
        self._first = np.searchsorted(rows[self._in_order], np.arange(rows.max() // chunk_size + 2) * chunk_size)
        self._shuffle = shuffle
        self._pass: tuple[tuple[int, int], np.ndarray, np.ndarray] | None = None
        self.per_window = self._fitting(chunk_size, preload_nchunks)

    @property
    def least_amplification(self) -> float:
        """Rows that must be read per row used."""
        return 1.0

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return self.plan.nbytes

    def asked(self, epoch: int, number: int) -> Asked:
        """Nothing: no axis rules a batch."""
        return self.plan.asked(0, np.nan)

    def pick(self, epoch: int, number: int) -> np.ndarray:
        """Positions of a batch, int64 of shape (places,)."""
        lap, window = number // self.plan.n_batches, number // self.per_window
        first = (
            window * self.per_window - lap * self.plan.n_batches
        )  # before 0 where the window began in the lap before
        begin, place = max(first, 0), number % self.plan.n_batches - max(first, 0)
        positions = self._cells(epoch, lap, begin * self.plan.places, (first + self.per_window) * self.plan.places)
        if self._shuffle:
            key = key_of(self.plan.seed, epoch, lap, 1, window)
            positions = positions[np.argsort(uniform(key, np.arange(len(positions), dtype=np.uint64)))]
        return positions[place * self.plan.places : (place + 1) * self.plan.places].astype(np.int64)

    def run(self, epoch: int, number: int, n: int) -> np.ndarray:
        """Positions of `n` batches, int64 of shape (n, places)."""
        return np.stack([self.pick(epoch, number + i) for i in range(n)])

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
        kept = self._pass  # threads may ask for several
        if kept is None or kept[0] != (epoch, lap):
            held = np.diff(self._first)
            chunks = np.arange(len(held))
            if self._shuffle:
                chunks = np.argsort(
                    uniform(key_of(self.plan.seed, epoch, lap, 0), chunks.astype(np.uint64)), kind="stable"
                )
            chunks = chunks[held[chunks] > 0]
            kept = self._pass = (epoch, lap), chunks, np.cumsum(held[chunks])
        return kept[1:]

    def _fitting(self, chunk_size: int, limit: int) -> int:
        """The most batches per window with which windows of the first passes load at most `limit` chunks."""
        ends = [self._chunks(epoch, 0)[1] for epoch in range(PASSES if self._shuffle else 1)]
        n = max(1, limit * chunk_size // self.plan.places)
        while n > 1 and (most := max(self._most_chunks(n, one) for one in ends)) > limit:
            n = min(n - 1, max(1, n * limit // most))
        most = max(self._most_chunks(n, one) for one in ends)
        if most > limit + 1:  # by one, where a batch as large as a window begins in the middle of a chunk
            self.warnings += (
                f"a batch of {self.plan.places} cells lies in up to {most} chunks of {chunk_size} rows, as not all of "
                f"these are cells to draw; they are loaded, although preload_nchunks={limit}. "
                f"Use preload_nchunks={most} or more, or a smaller batch_size.",
            )
        return n

    def _most_chunks(self, n: int, ends: np.ndarray) -> int:
        """Chunks that a window of `n` batches loads, at most, in a pass over chunks with these `ends`."""
        begin = np.arange(0, self.plan.n_batches, n) * self.plan.places
        stop = np.minimum(begin + n * self.plan.places, ends[-1])
        return int((np.searchsorted(ends, stop) - np.searchsorted(ends, begin, "right")).max()) + 1
