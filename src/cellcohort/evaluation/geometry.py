"""The shape of a representation by itself, without any label: is it collapsed, is it spread."""

from __future__ import annotations

import numpy as np
from scipy.spatial.distance import pdist

from cellcohort.evaluation.score import Score


def alignment(anchors: np.ndarray, positives: np.ndarray) -> float:
    """Mean squared distance of a cell to its positive on the unit sphere (Wang and Isola 2020); 0 to 4.

    Parameters
    ----------
    anchors, positives : numpy.ndarray of float, shape (n, dim)
    """
    return float(np.mean(np.sum((_on_sphere(anchors) - _on_sphere(positives)) ** 2, axis=1)))


def uniformity(inputs: np.ndarray) -> float:
    """Log of the mean of exp(-2 d^2) over pairs of cells on the unit sphere (Wang and Isola 2020).

    0 where all cells lie in one direction; about -4 where they are spread evenly in many dimensions.

    Parameters
    ----------
    inputs : numpy.ndarray of float, shape (n, dim)
        At least two cells.
    """
    return float(np.log(np.mean(np.exp(-2 * pdist(_on_sphere(inputs), "sqeuclidean")))))


def effective_rank(inputs: np.ndarray) -> float:
    """Return how many directions a representation fills (Roy and Vetterli 2007): exp of its spectral entropy.

    Between 1, where all cells lie on one line or in one point (collapse), and dim.

    Parameters
    ----------
    inputs : numpy.ndarray of float, shape (n, dim)
    """
    values = inputs.astype(np.float64)
    spectrum = np.linalg.svd(values - values.mean(0), compute_uv=False)
    if spectrum.max() <= 1e-6 * np.abs(values).max():  # what is left is rounding
        return 1.0
    share = spectrum / spectrum.sum()
    share = share[share > 0]
    return float(np.exp(-np.sum(share * np.log(share))))


def geometry_scores(inputs: np.ndarray, anchors: np.ndarray, positives: np.ndarray, most: int = 3000) -> list[Score]:
    """Alignment, uniformity and effective rank of held-out cells.

    Parameters
    ----------
    inputs : numpy.ndarray of float, shape (n, dim)
        Held-out cells as recorded, in random order.
    anchors, positives : numpy.ndarray of float, shape (m, dim)
        Held-out cells and their positives, as the loss sees them in training.
    most : int
        Cells to take for uniformity, whose pairs are many.
    """
    few = inputs[:most]
    spread = uniformity(few) if len(few) > 1 else float("nan")
    return [
        Score("alignment", alignment(anchors, positives), False, len(anchors), "cells and their positives, augmented"),
        Score("uniformity", spread, False, len(few), "" if len(few) > 1 else "needs two cells"),
        Score("effective_rank", effective_rank(inputs), True, len(inputs), f"of {inputs.shape[1]} dimensions"),
    ]


def _on_sphere(inputs: np.ndarray) -> np.ndarray:
    inputs = inputs.astype(np.float64)
    return inputs / np.maximum(np.linalg.norm(inputs, axis=1, keepdims=True), 1e-12)
