"""Image patches from a store that is read in chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cellcohort.augment.image import ImageViews
from cellcohort.data.anndata import labelled, opened
from cellcohort.datasets.protocol import Views
from cellcohort.datasets.stored.cells import StoredCells
from cellcohort.datasets.stored.pairs import Pairs
from cellcohort.datasets.tables.merge_labels import MergeLabels
from cellcohort.missing_values import Missing

__all__ = ["load_patches"]

COLUMNS = {"experiment": "experiment", "condition": "condition", "hours": "hours", "track": "track"}


def load_patches(
    path: str | Path | None = None,
    columns: Mapping[str, Any] = COLUMNS,
    merge_labels: MergeLabels = None,
    missing: Missing = "error",
    pair_by: str | None = "lineage",
    tau_hours: Sequence[float] = (0.5, 6.0),
    augment: Views = ImageViews(),  # noqa: B008  # frozen
    seed: int = 0,
) -> StoredCells:
    """Read the labels of a store of patches; the patches are read batch by batch.

    Parameters
    ----------
    path : str or Path
        A store that ``scripts/prepare.py source=timelapse`` wrote; with ``prepare.together=<pair_by>`` the
        positives of most cells are in memory when the cells are.
    columns, merge_labels, missing
        As for :func:`~cellcohort.data.anndata.load_anndata`.
    pair_by : str, optional
        Column whose cells are each other's positives, `tau_hours` apart: "lineage" takes all of one family,
        "track" the same cell only. It is not cut by a split. A cell without a later one in memory is paired
        with a second view of itself, and ``meta["second_views"]`` says how many of a batch are. None pairs all so.
    tau_hours : (float, float)
        Least and greatest time from anchor to positive, in hours, both inclusive.
    augment : callable
        ``augment(inputs, key)`` makes the views where the model is.
    seed : int
        Key of the positives.

    Raises
    ------
    FileNotFoundError, ValueError
        As for :func:`~cellcohort.data.anndata.load_anndata`; or there are no hours to pair by.
    """
    store = opened(path)
    if len(store.shape) < 2:
        raise ValueError(f"{path} holds profiles of {store.shape[0]} features, no patches; read it with data=anndata.")
    cells, whole = labelled(store, {**COLUMNS, **columns}, merge_labels, missing, [pair_by])
    if pair_by is None:
        return StoredCells(store, cells, whole, augment)
    if cells.hours is None:
        raise ValueError(f"pair_by={pair_by!r} needs times; name data.columns.hours, or set data.pair_by=null.")
    pairs = Pairs(cells.column(pair_by).codes, cells.hours, tau_hours, seed)
    return StoredCells(store, cells, pair_by, augment, pairs)
