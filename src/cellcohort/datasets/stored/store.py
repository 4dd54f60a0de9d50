"""Cells on disk in chunks of rows: what is there, whether it is whole, and reading runs of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from stat import S_ISREG
from typing import Any
from zlib import crc32

import anndata
import numpy as np
import pandas as pd
import zarr
from annbatch import DatasetCollection
from pandas.api.types import union_categoricals

from cellcohort.datasets.codecs import decoding
from cellcohort.files import stamp
from cellcohort.messages import typed_option

MANIFEST = "cellcohort"  # attribute of the root, written last by a preparation
PATCHES = "patches"  # key in obsm of inputs that are no rows of numbers


@dataclass
class Store:
    """A collection of annbatch, as :func:`cellcohort.preparation.prepare` writes it, or one AnnData in zarr.

    Parameters
    ----------
    path : pathlib.Path
    layer : str, optional
        The layer that holds the inputs; None takes ``obsm/patches`` where it is there, else ``X``.

    Attributes
    ----------
    arrays : list of zarr.Array or anndata CSR dataset
        The inputs, one array for each dataset; row i of the store is row i of their concatenation.
    shape : tuple of int
        Of one input.
    chunk_rows : int
        Rows that are stored together.
    manifest : dict
        What a preparation said of itself; empty for a store from elsewhere.

    Raises
    ------
    FileNotFoundError, ValueError
        Nothing is there, it is no store, its preparation has not finished, files are missing or cut
        short, or obs and inputs differ in length.
    """

    path: Path
    layer: str | None = None
    arrays: list[Any] = field(init=False, repr=False)
    manifest: dict[str, Any] = field(init=False, repr=False)
    _parts: dict[int, list[Any]] = field(init=False, repr=False, default_factory=dict)
    _indptrs: dict[int, np.ndarray] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.path = Path(self.path)
        if self.path.suffix == ".h5ad" and glob(str(self.path)):
            out = f"outputs/{self.path.stem if self.path.exists() else 'cells'}.zarr"
            raise ValueError(
                f"{self.path} is no store: data=anndata reads those that scripts/prepare.py writes. Make one of it, "
                f"scripts/prepare.py {typed_option('source.path', self.path)} {typed_option('prepare.out', out)} "
                "'prepare.group_by=[...]' "
                f"(the columns that axes look at), and name it, {typed_option('data.path', out)}"
            )
        if not self.path.exists():
            partial = self.path.with_suffix(".partial")
            hint = (
                f"{partial} is there: run scripts/prepare.py again, with the same options." if partial.exists() else ""
            )
            hint = hint or "Name one that scripts/prepare.py wrote (its prepare.out) with data.path."
            raise FileNotFoundError(f"{self.path}: no such store (looked from {Path.cwd()}). {hint}")
        if self.path.suffix == ".partial":
            raise ValueError(
                f"{self.path} is the work of a preparation that has not finished; run scripts/prepare.py again, with "
                f"the same options, and name {self.path.with_suffix('.zarr')}."
            )
        try:
            group = zarr.open_group(self.path, mode="r")
        except Exception as error:
            raise ValueError(f"{self.path} is no zarr group, so it is no store: {error}") from error
        said: Any = group.attrs.asdict().get(MANIFEST, {})
        self.manifest = dict(said)
        self.check_files()
        self._groups = [group] if "obs" in group else list(DatasetCollection(group, mode="r"))
        if not self._groups:
            raise ValueError(
                f"{self.path} holds no dataset_0 and no obs, but {', '.join(sorted(group.keys())) or 'nothing'}; name "
                "a store that scripts/prepare.py wrote, or an AnnData in zarr."
            )
        with decoding():
            self.arrays = [_inputs(group, self.layer, self.path) for group in self._groups]
        shapes = {tuple(array.shape[1:]) for array in self.arrays}
        if len(shapes) > 1:
            raise ValueError(
                f"{self.path}: datasets with inputs of shapes {sorted(shapes)}; prepare them again together."
            )
        self.shape: tuple[int, ...] = shapes.pop()
        self.sparse = not isinstance(self.arrays[0], zarr.Array)
        self.chunk_rows = int(self.manifest.get("chunk_rows", 64 if self.sparse else self.arrays[0].chunks[0]))
        self.ends = np.cumsum([array.shape[0] for array in self.arrays])

    def __len__(self) -> int:
        return int(self.ends[-1])

    def check_chunk_size(self, chunk_size: int) -> None:
        """Raise ValueError where runs of `chunk_size` rows would be parts of what a preparation stored as one."""
        if self.manifest and chunk_size % self.chunk_rows:
            raise ValueError(
                f"chunk_size={chunk_size} is no multiple of the {self.chunk_rows} rows in a chunk of {self.path}, of "
                f"which whole ones are decoded; use batch_sampler.chunk_size={self.chunk_rows}, and a "
                "batch_sampler.preload_nchunks that memory has room for."
            )

    def check_files(self) -> None:
        """Raise ValueError where a file is not as a preparation left it; zarr reads one that is lost as zeros."""
        self._check_files(self.manifest.get("files", {}))

    def check_read(self, requests: list[slice]) -> None:
        """As :meth:`check_files`, of the files of some rows alone; after these were read, for what they hold."""
        sizes, names = self.manifest.get("files", {}), set()
        for number, first, last in (span for run in requests for span in self._spans(run.start, run.stop)):
            for array, start, stop in self._stored(number, first, last):
                names |= {f"{array.path}/{key}" for _, key in _shards(array, start, stop)}
        self._check_files({name: sizes[name] for name in sorted(names) if name in sizes})

    def _anew(self) -> str:
        return f"Delete {self.path}, and prepare it from its source again (scripts/prepare.py)."

    def _check_files(self, sizes: dict[str, int]) -> None:
        for name, size in sizes.items():
            file = self.path / name
            there = None
            with suppress(FileNotFoundError, NotADirectoryError):
                found = file.stat()  # once, since another process may delete it meanwhile
                there = found.st_size if S_ISREG(found.st_mode) else None
            if there != size:
                state = "is missing" if there is None else f"has {there} bytes of {size}"
                raise ValueError(f"{file} {state}: the store is damaged, or was edited. {self._anew()}")

    def obs(self) -> pd.DataFrame:
        """Return the labels of all rows under their original names, whatever codes the datasets give categories.

        Texts are categories, so that each is held once; the names of the rows are left out.
        """
        for name, checksum in self.manifest.get("labels", {}).items():
            if crc32((self.path / name).read_bytes()) != checksum:
                raise ValueError(f"{self.path / name} is corrupted: labels are lost. {self._anew()}")
        for group in self._groups:
            if "obs" not in group:
                raise ValueError(
                    f"{self.path}/{group.path} was written without its obs: no cell has a label. {self._anew()}"
                )
        names = dict.fromkeys(name for group in self._groups for name in _columns(group))
        original = self.manifest.get("columns", {})
        columns = {original.get(name, name): self._column(name) for name in names}
        return pd.DataFrame(columns, pd.RangeIndex(len(self)), copy=False)

    def stamps(self) -> list[str]:
        """Return path and state of every file of the labels, which change when one is written anew."""
        groups = [self.path / group.path for group in self._groups]
        about = [folder / name for folder in {self.path, *groups} for name in ("zarr.json", ".zattrs", ".zmetadata")]
        held = [place for folder in groups for place in os.walk(folder / "obs", followlinks=True)]
        labels = [Path(folder, name) for folder, _, names in held for name in names]
        return [str(len(self)), str(self.chunk_rows), *map(stamp, sorted(f for f in [*about, *labels] if f.is_file()))]

    def _column(self, name: str) -> pd.Series:
        """Return a column of obs, with missing values for the rows of datasets that lack it."""
        parts = []
        for group, array in zip(self._groups, self.arrays, strict=True):
            n = array.shape[0]
            part = _read_column(group["obs"], name) if name in _columns(group) else pd.Series(np.full(n, np.nan))
            if len(part) != n:
                raise ValueError(
                    f"{self.path}/{group.path}: obs has {len(part)} rows and the inputs have {n}, so "
                    f"which label is whose is not known. {self._anew()}"
                )
            parts.append(part.astype("category") if pd.api.types.is_string_dtype(part) else part)
        kinds = {part.cat.categories.dtype if part.dtype == "category" else None for part in parts}
        if len(kinds) > 1 or None in kinds:
            return pd.concat(parts, ignore_index=True)
        return pd.Series(union_categoricals(parts, ignore_order=True))

    def obs_names(self) -> np.ndarray:
        """Return the name of the cell of every row, as its source has it, str (n_rows,)."""
        all_obs: list[Any] = [group["obs"] for group in self._groups]
        indexes = [anndata.io.read_elem(obs[obs.attrs.get("_index", "_index")]) for obs in all_obs]
        return np.concatenate([np.asarray(index, object) for index in indexes])

    def sources(self) -> dict[str, Any]:
        """Return "source_file" and "source_row" of every row: the dataset of this store, and its row there."""
        rows = [array.shape[0] for array in self.arrays]
        names = pd.Index([str(self.path / group.path) for group in self._groups])
        of = np.repeat(np.arange(len(rows)), rows)
        return {
            "source_file": pd.Categorical.from_codes(of, names),
            "source_row": np.concatenate([np.arange(n) for n in rows]),
        }

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return the inputs of rows start..stop-1, float32 (stop - start, *shape)."""
        parts = []
        for number, first, last in self._spans(start, stop):
            try:
                part = self.arrays[number][first:last]
            except Exception as error:
                raise RuntimeError(self.damage([slice(start, stop)]) or str(error)) from error
            parts.append(part.toarray() if self.sparse else part)
        return np.concatenate(parts).astype(np.float32, copy=False)

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Return the inputs of any rows in any order, float32 (n, *shape); each run of rows is read once."""
        out = np.empty((len(rows), *self.shape), np.float32)
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
        for some in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(ordered) > self.chunk_rows) + 1):
            if len(some):
                first = ordered[some[0]]
                out[order[some]] = self.read(first, ordered[some[-1]] + 1)[ordered[some] - first]
        return out

    def damage(self, requests: list[slice]) -> str | None:
        """Which file of the rows asked for cannot be read, in words; None if all can."""
        for request in requests:
            for number, first, last in self._spans(request.start, request.stop):
                for array, start, stop in self._stored(number, first, last):
                    if said := _damaged(array, start, stop):
                        return f"{said}. Its rows are lost. {self._anew()}"
        return None

    def _stored(self, number: int, first: int, last: int) -> Iterator[tuple[zarr.Array, int, int]]:
        """Return the zarr arrays behind some rows of a dataset, and which of their elements these are."""
        if not self.sparse:
            yield self.arrays[number], first, last
            return
        if number not in self._parts:
            self._parts[number] = [self.arrays[number].group[name] for name in ("indptr", "indices", "data")]
        indptr, *values = self._parts[number]
        yield indptr, 0, self.arrays[number].shape[0] + 1
        if number not in self._indptrs:  # 8 bytes a row
            self._indptrs[number] = np.asarray(indptr[:])
        for array in values:
            yield array, int(self._indptrs[number][first]), int(self._indptrs[number][last])

    def _spans(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Dataset, first row in it and the one after the last, for each dataset that rows lie in."""
        for number, (end, array) in enumerate(zip(self.ends, self.arrays, strict=True)):
            begin = int(end) - array.shape[0]
            if start < end and stop > begin:
                yield number, max(start - begin, 0), min(stop, int(end)) - begin


