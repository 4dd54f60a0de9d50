"""From windows of chunks to tensors: annbatch's loader behind the same face as the loader of rows."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import chain, islice
from typing import Any

import annbatch
import annbatch.abc
import numpy as np
import torch
from annbatch.types import LoadRequest
from scipy import sparse
from torch import Tensor

from cellcohort.datasets.codecs import decoding
from cellcohort.datasets.stored.cells import StoredCells
from cellcohort.loading.rows import BatchLoader
from cellcohort.sampling.chunked.sampler import ChunkSampler

__all__ = ["ChunkedLoader", "make_chunked_loader"]


AHEAD = 2  # windows that threads read while the batches of one are used: one is decoded while the other is asked for


class ChunkedLoader(BatchLoader):
    """Read chunk windows with annbatch's `Loader` on threads, while the batches of an earlier one are used.

    All that :class:`~cellcohort.loading.rows.BatchLoader` promises holds here too: errors are raised where
    batches are consumed, a pass is whole or stops with an error, and a pass can go on anywhere.
    Make one with :func:`make_chunked_loader`.
    """

    dataset: StoredCells  # type: ignore[assignment]
    batch_sampler: ChunkSampler
    preload_to_gpu: bool = False

    def _batches(self) -> Iterator[dict[str, Any]]:
        dataset, store = self.dataset, self.dataset.store
        store.check_files()
        epoch, step = self.batch_sampler.next_pass
        reader = WindowReader(store.arrays, self.preload_to_gpu)
        requests = (self._with_positives(request, epoch) for request in self.batch_sampler.sample(len(store)))
        for batches in read_ahead(lambda request: self._read(reader, request), requests):
            for read in batches:
                rows = read["index"]
                size = len(rows) // 2 if dataset.paired else len(rows)
                yield dataset.batch(rows[:size], rows[size:], _dense(read["X"]), epoch, step)
                step += 1

    def _read(self, reader: WindowReader, request: LoadRequest) -> Iterator[Any]:
        store, runs = self.dataset.store, list(request["requests"])
        try:
            batches = reader.read(request)
        except Exception as error:
            damage = store.damage(runs)
            if damage is None:
                raise
            raise RuntimeError(damage) from error
        store.check_read(runs)
        return batches

    def _with_positives(self, request: LoadRequest, epoch: int) -> LoadRequest:
        """Put the places of their positives, drawn among the rows of the window, behind the anchors of every batch."""
        if not self.dataset.paired:
            return request
        splits = request["splits"]
        rows = np.concatenate([np.arange(run.start, run.stop) for run in request["requests"]])
        later = self.dataset.positives(rows[np.concatenate(splits)], rows, epoch)
        order = np.argsort(rows)
        place = order[np.searchsorted(rows, later, sorter=order)]
        ends = np.cumsum([len(split) for split in splits])[:-1]
        both = zip(splits, np.split(place, ends), strict=True)
        return {**request, "splits": [np.concatenate(each) for each in both]}


class WindowReader(annbatch.abc.Sampler):
    """Read any chunk window with one annbatch `Loader`, on any thread; as its sampler, it requests that one window.

    Parameters
    ----------
    arrays : list of zarr.Array or anndata CSR dataset
    preload_to_gpu : bool
        Assemble windows on the GPU.
    """

    batch_size = None  # batches are given as splits
    shuffle = False

    def __init__(self, arrays: list[Any], preload_to_gpu: bool = False) -> None:
        self._of_thread = threading.local()
        self._first, self._opened = threading.Lock(), False
        self._loader: Any = annbatch.Loader(
            batch_sampler=self,
            return_index=True,
            preload_to_gpu=preload_to_gpu,
            to="torch" if preload_to_gpu else None,
        )
        self._loader.add_datasets(arrays)

    def read(self, request: LoadRequest) -> Iterator[Any]:
        """Read the chunks of a window; its batches are cut from them as they are asked for."""
        self._of_thread.request = request
        batches = iter(self._loader)
        with self._first:
            if not self._opened:
                with decoding():  # annbatch opens sparse arrays with its first batch
                    first = next(batches)
                self._opened = True
                return chain([first], batches)
        return chain([next(batches)], batches)

    def n_batches(self, n_obs: int) -> int:  # noqa: ARG002
        return len(self._of_thread.request["splits"])

    def validate(self, n_obs: int) -> None: ...

    def _sample(self, n_obs: int) -> Iterator[LoadRequest]:  # noqa: ARG002
        yield self._of_thread.request


def read_ahead(
    read: Callable[[LoadRequest], Iterator[Any]], requests: Iterator[LoadRequest]
) -> Iterator[Iterator[Any]]:
    """Yield what `read` returns of each request, in order, while threads read the `AHEAD` requests that follow."""
    with ThreadPoolExecutor(AHEAD, "chunks") as threads:
        pending = deque(threads.submit(read, request) for request in islice(requests, AHEAD))
        while pending:
            window = pending.popleft().result()
            pending.extend(threads.submit(read, request) for request in islice(requests, 1))
            yield window


def _dense(read: Any) -> Tensor:
    """Rows as annbatch gives them, as one dense tensor where they are."""
    if sparse.issparse(read):
        read = read.toarray()
    tensor = torch.from_numpy(read) if isinstance(read, np.ndarray) else read
    return tensor if tensor.layout == torch.strided else tensor.to_dense()


def make_chunked_loader(
    dataset: StoredCells, batch_sampler: ChunkSampler, preload_to_gpu: bool = False, buffer_size: int = 2
) -> ChunkedLoader:
    """Make the loader of one process for cells that are read in chunks.

    Parameters
    ----------
    dataset : StoredCells
    batch_sampler : ChunkSampler
        Such as :class:`cellcohort.sampling.ChunkedBatchSampler`, made from ``dataset.cells``; reachable as
        ``loader.batch_sampler``.
    preload_to_gpu : bool
        Assemble chunk windows on the GPU, which annbatch does with cupy; batches come from there.
    buffer_size : int
        Batches that are held ready. Memory holds three chunk windows besides: that whose batches are used,
        and two that threads read meanwhile.

    Returns
    -------
    ChunkedLoader

    Raises
    ------
    TypeError
        The dataset is not of a store, or the sampler does not ask for chunks.
    ValueError
        `buffer_size` is out of range, cells are in another order than their store, the sampler was made
        for other cells, or cupy is not there.
    """
    if not isinstance(dataset, StoredCells):
        raise TypeError(
            f"{type(dataset).__name__} is not read in chunks; use reading=rows, or data=anndata or data=patches with a "
            "store that scripts/prepare.py wrote."
        )
    if not isinstance(batch_sampler, ChunkSampler):
        raise TypeError(
            f"{type(batch_sampler).__name__} does not say which chunks to read; use ChunkedBatchSampler, or "
            "make_loader, which reads row by row."
        )
    if batch_sampler.cells is not dataset.cells:
        raise ValueError(
            f"the sampler was made for {len(batch_sampler.cells)} cells and the dataset has {len(dataset)}, of "
            "another table; make it from dataset.cells."
        )
    if (np.diff(dataset.rows) <= 0).any():
        raise ValueError("the cells are in another order than in their store; sort the positions of the subset.")
    dataset.store.check_chunk_size(batch_sampler.chunk_size)
    if preload_to_gpu and find_spec("cupy") is None:
        raise ValueError("preload_to_gpu=true needs cupy, which is not installed; set loader.preload_to_gpu=false.")
    if batch_sampler.rank == 0:
        print(*batch_sampler.notes, sep="\n", end="\n" if batch_sampler.notes else "")
    if buffer_size < 1:
        raise ValueError(f"buffer_size={buffer_size} must be 1 or more.")
    loader = ChunkedLoader(
        dataset,  # type: ignore[arg-type]  # any dataset of torch will do
        buffer_size=buffer_size,
        batch_sampler=batch_sampler,
        num_workers=0,
        generator=torch.Generator(),  # MONAI and torch draw from it; the global one stays as it was
    )
    loader.preload_to_gpu = preload_to_gpu
    return loader
