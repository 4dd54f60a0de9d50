"""Cell indices of VisCy: what is read of them, and that what is written can be read again, by VisCy too."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.testing import assert_array_equal
from pandas.testing import assert_frame_equal

from cellcohort.augment.image import ImageViews
from cellcohort.data.timelapse import Timelapse, load_timelapse
from cellcohort.datasets.images.cell_index import SCHEMA
from cellcohort.datasets.images.patches import Patches
from cellcohort.sampling.baselines.base import module_of
from plates import PIXELS, SHAPE, STORED, entry, pixels, three_plates, tracks_of, write_collection, write_plate

PATCH = (1, 12, 16)
OPTIONS: dict[str, Any] = {"patch": PATCH, "tau_hours": (0.5, 2.0), "normalise": "none"}


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return three_plates(tmp_path_factory.mktemp("plates"))


@pytest.fixture(scope="module")
def index(collection: Path) -> Path:
    return Timelapse(collection, **OPTIONS, cache=collection.parent / "cache").write_index(
        collection.parent / "cells.parquet"
    )


@pytest.fixture
def changed(index: Path) -> Callable[..., Path]:
    def call(change: Callable[[pd.DataFrame], pd.DataFrame]) -> Path:
        """The path of the index with some change, beside the plates."""
        path = index.with_name("changed.parquet")
        change(pd.read_parquet(index)).to_parquet(path)
        return path

    return call


def load(path: Path, tmp_path: Path, **options: Any) -> Patches:
    key = "index" if path.suffix == ".parquet" else "path"
    usual = {"channels": "each", "augment": ImageViews(), "cache": tmp_path / "cache"}
    return load_timelapse(**{**OPTIONS, **usual, key: path, **options})


def table(data: Patches) -> pd.DataFrame:
    """All rows of a dataset, labels as text, in an order of their own."""
    frame = data.every_cell().cells.frame
    frame = frame.assign(**{name: frame[name].astype(object) for name in frame if frame[name].dtype == "category"})
    return frame.sort_values(["track", "t", "channel"], ignore_index=True) if "channel" in frame else frame


@pytest.mark.parametrize("choice", ["same", "other"])
def test_an_index_that_was_written_gives_the_cells_patches_and_positives_of_its_collection(
    collection: Path, index: Path, tmp_path: Path, choice: Any
) -> None:
    one, other = (load(path, tmp_path, positive_channel=choice) for path in (collection, index))
    wanted, found = table(one), table(other)
    names = [*wanted.columns.drop(["y", "x", "z", "t", "track_id", "parent_track_id", "hours"])]
    assert_frame_equal(found[names], wanted[names])
    for name in ("hours", "y", "x", "z", "t", "track_id", "parent_track_id"):
        assert np.allclose(found[name], wanted[name], atol=1e-4), name
    assert set(found) - set(wanted) == set()
    key = ["track", "t", "channel"]
    places = [data.cells.frame.reset_index(drop=True).astype(dict.fromkeys(key, str)).sort_values(key).index.to_numpy()
              for data in (one, other)]  # fmt: skip
    assert_array_equal(one.recorded(places[0]), other.recorded(places[1]))
    draws = [data._lineages.segments(data._rows.numpy()[of])[0] for data, of in zip((one, other), places, strict=True)]
    assert_array_equal(np.bincount(draws[0]), np.bincount(draws[1]))


def test_viscy_reads_an_index_that_was_written(index: Path) -> None:
    viscy, written = module_of("viscy_data", "cell_index.py"), pq.read_table(index)
    assert {name: written.schema.field(name).type for name in SCHEMA} == SCHEMA
    assert written.column_names[: len(SCHEMA)] == list(SCHEMA) and "cell_line" in written.column_names
    frame = written.to_pandas()
    assert not frame.duplicated(["cell_id", "channel_name"]).any() and set(frame["fov"]) == {"0"}
    assert viscy.read_cell_index(index)["experiment"].tolist() == frame["experiment"].tolist()
    sizes = frame.groupby("experiment")[["C_shape", "Y_shape", "X_shape", "T_shape", "pixel_size_xy_um"]].first()
    assert sizes["pixel_size_xy_um"].to_dict() == pytest.approx(PIXELS)
    assert sizes["C_shape"].to_dict() == {name: len(channels) for name, channels in STORED.items()}
    assert (sizes[["T_shape", "Y_shape", "X_shape"]] == [SHAPE[0], *SHAPE[3:]]).all(axis=None)
    assert (frame["lineage_id"].str.rpartition("_")[0] == frame["global_track_id"].str.rpartition("_")[0]).all()
    assert np.allclose(frame["hours_post_perturbation"], 1 + frame["t"] / 2) and (frame["interval_minutes"] == 30).all()


def test_rows_and_labels_of_each_channel_are_those_of_the_index(changed: Callable[..., Path], tmp_path: Path) -> None:
    """As VisCy leaves out frames that have no image in a channel, and as reporters differ from cell to cell."""

    def change(frame: pd.DataFrame) -> pd.DataFrame:
        frame = frame[(frame["channel_name"] != "DAPI") | (frame["t"] > 2)].copy()
        odd = (frame["channel_name"] == "GFP") & (frame["track_id"] % 2 == 1)
        frame.loc[odd & (frame["experiment"] == "three"), "marker"] = "SEC61B"
        return frame.assign(norm_mean=1.5, source_channels="[]").sample(frac=1, random_state=0)

    path = changed(change)
    frame, given = table(load(path, tmp_path)), pd.read_parquet(path)
    assert len(frame) == len(given) and not {"norm_mean", "source_channels", "cell_id", "store_path"} & set(frame)
    assert frame.loc[frame["channel"] == "DAPI", "t"].min() == 3
    gfp = frame[(frame["experiment"] == "three") & (frame["channel"] == "GFP")]
    assert (gfp["marker"] == np.where(gfp["track_id"] % 2, "SEC61B", "TOMM20")).all()
    of_three = path.with_name("three_alone.parquet")
    given[given["experiment"] == "three"].to_parquet(of_three)
    together = load(of_three, tmp_path, channels="together")
    assert together.shape[0] == 3 and len(together.every_cell()) == len(tracks_of(("A/1/0", "B/2/0")))
    assert "condition" in together.cells.column_names and not {"marker", "organelle"} & set(together.cells.column_names)


def test_an_index_without_times_tracks_and_slices_is_read_as_snapshots_in_focus(tmp_path: Path) -> None:
    shape = (1, 2, 7, 24, 24)
    write_plate(tmp_path / "one.zarr", {"A/1/0": shape})
    tracks = tracks_of(["A/1/0"]).drop_duplicates("track_id").drop(columns="parent_track_id")
    tracks.assign(t=0, y=12.0, x=12.0).to_parquet(tmp_path / "one.parquet")
    write_collection(tmp_path, entry("one", conditions={"mock": ["A/1"]}, interval_minutes=None))
    options: dict[str, Any] = {"patch": (1, 8, 8), "positive": "self", "augment": ImageViews(), "normalise": "none"}
    path = Timelapse(tmp_path / "collection.yaml", **options, cache=tmp_path).write_index(tmp_path / "cells.parquet")
    frame = pd.read_parquet(path).drop(columns=["t", "track_id"]).assign(
        parent_track_id=None, lineage_id=None, z=0, z_focus_mean=5.0, perturbation="gene", hours_post_perturbation=None
    )  # fmt: skip
    frame.to_parquet(path)
    data = load(path, tmp_path, **options)
    assert (table(data)["z"] == 5).all() and set(table(data)["condition"]) == {"gene"} and len(data) == len(frame)
    assert table(data)["track"].nunique() == len(frame) // 2


def test_channels_of_an_input_are_in_one_order_whatever_the_order_of_the_rows(
    changed: Callable[..., Path], tmp_path: Path
) -> None:
    def change(frame: pd.DataFrame) -> pd.DataFrame:
        frame = frame[frame["experiment"].isin(["one", "three"]) & (frame["channel_name"] != "DAPI")]
        return frame.sort_values(["experiment", "channel_name"], ascending=[True, False])

    with pytest.warns(UserWarning, match=r"other channels .*: one \['Phase', 'Marker'\], three \['Phase', 'GFP'\]"):
        data = load(changed(change), tmp_path, channels="together")
    assert data.channels == ("Phase", "Marker/GFP")
    plates = {field.experiment: [STORED[field.experiment][i] for i in field.channels] for field in data.chunks.fields}
    assert plates == {"one": ["Phase", "Marker"], "three": ["Phase", "GFP"]}


def test_numbers_name_experiments_as_texts_do(changed: Callable[..., Path], tmp_path: Path) -> None:
    number = {"one": 1, "two": 2, "three": 3}
    path = changed(lambda frame: frame.assign(experiment=frame["experiment"].map(number), marker=frame["t"] % 2))
    data = load(path, tmp_path)
    assert data.cells.column("experiment").present() == ["1", "2", "3"] and "file_experiment" not in table(data)
    assert set(map(str, data.cells.column("marker").present())) == {"0", "1"}


def test_cells_without_a_label_are_refused_or_a_label_of_their_own(
    changed: Callable[..., Path], tmp_path: Path
) -> None:
    path = changed(lambda frame: frame.assign(perturbation=frame["perturbation"].where(frame["well"] == "A/1", "")))
    with pytest.raises(ValueError, match=r"missing values: 'condition' in \d+ of \d+ rows.* data\.missing=label"):
        load(path, tmp_path)
    cells = load(path, tmp_path, missing="label").cells
    assert set(cells.column("condition").present()) == {"mock", "missing"}
    assert set(cells.column("organelle").present()) == {"mitochondria", "missing"}


def test_coordinates_that_look_like_micrometers_are_told(tmp_path: Path) -> None:
    positions, size = ["A/1/0", "B/2/0"], 0.5
    write_plate(tmp_path / "one.zarr", dict.fromkeys(positions, SHAPE), pixel_size=size)
    tracks_of(positions, seed=3).to_parquet(tmp_path / "one.parquet")
    path = tmp_path / "cells.parquet"
    Timelapse(write_collection(tmp_path, entry("one")), **OPTIONS, cache=tmp_path).write_index(path)
    frame = pd.read_parquet(path)
    frame.assign(y=frame["y"] * size, x=frame["x"] * size).to_parquet(path)
    with pytest.warns(UserWarning, match=r"If they are, write y and x of the cell index in pixels\."):
        load(path, tmp_path)


def other_size(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(pixel_size_xy_um=frame["pixel_size_xy_um"].where(frame["experiment"] != "one", 0.7))


def test_pixel_sizes_of_the_index_stand_where_the_plate_gives_none(
    index: Path, changed: Callable[..., Path], tmp_path: Path
) -> None:
    for name in STORED:
        write_plate(tmp_path / f"{name}.zarr", dict.fromkeys(("A/1/0", "B/2/0"), SHAPE), pixel_size=1.0)
    bare = pd.read_parquet(index)
    bare = bare[bare["channel_name"] == "Phase"].assign(store_path=str(tmp_path) + "/" + bare["experiment"] + ".zarr")
    bare.to_parquet(tmp_path / "bare.parquet")
    options: dict[str, Any] = {"index": tmp_path / "bare.parquet", **OPTIONS, "cache": tmp_path, "channels": "each"}
    data = Timelapse(**options, pixel_size=1.3, augment=ImageViews()).dataset()
    found = {field.experiment: field.pixel_size[1:] for field in data.chunks.fields}
    assert found == {name: (PIXELS[name], PIXELS[name]) for name in ("one", "three")}
    assert {*map(tuple, data._sizes.tolist())} == {(1, 31, 42), (1, 24, 32)}, "pixels of the plate for 12 x 16"
    (one,) = [one for one in Timelapse(**options).cells().remarks if "size of a pixel" in one.problem]
    assert "0.5 in one" in one.problem and "0.65 in three" in one.problem
    with pytest.warns(UserWarning, match=r"pixel_size_xy_um of one .* 2 positions, such as A/1/0 with 0\.7 and 0\.5"):
        load(changed(other_size), tmp_path)
    wrong = bare.assign(pixel_size_xy_um=np.where(bare["t"] > 3, 0.3, 0.4))
    wrong.to_parquet(tmp_path / "bare.parquet")
    with pytest.raises(ValueError, match=r"position A/1/0 of one in .* has pixel_size_xy_um of 0\.[34].*; give it one"):
        Timelapse(**options).cells()


def test_a_position_may_lack_a_channel_in_which_it_has_no_cells(tmp_path: Path) -> None:
    both, positions = {"A/1/0": SHAPE, "B/2/0": SHAPE}, ["A/1/0", "B/2/0"]
    write_plate(tmp_path / "one.zarr", both)
    tracks_of(positions).to_parquet(tmp_path / "one.parquet")
    collection = write_collection(tmp_path, entry("one"))
    path = Timelapse(collection, **OPTIONS, cache=tmp_path).write_index(tmp_path / "cells.parquet")
    shutil.rmtree(tmp_path / "one.zarr" / "B" / "2")
    write_plate(tmp_path / "other.zarr", {"B/2/0": (SHAPE[0], 1, *SHAPE[2:])}, channels=["Marker"], salt=1)
    (tmp_path / "other.zarr" / "B" / "2").rename(tmp_path / "one.zarr" / "B" / "2")
    with pytest.raises(ValueError, match=r"position B/2/0 of one .* has no channel Phase; .* `include`"):
        load(path, tmp_path)
    frame = pd.read_parquet(path)
    frame = frame[(frame["well"] == "A/1") | (frame["channel_name"] == "Marker")]
    frame.to_parquet(path)
    data = load(path, tmp_path).every_cell()
    found = data.cells.frame
    assert len(found) == len(frame) and set(found.loc[found["well"] == "B/2", "channel"]) == {"Marker"}
    row = int(np.flatnonzero(found["well"] == "B/2")[0])
    _, t, _, y, x = data._place.numpy()[row]
    image = pixels(1, (SHAPE[0], 1, *SHAPE[2:]))[t, 0, 0]
    assert_array_equal(data.recorded([row])[0, 0, 0], image[y : y + PATCH[1], x : x + PATCH[2]])
    with pytest.raises(
        ValueError, match=r"1 position without a channel .* such as B/2/0 of one: .*data\.channels=each"
    ):
        load(path, tmp_path, channels="together")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda frame: frame.drop(columns=["store_path", "channel_name"]),
            r"no column store_path, channel_name; it has",
        ),
        (lambda frame: frame.assign(store_path=[f"p{i % 2}" for i in range(len(frame))]), r"one of .* is on 2 plates"),
        (
            lambda frame: frame.assign(store_path="gone.zarr"),
            r"the plate of one is not there: .*gone\.zarr .* Correct store_path in the cell index",
        ),
        (
            lambda frame: frame.assign(y=frame["y"].where(frame["t"] > 0)),
            r"y of one is no number in \d+ of|missing val",
        ),
        (lambda frame: frame.assign(channel_name="Cy5"), r"has no channel Cy5; its channels are Phase, Marker"),
        (lambda frame: pd.concat([frame, frame.iloc[:1]]), r"1 row of one of the same track and frame"),
        (
            lambda frame: frame.assign(hours_post_perturbation=frame["t"] * 1800.0),
            r"experiment one of .*hours_post_perturbation rises by 1800 a frame, and interval_minutes=30 says by 0\.5",
        ),
        (lambda frame: frame.iloc[:0], r"changed\.parquet has no rows"),
        (
            lambda frame: frame.drop(columns="well"),
            r"fov of one names 1 position that the plate lacks: 0; it has A/1/0",
        ),
        (
            lambda frame: frame.assign(well=frame["well"].where(frame["t"] > 0)),
            r"missing values, by column: {'well': \d+}",
        ),
        (lambda frame: frame.assign(interval_minutes=0.5), r"rises by 0\.5 a frame, and interval_minutes=0\.5 says"),
    ],
)
def test_an_index_that_cannot_be_used_is_refused(
    changed: Callable[..., Path], tmp_path: Path, change: Any, said: str
) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=said):
        load(changed(change), tmp_path)


@pytest.mark.parametrize(
    ("name", "value"), [("y", 3.0), ("perturbation", "mock too"), ("hours_post_perturbation", 9.0)]
)
def test_what_all_channels_of_a_cell_share_may_not_differ_between_them(
    changed: Callable[..., Path], tmp_path: Path, name: str, value: Any
) -> None:
    def change(frame: pd.DataFrame) -> pd.DataFrame:
        frame = frame[(frame["experiment"] == "one")].drop(columns="interval_minutes")
        return frame.assign(**{name: frame[name].mask(frame["channel_name"] == "Phase", value)})

    named = {"perturbation": "condition", "hours_post_perturbation": "hours"}.get(name, name)
    with pytest.raises(ValueError, match=rf"{named} of one differ between the channels.*data\.channels=each"):
        load(changed(change), tmp_path, channels="together")


def test_what_is_not_understood_is_listed_and_paths_are_given_once(
    index: Path, collection: Path, tmp_path: Path
) -> None:
    odd = index.with_name("odd.parquet")
    read = pq.read_table(index)
    pq.write_table(read.append_column("box", pa.array([[1, 2]] * len(read))), odd)
    with pytest.warns(UserWarning, match=r"1 column of odd\.parquet hold neither .* left out: box"):
        assert "box" not in load(odd, tmp_path).cells.column_names
    pq.write_table(read.append_column("condition", read["well"]).append_column("hours", read["t"]), odd)
    with pytest.warns(UserWarning, match=r"left out: condition \(perturbation\), hours \(hours_post_perturbation\)"):
        assert set(load(odd, tmp_path).cells.column("condition").present()) == {"mock", "infected"}
    with pytest.raises(ValueError, match=r"data\.index=.* lists the plates, and data\.path does too"):
        load_timelapse(collection, index=index)
    with pytest.raises(FileNotFoundError, match=r"no file none\.parquet"):
        load(Path("none.parquet"), tmp_path)
    with pytest.raises(ValueError, match=r"a cell index is a parquet file; call cells\.csv cells\.parquet"):
        Timelapse(collection).write_index("cells.csv")
