"""AnnData files of any age, and what their values look like."""

from __future__ import annotations

from pathlib import Path

import anndata
import h5py  # type: ignore[import-untyped]
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from cellcohort.datasets.anndata.values import look_at
from cellcohort.sources.anndata import AnnDataFiles
from stores import QUIET, cells, dense, write

pytestmark = QUIET
RNG = np.random.default_rng(0)
COUNTS = RNG.poisson(RNG.gamma(1, 30, size=(1, 20)), size=(200, 20)).astype(np.float32)
LOGARITHMS = np.log1p(COUNTS / COUNTS.sum(1, keepdims=True) * 1e4)
Z_SCORES = (LOGARITHMS - LOGARITHMS.mean(0)) / LOGARITHMS.std(0)


def old_file(path: Path, values: np.ndarray, stored_sparse: bool) -> Path:
    """An h5ad file as anndata 0.6 wrote it: obs is a compound dataset, X has no encoding."""
    obs = np.empty(len(values), dtype=[("index", "S8"), ("plate", "i1"), ("n", "i4")])
    obs["index"] = [f"c{i}".encode() for i in range(len(values))]
    obs["plate"], obs["n"] = np.arange(len(values)) % 3 - 1, np.arange(len(values))
    var = np.array([(f"g{i}".encode(),) for i in range(values.shape[1])], dtype=[("index", "S8")])
    with h5py.File(path, "w") as file:
        for name in ("X", "raw.X"):
            if stored_sparse:
                matrix, group = sparse.csr_matrix(values), file.create_group(name)
                group.attrs["h5sparse_format"], group.attrs["h5sparse_shape"] = "csr", np.array(values.shape)
                for part in ("data", "indices", "indptr"):
                    group.create_dataset(part, data=getattr(matrix, part))
            else:
                file[name] = values
        file["obs"], file["var"], file["raw.var"] = obs, var, var
        file.create_dataset("uns/plate_categories", data=np.array(["p1", "p2"], dtype=h5py.string_dtype()))
    return path


@pytest.mark.parametrize("stored_sparse", [False, True])
@pytest.mark.parametrize("layer", [None, "raw"])
def test_files_older_than_anndata_0_7_are_read(tmp_path: Path, stored_sparse: bool, layer: str | None) -> None:
    source = AnnDataFiles(old_file(tmp_path / "old.h5ad", COUNTS, stored_sparse), layer)
    assert source.sparse == stored_sparse and source.features == [f"g{i}" for i in range(20)]
    assert np.array_equal(dense(source.read(50, 90)), COUNTS[50:90])
    assert list(source.obs["n"]) == list(range(200)) and list(source.obs.index[:2]) == ["c0", "c1"]
    assert source.obs["plate"].isna().sum() == 67 and list(source.obs["plate"].cat.categories) == ["p1", "p2"]
    assert any("old.h5ad: written by an anndata older than 0.7" in note for note in source.notes)


def test_an_old_file_that_is_damaged_is_named_as_old(tmp_path: Path) -> None:
    path = old_file(tmp_path / "old.h5ad", COUNTS, False)
    with h5py.File(path, "r+") as file:
        del file["var"]
        file["var"] = np.arange(20)
    with pytest.raises(ValueError, match=r"old\.h5ad was written by an anndata older than 0\.7, and cannot be read"):
        AnnDataFiles(path)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (COUNTS, "counts"),
        (COUNTS.astype(int), "counts"),
        (sparse.csr_matrix(COUNTS), "counts"),
        (LOGARITHMS, "logarithms"),
        (sparse.csr_matrix(LOGARITHMS), "logarithms"),
        (Z_SCORES, "z-scores"),
        (np.rint(Z_SCORES * 3), "z-scores"),
        (COUNTS * 12.34, "linear values"),
        (np.where(RNG.random((200, 20)) < 0.02, -0.1, LOGARITHMS), "other numbers"),
    ],
)
def test_kinds_of_values_are_told_apart(values: np.ndarray, kind: str) -> None:
    (found,) = look_at(values)
    assert found.kind == kind
    assert np.isclose(found.low, values.min()) and np.isclose(found.high, values.max())


def test_zeros_and_missing_values_have_no_kind() -> None:
    assert look_at(np.array([[0.0, np.nan], [0, np.inf]])) == []


