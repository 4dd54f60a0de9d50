from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import zarr

from cellcohort.data.timelapse import load_timelapse
from cellcohort.datasets.images.collection import read_collection
from cellcohort.datasets.images.patches import Patches
from cellcohort.datasets.images.storage import ReadError
from cellcohort.loading.rows import make_loader
from cellcohort.sampling import BatchSampler
from plates import SHAPE, entry, pixels, tracks_of, write_collection, write_plate

POSITIONS = ("A/1/0", "B/2/0")


@pytest.fixture(scope="module")
def plates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plates")
    write_plate(folder / "one.zarr", dict.fromkeys(POSITIONS, SHAPE), "0.5")
    write_plate(folder / "two.zarr", dict.fromkeys(POSITIONS, SHAPE), "0.4")
    return folder


@pytest.fixture
def folder(plates: Path, tmp_path: Path) -> Path:
    """Two good plates with their tracks, to be spoilt."""
    tracks_of(["A/1/0"]).iloc[:3].drop(columns="position").to_parquet(tmp_path / "three.parquet")
    for name in ("one", "two"):
        shutil.copytree(plates / f"{name}.zarr", tmp_path / f"{name}.zarr")
        tracks_of(POSITIONS).to_parquet(tmp_path / f"{name}.parquet")
    return tmp_path


def load(folder: Path, *entries: dict[str, Any], **options: Any) -> Patches:
    path = write_collection(folder, *entries)
    return load_timelapse(path, **{"patch": (1, 12, 16), "cache": folder / "cache", **options})


