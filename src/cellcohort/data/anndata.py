"""Expression profiles from a store that is read in chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from cellcohort.augment import made
from cellcohort.augment.expression import ExpressionViews
from cellcohort.cells import CellTable, Name, names_of
from cellcohort.datasets.copies import COPIES
from cellcohort.datasets.held_out_cells import CHUNK
from cellcohort.datasets.partners import PairRule
from cellcohort.datasets.protocol import Views
from cellcohort.datasets.stored.cells import StoredCells
from cellcohort.datasets.stored.store import Store
from cellcohort.datasets.tables.merge_labels import MergeLabels, merged
from cellcohort.mapped_arrays import ArrayFiles
from cellcohort.mapped_cells import mapped_cells
from cellcohort.missing_values import Missing, refuse_missing, without_empty

__all__ = ["AnnData", "load_anndata"]

FEWEST_CHUNKS = 20  # of a stratum, from which a share of whole chunks is near enough to the share asked
COLUMNS: Mapping[str, Any] = MappingProxyType(
    {"experiment": "experiment", "condition": "condition", "hours": None, "track": None}
)


@dataclass(frozen=True)
class AnnData:
    """Expression profiles of a store, which are read batch by batch.

    The `whole` of its cells is the track, or "stored_chunk" where there are no tracks: cells for validation are
    then whole chunks of the store, which is a fair sample of each stratum, since a preparation shuffles them.

    Attributes
    ----------
    path : str or Path
        A store that ``scripts/prepare.py`` wrote, or any collection of annbatch or AnnData in zarr,
        dense or sparse.
    columns : mapping
        Which column of obs is what; what is not named keeps its default. ``experiment``, ``condition``,
        ``hours`` and ``track``, each None where there is none, or a list of columns that are a key jointly.
    merge_labels : mapping of str to mapping of label to label, optional
        Other names for labels, by role or column of obs, which merges spellings of one name:
        ``{"condition": {"GEM": "Gem"}}``.
    missing : {"error", "label"}
        What cells without an experiment or a condition do: "error" refuses them and gives their number; "label"
        makes them an experiment or a condition of their own, named "missing".
    layer : str, optional
        The layer that holds the profiles; None reads ``X``.
    augment : callable or mapping
        ``augment(inputs, key)`` makes the two views of a cell, where the model is; or its node of a config.
    index_cache : path, optional
        Directory of a file of the labels, which all processes of a machine then share, and which later runs find.
    """

    path: str | Path | None = None
    columns: Mapping[str, Any] = COLUMNS
    merge_labels: MergeLabels = None
    missing: Missing = "error"
    layer: str | None = None
    augment: Views | Mapping[str, Any] = ExpressionViews()  # noqa: RUF009  # frozen
    index_cache: str | Path | None = None

    def cells(self, also: Sequence[str] = (), pairs: PairRule | None = None) -> StoredCells:  # noqa: ARG002
        """Read the labels of the store; it has all columns of obs.

        Parameters
        ----------
        also : sequence of str
            Columns that are needed.
        pairs : PairRule, optional
            Which cells may be pairs, instead of those that the options of this source make.

        Raises
        ------
        FileNotFoundError, ValueError
            As :meth:`dataset`.
        """
        return self.dataset(pairs)

    def dataset(self, pairs: PairRule | None = None) -> StoredCells:
        """Read the labels of the store; its profiles are read batch by batch.

        Parameters
        ----------
        pairs : PairRule, optional
            Which cells may be pairs, instead of those that the options of this source make.

        Raises
        ------
        FileNotFoundError, ValueError
            The store is not there or damaged, see :class:`~cellcohort.datasets.stored.store.Store`; a column is not in
            obs or has missing values; `merge_labels` names what is not there; the inputs are no profiles; no
            augmentation is on.
        """
        store = opened(self.path, self.layer)
        if len(store.shape) != 1:
            raise ValueError(
                f"{self.path} holds inputs of shape {store.shape}, no profiles; read it with data=patches."
            )
        files = ArrayFiles(self.index_cache)
        cells, whole = labelled(store, {**COLUMNS, **self.columns}, self.merge_labels, self.missing, files)
        return StoredCells(store, cells, whole, made(self.augment), pair_rule=pairs)


def load_anndata(path: str | Path | None = None, columns: Mapping[str, Any] = COLUMNS, **options: Any) -> StoredCells:
    """Read the labels of a store of profiles; the options are those of :class:`AnnData`."""
    return AnnData(path, columns, **options).dataset()


def opened(path: str | Path | None, layer: str | None = None) -> Store:
    """Return the store at `path`."""
    if path is None:
        raise ValueError("data.path is empty; name a store, which scripts/prepare.py writes.")
    return Store(Path(path), layer)


def labelled(
    store: Store,
    columns: Mapping[str, Any],
    merge_labels: MergeLabels,
    missing: Missing,
    files: ArrayFiles,
    needed: Sequence[Name | None] = (),
) -> tuple[CellTable, str]:
    """Return the cells of a store, and which column a split must not cut; hours, tracks and `needed` must be whole."""
    known = ("experiment", "condition", "hours", "track")
    if unknown := [role for role in columns if role not in known]:
        raise ValueError(f"data.columns has {unknown[0]!r}, which means nothing; use {', '.join(known)}.")
    if files.directory is not None:
        files = files.of("store", str(store.path), store.stamps(), columns, merge_labels, missing, [*needed])
    (cells,) = mapped_cells(files, lambda: (_read(store, columns, merge_labels, missing, needed),))
    return cells, "track" if columns.get("track") else CHUNK


def _read(
    store: Store,
    columns: Mapping[str, Any],
    merge_labels: MergeLabels,
    missing: Missing,
    needed: Sequence[Name | None],
) -> CellTable:
    obs = store.obs()
    if CHUNK in obs.columns:
        raise ValueError(f"{store.path}: obs has a column {CHUNK!r}, which is needed to hold chunks out; rename it.")
    labels = names_of((columns["experiment"], columns["condition"]))
    wanted = names_of((columns["hours"], columns["track"], *needed))
    obs = without_empty(obs, [*labels, *names_of([columns["track"]])])
    refuse_missing(obs, wanted, labels, missing, "data.missing=label")
    obs = merged(obs, merge_labels, columns, [columns["hours"]])
    if "source_row" not in obs.columns:  # as in a store that was written elsewhere
        obs = obs.drop(columns="source_file", errors="ignore").assign(**store.sources())
    obs[CHUNK] = _undivided(obs, [name for name in labels if name is not None], store.chunk_rows)
    cells = CellTable.from_frame(obs, **columns, missing=missing)
    cells.chunk_rows, cells.keys = store.chunk_rows, tuple(names_of([*columns.values(), *needed]))
    return cells


def _undivided(obs: pd.DataFrame, labels: list[str], chunk_rows: int) -> np.ndarray:
    """Return the group of each row that a split does not cut: its chunk, its copies, or itself in small strata."""
    rows = np.arange(len(obs), dtype=np.uint32)
    labels = [name for name in dict.fromkeys(labels) if name in obs.columns]
    stratum = obs.groupby(labels, observed=True, dropna=False).ngroup().to_numpy() if labels else rows * 0
    small = np.bincount(stratum)[stratum] < FEWEST_CHUNKS * chunk_rows
    groups = np.where(small, np.uint32(len(rows)) + rows, rows // np.uint32(chunk_rows))
    if COPIES in obs.columns:  # which lie in chunks of several strata
        copies = obs[COPIES].to_numpy(np.uint32)
        groups = np.where(copies > 0, np.uint32(2 * len(rows)) + copies, groups)
    return groups
