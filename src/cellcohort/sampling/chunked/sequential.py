"""Which cells each batch holds if every cell comes once, chunk by chunk, and no axis rules the batches."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cellcohort.cells import CellTable
from cellcohort.mapped_arrays import cached_arrays
from cellcohort.sampling.batch import Asked
from cellcohort.sampling.kept import Kept
from cellcohort.sampling.planning.plan import Plan
from cellcohort.sampling.rng import key_of, uniform

CHECKED_PASSES = 8  # passes whose windows must load no more chunks than allowed


class _Pass(NamedTuple):
    """The chunks in the order of a pass over all cells, and how many cells they hold up to and including each."""

    chunks: np.ndarray
    ends: np.ndarray


class SequentialPicker:
    """Cut batches from windows of neighbouring chunks, in the order of the store or in random order.

    Parameters
    ----------
    plan : Plan
        One without axes.
    cells : CellTable
        The cells of the plan.
    chunk_size, preload_nchunks : int
        Rows per chunk, and chunks that a window may load.
    shuffle : bool
        Whether chunks, and the cells of a window, come in random order.
    drop_last : bool
        Whether cells that do not fill a last batch are left out of a pass; otherwise the last batch is short.

    Attributes
    ----------
    n_batches : int
        Batches of a pass over all cells.
    per_window : int
        Batches of a window: fewer than the rows of `preload_nchunks` fill if not all of these are cells.
    warnings : tuple of str
        What cannot be as requested.
    """

    least_amplification = 1.0  # rows read per row used, at least

    def __init__(
        self,
        plan: Plan,
        cells: CellTable,
        chunk_size: int,
        preload_nchunks: int,
        shuffle: bool,
        drop_last: bool = True,
    ) -> None:
        self.plan, self._shuffle = plan, shuffle
        self.n_batches = plan.n_batches if drop_last else -(-plan.n_cells // plan.places)
        rows = np.arange(len(cells)) if cells.rows is None else cells.rows
        (self._in_order,) = cached_arrays(
            plan.index_cache, ["rows in order", rows], lambda: [np.argsort(rows, kind="stable")]
        )
        # chunk `c` holds the cells _in_order[_indptr[c]:_indptr[c + 1]]
        self._indptr = np.searchsorted(rows[self._in_order], np.arange(rows.max() // chunk_size + 2) * chunk_size)
        self._passes = Kept[_Pass](1)
        self.warnings = plan.warnings
        self.per_window = self._batches_per_window(chunk_size, preload_nchunks)

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return self.plan.nbytes + self._in_order.nbytes + self._indptr.nbytes

    def unreached(self, per_rank: int, world_size: int) -> tuple[str, ...]:  # noqa: ARG002
        """Return nothing: there are no groups."""
        return ()

    def asked(self, epoch: int, number: int) -> Asked:  # noqa: ARG002
        """Return what axes ask of a batch: nothing."""
        return self.plan.asked(0, np.nan)

    def pick(self, epoch: int, number: int) -> np.ndarray:
        """Return the positions of a batch, int64 of shape (places,), or of fewer if it is a short last one."""
        places, window = self.plan.places, number // self.per_window
        nth_pass, number = divmod(number, self.n_batches)
        first = window * self.per_window - nth_pass * self.n_batches  # below 0 if the window began in the pass before
        begin = max(first, 0)
        positions = self._cells(epoch, nth_pass, begin * places, (first + self.per_window) * places)
        if self._shuffle:
            key = key_of(self.plan.seed, epoch, nth_pass, 1, window)
            positions = positions[np.argsort(uniform(key, np.arange(len(positions), dtype=np.uint64)))]
        return positions[(number - begin) * places : (number - begin + 1) * places].astype(np.int64)

    def pick_run(self, epoch: int, number: int, n: int) -> list[np.ndarray]:
        """Return the positions of `n` batches of one window."""
        return [self.pick(epoch, number + i) for i in range(n)]

    def _cells(self, epoch: int, nth_pass: int, start: int, stop: int) -> np.ndarray:
        """Return some cells in the order of one of an epoch's passes over all of them."""
        if not self._shuffle:
            return self._in_order[start:stop]
        chunks, ends = self._passes.get((epoch, nth_pass), lambda: self._chunks(epoch, nth_pass))
        first = np.searchsorted(ends, start, "right")
        some = chunks[first : np.searchsorted(ends, stop) + 1]
        cells = np.concatenate([self._in_order[self._indptr[chunk] : self._indptr[chunk + 1]] for chunk in some])
        skipped = start - (ends[first - 1] if first else 0)
        return cells[skipped : skipped + stop - start]

    def _chunks(self, epoch: int, nth_pass: int) -> _Pass:
        """Return the chunks in the order of a pass."""
        sizes = np.diff(self._indptr)
        chunks = np.arange(len(sizes))
        if self._shuffle:
            key = key_of(self.plan.seed, epoch, nth_pass, 0)
            chunks = np.argsort(uniform(key, chunks.astype(np.uint64)), kind="stable")
        chunks = chunks[sizes[chunks] > 0]
        return _Pass(chunks, np.cumsum(sizes[chunks]))

    def _batches_per_window(self, chunk_size: int, limit: int) -> int:
        """Return the most batches per window with which windows of the first passes load at most `limit` chunks."""
        ends = [self._chunks(epoch, 0).ends for epoch in range(CHECKED_PASSES if self._shuffle else 1)]
        n = max(1, limit * chunk_size // self.plan.places)
        while n > 1 and (most := max(self._most_chunks(n, one) for one in ends)) > limit:
            n = min(n - 1, max(1, n * limit // most))
        most = max(self._most_chunks(n, one) for one in ends)
        if most > limit + 1:  # by one if a batch as large as a window begins in the middle of a chunk
            self.warnings += (
                f"a batch of {self.plan.places} cells lies in up to {most} chunks of {chunk_size} rows, as not all of "
                f"these are cells to draw; they are loaded, although preload_nchunks={limit}. "
                f"Use preload_nchunks={most} or more, or a smaller batch_size.",
            )
        return n

    def _most_chunks(self, n: int, ends: np.ndarray) -> int:
        """Return the most chunks that a window of `n` batches loads in a pass over chunks with these `ends`."""
        begin = np.arange(0, self.n_batches, n) * self.plan.places
        stop = np.minimum(begin + n * self.plan.places, ends[-1])
        return int((np.searchsorted(ends, stop) - np.searchsorted(ends, begin, "right")).max()) + 1
