"""Embeddings in two dimensions: principal components, and UMAP where it is installed."""

from __future__ import annotations

import warnings
from importlib.util import find_spec

import numpy as np
import pandas as pd

from cellcohort.comparison.runs import FinishedRun, damage_told

MOST_CELLS = 1500
LABELS = ("experiment", "condition", "hours")


def some_cells(run: FinishedRun) -> pd.DataFrame | None:
    """At most `MOST_CELLS` held-out cells with their labels and embeddings; None where the run saved none."""
    path = run.directory / "embeddings.parquet"
    if not path.is_file():
        return None
    with damage_told(path):
        cells = pd.read_parquet(path)
        held_out = cells[cells["part"] == "validation"]
        if not np.isfinite(np.concatenate([np.empty(0), *held_out["embedding"]])).all():
            raise ValueError("it holds embeddings that are not finite")
    if len(held_out) < 3:
        return None
    return held_out.iloc[np.linspace(0, len(held_out) - 1, min(MOST_CELLS, len(held_out))).astype(int)]


def principal_components(embeddings: np.ndarray) -> np.ndarray:
    """Return the two directions of largest variance, shape (n, 2)."""
    from sklearn.decomposition import PCA

    return np.asarray(PCA(2, svd_solver="full").fit_transform(embeddings))


def has_umap() -> bool:
    """Whether UMAP is installed."""
    return find_spec("umap") is not None


def umap(embeddings: np.ndarray) -> np.ndarray | None:
    """UMAP (McInnes et al. 2018, umap-learn) with a fixed seed, shape (n, 2); None where it is not installed."""
    if not has_umap():
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that a seed costs it its threads
        from umap import UMAP

        return np.asarray(UMAP(n_neighbors=min(15, len(embeddings) - 1), random_state=0).fit_transform(embeddings))
