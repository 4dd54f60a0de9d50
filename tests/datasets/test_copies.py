"""Cells with the same values are counted, and kept on one side of a split."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hydra import compose, initialize_config_dir
from scipy import sparse

from cellcohort.cells import CellTable
from cellcohort.data.anndata import load_anndata
from cellcohort.data.profiles import Profiles
from cellcohort.data.tracks import load_cells, load_tracks
from cellcohort.datasets.copies import copy_groups, described, digests, with_copies
from cellcohort.datasets.protocol import LabelledCells
from cellcohort.datasets.split import split
from cellcohort.evaluation.selection import training_part
from cellcohort.preparation import prepare
from cellcohort.preview import training_cells
from cellcohort.preview.checks.copies import copies
from cellcohort.sources.anndata import AnnDataFiles
from stores import QUIET, cells, write

pytestmark = QUIET
SMALL = {"chunk_rows": 16, "shard_rows": 64, "dataset_rows": 256}


def test_equal_rows_share_a_digest_and_no_others() -> None:
    rows = np.random.default_rng(0).integers(0, 3, (500, 4)).astype(np.float32)
    rows[::7, 1] = -0.0
    _, expected = np.unique(rows, axis=0, return_inverse=True)
    for given in (rows, sparse.csr_matrix(rows), rows.reshape(500, 2, 2)):
        found = digests(given)
        assert found.dtype == np.uint64 and ((found == 0) == ~rows.any(1)).all()
        assert ((found[:, None] == found) == (expected[:, None] == expected)).all()


def test_rows_that_differ_in_place_only_are_no_copies() -> None:
    rows = np.array([[1, 0, 2], [1, 2, 0], [0, 1, 2]], np.float32)
    for given in (rows, sparse.csr_matrix(rows)):
        assert len(set(digests(given))) == 3


def test_groups_are_numbered_and_rows_of_zeros_are_in_none() -> None:
    groups = copy_groups(np.array([5, 0, 9, 5, 0, 3, 9, 9], np.uint64))
    assert groups.tolist() == [1, 0, 2, 1, 0, 0, 2, 2]
    assert described(groups, {"a x u": 2, "b x u": 3, "b x v": 3}).startswith(
        "5 cells in 2 groups of the same values: 2 in b x u, 2 in b x v, 1 in a x u."
    )
    assert described(np.zeros(3, np.int32), {"a": 3}) == ""


@pytest.fixture(scope="module")
def doubled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 300 cells, 120 of which are there again as another plate, and of 8 cells that are all zero."""
    folder = tmp_path_factory.mktemp("doubled")
    one = cells(300)
    one.X[-8:] = 0
    again = one[:120].copy()
    again.obs["experiment"] = "again"
    again.obs_names = [f"again {i}" for i in range(120)]
    again.obs["track"] = [f"again {i // 7}" for i in range(120)]
    files = [write(one, folder / "one.h5ad"), write(again, folder / "two.h5ad")]
    return prepare(AnnDataFiles(files), folder / "out.zarr", **SMALL).path


@pytest.mark.parametrize("track", [None, "track"])
def test_training_and_validation_share_no_values(doubled: Path, track: str | None) -> None:
    whole = load_anndata(doubled, {"track": track})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        training, validation = split(whole)
    seen, held_out = (part.store.take(part.rows) for part in (training, validation))
    values = set(map(bytes, seen)) - {bytes(np.zeros(7, np.float32))}
    assert not values & set(map(bytes, held_out))
    assert sorted([*training.rows, *validation.rows]) == list(whole.rows), "no cell is lost"
    assert 0.1 < len(held_out) / len(whole) < 0.3
    scored = ~training_part(whole.cells, validation.cells, whole.whole)
    assert sorted(whole.rows[scored]) == sorted(validation.rows)
    counts = [part.cells.column("experiment").counts() for part in (validation, whole)]
    assert (counts[0] > 0).all() and (counts[0] < counts[1]).all(), "every experiment is in both parts"


