"""Frames that hold no image are named, and left out of statistics and training."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import zarr

from cellcohort.data.timelapse import load_cells, load_timelapse
from cellcohort.datasets.codecs import decoding
from cellcohort.datasets.images.patches import Patches
from cellcohort.datasets.images.storage import ReadError
from plates import entry, tracks_of, write_collection, write_plate

SHAPE = (20, 2, 1, 40, 48)
POSITIONS = ("A/1/0", "B/2/0")
CODECS: dict[str, dict[str, Any]] = {
    "compressed": {"chunks": (1, 1, 1, 20, 48)},
    "unwritten": {"chunks": (1, 1, 1, 20, 48)},
    "raw": {"chunks": (1, 1, 1, 40, 48), "compressors": None},
    "long": {"chunks": (8, 2, 1, 40, 48)},
    "sharded": {"chunks": (1, 1, 1, 40, 48), "shards": (4, 2, 1, 40, 48)},
}


def noise(number: int) -> np.ndarray:
    return np.random.default_rng(number).normal(1000, 100, SHAPE).round().astype(np.uint16)


@pytest.fixture(scope="module")
def plate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plate")
    write_plate(folder / "one.zarr", dict.fromkeys(POSITIONS, SHAPE))
    return folder / "one.zarr"


@pytest.fixture
def folder(plate: Path, tmp_path: Path) -> Path:
    shutil.copytree(plate, tmp_path / "one.zarr")
    tracks_of(POSITIONS, SHAPE).to_parquet(tmp_path / "one.parquet")
    return tmp_path


def store(folder: Path, number: int, images: np.ndarray, codec: str = "compressed") -> None:
    path = folder / "one.zarr" / POSITIONS[number] / "0"
    shutil.rmtree(path)
    options = {"dimension_names": ["T", "C", "Z", "Y", "X"], "config": {"write_empty_chunks": codec != "unwritten"}}
    with decoding(native=False):  # the other codecs never write empty chunks
        array = zarr.create_array(path, shape=images.shape, dtype=images.dtype, **CODECS[codec], **options)
        array[:] = images
    if codec == "unwritten":
        array.attrs["write_empty_chunks"] = False


def spoil(folder: Path, change: Callable[[np.ndarray], None], codec: str = "compressed") -> np.ndarray:
    """Store noise in both positions, the second of it spoilt."""
    images = [noise(number) for number in range(2)]
    change(images[1])
    for number, of_one in enumerate(images):
        store(folder, number, of_one, codec)
    return images[1]


def load(folder: Path, **options: Any) -> Patches:
    path = write_collection(folder, entry("one"))
    return load_timelapse(path, **{"patch": (1, 12, 16), "cache": folder / "cache", **options})


def zero(images: np.ndarray) -> None:
    images[[4, 9, 10, 11]] = 0


def saturated(images: np.ndarray) -> None:
    images[[4, 9, 10, 11]] = 65535


def nearly_saturated(images: np.ndarray) -> None:
    images[[4, 9, 10, 11], :, :, :37] = 4095


def one_value(images: np.ndarray) -> None:
    images[[4, 9, 10, 11]] = 100


def nearly_one_value(images: np.ndarray) -> None:
    images[[4, 9, 10, 11]] = 100
    images[[4, 9, 10, 11], :, 0, 7, 3:5] = 900, 65535  # of a camera with bad pixels


def repeated(images: np.ndarray) -> None:
    images[4], images[9:12] = images[3], images[8]


def repeated_later(images: np.ndarray) -> None:
    images[4], images[9], images[10], images[11] = images[1], images[2], images[6], images[0]


@pytest.mark.parametrize(
    ("change", "kind", "codec"),
    [
        (zero, "all zero", "compressed"),
        (zero, "all zero", "unwritten"),
        (zero, "all zero", "raw"),
        (zero, "all zero", "long"),
        (zero, "all zero", "sharded"),
        (saturated, "saturated", "compressed"),
        (nearly_saturated, "saturated", "compressed"),
        (one_value, "of one value", "sharded"),
        (nearly_one_value, "of one value but for a few pixels", "compressed"),
        (repeated_later, "repeated", "compressed"),
        (repeated, "repeated", "compressed"),
        (repeated, "repeated", "raw"),
        (repeated, "repeated", "long"),
    ],
)
def test_frames_without_an_image_are_named_and_left_out(
    folder: Path, change: Callable[[np.ndarray], None], kind: str, codec: str
) -> None:
    spoil(folder, change, codec)
    every = tracks_of(POSITIONS, SHAPE)
    gone = ((every["position"] == "B/2/0") & every["t"].isin([4, 9, 10, 11])).sum()
    said = (
        rf"{gone} of {len(every)} cells.*B/2/0 of one, channels Phase, Marker: frames 4, 9 to 11 are {kind} \({gone} c"
    )
    with pytest.warns(UserWarning, match=said):
        data = load(folder)
    frame = data.every_cell().cells.frame
    assert len(frame) == len(every) - gone
    assert not ((frame["fov"] == "B/2/0") & frame["t"].isin([4, 9, 10, 11])).any()
    with pytest.warns(UserWarning, match=said):  # from the cache, and where labels alone are read
        cells = load_cells(folder / "collection.yaml", patch=(1, 12, 16), cache=folder / "cache")
    assert len(cells.cells) == len(data.cells)
    mean, spread = data._scale.numpy()[:, 1]
    assert mean == pytest.approx(1000, rel=0.01) and spread == pytest.approx(100, rel=0.05)
    with pytest.warns(UserWarning, match=rf"{gone} of {len(every)} cells .*are kept"):
        kept = load(folder, blank_frames="keep")
    assert len(kept.every_cell()) == len(every) and np.array_equal(kept._scale, data._scale)


def test_one_channel_that_is_blank_is_named(folder: Path) -> None:
    def blank(images: np.ndarray) -> None:
        images[:, 1] = 0

    spoil(folder, blank)
    with pytest.warns(UserWarning, match=r"position B/2/0 of one, channel Marker: frames 0 to 19 are all zero"):
        data = load(folder)
    assert set(data.every_cell().cells.frame["fov"]) == {"A/1/0"}
    assert np.isfinite(data._scale.numpy()).all()
    with pytest.warns(UserWarning, match="are kept"):
        kept = load(folder, blank_frames="keep", normalise="plate")
    assert kept._scale.numpy()[:, :, 0, 1].ravel() == pytest.approx([1000, 1000, 100, 100], rel=0.02)


def test_cells_on_padding_are_left_out_and_the_others_kept(folder: Path) -> None:
    def pad(images: np.ndarray) -> None:
        images[:10, :, :, 30:] = 0
        images[3, :, :, :, :4] = 0

    spoil(folder, pad)
    with pytest.warns(UserWarning, match=r"B/2/0 of one, channels Phase, Marker: frames 0 to 9 are padded with"):
        data = load(folder, normalise="position")
    frame = data.every_cell().cells.frame
    every = tracks_of(POSITIONS, SHAPE)
    y0, x0 = (
        np.clip(np.floor(every[a] + 0.5 - (n - 1) / 2), 0, size - n) for a, n, size in (("y", 12, 40), ("x", 16, 48))
    )
    bad = (every["position"] == "B/2/0") & (((every["t"] < 10) & (y0 + 12 > 30)) | ((every["t"] == 3) & (x0 < 4)))
    assert bad.sum() > 0 and len(frame) == len(every) - bad.sum()
    read = data.every_cell().recorded(np.arange(len(frame)))
    assert np.abs(read).max() < 6
    assert data._scale.numpy()[:, 1].ravel() == pytest.approx([1000, 1000, 100, 100], rel=0.05)


def one_object(images: np.ndarray) -> None:
    y, x = np.ogrid[:40, :48]
    images[:] = np.maximum(1 - ((y - 20) / 18) ** 2 - ((x - 24) / 22) ** 2, 0) * images


def objects(images: np.ndarray) -> None:
    y, x = np.ogrid[:40, :48]
    images[..., (y % 20 < 6) | (x % 16 < 3)] = 0


def cut_out(images: np.ndarray) -> None:
    """Subtract the background around one object, up to a sharp edge, as segmentation does."""
    y, x = np.ogrid[:40, :48]
    images[..., ((y - 20) / 18) ** 2 + ((x - 24) / 22) ** 2 > 1] = 0


def mask(images: np.ndarray) -> None:
    y, x = np.ogrid[:40, :48]
    for t, frame in enumerate(images):
        frame[:] = ((y - 20) / 18) ** 2 + ((x - 16 - t / 2) / 14) ** 2 < 1


@pytest.mark.parametrize("change", [one_object, objects, cut_out, mask])
def test_objects_on_a_background_of_zeros_are_no_fault(folder: Path, change: Callable[[np.ndarray], None]) -> None:
    spoil(folder, change)
    assert len(load(folder).every_cell()) == len(tracks_of(POSITIONS, SHAPE))


@pytest.mark.parametrize("background", [0, 100])
def test_a_nearly_empty_channel_is_no_fault(folder: Path, background: int) -> None:
    def sparse(images: np.ndarray) -> None:
        rng = np.random.default_rng(0)
        images[:, 1] = background
        for t in range(0, SHAPE[0], 2):  # cells of which some frames show none
            y, x = rng.integers(0, 30), rng.integers(0, 40)
            images[t, 1, 0, y : y + 8, x : x + 6] = rng.integers(101, 150, (8, 6))
            images[t + 1, 1, 0, y, x] = 101  # one pixel alone

    spoil(folder, sparse)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = load(folder)
    assert len(data.every_cell()) == len(tracks_of(POSITIONS, SHAPE))


def test_frames_of_noise_alone_are_no_fault_and_frames_of_another_value_are(folder: Path) -> None:
    def dark(images: np.ndarray) -> None:
        images[:, 1] = np.random.default_rng(3).poisson(4, images[:, 1].shape) + 100  # the noise of a camera
        images[:, 0] = 0
        for t in range(SHAPE[0]):
            images[t, 0, 0, t : t + 10, 5:15] = 7
        images[3, 0], images[7, 0] = 50, 300  # where the others of this nearly empty channel have 0

    spoil(folder, dark)
    with pytest.warns(UserWarning, match=r"lie in frames .*: position B/2/0 of one, channel Phase: frames 3, 7 are of"):
        load(folder)


def test_images_that_were_mended_are_looked_at_again(folder: Path) -> None:
    spoil(folder, zero)
    with pytest.warns(UserWarning, match="all zero"):
        load(folder)
    store(folder, 1, noise(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = load(folder)
    assert len(data.every_cell()) == len(tracks_of(POSITIONS, SHAPE))


@pytest.mark.parametrize("codec", ["compressed", "long", "sharded"])
def test_frames_that_were_never_stored_are_named_where_no_cell_is_there(folder: Path, codec: str) -> None:
    """As of an acquisition that was stopped."""
    images = noise(1)
    images[16:] = 0
    path = folder / "one.zarr/B/2/0/0"
    shutil.rmtree(path)
    zarr.create_array(path, shape=SHAPE, dtype=images.dtype, **CODECS[codec])[:] = images
    file = folder / "one.parquet"
    tracks = pd.read_parquet(file)
    tracks[(tracks["t"] < 16) | (tracks["position"] == "A/1/0")].to_parquet(file)
    with pytest.warns(UserWarning, match=r"no cell lies there: .*B/2/0 of one.*: frames 16 to 17, 19 are not stored"):
        data = load(folder)
    np.testing.assert_allclose(data._scale[0, 1, 0], images[:16].mean(axis=(0, 2, 3, 4)), rtol=0.01)
    tracks.to_parquet(file)
    with pytest.raises(ReadError, match=r"chunks are missing, such as .*B/2/0 of one, frame 16"):
        load(folder)


def test_plates_without_any_image_are_refused(folder: Path) -> None:
    for number in (0, 1):
        store(folder, number, np.zeros(SHAPE, np.uint16))
    with pytest.raises(ValueError, match=r"leaves no cell: .*frames 0 to 19 are all zero.*blank_frames=keep"):
        load(folder)
    with pytest.raises(ValueError, match=r"blank_frames='no' is not a choice; use drop or keep"):
        load(folder, blank_frames="no")


def test_descent_goes_on_over_a_track_that_lies_in_blank_frames(folder: Path) -> None:
    """Tracks 1 and 2 end at frame 9, their daughters 3 to 5 are there from frame 10 or 11 on."""

    def late(images: np.ndarray) -> None:
        images[:10] = 0

    spoil(folder, late)
    with pytest.warns(UserWarning, match="all zero"):
        data = load(folder, tau_hours=(0.5, 6.0))
    rows = data.__getitems__(np.arange(len(data)))["meta"]
    frame = data.every_cell().cells.frame
    one, two = (frame.iloc[rows[name].numpy()] for name in ("row", "positive_row"))
    assert (one["lineage"].to_numpy() == two["lineage"].to_numpy()).all()
    assert (one["hours"].to_numpy() < two["hours"].to_numpy()).all()
