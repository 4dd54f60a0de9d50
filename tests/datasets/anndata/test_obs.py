"""Columns of obs keep their type and their missing values, and are checked before any row is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anndata
import h5py  # type: ignore[import-untyped]
import numpy as np
import pandas as pd
import pytest

from cellcohort.datasets.anndata.obs import join_obs
from cellcohort.preparation import prepare
from cellcohort.preparation.columns import safe_names, storable
from cellcohort.sources.anndata import AnnDataFiles
from stores import QUIET, cells, write

pytestmark = QUIET
TEXT = str(pd.Series(["a"]).dtype)  # "object" before pandas 3
SMALL = {"chunk_rows": 16, "shard_rows": 64, "dataset_rows": 64}


def joined(one: Any, other: Any = None) -> pd.Series:
    """A column of two files of three cells, or of a file and of one that lacks it."""
    parts = {}
    for name, values in (("a.h5ad", one), ("b.h5ad", other)):
        index = [f"{name}{i}" for i in range(3)]
        parts[name] = pd.DataFrame({"x": values} if values is not None else {}, index=index)
    return join_obs(parts)["x"]


@pytest.mark.parametrize(
    ("one", "other", "dtype"),
    [
        ([True, False, True], None, "boolean"),
        ([True, False, True], [np.nan] * 3, "boolean"),
        ([True, False, True], pd.array([True, None, False], "boolean"), "boolean"),
        ([True, False, True], [True, True, False], "bool"),
        (pd.Categorical([True, False, True]), [True, True, False], "bool"),
        ([1, 2, 3], None, "Int64"),
        (np.array([1, 2, 3], np.uint8), None, "UInt8"),
        ([2**60 + 1, 2, 3], pd.array([1, None, 2], "Int32"), "Int64"),
        ([1, 2, 3], [4, 5, 6], "int64"),
        ([1, 2, 3], [0.5, np.nan, 1], "float64"),
        (pd.Categorical([1, 2, 3]), [4, 5, 6], "int64"),
        ([0.5, 1, 2], None, "float64"),
        (["u", "v", "w"], None, TEXT),
        (["u", None, "w"], pd.Categorical(["x", "y", "u"]), TEXT),
        (["u", "v", "w"], [np.nan] * 3, TEXT),
        (pd.Categorical(["u", "v", None]), None, "category"),
        (pd.Categorical(["u", "v", None]), pd.Categorical(["w", "u", "w"]), "category"),
        (pd.Categorical([1, 2, None]), pd.Categorical([0.5, 2, 2]), "category"),
        ([np.nan] * 3, None, "float64"),
    ],
)
def test_a_joined_column_keeps_its_type_and_its_missing_values(one: Any, other: Any, dtype: str) -> None:
    for pair in ((one, other), (other, one)):
        column = joined(*pair)
        expected = [value for part in pair for value in (list(part) if part is not None else [None] * 3)]
        assert str(column.dtype) == dtype
        assert [None if pd.isna(value) else value for value in column] == [
            None if pd.isna(value) else value for value in expected
        ]


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        ([1, 2, 3], ["1", "2", "3"], "numbers in a.h5ad, but text in b.h5ad"),
        ([True, False, True], [1, 0, 1], "booleans in a.h5ad, but numbers in b.h5ad"),
        (pd.Categorical([1, 2, 3]), pd.Categorical(["1", "2", "3"]), "numbers in a.h5ad, but text in b.h5ad"),
        (["True", "False", "nan"], [True, False, True], "text in a.h5ad, but booleans in b.h5ad"),
    ],
)
def test_columns_of_different_kinds_are_refused(one: Any, other: Any, said: str) -> None:
    with pytest.raises(ValueError, match=f"obs column 'x' has {said}; write it as the same type"):
        joined(one, other)


@pytest.mark.parametrize(
    ("one", "other"), [(np.arange(3) + 2**60, [0.5, 1, 2]), (np.arange(3, dtype=np.uint64) + 2**63, [-1, 0, 1])]
)
def test_whole_numbers_that_floats_would_round_are_refused(one: Any, other: Any) -> None:
    with pytest.raises(ValueError, match=rf"'x' has whole numbers up to {one[-1]} in one file .* Write it as text"):
        joined(one, other)
    assert joined(np.arange(3), other).dtype.kind in "if"


def stored_obs(tmp_path: Path, *parts: anndata.AnnData, group_by: tuple[str, ...] = ("experiment",)) -> pd.DataFrame:
    for number, part in enumerate(parts):
        write(part, tmp_path / f"{number}.h5ad")
    return prepare(AnnDataFiles(str(tmp_path / "*.h5ad")), tmp_path / "out.zarr", group_by, **SMALL).obs()


def test_a_boolean_that_one_file_lacks_is_missing_there(tmp_path: Path) -> None:
    one, other = cells(60, 0), cells(60, 1)
    one.obs["doublet"] = np.arange(60) % 2 == 0
    one.obs["number"] = np.arange(60) + 2**60
    obs = stored_obs(tmp_path, one, other)
    assert obs["doublet"].dtype == "boolean" and obs["number"].dtype == "Int64"
    of_one = obs["source_file"] == str(tmp_path / "0.h5ad")
    assert (obs["doublet"].isna() == ~of_one).all() and (obs["number"].isna() == ~of_one).all()
    assert (obs["number"][of_one] - 2**60 == obs["source_row"][of_one]).all()


def test_missing_booleans_do_not_pass_as_labels(tmp_path: Path) -> None:
    one = cells(60, 0)
    one.obs["doublet"] = pd.array([None, *[True] * 59], "boolean")
    with pytest.raises(ValueError, match="missing values: 'doublet' in 1 of 60 rows"):
        stored_obs(tmp_path, one, group_by=("doublet",))


NAMES = ["G2/M", "CD4+/CD8-", "..", ".", "zarr.json", "_index", "__x", "a/b/c", "x" * 300, "Hours", "a\\b", "G2_M"]


def named(path: Path, names: list[str]) -> Path:
    """Cells with columns of these names, as R or h5py may write them."""
    made = cells(60)
    for number in range(len(names)):
        made.obs[f"column {number}"] = np.arange(60) * (number + 2)
    write(made, path)
    with h5py.File(path, "r+") as file:
        order = [str(name) for name in file["obs"].attrs["column-order"]]
        for number, name in enumerate(names):
            if name in ("..", "."):  # cannot be in a file
                continue
            if name == "_index":
                file["obs"].move("_index", "names")
                file["obs"].attrs["_index"] = "names"
            file["obs"].move(f"column {number}", name)
            order[order.index(f"column {number}")] = name
        file["obs"].attrs["column-order"] = order
    return path


def test_names_that_zarr_cannot_hold_come_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = named(tmp_path / "cells.h5ad", NAMES)
    store = prepare(AnnDataFiles(path), tmp_path / "out.zarr", ["G2/M"], **SMALL)
    obs = store.obs()
    for number, name in enumerate(NAMES):
        if name not in ("..", "."):
            assert (obs[name] == obs["source_row"] * (number + 2)).all()
    said = capsys.readouterr().out
    assert "obs column 'G2/M' is stored as 'G2_M_2', since zarr cannot hold its name" in said
    assert "'Hours' is stored as 'Hours_2'" in said and "'hours'" not in said and "'G2_M' is" not in said
    assert sorted(store.manifest["columns"].values()) == sorted({*NAMES} - {"..", ".", "G2_M"})


def test_safe_names_are_holdable_and_distinct() -> None:
    names = [*NAMES, "", "\ud800", ".zattrs", "µm", "hours", "column", "a b"]
    safe = safe_names(names)
    assert len({name.casefold() for name in safe}) == len(names)
    for name, stored in zip(names, safe, strict=True):
        assert (tmp := Path("/obs") / stored).parent == Path("/obs") and tmp.name == stored and len(stored) < 200
        assert stored == name or name not in ("µm", "Hours", "column", "a b", "G2_M")


def test_what_zarr_has_no_type_for_is_left_out_with_a_note() -> None:
    obs = pd.DataFrame(
        {
            "day": pd.to_datetime(["2024-01-01", "2024-01-02"]),
            "mixed": np.array([1, "a"], dtype=object),
            "size": pd.array([0.5, None], "Float64"),
            "number": np.array([1, 2], dtype=object),
        },
        index=pd.Index(["c0", "c1"], name="day"),
    )
    stored, names, notes = storable(obs)
    assert list(stored.columns) == ["size", "number"] and names == {} and stored.index.name is None
    assert stored["size"].dtype == float and stored["size"].isna().tolist() == [False, True]
    assert stored["number"].dtype == int
    assert len(notes) == 2 and "'day' is left out of the store: it holds datetime64" in notes[0]


def test_a_column_that_cannot_be_read_is_left_out_with_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(cells(60), tmp_path / "cells.h5ad")
    with h5py.File(path, "r+") as file:
        order = [str(name) for name in file["obs"].attrs["column-order"]]
        file["obs"]["future"] = np.arange(60)
        file["obs/future"].attrs.update({"encoding-type": "not-yet-known", "encoding-version": "9"})
        file["obs"]["wide"] = np.ones((60, 2))
        file["obs/wide"].attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})
        file["obs"].attrs["column-order"] = [*order, "future", "wide", "gone"]
    obs = prepare(AnnDataFiles(path), tmp_path / "out.zarr", ["experiment"], **SMALL).obs()
    said = capsys.readouterr().out
    assert set(obs.columns) == {*order, "source_file", "source_row"}
    for name in ("future", "gone"):
        assert f"cells.h5ad: obs column '{name}' is left out: it cannot be read" in said
    assert "obs column 'wide' is left out: it has shape (60, 2)" in said


@pytest.mark.parametrize("name", ["source_row", "copy_group", "stored_chunk"])
def test_columns_that_a_store_adds_are_refused_before_rows_are_read(tmp_path: Path, name: str) -> None:
    made = cells(60)
    made.obs[name] = 1
    with pytest.raises(ValueError, match=rf"0\.h5ad: obs has a column '{name}' already; rename it"):
        stored_obs(tmp_path, made)
    assert not (tmp_path / "out.partial").exists()