@pytest.mark.parametrize("track", [None, "track"])
def test_cells_whose_copies_must_be_in_training_are_in_neither_part_and_counted(
    doubled: Path, track: str | None
) -> None:
    whole = load_anndata(doubled, {"track": track})
    with pytest.raises(ValueError, match=r"no cell is left for validation .* training has cells of the same values"):
        split(whole, "experiment", held_out=["again"])
    n = int((whole.cells.column("experiment").codes == whole.cells.column("experiment").labels.index("a")).sum())
    with pytest.warns(UserWarning, match=r"\d+ cells of 420 are in neither part of the split") as told:
        training, validation = split(whole, "experiment", held_out=["a"])
    lost = np.setdiff1d(whole.rows, [*training.rows, *validation.rows])
    assert 0 < len(lost) == int(str(told[0].message).split()[0]) and len(lost) + len(validation) == n
    scored = ~training_part(whole.cells, validation.cells, whole.whole)
    assert sorted(whole.rows[scored]) == sorted(validation.rows), "they are not scored either"
    values = set(map(bytes, training.store.take(training.rows))) - {bytes(np.zeros(7, np.float32))}
    assert all(bytes(row) in values for row in whole.store.take(lost))
    assert not values & set(map(bytes, validation.store.take(validation.rows)))


def twins(n: int = 120, frames: int = 5) -> pd.DataFrame:
    """Tracks of three plates, 30 of which are there again on the last one under other names."""
    rng = np.random.default_rng(5)
    frame = pd.DataFrame({"track": np.repeat(np.arange(n), frames), "t": np.tile(np.arange(frames), n)})
    frame["plate"] = np.array(["p1", "p2", "p3"])[frame["track"] % 3]
    frame["drug"] = np.array(["mock", "drug"])[frame["track"] // 3 % 2]
    frame["well"] = frame["track"] // 6
    frame["size"], frame["glow"] = rng.normal(size=(2, len(frame))).astype(np.float32)
    again = frame[frame["track"] % 4 == 0].assign(plate="p3")
    again[["track", "well"]] += 1000
    return pd.concat([frame, again], ignore_index=True)


def lost_and_shared(parts: tuple[Any, Any], frame: pd.DataFrame, features: list[str]) -> tuple[int, int]:
    """Rows of a table that are in neither part, and values that are in both."""
    rows = [part.cells.values("source_row").to_numpy() for part in parts]
    values = [set(map(tuple, frame.loc[some, features].to_numpy())) for some in rows]
    assert not set(rows[0]) & set(rows[1])
    return len(frame) - len(rows[0]) - len(rows[1]), len(values[0] & values[1])


@pytest.mark.parametrize("by", ["track", "well", ["plate", "well"]])
@pytest.mark.parametrize("features", [["size", "glow"], ["size"]])
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_tracks_that_are_there_twice_stay_on_one_side(tmp_path: Path, by: Any, features: list[str], kind: str) -> None:
    frame, path = twins(), tmp_path / f"t.{kind}"
    frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)
    columns = {"experiment": "plate", "condition": "drug", "time": "t", "track": "track", "features": features}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parts = split(load_tracks(path, columns, 30), by)
        labels = split(load_cells(path, columns, 30, also=["well"]), by)
    assert lost_and_shared(parts, frame, features) == (0, 0)
    for one, other in zip(parts, labels, strict=True):
        assert np.array_equal(one.cells.values("source_row"), other.cells.values("source_row")), "the preview's split"
    assert 0.1 < len(parts[1]) / len(frame) < 0.35
    with pytest.warns(UserWarning, match=r"(\d+) cells of 750 are in neither part of the split") as told:
        parts = split(load_tracks(path, columns, 30), "experiment", held_out=["p1"])
    lost, shared = lost_and_shared(parts, frame, features)
    assert lost == int(str(told[0].message).split()[0]) == 50 and shared == 0


def test_copies_of_a_table_are_told_in_the_preview(tmp_path: Path) -> None:
    twins().to_parquet(tmp_path / "t.parquet")
    line = ["data=tracks", f"data.path={tmp_path / 't.parquet'}", "data.interval_minutes=30", "split.by=experiment"]
    line += ["data.columns.experiment=plate", "data.columns.condition=drug", "data.columns.time=t"]
    line += ["data.columns.features=[size,glow]", "split.held_out=[p1]", "batch_sampler.batch_size=8"]
    with initialize_config_dir(str(Path(__file__).parents[2] / "conf"), version_base="1.3"):
        config = compose("preview", line)
    with pytest.warns(UserWarning, match="50 cells of 750 are in neither part"):
        found = training_cells(config)
    assert found.n_copies == 50 and "50 cells more are left out" in found.held_out_line()
    assert found.copies.startswith("300 cells in 150 groups of the same values: 150 in p3 x mock, 50 in ")
    survey: Any = SimpleNamespace(source=found)
    (one,) = copies(survey)
    assert one.problem == f"There are {found.copies}"
    assert one.change == "Remove the copies from the source, if they are not meant."
    survey = SimpleNamespace(source=SimpleNamespace(copies=found.copies, store="a store"))
    assert [each.change for each in copies(survey)] == [f"{one.change} Then prepare the store again."]


