"""Which cells are scored: those held out with their whole group, and of these a keyed sample."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cellcohort.cells import CellTable
from cellcohort.datasets.copies import copied
from cellcohort.evaluation.score import Held
from cellcohort.evaluation.tracks import next_frames
from cellcohort.sampling.rng import key_of, uniform

SHARE = 0.6  # of the budget, for cells to fit on
MOST_PAIRS = 3000


def training_part(cells: CellTable, validation: CellTable, whole: str) -> np.ndarray:
    """Which of all cells are for training, bool (n_cells,): the others share a group with a validation cell.

    Cells of a group that holds no anchor at all are counted to the training part, so they are never scored, and so
    are cells with the same values as one of the training part.

    Parameters
    ----------
    cells : CellTable
        All cells, those that can be no anchor among them.
    validation : CellTable
        The anchors for validation.
    whole : str
        Column whose groups, in each experiment, lie in one part.
    """
    columns = ["experiment", whole] if cells.has("experiment") else [whole]
    every, held = cells.column(columns), validation.column(columns)
    out = set(held.present())  # by label: codes may differ between the two tables
    training = ~np.array([label in out for label in every.labels])[every.codes]
    return training | copied(cells, training)


@dataclass(frozen=True)
class Chosen:
    """The cells that are scored, as rows of the table of all cells.

    Attributes
    ----------
    rows : numpy.ndarray of int, shape (n,)
        In random order; the last of them, from `n_held` on, are only there as next frames.
    n_held : int
        Rows that probes are fitted on or scored on.
    held : Held
        Of the first `n_held` rows.
    cells : CellTable
        Of all `rows`.
    pairs : numpy.ndarray of int, shape (m, 2)
        Indices into `rows` of neighbouring frames of held-out tracks.
    """

    rows: np.ndarray
    n_held: int
    held: Held
    cells: CellTable
    pairs: np.ndarray


def choose(cells: CellTable, training: np.ndarray, whole: str, max_cells: int, seed: int) -> Chosen:
    """Take up to `max_cells` of all cells, three in five of them to fit on, the same for every run of a seed.

    Where one of the parts has fewer, the other has the rest of the budget.

    Parameters
    ----------
    cells : CellTable
        All cells.
    training : numpy.ndarray of bool, shape (n_cells,)
    whole : str
        Column whose groups are never cut.
    max_cells, seed : int
    """
    drawn = uniform(key_of(seed, 1), np.arange(len(cells), dtype=np.uint64))
    fit, rest = (part[np.argsort(drawn[part])] for part in (np.flatnonzero(training), np.flatnonzero(~training)))
    n_fit = min(len(fit), max(round(SHARE * max_cells), max_cells - len(rest)))
    fit, rest = fit[:n_fit], rest[: max_cells - n_fit]
    rows = np.concatenate([fit, rest])
    first, later = np.empty(0, int), np.empty(0, int)
    if cells.hours is not None and cells.has("track"):
        following = next_frames(cells, rest)
        first = np.flatnonzero(following >= 0)[:MOST_PAIRS]
        later = following[first]
    extra = np.setdiff1d(later, rows)
    every = np.concatenate([rows, extra])
    order = np.argsort(every)
    pairs = np.stack([first + len(fit), order[np.searchsorted(every[order], later)]], axis=1)
    held = Held(cells.take(rows), training[rows], whole)
    return Chosen(every, len(rows), held, cells.take(every), pairs)
