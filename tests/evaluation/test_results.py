"""Embeddings can be joined to the files that their cells come from."""

from __future__ import annotations

from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import pytest

from cellcohort.cells import CellTable
from cellcohort.data.anndata import load_anndata
from cellcohort.data.profiles import Profiles
from cellcohort.data.tracks import load_tracks
from cellcohort.evaluation.results import Results, embedding_table
from cellcohort.preparation import prepare
from cellcohort.sources.anndata import AnnDataFiles
from stores import QUIET, cells, write

pytestmark = QUIET


@pytest.mark.filterwarnings("ignore:Observation names are not unique")
def test_embeddings_of_a_store_join_back_to_their_files(tmp_path: Path) -> None:
    one, two = cells(60, 0), cells(40, 1)
    two.obs_names = one.obs_names[:40]  # names that repeat between files
    files = [write(one, tmp_path / "one.h5ad"), write(two, tmp_path / "two.h5ad")]
    every = load_anndata(prepare(AnnDataFiles(files), tmp_path / "out.zarr").path, {"hours": "hours"})
    inputs = every.recorded(np.arange(100))
    table = embedding_table(every.cells, np.arange(100) < 80, inputs, every.store.obs_names())
    path = Results(pd.DataFrame(), {}, table).export(tmp_path, "h5ad")
    frame = table.to_pandas()
    read = anndata.read_h5ad(path)
    assert np.array_equal(read.obsm["X_cellcohort"], inputs) and list(read.obs_names) == list(frame["obs_name"])
    assert read.obs["part"].tolist() == ["training"] * 80 + ["validation"] * 20
    for file, made in zip(files, (one, two), strict=True):
        own = frame[frame["source_file"] == str(file)]
        assert np.array_equal(np.stack(own["embedding"]), made.X[own["source_row"]])
        assert list(own["obs_name"]) == list(made.obs_names[own["source_row"]])


def test_joint_labels_of_embeddings_are_texts_in_every_export(tmp_path: Path) -> None:
    frame = pd.DataFrame({"drug": ["a", "b", "a"], "dose": [1, 2, 2], "well": ["A/1", "A/1", "B/2"]})
    table = CellTable.from_frame(frame, "well", ["drug", "dose"], None)
    path = Results(pd.DataFrame(), {}, embedding_table(table, np.ones(3, bool), np.eye(3))).export(tmp_path, "h5ad")
    read = anndata.read_h5ad(path).obs
    assert read["condition"].tolist() == ["a x 1", "b x 2", "a x 2"] and read["experiment"].tolist() == [*frame["well"]]


def test_embeddings_of_tracks_name_the_row_of_their_table(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [
        {"plate": p, "track": k, "frame": t, "size": rng.normal()} for p in "ab" for k in range(3) for t in range(8)
    ]
    table = pd.DataFrame(rows).sample(frac=1, random_state=0).reset_index(drop=True)
    table.to_parquet(tmp_path / "t.parquet")
    columns = {"experiment": "plate", "condition": None, "track": "track", "time": "frame", "features": ["size"]}
    every = load_tracks(tmp_path / "t.parquet", columns, interval_minutes=30, frames=2).every_cell()
    found = embedding_table(every.cells, np.ones(len(every), bool), every.recorded(np.arange(len(every)))[:, 0])
    row = found["source_row"].to_numpy()
    assert len(set(row)) == len(every) and (table["plate"][row].to_numpy() == found["experiment"].to_numpy()).all()
    assert np.array_equal(np.stack(found["embedding"].to_numpy())[:, -1], table["size"][row].to_numpy(np.float32))


def test_embeddings_of_profiles_name_the_well_and_the_row_of_their_table(tmp_path: Path) -> None:
    rng, path = np.random.default_rng(0), tmp_path / "wells.csv.gz"
    rows = [(f"P{p}", "abc"[w % 3], w % 4, f"0{w}") for p in range(2) for w in range(9)]
    frame = pd.DataFrame(rows, columns=["plate", "drug", "row", "column"]).assign(track="x", area=rng.normal(size=18))
    frame.to_csv(path, index=False)
    columns = {"experiment": "plate", "condition": "drug", "well": ["row", "column"], "features": ["area"]}
    every = Profiles(path, columns).dataset().every_cell().subset(rng.permutation(18))
    found = embedding_table(every.cells, np.ones(18, bool), every.recorded(np.arange(18))[:, 0]).to_pandas()
    own = frame.loc[found["source_row"]].reset_index(drop=True).astype({"row": str})
    assert (
        set(found["source_file"]) == {str(path)}
        and (found["well"] == own.plate + "/" + own.row + "/" + own.column).all()
    )
    assert all((found[name] == own[name]).all() for name in ("plate", "drug", "row", "column"))
    assert np.array_equal(np.stack(found["embedding"])[:, 0], own["area"].to_numpy(np.float32))


def test_embeddings_of_a_store_of_others_name_the_dataset_and_its_row(tmp_path: Path) -> None:
    adata = anndata.AnnData(
        np.eye(30, 4, dtype=np.float32) + 1,
        pd.DataFrame({"experiment": "e", "condition": [*"ab"] * 15}, map(str, range(30))),
    )
    adata.obs["track"] = [*"abc"] * 10
    adata.write_zarr(tmp_path / "s.zarr")
    every = load_anndata(tmp_path / "s.zarr", {"track": "track"})
    found = embedding_table(every.cells, np.ones(30, bool), np.eye(30), every.store.obs_names())
    assert found["source_row"].to_pylist() == list(range(30)) and "s.zarr" in found["source_file"][0].as_py()
    assert found["obs_name"][2].as_py() == adata.obs_names[2] and found["track"][2].as_py() == "c"


@pytest.mark.parametrize("format", ["csv"])
def test_other_exports_are_refused(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import runpy
    import sys

    script = Path(__file__).parents[2] / "scripts" / "evaluate.py"
    monkeypatch.setattr(sys, "argv", [str(script), "run=nowhere", f"export={format}"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(script), run_name="__main__")