def spoil(folder: Path, change: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    change(tracks_of(POSITIONS)).to_parquet(folder / "one.parquet")


def test_nothing_is_refused_of_a_good_collection(folder: Path) -> None:
    assert len(load(folder, entry("one"), entry("two"))) > 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"plate": "no.zarr"}, ["plate of one is not there", "no.zarr"]),
        ({"plate": "one.parquet"}, ["plate of one is not an OME-Zarr plate", "one.parquet"]),
        ({"plate": "one.zarr/A/1/0"}, ["plate of one is not a plate but one position"]),
        ({"conditions": {"mock": ["A/1", "C/9"], "infected": ["B/2"]}}, ["1 well that", "lacks: C/9", "A/1, B/2"]),
        ({"conditions": {"mock": ["A/1"], "infected": ["A/1", "B/2"]}}, ["A/1 (mock and infected)"]),
        ({"conditions": {"mock": ["A/1"]}}, ["1 position of one in wells without a condition: B/2/0"]),
        ({"conditions": {"mock": "A/1"}}, ["conditions.mock of one is 'A/1'", "a list"]),
        ({"conditions": {}}, ["conditions of one is {}"]),
        ({"channels": ["Phase", "GFP"]}, ["no channel GFP", "Phase, Marker"]),
        ({"channels": ["Phase", "Phase"]}, ["Phase more than once"]),
        ({"interval_minutes": 0}, ["interval_minutes of one is 0", "above 0"]),
        ({"interval_minutes": -5}, ["interval_minutes of one is -5"]),
        ({"interval_minutes": float("nan")}, ["interval_minutes of one is '.nan'"]),
        ({"start_hours": "noon"}, ["start_hours of one is 'noon'"]),
        ({"include": ["A/1/7"]}, ["include of one names 1 position that", "A/1/7", "A/1/0, B/2/0"]),
        ({"exclude": ["Z/1/0"]}, ["exclude of one names 1 position that", "Z/1/0"]),
        ({"exclude": list(POSITIONS)}, ["leave no position of one"]),
        ({"tracks": "no.parquet"}, ["tracks of one", "no.parquet"]),
        (
            {"tracks": {"A/1/0": "one.parquet", "C/3/0": "one.parquet"}},
            ["one.parquet is given for A/1/0", "names B/2/0"],
        ),
        ({"tracks": {"C/3/0": "three.parquet"}}, ["1 position without an image: C/3/0 (3 rows)", "`include`"]),
        ({"tracks": ["one.parquet"]}, ["tracks of one is ['one.parquet']", "the path of a table"]),
        ({"tracks": {}}, ["tracks of one is {}"]),
        ({"channels": None}, ["experiment one lacks channels"]),
        ({"chanels": ["Phase"]}, ["experiment one has chanels", "an entry may have"]),
    ],
)
def test_an_entry_that_the_plate_does_not_bear_out_is_refused(
    folder: Path, changes: dict[str, Any], said: list[str]
) -> None:
    with pytest.raises((ValueError, FileNotFoundError)) as error:
        load(folder, entry("one", **changes))
    for words in said:
        assert words in str(error.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda rows: rows.assign(t=rows["t"] + (rows["track_id"] == 3)), ["t in 2 of 42 rows", "t=8"]),
        (lambda rows: rows.assign(t=rows["t"] - 1), ["t in 6 of 42 rows", "t=-1"]),
        (lambda rows: rows.assign(y=rows["y"].where(rows["track_id"] != 6, 40.0)), ["y in 6 of 42 rows", "'y': 40"]),
        (lambda rows: rows.assign(x=rows["x"].where(rows["track_id"] != 6, -1.0)), ["x in 6 of 42 rows", "x=-1.0"]),
        (lambda rows: rows.assign(z=1.0), ["z in 42 of 42 rows", "'z': 1"]),
        (lambda rows: rows.assign(y=rows["y"].where(rows["t"] != 0)), ["missing values: y in 6 of 42 rows"]),
        (lambda rows: rows.assign(x=np.where(rows["t"] == 0, np.inf, rows["x"])), ["x of one is no number in 6"]),
        (
            lambda rows: rows.assign(t=rows["t"] + 0.5),
            ["t of one is no usable whole number in 42 of 42", "such as", "stored frames"],
        ),
        (
            lambda rows: rows.assign(position=rows["position"].replace("A/1/0", "A/1/9")),
            ["1 position without an image: A/1/9 (21 rows)"],
        ),
        (
            lambda rows: rows.rename(columns={"position": "FOV"}),
            ["no column `position`, but 2 positions", "they have FOV, track_id, t"],
        ),
        (
            lambda rows: rows.assign(position=rows["position"].where(rows["t"] != 0)),
            ["missing values: position in 6 of 42 rows"],
        ),
        (lambda rows: rows.rename(columns={"track_id": "id"}), ["no column track_id", "id, t, y, x"]),
        (lambda rows: pd.concat([rows, rows.iloc[:3]]), ["3 rows of one of the same track and frame as another row"]),
        (
            lambda rows: rows.assign(parent_track_id=rows["parent_track_id"].where(rows["t"] != 5, 6)),
            ["more than one parent_track_id"],
        ),
        (
            lambda rows: rows.assign(parent_track_id=rows["parent_track_id"].where(rows["track_id"] != 2, 1)),
            ["their mother still is: 8 rows of 42 in 2 tracks, such as track 2", "parent_track_id is 1", "Is 0 meant"],
        ),
        (lambda rows: rows.iloc[:0], ["tracks of one have no rows"]),
        (lambda rows: rows.assign(track_id=rows["track_id"] - 2), ["track_id of one", "8 of 42 rows, such as -1"]),
        (lambda rows: rows.assign(track_id=rows["track_id"] + 2.0**60), ["track_id of one", "42 of 42", "2^53"]),
        (lambda rows: rows.assign(track_id=rows["track_id"] / (rows["t"] > 0)), ["track_id of one", "6 of 42", "inf"]),
        (
            lambda rows: rows.assign(parent_track_id=rows["parent_track_id"].astype(str).replace("2", "two")),
            ["parent_track_id of one is no usable whole number in 6 of 42 rows, such as two", "empty for none"],
        ),
    ],
)
def test_tracks_that_the_images_do_not_bear_out_are_refused_with_counts(
    folder: Path, change: Callable[[pd.DataFrame], pd.DataFrame], said: list[str]
) -> None:
    spoil(folder, change)
    with pytest.raises(ValueError) as error:
        load(folder, entry("one"), faulty_cells="error")
    for words in said:
        assert words in str(error.value)


def test_a_position_that_is_stored_and_not_listed_is_told(folder: Path) -> None:
    well = zarr.open_group(folder / "one.zarr/B/2", mode="r+")
    attributes: Any = well.attrs.asdict()
    attributes.get("ome", attributes)["well"]["images"] = []
    well.attrs.update(attributes)
    with pytest.raises(ValueError, match=r"an image: B/2/0 \(21 rows, stored, but not listed by its plate or well\)"):
        load(folder, entry("one", conditions={"mock": ["A/1"]}))


