"""Cells from AnnData files, h5ad or zarr, one or several."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
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

from cellcohort.files import fingerprint
from cellcohort.messages import listed, several

PROVENANCE = ("source_file", "source_row")


class AnnDataFiles:
    """The cells of AnnData files, file by file; labels decide, not the codes that a file gives its categories.

    Parameters
    ----------
    path : str, Path or list of these
        Files (``.h5ad``), directories (``.zarr``), or patterns of them such as ``plates/*.h5ad``.
    layer : str, optional
        The layer to read; None reads ``X``.

    Raises
    ------
    FileNotFoundError
        No file is there.
    ValueError
        A file has no obs, an obs of another length than its X, other features than the first one,
        or a matrix stored by columns.
    """

    def __init__(self, path: str | Path | Sequence[str | Path] | None = None, layer: str | None = None) -> None:
        self._files = [_looked_at(file, layer) for file in _found(path)]
        first = self._files[0]
        for file in self._files[1:]:
            if set(file.features) != set(first.features):
                odd = sorted(set(file.features) ^ set(first.features))
                raise ValueError(
                    f"{file.path} has {len(file.features)} features and {first.path} has {len(first.features)}; "
                    f"{len(odd)} are in one only, such as {odd[0]!r}. Keep the same features in every file."
                )
        self.features: list[str] = list(first.features)
        self.shape: tuple[int, ...] = (len(first.features),)
        self.sparse = all(file.sparse for file in self._files)
        self._ends = np.cumsum([file.rows for file in self._files])
        self._obs: pd.DataFrame | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Without the labels, which workers do not need."""
        return {**self.__dict__, "_obs": None}

    @property
    def fingerprint(self) -> dict[str, Any]:
        files = {str(file.path.resolve()): f"{file.rows} rows, state {_changed(file.path)}" for file in self._files}
        return {"kind": type(self).__name__, "layer": self._files[0].element, **files}

    @property
    def obs(self) -> pd.DataFrame:
        if self._obs is None:
            parts = [file.labels() for file in self._files]
            obs = pd.concat(parts)  # joins labels; where files differ in their categories, as plain ones
            for name in obs.columns:
                self._check_types(name, parts)
                if all(isinstance(part[name].dtype, pd.CategoricalDtype) for part in parts if name in part):
                    obs[name] = obs[name].astype("category")
            self._obs = obs
        return self._obs

    @property
    def columns(self) -> dict[str, list[str]]:
        return {str(file.path): file.columns for file in self._files}

    def _check_types(self, name: str, parts: list[pd.DataFrame]) -> None:
        """Refuse a column that is of numbers in some files and of text in others."""
        kinds = {pd.api.types.is_numeric_dtype(part[name]): i for i, part in enumerate(parts) if name in part}
        if len(kinds) == 2:
            numbers, others = (self._files[kinds[kind]].path for kind in (True, False))
            raise ValueError(
                f"obs column {name!r} has numbers in {numbers}, but {parts[kinds[False]][name].dtype} in {others}; "
                "write it as the same type in all files."
            )

    def read(self, start: int, stop: int) -> Any:
        parts: list[Any] = []
        for file, end in zip(self._files, self._ends, strict=True):
            begin = end - file.rows
            if start < end and stop > begin:
                rows = file.read(max(start - begin, 0), min(stop, end) - begin)
                if file.features != self.features:
                    rows = rows[:, [file.features.index(name) for name in self.features]]
                parts.append(rows)
        if self.sparse:
            return sparse.vstack(parts, format="csr")
        return np.concatenate([part.toarray() if sparse.issparse(part) else part for part in parts])


@dataclass
class _File:
    path: Path
    element: str
    rows: int
    features: list[str]
    sparse: bool
    columns: list[str]

    def labels(self) -> pd.DataFrame:
        with _opened(self.path) as group:
            obs: Any = anndata.io.read_elem(group["obs"])
        if taken := [name for name in PROVENANCE if name in obs.columns]:
            raise ValueError(f"{self.path}: obs has a column {taken[0]!r} already; rename it, for the store adds one.")
        obs["source_file"] = pd.Categorical([str(self.path)] * self.rows)
        obs["source_row"] = np.arange(self.rows)
        return obs

    def read(self, start: int, stop: int) -> Any:
        with _opened(self.path) as group:
            node = group[self.element]
            element: Any = anndata.io.sparse_dataset(node) if self.sparse else node
            try:
                rows = element[start:stop]
            except Exception as error:
                raise RuntimeError(f"{self.path}: rows {start} to {stop} of {self.element} cannot be read") from error
        return self._as_float(sparse.csr_matrix(rows) if self.sparse else rows, start)

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
                    f"{self.path}: {several(len(place), 'value')} {what}, in rows {which} of {self.element}; {remedy}."
                )
        return rows


def _found(path: str | Path | Sequence[str | Path] | None) -> list[Path]:
    patterns = [path] if isinstance(path, str | Path) else list(path or [])
    if not patterns:
        raise ValueError("source.path is empty; name an .h5ad file, a .zarr directory, or a pattern of these.")
    files: list[Path] = []
    for pattern in map(str, patterns):
        found = [pattern] if Path(pattern).exists() else sorted(glob.glob(pattern, recursive=True))
        if not found:
            raise FileNotFoundError(
                f"{pattern}: no such file (looked from {Path.cwd()}). Correct source.path: a file, a .zarr directory, "
                "or a pattern in quotes, such as 'source.path=plates/*.h5ad'."
            )
        inside = sorted(Path(pattern).glob("*.h5ad")) if Path(pattern).is_dir() else []
        if inside:
            raise ValueError(
                f"{pattern} is a directory of {several(len(inside), 'h5ad file')}, such as {inside[0].name}; name "
                f"these, 'source.path={pattern}/*.h5ad'."
            )
        files += map(Path, found)
    if len(set(files)) < len(files):
        twice = next(file for file in files if files.count(file) > 1)
        raise ValueError(f"{twice} is named twice; its cells would be in the store twice.")
    return files


def _looked_at(path: Path, layer: str | None) -> _File:
    with _opened(path) as group:
        element = f"layers/{layer}" if layer else "X"
        if "obs" not in group or "var" not in group:
            raise ValueError(
                f"{path} has no obs or no var, only {', '.join(sorted(group.keys())) or 'nothing'}: no labels to "
                "sample by. Write it again as a whole AnnData."
            )
        if element not in group:
            layers = ", ".join(group["layers"].keys()) if "layers" in group else ""
            raise ValueError(f"{path} has no {element}; its layers are: {layers or 'none'}. Set source.layer.")
        kind = group[element].attrs.get("encoding-type", "array")
        if kind == "csc_matrix":
            raise ValueError(f"{path}: {element} is stored by columns (csc); write it by rows, X = X.tocsr().")
        shape = group[element].attrs["shape"] if kind == "csr_matrix" else group[element].shape
        labels, features = (_index_of(group[name]) for name in ("obs", "var"))
        columns = [str(name) for name in group["obs"].attrs["column-order"]]
    if len(labels) != shape[0] or len(features) != shape[1]:
        raise ValueError(
            f"{path}: {element} has {shape[0]} rows and {shape[1]} columns, but obs has {len(labels)} rows and var "
            f"{len(features)}: which label is whose is not known. Write the file again from its source."
        )
    if not features:
        raise ValueError(f"{path}: {element} has no columns, so there is nothing to store. Set source.layer.")
    if len(set(features)) < len(features):
        raise ValueError(
            f"{path}: {several(len(features) - len(set(features)), 'feature name')} used again; make them unique."
        )
    return _File(path, element, int(shape[0]), features, kind == "csr_matrix", columns)


def _index_of(group: Any) -> list[str]:
    names: Any = anndata.io.read_elem(group[group.attrs.get("_index", "_index")])
    return [str(name) for name in names]


def _changed(path: Path) -> str:
    """What changes when any file of `path` is written anew, or is there no more."""
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    stamps = [(str(file.relative_to(path)), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return fingerprint(repr(stamps).encode())


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    if path.is_dir():
        yield zarr.open_group(path, mode="r")
        return
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise ValueError(f"{path} is no AnnData file (h5ad or zarr) that can be read: {error}") from error
    with file:
        yield file
