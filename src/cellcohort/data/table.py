"""A table of cells with their labels only, for whoever wants to see what a sampler does to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import pandas as pd

from cellcohort.cells import names_of
from cellcohort.datasets.held_out_cells import ROW
from cellcohort.datasets.partners import PairRule, chosen
from cellcohort.datasets.protocol import LabelledCells
from cellcohort.datasets.sample_columns import SAMPLE_COLUMNS
from cellcohort.datasets.tables.merge_labels import MergeLabels
from cellcohort.datasets.tables.read import read_table
from cellcohort.datasets.tables.rows import cells_of_rows
from cellcohort.missing_values import Missing

__all__ = ["COLUMNS", "Table"]

COLUMNS: Mapping[str, Any] = MappingProxyType(
    {"experiment": "experiment", "condition": "condition", "hours": None, "track": None}
)


@dataclass(frozen=True)
class Table:
    """Cells of a table with one row per cell, or of the obs of an AnnData file, without anything to train on.

    Attributes
    ----------
    path : str or Path
        A ``.parquet``, ``.csv`` or ``.tsv`` file (see :func:`~cellcohort.datasets.tables.read.read_table`), or an
        AnnData file (``.h5ad``, ``.zarr``), of which obs is read.
    columns : mapping
        Which column is what; what is not named keeps its default. ``experiment``, ``condition``, ``hours`` and
        ``track``, each None where there is none, or a list of columns that are a key jointly.
    merge_labels : mapping of str to mapping of label to label, optional
        Other names for labels, by role or column: ``{"condition": {"GEM": "Gem"}}``.
    missing : {"error", "label"}
        What cells without an experiment or a condition do: "error" refuses them and gives their number; "label"
        makes them an experiment or a condition of their own, named "missing".
    """

    path: str | Path | None = None
    columns: Mapping[str, Any] = COLUMNS
    merge_labels: MergeLabels = None
    missing: Missing = "error"

    def cells(self, also: Sequence[str] = (), pairs: PairRule | None = None) -> LabelledCells:
        """Read the cells; labels of experiments and conditions are texts.

        Parameters
        ----------
        also : sequence of str
            Columns to read beside those that `columns` and `merge_labels` name.
        pairs : PairRule, optional
            Which cells may be pairs.

        Raises
        ------
        FileNotFoundError, ValueError
            The file or a named column is not there, or has missing values.
        """
        if unknown := [role for role in self.columns if role not in COLUMNS]:
            raise ValueError(f"data.columns has {unknown[0]!r}, which means nothing; use {', '.join(COLUMNS)}.")
        also = [*also, *(pairs.columns if pairs else ())]
        roles = {**COLUMNS, **self.columns}
        named = names_of(roles.values())
        frame = self._frame(roles, {*named, *(set(also) | set(self.merge_labels or ())) - set(roles)})
        cells = cells_of_rows(frame, roles, self.merge_labels, self.missing)
        return LabelledCells(cells, "track" if roles["track"] is not None else ROW, chosen(pairs))

    def dataset(self, pairs: PairRule | None = None) -> NoReturn:  # noqa: ARG002
        """Refuse, since a table has nothing that a model could see.

        Parameters
        ----------
        pairs : PairRule, optional
            As for :meth:`cells`.

        Raises
        ------
        ValueError
            Always.
        """
        raise ValueError(
            "data=table holds labels only: scripts/preview.py shows what its batches would hold, but there is nothing "
            "to train on. Name features with data=tracks data.columns.features=[...], or prepare a store of profiles "
            "(scripts/prepare.py) for data=anndata."
        )

    def _frame(self, roles: Mapping[str, Any], wanted: set[str]) -> pd.DataFrame:
        path = None if self.path is None else Path(self.path)
        if path is None or path.suffix not in (".h5ad", ".zarr"):
            text = names_of((roles["experiment"], roles["condition"], roles["track"]))
            return read_table(path, names_of(roles.values()), wanted, text, names_of([roles["hours"]]), SAMPLE_COLUMNS)
        if not path.exists():
            raise FileNotFoundError(f"no file {path} (seen from {Path.cwd()}); give a table or an AnnData file.")
        import anndata  # here, as these are slow to import and of no use for other tables
        import h5py  # type: ignore[import-untyped]
        import zarr

        obs: Any
        try:
            if path.suffix == ".zarr":
                obs = anndata.io.read_elem(zarr.open_group(path, mode="r")["obs"])
            else:
                with h5py.File(path, "r") as file:
                    obs = anndata.io.read_elem(file["obs"])
            return pd.DataFrame(obs).reset_index(drop=True)
        except (OSError, KeyError) as error:
            raise ValueError(f"{path} has no obs that can be read: {error}. Give an AnnData file.") from error
