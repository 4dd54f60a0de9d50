"""Cells from AnnData files, h5ad or zarr, one or several."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from scipy import sparse

from cellcohort.datasets.anndata.file import look_into
from cellcohort.datasets.anndata.obs import join_obs
from cellcohort.datasets.anndata.values import COUNTS, LINEAR, OTHER, by_kind, described
from cellcohort.files import fingerprint, is_pipe
from cellcohort.messages import listed, several, typed_option

ADDED = ("source_file", "source_row", "copy_group", "stored_chunk")  # columns of obs of a store and of its reader
Kinds = Literal["same", "any"]
OF_COUNTS = (
    "; they are stored as they are, and training only standardises each feature: normalise cells and take log1p first "
    "(for example scanpy.pp.normalize_total and scanpy.pp.log1p)"
)


class AnnDataFiles:
    """The cells of AnnData files, file by file; labels decide, not the codes that a file gives its categories.

    Parameters
    ----------
    path : str, Path or list of these
        Files (``.h5ad``), directories (``.zarr``), or patterns of them such as ``plates/*.h5ad``.
    layer : str, optional
        The layer to read, or "raw" for ``raw.X`` and its features; None reads ``X``.
    kinds : {"same", "any"}
        Whether counts, logarithms and z-scores in different files are refused, or joined as they are.

    Raises
    ------
    FileNotFoundError
        No file is there.
    ValueError
        A file has no obs, an obs of another length than its X, other features than the first one,
        a matrix stored by columns, or values of another kind than other files.
    """

    def __init__(
        self,
        path: str | Path | Sequence[str | Path] | None = None,
        layer: str | None = None,
        kinds: Kinds = "same",
    ) -> None:
        if kinds not in get_args(Kinds):
            raise ValueError(f"source.kinds={kinds!r} is not a choice; use {' or '.join(get_args(Kinds))}.")
        self._files = [look_into(file, layer) for file in _found(path)]
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
        self._kinds = self._check_kinds(kinds)
        self._ends = np.cumsum([file.rows for file in self._files])
        self._obs: pd.DataFrame | None = None
        self._left_out: list[str] = []

    def __getstate__(self) -> dict[str, Any]:
        """Without the labels, which workers do not need."""
        return {**self.__dict__, "_obs": None}

    @property
    def options(self) -> dict[str, Any]:
        return {"kind": type(self).__name__, "layer": self._files[0].element}

    @property
    def state(self) -> dict[str, str]:
        return {str(file.path.resolve()): f"{file.rows} rows, state {_changed(file.path)}" for file in self._files}

    @property
    def obs(self) -> pd.DataFrame:
        if self._obs is None:
            parts = {}
            for file in self._files:
                if taken := [name for name in ADDED if name in file.columns]:
                    raise ValueError(
                        f"{file.path}: obs has a column {taken[0]!r} already; rename it, for the store adds one."
                    )
                parts[str(file.path)], left_out = file.obs()
                self._left_out += [
                    f"{file.path}: obs column {name!r} is left out: it {left_out[name]}." for name in left_out
                ]
            obs = join_obs(parts)
            rows = [file.rows for file in self._files]
            obs["source_file"] = pd.Categorical.from_codes(np.repeat(np.arange(len(rows)), rows), pd.Index(list(parts)))
            obs["source_row"] = np.concatenate([np.arange(n) for n in rows])
            self._obs = obs
        return self._obs

    @property
    def notes(self) -> list[str]:
        len(self.obs)  # which tells what is left out of it
        old = [file.path for file in self._files if file.old]
        said = [f"{listed(old, 5)}: written by an anndata older than 0.7, and read all the same"] if old else []
        return [*self._kinds, *said, *self._left_out]

    @property
    def columns(self) -> dict[str, list[str]]:
        return {str(file.path): file.columns for file in self._files}

    def _check_kinds(self, kinds: Kinds) -> list[str]:
        found = by_kind({str(file.path): file.look() for file in self._files})
        said = [described(files) for files in found.values()]
        # numbers that are none of these may be logarithms or z-scores that were corrected
        of_scale = COUNTS in found or LINEAR in found
        if kinds == "same" and len([kind for kind in found if kind != OTHER or of_scale]) > 1:
            layers = [name for name in self._files[0].layers if all(name in file.layers for file in self._files)]
            raise ValueError(
                f"{self._files[0].element} looks like {', but like '.join(said)}; such values cannot be compared. Set "
                f"source.layer to one of the same kind in all files (they have: {listed(layers) or 'none'}), write the "
                "files anew, or set source.kinds=any to join them as they are."
            )
        advice = [OF_COUNTS if kind == COUNTS else "" for kind in found]
        return [f"{self._files[0].element} looks like {one}{more}" for one, more in zip(said, advice, strict=True)]

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
                f"these, {typed_option('source.path', Path(pattern) / '*.h5ad')}."
            )
        files += map(Path, found)
    if pipes := [file for file in files if is_pipe(file)]:
        raise ValueError(f"{pipes[0]} is a pipe or a device, which cannot be read again; give a file.")
    if len(set(files)) < len(files):
        twice = next(file for file in files if files.count(file) > 1)
        raise ValueError(f"{twice} is named twice; its cells would be in the store twice.")
    return files


def _changed(path: Path) -> str:
    """Return what changes when any file of `path` is written anew, or is there no more."""
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    stamps = [(str(file.relative_to(path)), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return fingerprint(repr(stamps).encode())
