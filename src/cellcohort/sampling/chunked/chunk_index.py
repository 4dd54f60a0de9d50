"""Which cells of every stratum are in every chunk, the rows of a store that are read as one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cellcohort.sampling.planning.sorting import stable_order
from cellcohort.sampling.planning.strata import Strata


class ChunkIndex(NamedTuple):
    """Cells sorted by (chunk, stratum, time). An entry is the cells of one stratum in one chunk.

    Attributes
    ----------
    position : numpy.ndarray of int, shape (n_drawable,)
        Positions of the cells.
    time : numpy.ndarray of int, shape (n_drawable,)
        Index in ``Strata.times`` of the time of each of these cells; empty without a time window.
    chunk_of : numpy.ndarray of int, shape (n_drawable,)
        Chunk of each cell of ``Strata.order``.
    stratum, chunk : numpy.ndarray of int, shape (n_entries,)
        Of each entry.
    cell_indptr : numpy.ndarray of int, shape (n_entries + 1,)
        Entry `e` is the cells ``position[cell_indptr[e]:cell_indptr[e + 1]]``.
    chunk_indptr : numpy.ndarray of int, shape (n_chunks + 1,)
        Chunk `c` has the entries ``chunk_indptr[c]:chunk_indptr[c + 1]``, in the order of their strata.
    stratum_indptr : numpy.ndarray of int, shape (n_strata + 1,)
        Stratum `s` is in ``stratum_indptr[s + 1] - stratum_indptr[s]`` chunks.
    """

    position: np.ndarray
    time: np.ndarray
    chunk_of: np.ndarray
    stratum: np.ndarray
    chunk: np.ndarray
    cell_indptr: np.ndarray
    chunk_indptr: np.ndarray
    stratum_indptr: np.ndarray

    @property
    def n_chunks(self) -> int:
        """Chunks, including those without a cell that may be drawn."""
        return len(self.chunk_indptr) - 1

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return sum(array.nbytes for array in self)


def build_chunk_index(strata: Strata, rows: np.ndarray | None, chunk_size: int) -> ChunkIndex:
    """Sort cells by chunk and stratum.

    Parameters
    ----------
    strata : Strata
    rows : numpy.ndarray of int, shape (n_cells,), or None
        Row of the store of each cell; None if these are the positions themselves.
    chunk_size : int
        Rows per chunk; chunk `c` is the rows ``c * chunk_size`` to ``(c + 1) * chunk_size - 1``.
    """
    order, n = strata.order, len(strata.order)
    chunk_of: np.ndarray = ((order if rows is None else rows[order]) // chunk_size).astype(np.int32)
    n_chunks = int(chunk_of.max()) + 1
    ranks = stable_order(chunk_of, n_chunks, np.arange(n, dtype=order.dtype))
    stratum = np.repeat(np.arange(len(strata.size), dtype=np.int32), strata.size)[ranks]
    chunk = chunk_of[ranks]
    new = np.concatenate([[True], (stratum[1:] != stratum[:-1]) | (chunk[1:] != chunk[:-1])])
    first = np.flatnonzero(new)
    stratum, chunk = stratum[first], chunk[first]
    time: np.ndarray = np.empty(0, np.int32)
    if len(strata.times):
        time = np.repeat(np.arange(len(strata.times), dtype=np.int32), np.diff(strata.times_start))[ranks]
    return ChunkIndex(
        position=order[ranks],
        time=time,
        chunk_of=chunk_of,
        stratum=stratum,
        chunk=chunk,
        cell_indptr=np.append(first, n),
        chunk_indptr=np.searchsorted(chunk, np.arange(n_chunks + 1)),
        stratum_indptr=np.concatenate([[0], np.cumsum(np.bincount(stratum))]),
    )