def test_tracks_of_positions_left_out_are_left_out(folder: Path) -> None:
    data = load(folder, entry("one", exclude=["B/2/0"]))
    assert set(data.cells.frame["fov"]) == {"A/1/0"}


def test_collections_are_checked_as_a_whole(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="two experiments are called one"):
        load(folder, entry("one"), entry("one"))
    with pytest.raises(ValueError, match=r"number of channels: one \['Phase'\], two \['Phase', 'Marker'\]"):
        load(folder, entry("one", channels=["Phase"]), entry("two"))
    with pytest.raises(ValueError, match="lists no experiment"):
        load(folder)
    with pytest.raises(FileNotFoundError, match=r"no file .*nothing\.yaml"):
        read_collection(tmp_path / "nothing.yaml")
    for text, said in (("a: [", "cannot be read as YAML"), ("plates: []", "has plates at its top"), ("- 1", "list")):
        (tmp_path / "bad.yaml").write_text(text)
        with pytest.raises(ValueError, match=said):
            read_collection(tmp_path / "bad.yaml")


def test_one_bare_plate_needs_its_entry_and_takes_its_files_from_beside_it(folder: Path) -> None:
    options = {"patch": (1, 12, 16), "cache": folder / "cache"}
    bare = entry("mine", plate=None, tracks="one.parquet")
    data = load_timelapse(folder / "one.zarr", [bare], **options)
    assert set(data.cells.frame["experiment"]) == {"mine"}
    with pytest.raises(ValueError, match="is not a collection"):
        load_timelapse(folder / "one.zarr", **options)
    for entries in ([bare, bare], [entry("one")]):
        with pytest.raises(ValueError, match="of one entry of"):
            load_timelapse(folder / "one.zarr", entries, **options)
    with pytest.raises(ValueError, match="give one of the two"):
        load_timelapse(write_collection(folder, entry("one")), [bare], **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"patch": (1, 41, 16)}, r"does not fit into 2 of 2 fields, such as A/1/0 of one with \[1, 40, 48\]"),
        ({"patch": (12, 16)}, r"patch=\[12, 16\] must be"),
        ({"patch": (1, 12.5, 16)}, r"patch=\[1, 12.5, 16\] must be.*integers"),
        ({"border": "mirror"}, "clamp or drop"),
        ({"border": "drop", "patch": (1, 40, 48)}, "leaves no cell"),
        ({"faulty_cells": "keep"}, "drop or error"),
        ({"normalise": "batch"}, "frame, position, plate, none"),
        ({"positive": "neighbour"}, "lineage, columns, self"),
        ({"positive": "columns"}, "list columns with"),
        ({"positive_columns": ["well"]}, "none without"),
        ({"positive": "columns", "positive_columns": ["dose"]}, "no column 'dose'"),
        ({"positive": "columns", "positive_columns": ["track", "t"]}, "no cell has another cell with equal track, t"),
        ({"tau_hours": (2.0, 1.0)}, r"tau_hours=\[2.0, 1.0\]"),
        ({"tau_hours": (0.05, 0.4)}, "no cell has a cell of its lineage 0.05 to 0.4 hours later.*0.5 hours apart"),
        ({"tau_decay_hours": 0.0}, "tau_decay_hours=0.0"),
        ({"cache_megabytes": -1}, "cache_megabytes=-1"),
        ({"seed": "a"}, "seed must be an integer >= 0, got 'a'"),
    ],
)
def test_options_out_of_range_are_refused(folder: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        load(folder, entry("one"), **options)


def chunk_of(folder: Path, name: str, t: int) -> Path:
    """The stored chunk of the marker of B/2/0 at a frame."""
    array = folder / f"{name}.zarr" / "B" / "2" / "0" / "0"
    (file,) = [file for file in (array / f"c/{t}/1/0/0/0", array / f"{t}/1/0/0/0") if file.exists()]
    return file


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-40])


@pytest.mark.parametrize("name", ["one", "two"])
@pytest.mark.parametrize("damage", [cut_short, Path.unlink])
def test_a_damaged_chunk_is_named_before_training(folder: Path, name: str, damage: Callable[[Path], None]) -> None:
    damage(chunk_of(folder, name, 3))
    with pytest.raises(ReadError) as error:
        load(folder, entry(name))
    for words in (f"{name}.zarr", "position B/2/0 of", "frame 3", "channel 1"):
        assert words in str(error.value)
    assert ("1 of 32 chunks are missing" in str(error.value)) == (damage is Path.unlink)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("damage", [cut_short, Path.unlink])