def file_of(path: Path, values: np.ndarray, raw: np.ndarray | None = None) -> Path:
    names = pd.DataFrame(index=[f"g{i}" for i in range(values.shape[1])])
    adata = anndata.AnnData(values.astype(np.float32), obs=cells(len(values)).obs, var=names)
    if raw is not None:
        genes = pd.DataFrame(index=[f"raw{i}" for i in range(raw.shape[1])])
        adata.raw = anndata.AnnData(raw, obs=adata.obs, var=genes)
    return write(adata, path)


@pytest.mark.parametrize("other", [LOGARITHMS, Z_SCORES, COUNTS * 12.34])  # the last are scaled counts
def test_counts_and_other_values_are_not_joined(tmp_path: Path, other: np.ndarray) -> None:
    files = [file_of(tmp_path / "counts.h5ad", COUNTS, COUNTS), file_of(tmp_path / "other.h5ad", other, COUNTS)]
    said = r"X looks like counts \(whole numbers from 0 to \d+\) in \S*counts\.h5ad, but like .* in \S*other\.h5ad; .*"
    with pytest.raises(ValueError, match=said + r"source\.layer .*\(they have: raw\).* source\.kinds=any"):
        AnnDataFiles(files)
    assert len(AnnDataFiles(files, kinds="any").notes) == 2
    (note,) = AnnDataFiles(files, layer="raw").notes
    assert note.startswith("raw/X looks like counts (whole numbers from 0 to ") and "other.h5ad" in note


@pytest.mark.parametrize(("values", "told"), [(COUNTS, True), (LOGARITHMS, False), (Z_SCORES, False)])
def test_counts_are_stored_as_they_are_which_is_told(tmp_path: Path, values: np.ndarray, told: bool) -> None:
    source = AnnDataFiles(file_of(tmp_path / "cells.h5ad", values))
    (note,) = source.notes
    assert ("stored as they are" in note and "scanpy.pp.log1p" in note) == told
    np.testing.assert_array_equal(source.read(0, len(values)), values.astype(np.float32))


@pytest.mark.parametrize("other", [LOGARITHMS, Z_SCORES])
def test_counts_and_other_values_of_one_file_are_told_apart(tmp_path: Path, other: np.ndarray) -> None:
    values = np.where((np.arange(len(COUNTS)) % 3 == 0)[:, None], COUNTS, other)
    path = file_of(tmp_path / "joined.h5ad", values)
    with pytest.raises(ValueError, match=r"X looks like .* in \S*joined\.h5ad, but like .* in \S*joined\.h5ad; such"):
        AnnDataFiles(path)
    assert len(AnnDataFiles(path, kinds="any").notes) == 2


def test_counts_of_which_some_are_estimated_are_one_kind(tmp_path: Path) -> None:
    values = COUNTS.copy()
    values[::2, 0] += 0.25  # as of reads of several genes
    assert len(AnnDataFiles(file_of(tmp_path / "a.h5ad", values)).notes) == 1


def test_logarithms_and_linear_values_are_not_joined(tmp_path: Path) -> None:
    file_of(tmp_path / "a.h5ad", LOGARITHMS), file_of(tmp_path / "b.h5ad", COUNTS * 12.34)
    with pytest.raises(ValueError, match=r"like logarithms .*, but like linear values"):
        AnnDataFiles(str(tmp_path / "*.h5ad"))


def test_files_without_any_value_join_with_all(tmp_path: Path) -> None:
    file_of(tmp_path / "a.h5ad", np.zeros((30, 20))), file_of(tmp_path / "b.h5ad", COUNTS)
    (note,) = AnnDataFiles(str(tmp_path / "*.h5ad")).notes
    assert "a.h5ad" not in note


def test_kinds_are_named_one_by_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"source\.kinds='mixed' is not a choice; use same or any"):
        AnnDataFiles(file_of(tmp_path / "a.h5ad", COUNTS), kinds="mixed")  # type: ignore[arg-type]


@pytest.mark.parametrize("suffix", [".h5ad", ".zarr"])
def test_raw_is_read_with_its_own_features(tmp_path: Path, suffix: str) -> None:
    more = np.concatenate([COUNTS, COUNTS], 1)
    path = file_of(tmp_path / f"a{suffix}", Z_SCORES, sparse.csr_matrix(more))
    source = AnnDataFiles(path, "raw")
    assert source.sparse and source.features == [f"raw{i}" for i in range(40)]
    assert np.array_equal(dense(source.read(10, 30)), more[10:30])
    with pytest.raises(ValueError, match="has no layers/other; its layers are: raw"):
        AnnDataFiles(path, "other")
