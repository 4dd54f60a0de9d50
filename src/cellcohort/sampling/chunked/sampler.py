"""The batch sampler whose cells are read in chunks, and what it is to annbatch's loader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, override

import annbatch.abc
import numpy as np
from annbatch.types import LoadRequest
from torch.utils.data import get_worker_info

from cellcohort.cells import CellTable
from cellcohort.messages import several, whole_number
from cellcohort.sampling.axes.base import Axis, GroupAxis
from cellcohort.sampling.batch_sampler import BatchSampler
from cellcohort.sampling.chunked.picker import ChunkPicker
from cellcohort.sampling.chunked.rotation import place_of
from cellcohort.sampling.chunked.sequential import SequentialPicker
from cellcohort.sampling.planning.plan import Plan

if TYPE_CHECKING:
    from pydantic import NonNegativeInt, PositiveInt

CHUNK_SIZE = 64  # rows, where the cells are of no store that says
RUN = 2  # neighbouring chunks, a power of 2, that are read together: one thread decodes them


class ChunkSampler(BatchSampler, annbatch.abc.Sampler):
    """A batch sampler whose batches are cut from chunk windows, for annbatch's `Loader` too.

    It is all that :class:`BatchSampler` is, a pure sequence of batches known by epoch and step. Besides, it gives the
    loader load requests: the chunks of one window after another, as aligned slices, and the batches that are cut from
    them. Ranks, and the worker processes of a rank, take windows in turn; each loads its own.

    A pass of the loader begins at the epoch and step that :meth:`set_epoch` or :meth:`load_state_dict` set, or one
    epoch after the pass before. Worker processes copy these when they start: with workers that start anew for every
    pass, call :meth:`set_epoch` before each.

    Parameters
    ----------
    cells, axes, batch_size, seed, rank, world_size, fixed : see `BatchSampler`
        As for :class:`BatchSampler`.
    chunk_size : int, optional
        Rows that are read as one, from a multiple of `chunk_size` on; by default those that the store of the cells
        holds together, or 64.
    preload_nchunks : int
        Chunks that a window may load at once, hence ``chunk_size * preload_nchunks`` rows of memory; all that there
        are, if these are fewer.
    num_batches : int, optional
        Batches per epoch and rank. By default as many as the cells fill.
    scope : {"rank"}
        The axes rule each rank's batch by itself.
    schedule : None
        Must be None.
    index_cache : path, optional
        As for :class:`BatchSampler`; the cells sorted by chunk are kept there, too.

    Raises
    ------
    ValueError
        As for :class:`BatchSampler`, or a batch is larger than a window.
    """

    reads_chunks = True
    shuffle = True
    batch_size: int = 0  # an attribute, where annbatch has a property
    _picker: ChunkPicker | SequentialPicker

    def __init__(
        self,
        cells: CellTable,
        axes: Mapping[str, Axis] | None = None,
        batch_size: PositiveInt = 256,
        chunk_size: PositiveInt | None = None,
        preload_nchunks: PositiveInt = 64,
        seed: NonNegativeInt = 0,
        rank: int = 0,
        world_size: int = 1,
        num_batches: PositiveInt | None = None,
        scope: str = "rank",
        fixed: bool = False,
        schedule: Mapping[str, Any] | None = None,
        index_cache: str | Path | None = None,
    ) -> None:
        if schedule:
            raise ValueError(
                "a schedule of options is not supported where cells are read in chunks, since the chunk windows are "
                "laid out for one setting; leave it out (schedule=null), or read row by row (reading=rows)."
            )
        if scope != "rank":
            raise ValueError(
                f"scope={scope!r} is not supported where cells are read in chunks: every rank has windows of its own. "
                "Use scope='rank', or read row by row."
            )
        if isinstance(num_batches, str):
            raise ValueError(
                f"num_batches={num_batches!r} is not supported where cells are read in chunks; use an integer >= 1, "
                "or null (None), which is as many as the cells fill."
            )
        if num_batches is not None:
            whole_number("num_batches", num_batches, 1)
        if chunk_size is None:
            chunk_size = cells.chunk_rows or CHUNK_SIZE
        self.chunk_size = whole_number("chunk_size", chunk_size, 1)
        given = whole_number("preload_nchunks", preload_nchunks, 1)
        in_store = (len(cells) - 1 if cells.rows is None else int(cells.rows.max())) // self.chunk_size + 1
        self.preload_nchunks = min(given, in_store)
        if (fewest := -(-min(whole_number("batch_size", batch_size, 1), len(cells)) // self.chunk_size)) > given:
            raise ValueError(
                f"batches of {batch_size} cells are larger than a chunk window of preload_nchunks={given} chunks of "
                f"{self.chunk_size} rows; use batch_sampler.preload_nchunks={fewest} or more, or a smaller batch_size."
            )
        super().__init__(
            cells, axes, batch_size, seed, rank, world_size, "rank", num_batches, fixed, index_cache=index_cache
        )
        if given > in_store:
            self.notes += (
                f"preload_nchunks={given} gives way to {in_store}, as the cells lie in {several(in_store, 'chunk')} of "
                f"{self.chunk_size} rows.",
            )

    @property
    def rows(self) -> np.ndarray:
        """Row of the store that each cell is in, int (n_cells,)."""
        return np.arange(len(self.cells)) if self.cells.rows is None else self.cells.rows

    @property
    def least_amplification(self) -> float:
        """The least rows read per row used with which all cells of a stratum come equally often, none shared."""
        return self._picker.least_amplification

    @property
    def per_window(self) -> int:
        """Batches that are cut from one window."""
        return self._picker.per_window

    @property
    def unreached(self) -> tuple[str, ...]:
        """Say if windows are too few for every group to be primary in every epoch of each rank."""
        return self._picker.unreached(self.num_batches, self.world_size)

    @property
    def signature(self) -> dict[str, int | str]:
        """What the sequence of batches depends on, by option; the same on every rank."""
        return {**super().signature, "chunk_size": self.chunk_size, "preload_nchunks": self.preload_nchunks}

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({super().__repr__().partition('(')[2][:-1]}, chunk_size={self.chunk_size}, "
            f"preload_nchunks={self.preload_nchunks})"
        )

    def _shortfalls(self) -> tuple[str, ...]:
        return (*super()._shortfalls(), *self.unreached)

    def _number(self, step: int) -> int:
        return place_of(step, self.num_batches, self.per_window, self.rank, self.world_size)

    def requests(
        self, epoch: int, first: int = 0, worker: int = 0, num_workers: int = 1
    ) -> Iterator[tuple[int, list[np.ndarray]]]:
        """Yield the first step of each window of an epoch, and the positions of all its batches.

        The first window is the one that holds step `first`. Of several workers, each yields windows in turn.
        """
        begin = n = 0
        while begin < self.num_batches:
            number = self._number(begin)
            end = min(begin + self.per_window - number % self.per_window, self.num_batches)
            if first < end and n % num_workers == worker:
                yield begin, self._picker.pick_run(epoch, number, end - begin)
            begin, n = end, n + 1

    def load_request(self, batches: Sequence[np.ndarray], n_obs: int) -> LoadRequest:
        """Return the chunks that hold some batches, and where in them their cells are."""
        positions = np.concatenate(batches)
        rows = positions if self.cells.rows is None else self.cells.rows[positions]
        chunk = rows // self.chunk_size
        is_read = np.zeros(n_obs // self.chunk_size + 1, bool)
        is_read[chunk] = True
        chunks = np.flatnonzero(is_read)
        first = np.arange(len(chunks)) & RUN == 0  # every other run first, so that no two are neighbours
        chunks = np.concatenate([chunks[first], chunks[~first]])
        begin = chunks * self.chunk_size
        end = np.minimum(begin + self.chunk_size, n_obs)
        offset = np.zeros(len(is_read), np.int64)  # from the row of a cell to its place among the rows read
        offset[chunks] = np.cumsum(end - begin) - end
        place, bounds = rows + offset.take(chunk), accumulate(map(len, batches), initial=0)
        return {
            "requests": list(map(slice, begin.tolist(), end.tolist())),
            "splits": [place[a:b] for a, b in pairwise(bounds)],
        }

    # what annbatch calls

    @override
    def n_batches(self, n_obs: int) -> int:
        """Return the batches of one pass on this rank."""
        return self.num_batches

    def validate(self, n_obs: int) -> None:
        """Raise ValueError if a store of `n_obs` rows is not the one of the cells."""
        needed = len(self.cells) if self.cells.rows is None else int(self.cells.rows.max()) + 1
        if n_obs < needed or (self.cells.rows is None and n_obs != needed):
            raise ValueError(
                f"the loader has {n_obs} rows, but the cells of the sampler are in {needed} rows; give both the "
                "same store: all of its datasets in one order, and the table of its obs."
            )

    def _sample(self, n_obs: int) -> Iterator[LoadRequest]:
        epoch, first = self._begin()
        info = get_worker_info()
        worker, num_workers = (0, 1) if info is None else (info.id, info.num_workers)
        if num_workers > 1 and not self.shuffle:
            raise ValueError(
                f"{num_workers} worker processes would mix the order of {type(self).__name__}; use num_workers=0 or 1, "
                "or ChunksShuffled."
            )
        windows = self.requests(epoch, first, worker, num_workers)
        requests = (self._from(first - begin, self.load_request(batches, n_obs)) for begin, batches in windows)
        with ThreadPoolExecutor(1, "windows") as planner:  # plans the next window while one is read
            ahead = planner.submit(next, requests, None)
            while (request := ahead.result()) is not None:
                ahead = planner.submit(next, requests, None)
                yield request
        self._end()

    def _from(self, first: int, request: LoadRequest) -> LoadRequest:
        """Leave out the batches before one, and read the chunks of all: pairs are drawn among what is in memory."""
        return {**request, "splits": request["splits"][max(first, 0) :]}

    @property
    def mask(self) -> slice:
        """All rows: what annbatch's samplers restrict to the share of a rank."""
        return slice(0, None)

    @mask.setter
    @override
    def mask(self, value: slice) -> None:
        raise TypeError(
            f"{type(self).__name__} has no mask to set: annbatch's DistributedSampler gives each rank a part of the "
            "rows, in which other experiments and conditions lie. Make the sampler of each rank with rank= and "
            "world_size=, or by for_rank(rank, world_size)."
        )

    @property
    def rng(self) -> None:
        """None: batches are a function of the seed."""

    @rng.setter
    @override
    def rng(self, value: np.random.Generator | None) -> None:
        raise TypeError(f"{type(self).__name__} has no rng to set: batches are a function of its seed; use seed=.")


