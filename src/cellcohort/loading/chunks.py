"""From windows of chunks to tensors: annbatch's loader behind the same face as the loader of rows."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
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


class ChunkedLoader(BatchLoader):
    """Read with annbatch's `Loader` on a thread, the next chunk window while the batches of this one are used.

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
        windows = _Windows(self.batch_sampler, dataset, epoch)
        loader: Any = annbatch.Loader(
            batch_sampler=windows,
            return_index=True,
            preload_to_gpu=self.preload_to_gpu,
            to="torch" if self.preload_to_gpu else None,
        )
        loader.add_datasets(store.arrays)
        batches = iter(loader)
        with decoding():  # annbatch opens sparse arrays with its first batch
            read = self._next_of(batches, windows)
        while read is not None:
            rows = read["index"]
            size = len(rows) // 2 if windows.paired else len(rows)
            yield dataset.batch(rows[:size], rows[size:], _dense(read["X"]), epoch, step)
            step += 1
            read = self._next_of(batches, windows)

    def _next_of(self, batches: Iterator[Any], windows: _Windows) -> Any:
        try:
            read = next(batches, None)
        except Exception as error:
            damage = self.dataset.store.damage(windows.requests)
            if damage is None:
                raise
            raise RuntimeError(damage) from error
        self.dataset.store.check_read(windows.unchecked)
        windows.unchecked = []
        return read


class _Windows(annbatch.abc.Sampler):
    """The windows of a sampler, each batch followed by its positives, which are drawn among the rows of the window."""

    batch_size = None  # batches are given as splits
    shuffle = False

    def __init__(self, sampler: ChunkSampler, dataset: StoredCells, epoch: int) -> None:
        self._sampler, self._dataset, self._epoch = sampler, dataset, epoch
        self.requests: list[Any] = []  # slices of the window that is being read
        self.unchecked: list[Any] = []  # the same until its first batch is there
        self.paired = dataset.paired  # whether positives follow the anchors of a batch

    def n_batches(self, n_obs: int) -> int:
        return self._sampler.n_batches(n_obs)

    def validate(self, n_obs: int) -> None:
        self._sampler.validate(n_obs)

    def _sample(self, n_obs: int) -> Iterator[LoadRequest]:
        for request in self._sampler.sample(n_obs):
            self.requests = self.unchecked = list(request["requests"])
            rows = np.concatenate([np.arange(run.start, run.stop) for run in self.requests])
            yield {"requests": self.requests, "splits": self._paired(rows, request["splits"])}

    def _paired(self, rows: np.ndarray, splits: list[np.ndarray]) -> list[np.ndarray]:
        """Put the places of their positives behind those of the anchors of every batch."""
        if not self.paired:
            return splits
        later = self._dataset.positives(rows[np.concatenate(splits)], rows, self._epoch)
        order = np.argsort(rows)
        place = order[np.searchsorted(rows, later, sorter=order)]
        ends = np.cumsum([len(split) for split in splits])[:-1]
        return [np.concatenate(both) for both in zip(splits, np.split(place, ends), strict=True)]


def _dense(read: Any) -> Tensor:
    """Rows as annbatch gives them, as one dense tensor where they are."""
    if sparse.issparse(read):
        read = read.toarray()
    tensor = torch.from_numpy(read) if isinstance(read, np.ndarray) else read
    return tensor if tensor.layout == torch.strided else tensor.to_dense()


def make_chunked_loader(
    dataset: StoredCells, batch_sampler: ChunkSampler, preload_to_gpu: bool = False, buffer_size: int | None = None
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
    buffer_size : int, optional
        Batches that the thread holds ready; by default those of one chunk window, so that the next is read
        while they are used. Memory then holds three chunk windows.

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
    if buffer_size is None:
        buffer_size = batch_sampler.per_window
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