def _columns(group: Any) -> list[str]:
    return list(map(str, group["obs"].attrs["column-order"]))


def _read_column(obs: Any, name: str) -> pd.Series:
    legacy = obs.attrs["encoding-version"] == "0.1.0"  # of anndata before 0.8: categories lie apart from their codes
    read: Any = anndata.io.read_elem(obs if legacy else obs[name])
    return read[name].reset_index(drop=True) if legacy else pd.Series(read)


def _inputs(group: Any, layer: str | None, path: Path) -> Any:
    name = f"layers/{layer}" if layer else f"obsm/{PATCHES}" if f"obsm/{PATCHES}" in group else "X"
    if name not in group:
        layers = ", ".join(group["layers"].keys()) if "layers" in group else ""
        raise ValueError(f"{path}/{group.path} has no {name}; its layers are: {layers or 'none'}. Set data.layer.")
    node = group[name]
    kind = node.attrs.get("encoding-type", "array")
    if kind == "csc_matrix":
        raise ValueError(f"{path}/{group.path}: {name} is stored by columns (csc); write it by rows, X = X.tocsr().")
    return anndata.io.sparse_dataset(node) if kind == "csr_matrix" else node


def _shards(array: zarr.Array, start: int, stop: int) -> Iterator[tuple[slice, str]]:
    """Return the elements that each file of an array holds, of some of its elements, and the key of the file."""
    step = (array.shards or array.chunks)[0]
    for number in range(start // step, -(-stop // step)):
        key = array.metadata.encode_chunk_key((number, *[0] * (array.ndim - 1)))
        yield slice(number * step, (number + 1) * step), key


def _damaged(array: zarr.Array, start: int, stop: int) -> str | None:
    for elements, key in _shards(array, start, stop):
        try:
            array[elements]
        except Exception as error:
            return f"{array.store_path}/{key} is corrupted ({type(error).__name__}: {error})"
    return None