class ChunkedBatchSampler(ChunkSampler):
    """Yield batches that hold what the axes ask, cut from chunk windows that are chosen to allow it.

    The quotas of every batch are those of :class:`~cellcohort.sampling.BatchSampler`. An index of the strata in every
    chunk decides which chunks are loaded together: chunks are added until every batch of the window can be filled,
    first for the strata whose cells lie in the most chunks. Each stratum goes through all of its chunks before it reads
    one again. Cells that a window loads and no batch takes are not kept for later windows, so that any process can plan
    any window at once. A store laid out for the axes makes them few; see
    :class:`~cellcohort.sampling.chunked.read_cost.Reading` for how many they are.

    Parameters
    ----------
    cells, axes, batch_size, chunk_size, preload_nchunks, seed : see `ChunkSampler`
        As for :class:`ChunkSampler`.
    rank, world_size, num_batches, scope, fixed, schedule, index_cache : see `ChunkSampler`
        As for :class:`ChunkSampler`.

    Notes
    -----
    Batches of one window share no cell, except where the whole store has fewer cells of a stratum (near the focal time)
    than they ask for. Windows of one group or several, and of fewer batches than their rows would fill, are tried when
    the sampler is made, and the ones that read least are used. Without axes every cell comes once, chunks and the cells
    of a window in random order.

    Where a chunk holds several strata, as all do in a store in random order, it is read as often as the most requested
    of them requires, and cells of the others are taken from it in proportion to their demand: all cells of a stratum
    come about equally often, those of a few cells among many less so, and all with a time window.

    Cells that leak into a batch come from the other experiments of its window, hence over an epoch in proportion to how
    often these are primary.
    """

    @override
    def _make_picker(self, world_size: int) -> ChunkPicker | SequentialPicker:
        for axis in self.axes.values():
            if isinstance(axis, GroupAxis) and axis.n_primary > 1:
                raise ValueError(
                    f"{axis!r} asks for batches of several blocks, which are not cut from chunk windows; use one block "
                    "(experiments=1), or read row by row (reading=rows)."
                )
        plan = Plan(self.cells, self.axes, self.batch_size, self.seed, self.index_cache)
        if not self.axes:
            return SequentialPicker(plan, self.cells, self.chunk_size, self.preload_nchunks, shuffle=True)
        return ChunkPicker(plan, self.cells, self.chunk_size, self.preload_nchunks)
