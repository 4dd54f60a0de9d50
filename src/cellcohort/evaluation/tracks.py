"""How smoothly a representation moves along the tracks of cells."""

from __future__ import annotations

import numpy as np

from cellcohort.cells import CellTable
from cellcohort.evaluation.score import Score
from cellcohort.sampling.rng import key_of, uniform


def next_frames(cells: CellTable, rows: np.ndarray) -> np.ndarray:
    """For each of some rows the row of the next frame of its track, or -1.

    A frame is next if it is no later than the usual time, the median of its experiment, from one
    frame of a track to the following. Where a row is a cell in one channel, the next frame is of the same channel.

    Parameters
    ----------
    cells : CellTable
        With hours and tracks.
    rows : numpy.ndarray of int, shape (n,)
    """
    if cells.hours is None or not cells.has("track"):
        raise ValueError("next frames need the hours and the track of every cell.")
    names = [*(["experiment"] if cells.has("experiment") else []), "track", *(["channel"] if cells.in_channels else [])]
    track = cells.column(names).codes
    order = np.lexsort((cells.hours, track))
    gap = np.diff(cells.hours[order])
    follows = (track[order][1:] == track[order][:-1]) & (gap > 0)  # never after a missing time, which comes last
    experiment = cells.column("experiment").codes if cells.has("experiment") else np.zeros(len(cells), int)
    of = experiment[order][:-1]
    for code in np.unique(of[follows]):
        own = follows & (of == code)
        follows[own] = gap[own] <= np.median(gap[own]) * 1.001
    later = np.full(len(cells), -1)
    later[order[:-1][follows]] = order[1:][follows]
    return later[rows]


def smoothness(inputs: np.ndarray, pairs: np.ndarray, random: np.ndarray) -> float:
    """Mean distance of neighbouring frames over that of random pairs, as in DynaCLR (Hirata-Miyasaki et al. 2025).

    Euclidean; 0 where a track does not move, 1 where neighbouring frames are as far apart as any cells.

    Parameters
    ----------
    inputs : numpy.ndarray of float, shape (n, dim)
    pairs, random : numpy.ndarray of int, shape (m, 2)
        Rows of `inputs`: neighbouring frames of a track, and random cells.
    """
    near, far = (np.linalg.norm(inputs[two[:, 0]] - inputs[two[:, 1]], axis=1).mean() for two in (pairs, random))
    return float(near / far) if far > 0 else float("nan")


def smoothness_scores(inputs: np.ndarray, cells: CellTable, pairs: np.ndarray, seed: int) -> list[Score]:
    """Return the :func:`smoothness` of held-out tracks against pairs of other tracks of the same experiment.

    Where a row is a cell in one channel, both pairs are of one channel.

    Parameters
    ----------
    inputs : numpy.ndarray of float, shape (n, dim)
    cells : CellTable
        Of the same rows.
    pairs : numpy.ndarray of int, shape (m, 2)
        Rows that are neighbouring frames.
    seed : int
        Key of the random pairs.
    """
    name = "track_smoothness"
    if cells.hours is None or not cells.has("track"):
        return [Score(name, np.nan, False, 0, f"the table has no {'hours' if cells.hours is None else 'tracks'}")]
    names = [*(["experiment"] if cells.has("experiment") else []), *(["channel"] if cells.in_channels else [])]
    experiment = cells.column(names).codes if names else np.zeros(len(cells), int)
    track = cells.column("track").codes
    first = pairs[:, 0]
    partner = np.full(len(first), -1)
    for code in np.unique(experiment[first]):
        own = np.flatnonzero(experiment[first] == code)
        draw = uniform(key_of(seed, 3), own.astype(np.uint64))
        partner[own] = first[own[(draw * len(own)).astype(np.int64)]]
    random = np.stack([first, partner], axis=1)
    random = random[track[first] != track[partner]]
    if not len(random):
        return [Score(name, np.nan, False, 0, "needs neighbouring frames of two held-out tracks of an experiment")]
    value = smoothness(inputs, pairs, random)
    said = "distance of neighbouring frames over that of random pairs of the same experiment"
    said += " and channel" * cells.in_channels
    return [Score(name, value, False, 2 * len(pairs), said if np.isfinite(value) else "all cells are alike")]