def test_copies_of_whole_wells_of_profiles_stay_on_one_side(tmp_path: Path) -> None:
    frame = twins(frames=1).rename(columns={"plate": "Metadata_Plate", "drug": "Metadata_Compound"})
    frame.assign(well=frame["track"] // 2).drop(columns=["t", "track"]).to_parquet(tmp_path / "p.parquet")
    for well in (None, "well"):
        source = Profiles(tmp_path / "p.parquet", {"well": well, "features": ["size", "glow"]})
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            training, validation = split(source.dataset())
        assert len(training) + len(validation) == 150 and 0.1 < len(validation) / 150 < 0.3
        seen, held = (set(map(bytes, part.recorded(np.arange(len(part))))) for part in (training, validation))
        assert not seen & held
        assert len(split(source.cells())[1]) == len(validation)


@pytest.mark.parametrize("values", [[0, 1, 2], [3.5]])
def test_rows_that_are_equal_by_chance_are_no_copies(values: list[float]) -> None:
    drawn = np.random.default_rng(0).choice(values, (400, 2)).astype(np.float32)
    frame = pd.DataFrame({"track": np.repeat(np.arange(100), 4), "experiment": "a"})
    table = CellTable.from_frame(frame, condition=None, hours=None, track="track")
    assert not with_copies(table, drawn).has("copy_group")
    assert not with_copies(table, drawn[:, :1], "track").has("copy_group")
    assert not with_copies(table, np.repeat(drawn[::4, :1], 4, axis=0), "track").has("copy_group")
    frame = frame.assign(copy_group=1)
    with pytest.raises(ValueError, match="has a column 'copy_group', which is needed"):
        with_copies(CellTable.from_frame(frame, condition=None, hours=None), drawn)


def test_where_copies_link_everything_some_are_in_neither_part() -> None:
    """Ten wells, and of each well one cell has a copy in the next."""
    well = np.repeat(np.arange(10), 20)
    copy = np.zeros(200, int)
    copy[19:-1:20], copy[20::20] = np.arange(1, 10), np.arange(1, 10)
    frame = pd.DataFrame({"well": well, "track": np.arange(200), "copy_group": copy, "condition": "x"})
    data = LabelledCells(CellTable.from_frame(frame, hours=None, track="track"))
    with pytest.warns(UserWarning, match=r"\d cells of 200 are in neither part of the split"):
        training, validation = split(data, "well")
    assert len(training) == 160 and 36 <= len(validation) < 40
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        training, validation = split(data, "track")
    assert len(training) + len(validation) == 200 and len(validation) == 40


def test_without_copies_no_cell_is_left_out() -> None:
    frame = cells(60).obs.assign(copy_group=0)
    table = CellTable.from_frame(frame, hours="hours", track="track")

    class Rows:
        whole = "track"

        def __init__(self, table: CellTable) -> None:
            self.cells = table

        def subset(self, positions: np.ndarray) -> Rows:
            return Rows(self.cells.take(positions))

    parts = split(Rows(table))  # type: ignore[type-var]
    assert sum(len(part.cells) for part in parts) == 60


def test_equal_rows_of_few_values_are_no_copies_in_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = cells(300)
    made = made[:, :2].copy()
    made.X = np.random.default_rng(0).integers(0, 4, (300, 2)).astype(np.float32)
    made.obs["experiment"] = "one"
    store = prepare(AnnDataFiles(write(made, tmp_path / "a.h5ad")), tmp_path / "out.zarr", **SMALL)
    assert "copy_group" not in store.obs() and store.manifest["copies"] == ""
    said = capsys.readouterr().out
    assert "values are taken for chance" in said and "All cells have the same experiment, 'one': is it the" in said


def test_copies_are_counted_in_preparation_and_preview(doubled: Path) -> None:
    store = load_anndata(doubled).store
    groups = store.obs()["copy_group"]
    assert (groups > 0).sum() == 240 and groups.max() == 120
    assert store.manifest["copies"].startswith("240 cells in 120 groups of the same values: ")
    survey: Any = SimpleNamespace(source=SimpleNamespace(copies=store.manifest["copies"], store=store))
    assert [found.problem for found in copies(survey)] == [f"There are {store.manifest['copies']}"]
