"""One AnnData file, h5ad or zarr, of any age: what is in it, and its rows."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anndata
import h5py  # type: ignore[import-untyped]
import numpy as np
import pandas as pd
import zarr
from scipy import sparse

from cellcohort.datasets.anndata.obs import read_obs
from cellcohort.datasets.anndata.values import Values, look_at
from cellcohort.messages import listed, several

RUNS, RUN_ROWS = 5, 100  # of rows that are looked at, spread evenly


@dataclass
class AnnDataFile:
    """A matrix of an AnnData file. Make one with :func:`look_into`.

    Attributes
    ----------
    path : pathlib.Path
    element : str
        Path of the matrix inside the file, such as "X", "layers/counts" or "raw/X".
    rows : int
    features : list of str
    sparse : bool
    columns : list of str
        Names of the columns of obs.
    layers : list of str
        What else `layer` may be: the layers, and "raw" where there is one.
    old : bool
        Whether the file was written by an anndata older than 0.7.
    """

    path: Path
    element: str
    rows: int
    features: list[str]
    sparse: bool
    columns: list[str]
    layers: list[str]
    old: bool

    def obs(self) -> tuple[pd.DataFrame, dict[str, str]]:
        """Return the columns of obs, and the reason for each one that is left out."""
        if self.old:
            with _old(self.path) as adata:
                return adata.obs.copy(), {}
        with opened(self.path) as group:
            return read_obs(group["obs"])

    def look(self) -> list[Values]:
        """Return what the values look like, in some rows, by kind; none where these are all 0."""
        starts = np.unique(np.linspace(0, max(self.rows - RUN_ROWS, 0), RUNS).astype(int))
        parts = [self._stored(start, min(start + RUN_ROWS, self.rows)) for start in starts]
        return look_at(sparse.vstack(parts, format="csr") if self.sparse else np.concatenate(parts))

    def read(self, start: int, stop: int) -> Any:
        """Rows start..stop-1 in 32 bits.

        Raises
        ------
        RuntimeError
            They cannot be read.
        ValueError
            A value is missing or infinite, or 32 bits do not hold it.
        """
        return self._as_float(self._stored(start, stop), start)

    def _stored(self, start: int, stop: int) -> Any:
        with opened(self.path) as group:
            node = group[self.element]
            element: Any = anndata.io.sparse_dataset(node) if self.sparse else node
            try:
                rows = element[start:stop]
            except Exception as error:
                raise RuntimeError(
                    f"{self.path}: rows {start} to {stop} of {self.element} cannot be read ({error}). "
                    "Copy the file again from where it is whole."
                ) from error
        return sparse.csr_matrix(rows) if self.sparse else rows

    def _as_float(self, rows: Any, start: int) -> Any:
        """Rows from `start` on in 32 bits, refused where these would not hold their values."""
        given = rows.data if self.sparse else rows
        with np.errstate(over="ignore"):
            rows = rows.astype(np.float32)
        values = rows.data if self.sparse else rows
        for wrong, what, remedy in (
            (~np.isfinite(values), "missing or infinite", "fill them, or drop these rows"),
            (
                values.astype(np.float64) != given if given.dtype.kind in "iu" else np.zeros(0, bool),
                "that 32 bits would round, which hold whole numbers up to 16,777,216",
                "scale them, or write them as float32 if they may be rounded",
            ),
        ):
            if wrong.any():
                place = np.flatnonzero(wrong)
                row = np.searchsorted(rows.indptr, place, "right") - 1 if self.sparse else place // rows.shape[1]
                which = listed(start + np.unique(row), 5)
                raise ValueError(
                    f"{self.path}: {several(len(place), 'value')} {what}, in rows {which} of {self.element}, counted "
                    f"from 0; {remedy}."
                )
        return rows


def look_into(path: Path, layer: str | None) -> AnnDataFile:
    """Return what a file holds.

    Parameters
    ----------
    path : pathlib.Path
    layer : str or None
        The layer to read, "raw" for ``raw.X`` with the features of ``raw.var``; None reads ``X``.

    Raises
    ------
    ValueError
        It is no AnnData, has no such layer, a matrix stored by columns, features of the same name, or an obs of
        another length than its matrix.
    """
    with opened(path) as group:
        if "obs" not in group or "var" not in group:
            raise ValueError(
                f"{path} has no obs or no var, only {', '.join(sorted(group.keys())) or 'nothing'}: no labels to "
                "sample by. Write it again as a whole AnnData."
            )
        element, var, layers = _element(path, group, layer)
        node = group[element]
        compressed = not hasattr(node, "dtype")
        if compressed and anndata.io.sparse_dataset(node).format == "csc":
            raise ValueError(f"{path}: {element} is stored by columns (csc); write it by rows, X = X.tocsr().")
        n_rows, n_columns = anndata.io.sparse_dataset(node).shape if compressed else node.shape
        old = any(not _is_group(group[name]) for name in ("obs", var))
        if not old:
            labels, features = (_index_of(group[name]) for name in ("obs", var))
            columns = list(dict.fromkeys(map(str, group["obs"].attrs["column-order"])))
    if old:
        with _old(path) as adata:
            labels, columns = adata.obs_names, adata.obs.columns.astype(str).tolist()
            features = list(map(str, (adata.raw if var.startswith("raw") else adata).var_names))
    if len(labels) != n_rows or len(features) != n_columns:
        raise ValueError(
            f"{path}: {element} has {n_rows} rows and {n_columns} columns, but obs has {len(labels)} rows and var "
            f"{len(features)}: which label is whose is not known. Write the file again from its source."
        )
    if not features:
        raise ValueError(f"{path}: {element} has no columns, so there is nothing to store. Set source.layer.")
    if len(set(features)) < len(features):
        raise ValueError(
            f"{path}: {several(len(features) - len(set(features)), 'feature name')} used again; make them unique."
        )
    return AnnDataFile(path, element, int(n_rows), features, compressed, columns, layers, old)


def _element(path: Path, group: Any, layer: str | None) -> tuple[str, str, list[str]]:
    """Where the matrix is, where its features are, and all names of layers."""
    layers = list(group["layers"].keys()) if "layers" in group else []
    raw = next((name for name in ("raw/X", "raw.X") if name in group), None)
    names = layers + ["raw"] * (raw is not None and "raw" not in layers)
    if layer == "raw" and raw is not None and "raw" not in layers:
        return raw, raw.replace("X", "var"), names
    element = f"layers/{layer}" if layer else "X"
    if element not in group:
        raise ValueError(f"{path} has no {element}; its layers are: {', '.join(names) or 'none'}. Set source.layer.")
    return element, "var", names


def _is_group(node: Any) -> bool:
    return isinstance(node, h5py.Group | zarr.Group)


def _index_of(group: Any) -> list[str]:
    names: Any = anndata.io.read_elem(group[group.attrs.get("_index", "_index")])
    return [str(name) for name in names]


@contextmanager
def _old(path: Path) -> Iterator[Any]:
    """Return a file of before anndata 0.7, whose labels anndata alone knows to read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the file is old
        try:
            adata = anndata.read_h5ad(path, backed="r")
        except Exception as error:
            raise ValueError(
                f"{path} was written by an anndata older than 0.7, and cannot be read ({error}). Read it with the "
                "version that wrote it, and write it again with a newer one, adata.write_h5ad(...)."
            ) from error
        try:
            yield adata
        finally:
            adata.file.close()


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Return the group at the root of a file."""
    if path.is_dir():
        yield zarr.open_group(path, mode="r")
        return
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise ValueError(f"{path} is no AnnData file (h5ad or zarr) that can be read: {error}") from error
    with file:
        yield file
