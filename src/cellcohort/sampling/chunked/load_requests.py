"""What a sampler that reads in chunks is to the loader of annbatch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, pairwise
from typing import override

import annbatch.abc
import numpy as np
from annbatch.types import LoadRequest
from torch.utils.data import get_worker_info

from cellcohort.compiled import compiled
from cellcohort.sampling.batch_sampler import BatchSampler
from cellcohort.sampling.chunked.picker import ChunkPicker
from cellcohort.sampling.chunked.sequential import SequentialPicker
from cellcohort.sampling.drawing.cap import empty_counts, slot_of

RUN = 2  # neighbouring chunks, a power of 2, that are read together: one thread decodes them


class LoadRequests(BatchSampler, annbatch.abc.Sampler):
    """Yield the chunks of one window after another, as aligned slices, and the batches that are cut from them.

    A pass of the loader begins at the epoch and step that :meth:`set_epoch` or :meth:`load_state_dict` set, or one
    epoch after the pass before. Worker processes copy these when they start: with workers that start anew for every
    pass, call :meth:`set_epoch` before each.

    Attributes
    ----------
    chunk_size : int
    shuffle : bool
        Whether the order of batches does not matter, so that workers may mix it.
    """

    chunk_size: int
    shuffle: bool
    _picker: ChunkPicker | SequentialPicker
    batch_size: int = 0  # an attribute, where annbatch has a property

    def requests(
        self, epoch: int, first: int = 0, worker: int = 0, num_workers: int = 1
    ) -> Iterator[tuple[int, list[np.ndarray]]]:
        """Yield the first step of each window of an epoch, and the positions of all its batches.

        The first window is the one that holds step `first`. Of several workers, each yields windows in turn.
        """
        begin = n = 0
        while begin < self.num_batches:
            number = self._number(begin)
            per_window = self._picker.per_window
            end = min(begin + per_window - number % per_window, self.num_batches)
            if first < end and n % num_workers == worker:
                yield begin, self._picker.pick_run(epoch, number, end - begin)
            begin, n = end, n + 1

    def load_request(self, batches: Sequence[np.ndarray], n_obs: int) -> LoadRequest:
        """Return the chunks that hold some batches, and where in them their cells are."""
        positions = np.concatenate(batches)
        rows = positions if self.cells.rows is None else self.cells.rows[positions]
        begin, end, place = chunks_of(rows, self.chunk_size, n_obs)
        bounds = accumulate(map(len, batches), initial=0)
        return {
            "requests": list(map(slice, begin.tolist(), end.tolist())),
            "splits": [place[a:b] for a, b in pairwise(bounds)],
        }

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


@compiled
def chunks_of(rows: np.ndarray, chunk_size: int, n_rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return where the chunks that hold some rows begin and end, in the order of reading, and the place of each row.

    Every other run of chunks comes first, so that no two are neighbours.
    """
    chunk, slot = rows // chunk_size, np.empty(len(rows), np.int64)
    slots = empty_counts(min(len(rows), n_rows // chunk_size + 1))
    for i in range(len(rows)):
        slot[i] = slot_of(slots, chunk[i])
        slots[slot[i], 0] = chunk[i] + 1
    used = np.flatnonzero(slots[:, 0])
    used = used[np.argsort(slots[used, 0])]
    begin, end, n, n_read = np.empty(len(used), np.int64), np.empty(len(used), np.int64), 0, 0
    for part in range(2):
        for i in range(len(used)):
            if i // RUN % 2 == part:
                begin[n] = (slots[used[i], 0] - 1) * chunk_size
                end[n] = min(begin[n] + chunk_size, n_rows)
                slots[used[i], 1] = n_read - begin[n]  # from the row of a cell to its place among the rows read
                n, n_read = n + 1, n_read + end[n] - begin[n]
    return begin, end, rows + slots[slot, 1]
