"""The chunks that hold the cells of some batches, and where in them each cell is; compiled."""

from __future__ import annotations

import numpy as np
from numba import njit

from cellcohort.sampling.rng import mix

RUN = 2  # neighbouring chunks read together; one thread decodes what is, so that more would keep others waiting
_U = np.uint64


@njit(cache=True, nogil=True)
def load_of(rows, chunk_size, n_rows):  # type: ignore[no-untyped-def]
    """Which rows to read for those of some batches: whole chunks.

    Parameters
    ----------
    rows : numpy.ndarray of int, shape (n_batches, batch_size)
    chunk_size, n_rows : int
        Rows of a chunk, the last of which may have fewer, and of the store.

    Returns
    -------
    begin, end : numpy.ndarray of int64, shape (n_chunks,)
        The rows of each chunk, in the order in which they are read.
    place : numpy.ndarray of int64, shape (n_batches, batch_size)
        Which of the rows read each row is.
    """
    which, chunks = _distinct(rows // chunk_size)
    n = len(chunks)
    order = np.argsort(chunks)
    begin, end, offset = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    filled = before = 0
    for part in range(2):  # every other run, then the runs between them, so that no two of them are neighbours
        for i in range(n):
            if i // RUN % 2 == part:
                chunk = order[i]
                begin[filled] = chunks[chunk] * chunk_size
                end[filled] = min(begin[filled] + chunk_size, n_rows)
                offset[chunk] = before - begin[filled]
                before += end[filled] - begin[filled]
                filled += 1
    place = np.empty(rows.shape, np.int64)
    for j in range(len(rows)):
        for i in range(rows.shape[1]):
            place[j, i] = rows[j, i] + offset[which[j, i]]
    return begin, end, place


@njit(cache=True, nogil=True)
def _distinct(values):  # type: ignore[no-untyped-def]
    """Which of the distinct values each value is, and these, in the order in which they come; by a hash table."""
    size = 2
    while size < 2 * values.size:
        size *= 2
    table, found, n = np.full(size, -1, np.int32), np.empty(values.size, np.int64), 0
    which = np.empty(values.shape, np.int32)
    for j in range(len(values)):
        for i in range(values.shape[1]):
            value = values[j, i]
            slot = np.int64(mix(_U(0), _U(value)) & _U(size - 1))
            while table[slot] >= 0 and found[table[slot]] != value:
                slot = (slot + 1) & (size - 1)
            if table[slot] < 0:
                table[slot], found[n] = n, value
                n += 1
            which[j, i] = table[slot]
    return which, found[:n]
