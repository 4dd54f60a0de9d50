"""Coordinates in pixels, in micrometers, and those that look like another unit."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import zarr

from cellcohort.data.timelapse import load_timelapse
from cellcohort.datasets.images.collection import Experiment
from cellcohort.datasets.images.coordinates import warn_of_units
from cellcohort.datasets.images.patches import Patches
from cellcohort.datasets.images.plates import Field, fields_of
from plates import entry, pixels, tracks_of, write_collection, write_plate

SHAPE = (4, 1, 1, 100, 120)
SIZE = 0.325


def cells(n: int = 40, seed: int = 0, reach: float = 1.0, margin: float = 0.0) -> pd.DataFrame:
    """Tracks of 4 frames, evenly over the first part of the image, with a margin at all sides (shares of the part)."""
    rng = np.random.default_rng(seed)
    at = margin + rng.uniform(size=(n, 2)) * (1 - 2 * margin)
    y, x = (at * reach * np.array(SHAPE[3:]) - 0.5).T
    return pd.concat([pd.DataFrame({"track_id": np.arange(n), "t": t, "y": y, "x": x}) for t in range(SHAPE[0])])


def one_of(coordinates: Any) -> Experiment:
    return Experiment("one", Path(), Path(), {"mock": ("A/1",)}, 30.0, 0.0, ("Phase",), None, (), coordinates)


@pytest.fixture(scope="module")
def field(tmp_path_factory: pytest.TempPathFactory) -> Field:
    path = tmp_path_factory.mktemp("plate") / "one.zarr"
    write_plate(path, {"A/1/0": SHAPE}, channels=["Phase"], pixel_size=SIZE)
    return fields_of(replace(one_of(None), plate=path))[0]


def load(folder: Path, tracks: pd.DataFrame, size: float = SIZE, **changes: Any) -> Patches:
    if not (folder / "one.zarr").exists():
        write_plate(folder / "one.zarr", {"A/1/0": SHAPE}, channels=["Phase"], pixel_size=size)
    tracks.to_parquet(folder / "one.parquet", index=False)
    one = entry("one", conditions={"mock": ["A/1"]}, channels=["Phase"], **changes)
    path = write_collection(folder, one)
    return load_timelapse(path, patch=(1, 8, 8), normalise="none", cache=folder / "cache")


def scaled(tracks: pd.DataFrame, factor: float) -> pd.DataFrame:
    return tracks.assign(y=tracks["y"] * factor, x=tracks["x"] * factor)


@pytest.mark.parametrize(("n", "margin"), [(400, 0.1), (40, 0.02)])
def test_coordinates_that_fill_what_micrometers_reach_are_told_with_numbers(
    tmp_path: Path, n: int, margin: float
) -> None:
    micrometers = scaled(cells(n, margin=margin), SIZE)
    reach = float(micrometers["y"].max())
    for _ in range(2):  # built, and from the cache
        with pytest.warns(UserWarning, match=rf"reach y={reach:g}.*100 x 120 pixels.*0\.325.*coordinates: micrometer"):
            load(tmp_path, micrometers)


def test_coordinates_of_a_level_of_the_pyramid_are_told_with_numbers(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(tmp_path, cells())
    attributes = zarr.open_group(tmp_path / "one.zarr/A/1/0", mode="r+").attrs
    ome: Any = attributes["ome"]
    for level in (1, 2):
        scale = [1.0, 1.0, 1.0, SIZE * 2**level, SIZE * 2**level]
        transform = [{"type": "scale", "scale": scale}]
        ome["multiscales"][0]["datasets"].append({"path": str(level), "coordinateTransformations": transform})
    attributes["ome"] = ome
    with pytest.warns(UserWarning, match=r"level 2 of the pyramid do, which is 4 times smaller"):
        load(tmp_path, scaled(cells(), 0.25))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(tmp_path, scaled(cells(), 0.25), coordinates="pixel")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("reach", [0.1, 0.2, 0.28, 0.4, 0.6, 0.9])
def test_cells_that_crowd_in_a_corner_are_no_fault(field: Field, reach: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    even, dense = cells(60, seed, reach), cells(60, seed)
    dense["y"], dense["x"] = (
        np.tile(draw, SHAPE[0]) for draw in (rng.exponential(reach * 20, 60), rng.normal(size=60))
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for tracks in (even, dense, cells(60, seed)):
            frame = tracks.rename(columns={"track_id": "track"})
            warn_of_units(frame, np.zeros(len(frame), int), [field], one_of(None))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("n", [40, 400])
def test_coordinates_in_micrometers_are_seen_in_every_draw(field: Field, n: int, seed: int) -> None:
    frame = scaled(cells(n, seed), SIZE).rename(columns={"track_id": "track"})
    with pytest.warns(UserWarning, match="set coordinates: micrometer"):
        warn_of_units(frame, np.zeros(len(frame), int), [field], one_of(None))


def test_micrometers_are_turned_into_pixels(tmp_path: Path) -> None:
    tracks = cells()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = load(tmp_path, tracks, coordinates="pixel").every_cell()
        data = load(tmp_path, scaled(tracks, SIZE), coordinates="micrometer").every_cell()
    assert np.allclose(data.cells.frame[["y", "x"]], expected.cells.frame[["y", "x"]])
    n = np.arange(len(data))
    assert np.array_equal(data.recorded(n), expected.recorded(n))
    row = data.cells.frame.iloc[0]
    y, x = (int(np.clip(np.floor(row[axis] - 3.5 + 0.5), 0, n - 8)) for axis, n in zip("yx", SHAPE[3:], strict=True))
    assert np.array_equal(data.recorded([0])[0, 0, 0], pixels(0, SHAPE)[row["t"], 0, 0, y : y + 8, x : x + 8])


def test_units_and_translations_of_the_plate_are_heeded(tmp_path: Path) -> None:
    expected = load(tmp_path, cells(), coordinates="pixel").cells.frame
    attributes = zarr.open_group(tmp_path / "one.zarr/A/1/0", mode="r+").attrs
    ome: Any = attributes["ome"]
    for axis in ome["multiscales"][0]["axes"][2:]:
        axis["unit"] = "Nanometer"
    ome["multiscales"][0]["datasets"][0]["coordinateTransformations"] = [
        {"type": "scale", "scale": [1, 1, 1, 650, 325]},
        {"type": "translation", "translation": [0, 0, 0, 1000, 0]},
    ]
    ome["multiscales"][0]["coordinateTransformations"] = [{"type": "scale", "scale": [1, 1, 1, 2, 2]}]
    attributes["ome"] = ome
    tracks = cells()
    moved = tracks.assign(y=tracks["y"] * 1.3 + 2.0, x=tracks["x"] * 0.65)
    found = load(tmp_path, moved, coordinates="micrometer").cells.frame
    assert np.allclose(found[["y", "x"]], expected[["y", "x"]])


def test_micrometers_outside_the_image_are_told_to_be_micrometers(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"lie outside.*pixel size of 1\.3.*set coordinates: micrometer"):
        load(tmp_path, scaled(cells(), 1.3), size=1.3)
    with pytest.raises(ValueError, match=r"lie outside.*read as micrometers, at a pixel size of 1\.3"):
        load(tmp_path, scaled(cells(), 3.0), size=1.3, coordinates="micrometer")


def test_micrometers_need_a_pixel_size(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"gives no pixel size in a unit of length along y for position A/1/0"):
        load(tmp_path, cells(), size=1.0, coordinates="micrometer")
    with pytest.raises(ValueError, match=r"coordinates of one is 'um'; use pixel or micrometer"):
        load(tmp_path, cells(), coordinates="um")


def test_plates_whose_images_have_no_size_give_no_warning(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(tmp_path, scaled(cells(), SIZE), size=1.0)
        load(tmp_path, tracks_of(["A/1/0"], SHAPE), size=1.0)
