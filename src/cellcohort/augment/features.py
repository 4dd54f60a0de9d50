"""Light augmentation of feature windows: every draw is a function of a key and the row of the table."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import isfinite

import numpy as np

from cellcohort.sampling.rng import key_of, uniform


def draws(key: tuple[int, ...], rows: np.ndarray, count: int) -> np.ndarray:
    """Uniform numbers in [0, 1), `count` for each row, shape (n_rows, count).

    The numbers of a row depend on `key` and on the row alone, not on the rows drawn beside it.
    """
    counters = rows.astype(np.uint64)[:, None] * np.uint64(count) + np.arange(count, dtype=np.uint64)
    return uniform(key_of(*key), counters.ravel()).reshape(len(rows), count)


def _normals(key: tuple[int, ...], rows: np.ndarray, count: int) -> np.ndarray:
    """Return standard normal numbers by the Box-Muller transform, float32 (n_rows, count)."""
    half = (count + 1) // 2
    u = (1.0 - draws(key, rows, 2 * half)).astype(np.float32)  # above 0, so that its log is finite
    radius, angle = np.sqrt(np.float32(-2.0) * np.log(u[:, :half])), np.float32(2.0 * np.pi) * u[:, half:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)[:, :count]


@dataclass(frozen=True)
class Augment:
    """What makes a second view of a cell differ from the first.

    A window is taken in units of the spread of every feature around its mean over the whole table,
    so that features of any unit are treated alike.

    Parameters
    ----------
    noise : float
        Standard deviation of gaussian noise, drawn for every feature and frame.
    scaling : float
        Standard deviation of the log of a factor, drawn for every feature of a view.
    dropout : float
        Probability in [0, 1) that a feature is held at its mean throughout a view. The last
        feature that is left is never dropped.

    Raises
    ------
    ValueError
        A value is negative or not finite, or `dropout` is 1 or more.
    """

    noise: float = 0.1
    scaling: float = 0.1
    dropout: float = 0.1

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            if not isfinite(value) or value < 0 or (name == "dropout" and value >= 1):
                bounds = "in [0, 1)" if name == "dropout" else "0 or more"
                raise ValueError(f"augment.{name}={value} must be {bounds}; 0 turns it off.")

    @property
    def changes(self) -> bool:
        """Whether a view can differ from the window it is made of."""
        return bool(self.noise or self.scaling or self.dropout)

    def __call__(
        self, windows: np.ndarray, mean: np.ndarray, spread: np.ndarray, key: tuple[int, ...], rows: np.ndarray
    ) -> np.ndarray:
        """One view of every window.

        Parameters
        ----------
        windows : numpy.ndarray of float32, shape (n, n_features, n_frames)
        mean, spread : numpy.ndarray of float32, shape (n_features,)
            In the units of the features.
        key : tuple of int
            What the draws are keyed by, together with `rows`.
        rows : numpy.ndarray of int, shape (n,)
            Row of the table that each view is drawn for.
        """
        if not self.changes:
            return windows
        n, n_features, n_frames = windows.shape
        deviation = windows - mean[:, None]
        if self.scaling:
            factors = np.exp(np.float32(self.scaling) * _normals((*key, 0), rows, n_features))
            deviation *= factors[:, :, None]
        if self.noise:
            noise = np.float32(self.noise) * _normals((*key, 1), rows, n_features * n_frames)
            deviation += noise.reshape(n, n_features, n_frames) * spread[:, None]
        if self.dropout:
            u = draws((*key, 2), rows, n_features)
            kept = (u >= self.dropout) | (u == u.max(axis=1, keepdims=True))
            deviation *= kept[:, :, None]
        deviation += mean[:, None]
        return deviation


LIGHT = Augment()
