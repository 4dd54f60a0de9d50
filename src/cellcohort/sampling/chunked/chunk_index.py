"""What each chunk of a store holds: the cells of every stratum in every run of rows that is read as one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cellcohort.sampling.planning.strata import Strata, stable_order
from cellcohort.sampling.rng import uniform

MIXED = 1.5  # strata per chunk from which on the chunks of one are taken to be those of others


class Walks(NamedTuple):
    """The chunks in an order of their own.

    Attributes
    ----------
    order, place : numpy.ndarray of int64, shape (n_chunks,)
        The chunks, and the place of each, in that order.
    chunk : numpy.ndarray of int, shape (n_entries,)
        Those of each stratum in that order: stratum `s` has ``chunk[walk_ptr[s]:walk_ptr[s + 1]]``, see `Census`.
    """

    order: np.ndarray
    place: np.ndarray
    chunk: np.ndarray


class Census(NamedTuple):
    """Cells sorted by (chunk, stratum, time). An entry is the cells of one stratum in one chunk.

    Attributes
    ----------
    members : numpy.ndarray of int, shape (n_drawable,)
        Positions of the cells.
    time : numpy.ndarray of int, shape (n_drawable,)
        Knot of `strata` at which each member was seen; empty without a window axis.
    chunk_of : numpy.ndarray of int, shape (n_drawable,)
        Chunk of each cell of ``strata.order``.
    chunk_ptr : numpy.ndarray of int, shape (n_chunks + 1,)
        Chunk `c` has the entries ``chunk_ptr[c]:chunk_ptr[c + 1]``, in the order of their strata.
    stratum, chunk : numpy.ndarray of int, shape (n_entries,)
    first : numpy.ndarray of int, shape (n_entries + 1,)
        Entry `e` is ``members[first[e]:first[e + 1]]``.
    walk_ptr : numpy.ndarray of int, shape (n_strata + 1,)
        Stratum `s` is in ``walk_ptr[s + 1] - walk_ptr[s]`` chunks.
    """

    members: np.ndarray
    time: np.ndarray
    chunk_of: np.ndarray
    chunk_ptr: np.ndarray
    stratum: np.ndarray
    chunk: np.ndarray
    first: np.ndarray
    walk_ptr: np.ndarray

    @property
    def n_chunks(self) -> int:
        """Chunks, those without a cell that may be drawn among them."""
        return len(self.chunk_ptr) - 1

    @property
    def fullest(self) -> int:
        """Cells of the chunk that holds the most: more than it has rows where cells come twice in the table."""
        return int(np.diff(self.first[self.chunk_ptr]).max())

    @property
    def mixed(self) -> bool:
        """Whether most chunks hold several strata, as in a store that was not laid out for the axes."""
        return len(self.stratum) > MIXED * self.n_chunks

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return sum(array.nbytes for array in self)

    def walks(self, key: np.uint64) -> Walks:
        """The chunks in a random order that `key` names."""
        order = np.argsort(uniform(key, np.arange(self.n_chunks, dtype=np.uint64)), kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(self.n_chunks)
        by_stratum = np.argsort(self.stratum.astype(np.int64) * self.n_chunks + place[self.chunk], kind="stable")
        return Walks(order, place, self.chunk[by_stratum])


def build_census(strata: Strata, rows: np.ndarray | None, chunk_size: int) -> Census:
    """Count the strata of every chunk.

    Parameters
    ----------
    rows : numpy.ndarray of int, shape (n_cells,), or None
        Row of the store that each cell is in; None where these are the positions themselves.
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
    return Census(
        members=order[ranks], time=time, chunk_of=chunk_of,
        chunk_ptr=np.searchsorted(chunk, np.arange(n_chunks + 1)), stratum=stratum, chunk=chunk,
        first=np.append(first, n), walk_ptr=np.concatenate([[0], np.cumsum(np.bincount(stratum))]),
    )  # fmt: skip
