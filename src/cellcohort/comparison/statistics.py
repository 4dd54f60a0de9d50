"""What a few seeds can say of a score: t intervals, paired differences, and p-values corrected for their number.

Why the t test: with 5 seeds the exact permutation of signs has 32 outcomes, so that its smallest
two-sided p-value is 1/16; nothing could ever be called, let alone after a correction. The paired t
test is exact where the differences between two strategies at the same seed are normal. If both
strategies do alike, the differences are symmetric around 0 whatever the score, and then the test
stays close to its level; the tests simulate this for several distributions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats
from statsmodels.stats.multitest import multipletests

LEVEL = 0.95
FEWEST = 3  # values for an interval and a test: with two, the interval is as wide as the luck of one difference
SAME = 1e-12  # a spread below this, relative to the values, is rounding


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and how far to trust it.

    Attributes
    ----------
    mean : float
        Of the values; NaN if there are none.
    low, high : float
        Ends of the t interval of `LEVEL` for the mean; NaN with fewer than `FEWEST` values.
    p : float
        Of the two-sided t test that the mean is 0; NaN with fewer than `FEWEST` values, and where all
        values are one and the same number other than 0, since then their spread is unknown.
    n : int
        How many values there are.
    """

    mean: float
    low: float
    high: float
    p: float
    n: int


def estimate(values: ArrayLike) -> Estimate:
    """Estimate mean, t interval and t test against 0 of values that come one per seed, without those that are NaN.

    Parameters
    ----------
    values : array of float, shape (n_seeds,)
        For a paired comparison the differences, seed by seed.

    Returns
    -------
    Estimate
    """
    known = np.asarray(values, dtype=float)
    known = known[~np.isnan(known)]
    n = len(known)
    if not n:
        return Estimate(np.nan, np.nan, np.nan, np.nan, 0)
    mean = float(known.mean())
    if n < FEWEST:
        return Estimate(mean, np.nan, np.nan, np.nan, n)
    if np.ptp(known) <= SAME * np.abs(known).max():
        return Estimate(mean, mean, mean, 1.0 if mean == 0 else np.nan, n)
    test = stats.ttest_1samp(known, 0.0)
    low, high = test.confidence_interval(LEVEL)
    return Estimate(mean, float(low), float(high), float(test.pvalue), n)


def holm(p: ArrayLike) -> np.ndarray:
    """Correct p-values so that the chance of any false call among them stays below the level (Holm 1979).

    Parameters
    ----------
    p : array of float, shape (n_tests,)
        The p-values of one family; NaN where there was no test, which then does not count.

    Returns
    -------
    numpy.ndarray of float, shape (n_tests,)
        Corrected p-values, NaN where they were.
    """
    values = np.asarray(p, dtype=float)
    corrected = np.full(len(values), np.nan)
    tested = ~np.isnan(values)
    if tested.any():
        corrected[tested] = multipletests(values[tested], method="holm")[1]
    return corrected
