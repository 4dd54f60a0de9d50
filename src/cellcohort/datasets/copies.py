"""Cells with the same values under other names: how they are found, counted and told apart from chance."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse

from cellcohort.cells import CellTable
from cellcohort.messages import in_list, listed, several

COPIES = "copy_group"  # column of cells: number of the group of cells with the same values, 0 for those without
DIGEST_BYTES = 8
EMPTY = 0  # digest of rows that are all zero, which are no copies of each other


def digests(rows: Any) -> np.ndarray:
    """Return a digest of each row, which is the same for rows of the same values.

    Parameters
    ----------
    rows : numpy.ndarray, shape (n, ...), or scipy CSR matrix

    Returns
    -------
    numpy.ndarray of uint64, shape (n,)
        0 for rows that are all zero.
    """
    if sparse.issparse(rows):
        rows = rows.copy()
        rows.sum_duplicates()
        rows.eliminate_zeros()
        index = rows.indices.astype(np.int64)
        spans = list(zip(rows.indptr[:-1], rows.indptr[1:], strict=True))
        found = [_digest(index[a:b], rows.data[a:b]) if b > a else EMPTY for a, b in spans]
    else:
        rows = np.ascontiguousarray(rows.reshape(len(rows), -1) + 0.0)  # which makes -0.0 a 0.0
        found = [_digest(row) if filled else EMPTY for row, filled in zip(rows, rows.any(axis=1), strict=True)]
    return np.array(found, np.uint64)


def _digest(*parts: np.ndarray) -> int:
    found = blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        found.update(part)
    return int.from_bytes(found.digest(), "little") or 1


def copy_groups(found: np.ndarray) -> np.ndarray:
    """Return number of the group of equal rows that each row is in, int32 (n,); 0 for rows that have no copy.

    Parameters
    ----------
    found : numpy.ndarray of uint64, shape (n,)
        What :func:`digests` gives.
    """
    _, of, counts = np.unique(found, return_inverse=True, return_counts=True)
    copied = (counts[of] > 1) & (found != EMPTY)
    groups = np.zeros(len(found), np.int32)
    groups[copied] = np.unique(of[copied], return_inverse=True)[1] + 1
    return groups


def with_copies(cells: CellTable, values: np.ndarray, track: str | None = None) -> CellTable:
    """Return the cells with a column :data:`COPIES`, if some have the same values as others.

    Rows are copies only where chance would make none: in a table of one or two features with few different values
    many rows are equal. Of such a table whole tracks are compared, and nothing where there are no tracks.

    Parameters
    ----------
    cells : CellTable
    values : numpy.ndarray of float, shape (n_cells, n_features)
    track : str, optional
        Column of tracks, by which the cells are sorted, and inside a track by time. Equal rows of one track are no
        copies.

    Raises
    ------
    ValueError
        The cells have a column of this name already.
    """
    if COPIES in cells.column_names:
        raise ValueError(f"the table has a column {COPIES!r}, which is needed for cells of the same values; rename it.")
    unit = np.arange(len(cells)) if track is None else cells.column(track).codes.astype(np.int64)
    chance = _chance_of_equal(values, len(values))
    found = digests(values)
    if not _is_rare(chance, len(cells)):
        if track is None:
            return cells
        found = _of_tracks(found, unit, chance)
    groups = copy_groups(found)
    pairs = pd.DataFrame({"group": groups, "unit": unit})[groups > 0]
    several_units = pairs.groupby("group")["unit"].nunique() > 1
    groups = np.where(np.isin(groups, several_units.index[several_units]), groups, 0)
    if not groups.any():
        return cells
    groups[groups > 0] = np.unique(groups[groups > 0], return_inverse=True)[1] + 1
    return cells.with_column(COPIES, groups.astype(np.int32))


def _is_rare(chance: float, n: int) -> bool:
    """Whether n rows, any two of which are equal with this chance, would give less than one pair of equal rows."""
    return n * (n - 1) / 2 * chance < 1


def equal_by_chance(some: np.ndarray, n: int) -> bool:
    """Whether chance makes equal rows among n, as in a table of one or two features with few different values.

    Parameters
    ----------
    some : numpy.ndarray of float, shape (n_some, ...)
        A sample of the rows.
    n : int
    """
    return not _is_rare(_chance_of_equal(some.reshape(len(some), -1), n), n)


def _chance_of_equal(values: np.ndarray, every: int) -> float:
    """Return the chance that two rows are equal, if each feature takes its values independently of the others.

    Features are looked at until it is rare among so many rows.
    """
    n = len(values)
    chance = 1.0
    for column in values.T:
        if n < 2 or _is_rare(chance, every):
            break
        counts = np.unique(column, return_counts=True)[1]
        chance *= float((counts * (counts - 1.0)).sum() / (n * (n - 1.0)))
    return chance


def _of_tracks(found: np.ndarray, track: np.ndarray, chance: float) -> np.ndarray:
    """Return digests of rows that are equal only if whole tracks are, and rarely so by chance; 0 for all others."""
    starts = np.flatnonzero(np.r_[True, track[1:] != track[:-1]])
    sizes = np.diff(np.r_[starts, len(track)])
    place = np.arange(len(track)) - np.repeat(starts, sizes)
    different = pd.Series(found).groupby(np.repeat(np.arange(len(starts)), sizes)).nunique().to_numpy()
    whole = np.add.reduceat(found * (2 * place + 1).astype(np.uint64), starts)  # modulo 2^64
    rare = [_is_rare(chance ** int(n), len(starts)) for n in different]
    whole = np.where(rare, whole, np.uint64(EMPTY))
    spread = np.repeat(whole, sizes) * (2 * place + 3).astype(np.uint64)  # each row of a track is a copy of one row
    return np.where(np.repeat(rare, sizes), spread, np.uint64(EMPTY))


def copy_numbers(cells: CellTable) -> np.ndarray:
    """Return the number of the group of copies that each cell is in, int64 (n_cells,); 0 for cells that have none."""
    if not cells.has(COPIES):
        return np.zeros(len(cells), np.int64)
    return cells.values(COPIES).to_numpy(np.int64)


def copied(cells: CellTable, among: np.ndarray) -> np.ndarray:
    """Return which cells have the same values as one of those `among`, as far as is known."""
    if not cells.has(COPIES):
        return np.zeros(len(cells), bool)
    groups = copy_numbers(cells)
    return (groups > 0) & np.isin(groups, groups[among])


def described(groups: np.ndarray, strata: dict[str, int]) -> str:
    """How many cells have a copy, by stratum; empty where none has.

    Parameters
    ----------
    groups : numpy.ndarray of int, shape (n,)
        What :func:`copy_groups` gives, in the order of the strata.
    strata : dict of str to int
        Cells of each stratum, in this order.
    """
    if not groups.any():
        return ""
    counts = np.array([part.sum() for part in np.split(groups > 0, np.cumsum([*strata.values()])[:-1])])
    most = sorted(zip(counts, strata, strict=True), key=lambda item: -item[0])
    where = listed((f"{n:,} in {name}" for n, name in most if n), 5)
    return (
        f"{several(int(counts.sum()), 'cell')} in {several(int(groups.max()), 'group')} of the same values: {where}. "
        "No split has cells of one group in both parts."
    )


def describe_copies(cells: CellTable) -> str:
    """As :func:`described`, of a table by its experiments and conditions."""
    groups = copy_numbers(cells)
    if not groups.any():
        return ""
    columns = [name for name in ("experiment", "condition") if cells.has(name)]
    if not columns:
        return described(groups, {"the table": len(cells)})
    stratum = cells.column(columns)
    names = [" x ".join(map(in_list, label)) for label in stratum.labels]
    sizes = {name: int(n) for name, n in zip(names, stratum.counts(), strict=True) if n}
    return described(groups[np.argsort(stratum.codes, kind="stable")], sizes)