def test_a_chunk_damaged_later_stops_the_pass_with_its_place(
    folder: Path, workers: int, damage: Callable[[Path], None]
) -> None:
    data = load(folder, entry("one"))
    damage(chunk_of(folder, "one", 3))
    loader = make_loader(data, BatchSampler(data.cells, batch_size=8), num_workers=workers)
    with pytest.raises(Exception, match=r"ReadError|one\.zarr") as error:
        list(loader)
    for words in ("one.zarr", "position B/2/0 of one", "frame 3"):
        assert words in str(error.value)


@pytest.mark.parametrize("name", ["one", "two"])
def test_a_missing_chunk_is_fill_values_where_the_store_says_so(folder: Path, name: str) -> None:
    file = chunk_of(folder, name, 3)
    file.unlink()
    with pytest.raises(ReadError, match="write_empty_chunks: false"):
        load(folder, entry(name))
    zarr.open_array(folder / f"{name}.zarr", path="B/2/0/0", mode="r+").attrs["write_empty_chunks"] = False
    with pytest.warns(UserWarning, match="position B/2/0 of .*, channel Marker: frame 3 is all zero"):
        data = load(folder, entry(name), normalise="none", blank_frames="keep").every_cell()
    frame = data.cells.frame
    patches = data.recorded(np.arange(len(data)))
    empty = ((frame["fov"] == "B/2/0") & (frame["t"] == 3)).to_numpy()
    assert (patches[empty, 1] == 0).all() and (patches[~empty, 1] != 0).any(axis=(1, 2, 3)).all()


@pytest.mark.parametrize("name", ["one", "two"])
def test_a_channel_whose_name_two_have_is_refused(folder: Path, name: str) -> None:
    for file in (folder / f"{name}.zarr").rglob("*"):
        if file.name in ("zarr.json", ".zattrs"):
            file.write_text(file.read_text().replace('"Marker"', '"Phase"'))
    with pytest.raises(ValueError, match=r"several channels called Phase; its channels are Phase, Phase"):
        load(folder, entry(name, channels=["Phase"]))


def test_an_entry_without_its_plate_is_told_where_to_name_it() -> None:
    with pytest.raises(ValueError, match=r"experiment mda231; set data\.path=<plate>.* `plate`"):
        read_collection(None, [{**entry("mda231"), "plate": None}])


def test_a_column_of_two_kinds_is_named(folder: Path) -> None:
    for name, quality in (("one", 0.5), ("two", "good")):
        tracks_of(POSITIONS).assign(quality=quality).to_parquet(folder / f"{name}.parquet")
    with pytest.raises(ValueError, match=r"several kinds.*column quality.*Give it one type"):
        load(folder, entry("one"), entry("two"))


def test_hours_too_far_apart_to_be_told_are_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"from 1 to 1e\+15, which is too far apart; .*start_hours"):
        load(folder, entry("one"), entry("two", start_hours=1e15))


def with_pixels(folder: Path, kind: str) -> None:
    """The first plate, its pixels stored as another type, and one of them no number where that can be."""
    for number, name in enumerate(POSITIONS):
        old = folder / "one.zarr" / name / "0"
        shutil.rmtree(old)
        images = pixels(number).astype(kind)
        if images.dtype.kind == "f":
            images[3, 1, 0, 20, 24] = np.nan
        zarr.create_array(old, data=images, chunks=(1, 1, 1, 40, 48), dimension_names=["T", "C", "Z", "Y", "X"])


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_pixels_that_are_not_finite_stop_the_pass_with_their_place(folder: Path, kind: str) -> None:
    with_pixels(folder, kind)
    with pytest.raises(ValueError, match=r"position A/1/0 of one has pixels that are not finite in channel 1"):
        load(folder, entry("one"))
    data = load(folder, entry("one"), normalise="none", patch=(1, 40, 48))
    with pytest.raises(ReadError, match=r"position A/1/0 of one .*not finite at frame 3, channel 1, in the patch from"):
        list(make_loader(data, BatchSampler(data.cells, batch_size=8)))


def test_pixels_that_are_no_real_numbers_are_refused(folder: Path) -> None:
    with_pixels(folder, "complex64")
    with pytest.raises(ValueError, match=r"position A/1/0 of one .* pixels of type complex64"):
        load(folder, entry("one"))
