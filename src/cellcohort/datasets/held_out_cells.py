"""Which cells are held out: of groups that are named, of a fold or an experiment, or of whole units by their share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cellcohort.cells import CellTable, Name, names_of
from cellcohort.datasets.copies import copied, copy_numbers
from cellcohort.datasets.held_out_groups import choose_evenly, choose_groups, leads, linked, numbered, whole_groups
from cellcohort.datasets.protocol import LabelledCells
from cellcohort.datasets.split_warnings import SMALL
from cellcohort.labels import by_label
from cellcohort.messages import listed, several

if TYPE_CHECKING:
    from cellcohort.datasets.features.windows import TrackWindows

CHUNK = "stored_chunk"  # column of stored cells whose groups are not cut where there are no tracks
ROW = "table_row"  # column of cells of a table without tracks, each of which is a group


def unit_of(dataset: TrackWindows | LabelledCells) -> str:
    """Name what is not cut in two."""
    return "cell" if dataset.whole in (CHUNK, ROW) else " x ".join(names_of([dataset.whole]))


def codes_of(cells: CellTable, name: Name) -> np.ndarray:
    """Return the code of every cell in a column, int64 (n_cells,)."""
    return cells.column(name).codes.astype(np.int64)


def strata_of(cells: CellTable, columns: Sequence[str] = ("experiment", "condition")) -> np.ndarray:
    """Return the number of the stratum of every cell, that of its labels in columns that the table has."""
    there = [name for name in columns if cells.has(name)]
    return cells.column(there).codes if there else np.zeros(len(cells), np.int8)


def _conditions(cells: CellTable) -> np.ndarray:
    """Return the number of the condition of every cell; that of the stratum where the table has none."""
    return strata_of(cells, ["condition"]) if cells.has("condition") else strata_of(cells)


def named_groups(cells: CellTable, by: Name, held_out: str | float | Sequence[Any]) -> np.ndarray:
    """Hold out the groups of a column that are named: bool, (n_cells,)."""
    column = cells.column(by)
    wanted = held_out if isinstance(held_out, tuple) else [held_out]
    found, unknown = by_label(dict.fromkeys(wanted, True), column.present())
    if unknown:
        spelled = "" if len(names_of([by])) == 1 else " Write each group as a list, in a list: split.held_out=[[a,b]]."
        raise ValueError(
            f"held_out={unknown}: no such {column.name}; the table has {listed(column.present(), show=repr)}.{spelled}"
        )
    return np.isin(column.codes, [code for code, label in enumerate(column.labels) if label in found])


def by_experiment(cells: CellTable, fraction: float, seed: int) -> np.ndarray:
    """Hold out whole experiments: bool, (n_cells,)."""
    column = cells.column("experiment")
    present = column.present()
    n = min(max(round(fraction * len(present)), 1), len(present) - 1)
    chosen = [present[i] for i in np.random.default_rng((seed, 0)).permutation(len(present))[:n]]
    return np.isin(column.codes, [column.labels.index(label) for label in chosen])


def by_fold(dataset: TrackWindows | LabelledCells, by: Name, fold: int, folds: int | None, seed: int) -> np.ndarray:
    """Hold out the groups of a column that one fold has."""
    group = codes_of(dataset.cells, by)
    if by != "experiment" and dataset.whole not in (CHUNK, ROW):
        group = linked(group, codes_of(dataset.cells, dataset.whole) + 1)
    _, group = np.unique(group, return_inverse=True)
    n = int(group.max()) + 1
    folds = n if folds is None else folds
    name = " x ".join(names_of([by]))
    if n == 1:
        raise ValueError(
            f"fold={fold} of {name}: all cells are one group, or groups that one {unit_of(dataset)} joins, so nothing "
            "would be left for training; name another column with split.by."
        )
    if fold >= folds or folds > n:
        raise ValueError(
            f"fold={fold} of folds={folds}: the table has {several(n, 'group')} of {name}, so there are at most {n} "
            f"folds; use folds={n} and fold=0 to {n - 1}, or fewer folds."
        )
    of_group = np.arange(n) if folds == n else np.random.default_rng((seed, 3)).permutation(n) % folds
    return of_group[group] == fold


def by_units(dataset: TrackWindows | LabelledCells, by: Name, fraction: float, seed: int) -> np.ndarray:
    """Hold out tracks, chunks or groups, with their copies, unless these leave no share near the one asked for."""
    copies = copy_numbers(dataset.cells)
    together = _of_units(dataset, by, fraction, seed, copies)
    if _is_near(together, fraction) or not copies.any():
        return together
    apart = _of_units(dataset, by, fraction, seed, np.zeros_like(copies))
    if _is_near(apart & ~copied(dataset.cells, ~apart), fraction) or together.all() or not together.any():
        return apart
    return together


def _is_near(validation: np.ndarray, fraction: float) -> bool:
    share = validation.mean()
    return bool(share >= SMALL * fraction and 1 - share >= SMALL * (1 - fraction))


def _of_units(
    dataset: TrackWindows | LabelledCells, by: Name, fraction: float, seed: int, copies: np.ndarray
) -> np.ndarray:
    """Hold out whole units; `copies` are numbers of groups of cells that stay together, 0 for others."""
    cells, whole = dataset.cells, dataset.whole
    if by == "track" and whole in (CHUNK, ROW):
        return _by_chunk(cells, str(whole), fraction, seed, copies)
    if by == "track":
        return _by_group(linked(codes_of(cells, whole), copies), strata_of(cells), _conditions(cells), fraction, seed)
    group = codes_of(cells, by)
    if whole not in (CHUNK, ROW):
        group = linked(group, codes_of(cells, whole) + 1)
    return _by_column(cells, linked(group, copies), fraction, seed)


def _by_column(cells: CellTable, group: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """Hold out whole groups."""
    several_groups = 0.0
    for columns in (("experiment", "condition"), ("condition",), ()):
        held_out, several_groups = _of_groups(cells, group, columns, fraction, seed)
        if several_groups > 0.5:
            break
    return held_out


def _of_groups(
    cells: CellTable, group: np.ndarray, columns: Sequence[str], fraction: float, seed: int
) -> tuple[np.ndarray, float]:
    """Hold out groups of every combination of labels, and give the share of groups that are not alone in theirs."""
    stratum = strata_of(cells, columns)
    n = int(stratum.max()) + 1
    of, labels = np.divmod(np.unique(group * n + stratum), n)
    names = np.unique(of)
    sets = np.split(labels, np.searchsorted(of, names)[1:])
    number = {one: i for i, one in enumerate(dict.fromkeys(tuple(one.tolist()) for one in sets))}
    of_group = np.array([number[tuple(one.tolist())] for one in sets])
    held_out = choose_groups(np.bincount(group)[names], of_group, of_group, fraction, seed)
    return np.isin(group, names[held_out]), float((np.bincount(of_group)[of_group] > 1).mean())


def _by_group(group: np.ndarray, stratum: np.ndarray, condition: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """Hold out whole groups of the stratum of their first row."""
    first, number, size = numbered(group)
    return choose_groups(size, stratum[first], condition[first], fraction, seed)[number]


def _by_chunk(cells: CellTable, whole: str, fraction: float, seed: int, copies: np.ndarray) -> np.ndarray:
    """Hold out the part of a stratum that is in some chunks, and of strata in few chunks some cells.

    The latter are drawn evenly along the list of all, in the order of conditions, so that their shares are right on
    the whole and as near as whole cells come to it in each condition and each stratum. A condition, and a stratum of
    several cells, keeps one for training. Copies go where the first of them in the smallest stratum goes.
    """
    stratum, condition = strata_of(cells), _conditions(cells)
    size = np.bincount(stratum)
    rows = lead = np.arange(len(cells))
    if copies.any():
        lead = leads(copies, size[stratum])
        rows = rows[lead == rows]
    chunk = cells.column(whole)
    first, piece, _ = numbered(stratum[rows] * np.int64(len(chunk.labels)) + chunk.codes[rows])
    pieces = np.bincount(stratum[rows[first]], minlength=len(size))
    many = (pieces * min(fraction, 1 - fraction) >= 2)[stratum[rows]]
    held_out = np.zeros(len(cells), bool)
    if many.any():
        stratum_of = stratum[rows[many]]
        held_out[rows[many]] = _by_group(piece[many], stratum_of, condition[rows[many]], fraction, seed)
    few = rows[~many]
    few = few[(size > 1)[stratum[few]] | (np.bincount(condition) > 1)[condition[few]]]
    if len(few):
        held_out[few] = choose_evenly(np.ones(len(few)), stratum[few], condition[few], fraction, seed)
    held_out = held_out[lead]
    for group in (np.where(size[stratum] > 1, stratum, -1), condition):
        back = whole_groups(held_out, group)
        if len(back):
            held_out[np.isin(lead, lead[back])] = False
    return held_out
