"""Collections that are unusual and all the same right, and what is kept of them."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr

from cellcohort.data.timelapse import load_timelapse
from cellcohort.datasets.images.descent import mothers_among
from cellcohort.datasets.images.parquet_cache import cached_table
from cellcohort.datasets.images.patches import Patches
from cellcohort.datasets.images.positives import Lineages
from cellcohort.datasets.positives import TauDraw
from plates import SHAPE, entry, pixels, tracks_of, write_collection, write_plate

POSITIONS = ("A/1/0", "B/2/0")


@pytest.fixture(scope="module")
def plate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_plate(tmp_path_factory.mktemp("plate") / "one.zarr", dict.fromkeys(POSITIONS, SHAPE), "0.4")


@pytest.fixture
def folder(plate: Path, tmp_path: Path) -> Path:
    shutil.copytree(plate, tmp_path / "one.zarr")
    tracks_of(POSITIONS).to_parquet(tmp_path / "one.parquet")
    return tmp_path


def load(folder: Path, **options: Any) -> Patches:
    path = write_collection(folder, entry("one"))
    return load_timelapse(path, **{"patch": (1, 12, 16), "cache": folder / "cache", "normalise": "none", **options})


def everything(data: Patches) -> np.ndarray:
    every = data.every_cell()
    return every.recorded(np.arange(len(every)))


@pytest.mark.parametrize(
    ("kind", "separator", "order"), [(">u2", ".", "C"), (">f4", "/", "C"), ("<u2", ".", "C"), ("<u2", "/", "F")]
)
def test_numbers_are_read_in_the_order_they_are_stored_in(
    folder: Path, kind: str, separator: str, order: Literal["C", "F"]
) -> None:
    expected = everything(load(folder))
    for number, name in enumerate(POSITIONS):
        old = folder / "one.zarr" / name / "0"
        shutil.rmtree(old)
        array = zarr.create_array(
            old, shape=SHAPE, chunks=(2, 1, 1, 20, 48), dtype=kind, zarr_format=2, order=order,
            chunk_key_encoding={"name": "v2", "separator": separator},
        )  # fmt: skip
        array[:] = pixels(number)
    assert np.array_equal(everything(load(folder)), expected)


@pytest.mark.parametrize("kind", ["numpy", "numpy_nullable", "pyarrow"])
def test_numbers_of_tracks_may_be_large_and_of_any_type(folder: Path, kind: Any) -> None:
    expected = load(folder).cells.frame
    tracks = tracks_of(POSITIONS)
    tracks = tracks.assign(
        track_id=tracks["track_id"] + 2**60,
        parent_track_id=tracks["parent_track_id"].where(lambda n: n == 0, lambda n: n + 2**60),
    )
    tracks = tracks if kind == "numpy" else tracks.convert_dtypes(dtype_backend=kind)
    tracks.astype({"t": "float64"} if kind == "numpy" else {}).to_parquet(folder / "one.parquet")
    found = load(folder).cells.frame
    assert np.array_equal(found["track_id"] - 2**60, expected["track_id"])
    for name in ("t", "hours", "y", "x"):
        assert np.array_equal(found[name], expected[name])
    assert np.array_equal(found["lineage"].cat.codes, expected["lineage"].cat.codes)


def test_a_position_without_a_cell_is_said(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(folder)
    tracks_of(POSITIONS[:1]).to_parquet(folder / "one.parquet")
    for _ in range(2):  # built, and read again
        with pytest.warns(UserWarning, match=r"1 of 2 positions have no tracked cell: B/2/0 of one"):
            load(folder)


def test_what_was_kept_and_is_damaged_is_made_again(folder: Path) -> None:
    first = load(folder, normalise="position")
    files = sorted((folder / "cache").iterdir())
    assert [file.name.split("-")[0] for file in files] == ["frames", "index", "scaling"]
    for file in files:
        whole = file.read_bytes()
        pages = [whole[:40] + bytes(64) + whole[104:]] if pq.read_metadata(file).num_rows else []
        for damaged in (b"", whole[: len(whole) // 2], *pages):
            file.write_bytes(damaged)
            with pytest.warns(UserWarning, match=rf"{file.name} was damaged and is made again"):
                again = load(folder, normalise="position")
            assert again.cells.frame.equals(first.cells.frame)
            assert np.array_equal(everything(again), everything(first))


def test_one_wrong_byte_is_noticed(tmp_path: Path) -> None:
    table = pa.table({"y": np.random.default_rng(0).random(5000)})
    assert cached_table(tmp_path / "table.parquet", lambda: table).equals(table)
    stored = bytearray((tmp_path / "table.parquet").read_bytes())
    stored[len(stored) // 3] ^= 1
    (tmp_path / "table.parquet").write_bytes(stored)
    with pytest.warns(UserWarning, match="was damaged"):
        assert cached_table(tmp_path / "table.parquet", lambda: table).equals(table)


def test_brightness_is_measured_again_when_pixels_were_written_anew(folder: Path) -> None:
    first = load(folder, normalise="position")
    array = zarr.open_array(folder / "one.zarr", path="B/2/0/0", mode="r+")
    array[:] = array[:] // 2
    again = load(folder, normalise="position")
    assert np.array_equal(again._scale[:, 0], first._scale[:, 0])
    assert np.allclose(again._scale[:, 1], first._scale[:, 1] / 2, rtol=0.01)


def test_brightness_is_measured_again_when_any_chunk_of_a_frame_was_written_anew(tmp_path: Path) -> None:
    write_plate(tmp_path / "one.zarr", dict.fromkeys(POSITIONS, SHAPE), chunks=(1, 1, 1, 20, 24))
    tracks_of(POSITIONS).to_parquet(tmp_path / "one.parquet")
    load(tmp_path, normalise="position")
    array = zarr.open_array(tmp_path / "one.zarr", path="B/2/0/0", mode="r+")
    images = pixels(1)
    images[..., 20:, 24:] //= 2
    array[..., 20:, 24:] = images[..., 20:, 24:]
    again = load(tmp_path, normalise="position")
    expected = [images[:, channel].mean() for channel in range(2)]
    np.testing.assert_allclose(again._scale[0, 1, 0], expected, rtol=1e-6)


def test_a_line_is_not_cut_where_all_cells_of_a_track_were_dropped(tmp_path: Path) -> None:
    """A cell, its daughter and its granddaughter; the daughter keeps to the border."""
    write_plate(tmp_path / "one.zarr", {"A/1/0": SHAPE})
    rows = [("A/1/0", track, t, y, 24.0, mother) for track, t, y, mother in
            [(1, 0, 20.0, 0), (2, 1, 1.0, 1), (2, 2, 1.0, 1), (3, 3, 20.0, 2), (3, 4, 20.0, 2)]]  # fmt: skip
    columns = ["position", "track_id", "t", "y", "x", "parent_track_id"]
    pd.DataFrame(rows, columns=columns).to_parquet(tmp_path / "one.parquet")
    path = write_collection(tmp_path, entry("one", conditions={"mock": ["A/1"]}))
    with pytest.warns(UserWarning, match="left out 2 of 5 cells"):
        data = load_timelapse(path, patch=(1, 12, 16), border="drop", tau_hours=(1.5, 1.5), cache=tmp_path / "cache")
    meta = data.__getitems__([0])["meta"]
    assert len(data) == 1 and meta["row"].tolist() == [0] and meta["positive_row"].tolist() == [1]


def test_the_nearest_ancestor_that_is_there_is_the_mother() -> None:
    mother = np.array([-1, 0, 1, 2, 3, -1, 5])
    assert mothers_among(mother, np.arange(7)).tolist() == mother.tolist()
    assert mothers_among(mother, np.array([0, 4, 6])).tolist()[4] == 0
    assert mothers_among(mother, np.array([0, 4, 6])).tolist()[6] == -1


def test_a_greatest_time_beyond_all_hours_means_any_later_time(folder: Path) -> None:
    expected = load(folder, tau_hours=(0.5, 100.0))
    rows = expected._rows.numpy()
    for most in (1e9, 1e13):
        data = load(folder, tau_hours=(0.5, most))
        assert np.array_equal(data._rows.numpy(), rows)
        assert np.array_equal(data._lineages.draw(rows, (0, 1)), expected._lineages.draw(rows, (0, 1)))


def test_a_steep_decay_draws_the_first_time_there_is_however_late() -> None:
    """Tracks with cells at 0, 40, 41 and 42 hours, beside many with one half an hour later."""
    late, early = np.repeat(np.arange(20), 4), np.repeat(np.arange(20, 220), 2)
    hours = np.r_[np.tile([0.0, 40.0, 41.0, 42.0], 20), np.tile([0.0, 0.5], 200)]
    lineages = Lineages(np.r_[late, early], hours, np.full(220, -1), (0.5, 50.0), TauDraw("exponential", 0.1))
    rows = np.flatnonzero(hours == 0)
    drawn = hours[lineages.draw(rows, (0, 0))]
    assert (drawn[:20] == 40.0).mean() > 0.9 and (drawn[20:] == 0.5).all()


def test_columns_of_the_file_keep_their_values_whatever_their_names(folder: Path) -> None:
    tracks = tracks_of(POSITIONS)
    own = {name: np.arange(len(tracks)) + n for n, name in enumerate(("field", "mother", "inside", "z0", "y0", "x0"))}
    tracks.assign(**own).to_parquet(folder / "one.parquet")
    found = load(folder).every_cell().cells.frame.sort_values(["fov", "track_id", "t"])
    expected = tracks.assign(**own).sort_values(["position", "track_id", "t"])
    for name in own:
        assert np.array_equal(found[name], expected[name])
