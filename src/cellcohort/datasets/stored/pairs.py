"""Positives of cells among those that happen to be in memory: later ones of the same lineage."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cellcohort.datasets.positives import UNIFORM, Clock, TauDraw, check_tau_hours, ranges
from cellcohort.mapped_arrays import NO_FILES, ArrayFiles
from cellcohort.messages import whole_number


class Pairs:
    """Later cells with the same label.

    Parameters
    ----------
    codes : numpy.ndarray of int, shape (n_cells,)
        Label of every cell, such as its lineage.
    hours : numpy.ndarray of float, shape (n_cells,)
    tau_hours : (float, float)
        Least and greatest time from anchor to positive, in hours, both inclusive; a time of 0 is never one.
    seed : int
        Key of the draws.
    how : TauDraw
        How the time is drawn.
    files : ArrayFiles
        Where the times are that are made of the others.

    Raises
    ------
    ValueError
        The times are out of order or not finite, or the seed is no integer >= 0.
    """

    def __init__(
        self,
        codes: np.ndarray,
        hours: np.ndarray,
        tau_hours: Sequence[float],
        seed: int,
        how: TauDraw = UNIFORM,
        files: ArrayFiles = NO_FILES,
    ) -> None:
        check_tau_hours(tau_hours)
        self._seed, self._hours, self._how = whole_number("seed", seed, 0), hours, how
        self._clock = Clock.from_arrays(*files.arrays(lambda: Clock.of(codes, hours, tau_hours).arrays()))

    def draw(self, rows: np.ndarray, among: np.ndarray, epoch: int) -> np.ndarray:
        """Draw a positive of each row among those that `among` has, or the row itself if it has none.

        A draw depends on the seed, the epoch, the row and its possible positives.
        """
        time = self._clock.time
        pool = among[np.lexsort((among, time[among]))]
        start, stop = self._clock.later(time[rows], time[pool])
        owner, candidate = np.repeat(np.arange(len(rows)), stop - start), pool[ranges(start, stop - start)]
        return self._how.draw(rows, owner, candidate, time[candidate] - time[rows[owner]], (self._seed, epoch, 0))

    def hours_between(self, rows: np.ndarray, later: np.ndarray) -> np.ndarray:
        """Hours from each row to its positive, float32; NaN where that is the row itself."""
        return np.where(later == rows, np.nan, self._hours[later] - self._hours[rows]).astype(np.float32)
