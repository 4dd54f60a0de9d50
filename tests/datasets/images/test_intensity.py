"""Brightness and contrast of frames, positions and plates, by several statistics, measured or as VisCy stores them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from iohub.ngff import open_ome_zarr

from cellcohort.data.timelapse import load_timelapse
from cellcohort.datasets.images import intensity as intensity_module
from cellcohort.datasets.images.patches import Patches
from plates import CHANNELS, entry, tracks_of, write_collection, write_plate

SHAPE = (5, 2, 2, 24, 32)
POSITIONS = ("A/1/0", "B/2/0")
BY: dict[str, Callable[[np.ndarray], tuple[float, float]]] = {
    "mean": lambda pixels: (np.mean(pixels), np.std(pixels)),
    "median": lambda pixels: (np.median(pixels), np.subtract(*np.percentile(pixels, (75, 25)))),
    "percentiles": lambda pixels: (np.percentile(pixels, 5), np.subtract(*np.percentile(pixels, (95, 5)))),
}


def image(number: int) -> np.ndarray:
    """A field whose frames differ in brightness and contrast."""
    rng = np.random.default_rng(number)
    gain = (1 + np.arange(SHAPE[0]))[:, None, None, None, None]
    return (rng.exponential(100, SHAPE) * gain + 50 * (number + 1)).astype(np.uint16)


def folder_of(path: Path, version: Literal["0.4", "0.5"] = "0.5") -> Path:
    write_plate(path / "one.zarr", dict.fromkeys(POSITIONS, SHAPE), version)
    with open_ome_zarr(path / "one.zarr", mode="r+") as plate:
        for number, (_, position) in enumerate(plate.positions()):
            position["0"][:] = image(number)
    tracks_of(POSITIONS, SHAPE).to_parquet(path / "one.parquet")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(tmp_path_factory.mktemp("plate"))


def load(folder: Path, cache: Path, **options: Any) -> Patches:
    path = write_collection(folder, entry("one"))
    return load_timelapse(path, **{"patch": SHAPE[2:], "cache": cache, **options}).every_cell()


def told_of(frame: Any, row: Any, images: dict[str, np.ndarray], normalise: str, channel: int) -> np.ndarray:
    """The pixels whose statistics a cell is scaled by."""
    if normalise == "frame":
        return images[row.fov][row.t, channel]
    if normalise == "position":
        return images[row.fov][:, channel]
    return np.concatenate([one[:, channel] for one in images.values()])


@pytest.mark.parametrize("normalise_by", list(BY))
@pytest.mark.parametrize("normalise", ["frame", "position", "plate"])
def test_patches_are_scaled_by_the_statistics_of_what_is_asked(
    folder: Path, tmp_path: Path, normalise: str, normalise_by: str
) -> None:
    images = {name: image(number) for number, name in enumerate(POSITIONS)}
    data = load(folder, tmp_path, normalise=normalise, normalise_by=normalise_by)
    frame = data.cells.frame
    made = data.recorded(np.arange(len(data)))
    for position, row in enumerate(frame.itertuples()):
        for channel in range(2):
            centre, spread = BY[normalise_by](told_of(frame, row, images, normalise, channel))
            expected = (images[row.fov][row.t, channel] - centre) / spread  # type: ignore[index]
            np.testing.assert_allclose(made[position, channel], expected, rtol=1e-4, atol=1e-4)


def test_medians_of_large_images_are_of_a_grid_of_pixels(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = load(folder, tmp_path / "exact", normalise_by="median")._scale.numpy()
    monkeypatch.setattr(intensity_module, "MOST_SAMPLED", 2000)
    coarse = load(folder, tmp_path / "coarse", normalise_by="median")._scale.numpy()
    assert not np.array_equal(coarse, exact)
    np.testing.assert_allclose(coarse, exact, rtol=0.2)


def test_a_channel_mostly_of_one_value_is_centred_and_said(folder: Path, tmp_path: Path) -> None:
    sparse = folder_of(tmp_path)
    with open_ome_zarr(sparse / "one.zarr", mode="r+") as plate:
        for _, position in plate.positions():
            images = np.asarray(position["0"][:])
            images[:, 1] = np.where(np.random.default_rng(0).random(images[:, 1].shape) < 0.1, images[:, 1], 7)
            position["0"][:] = images
    with pytest.warns(UserWarning, match=r"interquartile range is 0 in 2 of 4 .*only centred.*normalise_by=mean"):
        data = load(sparse, tmp_path / "cache", normalise_by="median")
    assert data._scale[1, :, 0, 1].tolist() == [1.0, 1.0] and data._scale[0, :, 0, 1].tolist() == [7.0, 7.0]


def write_statistics(folder: Path, positions: dict[str, int], levels: dict[str, Any]) -> None:
    """Statistics as `viscy preprocess` stores them, in the given positions, times their number."""

    def scaled(value: Any, factor: int) -> Any:
        return {k: scaled(v, factor) for k, v in value.items()} if isinstance(value, dict) else value * factor

    with open_ome_zarr(folder / "one.zarr", mode="r+") as plate:
        for name, position in plate.positions():
            if name in positions:
                position.zattrs["normalization"] = {
                    channel: scaled(levels, positions[name] * (channel_number + 1))
                    for channel_number, channel in enumerate(CHANNELS)
                }


def statistics(**changes: float) -> dict[str, float]:
    return {"mean": 3.0, "std": 2.0, "median": 5.0, "iqr": 4.0, "p5": 1.0, "p95": 7.0, **changes}


LEVELS = {
    "dataset_statistics": statistics(mean=30.0, median=50.0),
    "fov_statistics": statistics(),
    "timepoint_statistics": {str(t): statistics(mean=10.0 + t, std=1.0 + t) for t in range(SHAPE[0])},
}


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_stored_statistics_are_those_of_the_position_the_channel_and_the_level(
    tmp_path: Path, version: Literal["0.4", "0.5"], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(tmp_path, version)
    write_statistics(folder, {"A/1/0": 1, "B/2/0": 10}, LEVELS)

    def scale(**options: Any) -> np.ndarray:
        return load(folder, tmp_path / "cache", statistics="stored", **options)._scale.numpy()

    factor = np.array([[1, 2], [10, 20]])[:, None]  # of positions and channels
    for options, centre, spread in (
        ({}, 3.0, 2.0),
        ({"normalise_by": "median"}, 5.0, 4.0),
        ({"normalise_by": "percentiles"}, 1.0, 6.0),
        ({"normalise": "plate"}, 30.0, 2.0),
        ({"normalise": "plate", "normalise_by": "median"}, 50.0, 4.0),
    ):
        np.testing.assert_allclose(scale(**options), [centre * factor, spread * factor])
    t = np.arange(SHAPE[0])[:, None]
    np.testing.assert_allclose(scale(normalise="frame"), [(10.0 + t) * factor, (1.0 + t) * factor])
    assert not list((tmp_path / "cache").glob("scaling-*")), "nothing is measured"
    said = capsys.readouterr().err
    assert "normalisation: 4 of 4 statistics are those stored as fov_statistics.\n" in said
    assert "normalisation: 20 of 20 statistics are those stored as timepoint_statistics.\n" in said


def test_statistics_that_are_not_stored_are_measured_or_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(tmp_path)
    write_statistics(folder, {"A/1/0": 1}, {"fov_statistics": statistics(), "dataset_statistics": {"median": 1.0}})
    measured = load(folder, tmp_path / "cache")._scale.numpy()
    assert not capsys.readouterr().err
    mixed = load(folder, tmp_path / "cache", statistics="auto")._scale.numpy()
    assert mixed[:, 0].tolist() == [[[3.0, 6.0]], [[2.0, 4.0]]]
    np.testing.assert_allclose(mixed[:, 1], measured[:, 1], rtol=1e-5)
    assert (
        "2 of 4 statistics are those stored as fov_statistics, and 2 are measured: B/2/0 of one.\n"
        in capsys.readouterr().err
    )
    plate = load(folder, tmp_path / "cache", statistics="auto", normalise="plate")._scale.numpy()
    np.testing.assert_allclose(
        plate, load(folder, tmp_path / "cache", normalise="plate")._scale.numpy(), err_msg="one position lacks them"
    )
    for options, said in (
        ({}, "2 of 4 are not stored, such as fov_statistics of mean and std of channel Phase in position B/2/0 of one"),
        ({"normalise": "frame"}, "timepoint_statistics of mean and std of channel Phase at frame 0 in position A/1/0"),
        ({"normalise_by": "median", "normalise": "plate"}, "dataset_statistics of median and iqr.*has Phase, Marker"),
    ):
        with pytest.raises(ValueError, match=rf"{said}.*statistics=auto"):
            load(folder, tmp_path / "cache", statistics="stored", **options)


def test_frames_without_an_image_have_no_part_in_what_is_measured(folder: Path, tmp_path: Path) -> None:
    spoilt = folder_of(tmp_path)
    with open_ome_zarr(spoilt / "one.zarr", mode="r+") as plate:
        plate["B/2/0"]["0"][2] = 500  # of one value
    left = np.delete(image(1), 2, axis=0)
    for normalise_by, find in BY.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            data = load(spoilt, tmp_path / "cache", normalise_by=normalise_by, blank_frames="keep")
            of_frames = load(spoilt, tmp_path / "cache", normalise_by=normalise_by, normalise="frame",
                             blank_frames="keep")  # fmt: skip
        for channel in range(2):
            np.testing.assert_allclose(data._scale[:, 1, 0, channel], find(left[:, channel]), rtol=1e-4)
        assert of_frames._scale[:, 1, 2].tolist() == [[0.0, 0.0], [1.0, 1.0]]
        assert (of_frames._scale[0, 1, 3] > 0).all()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"normalise_by": "mode"}, "normalise_by='mode' is not a choice; use one of mean, median, percentiles"),
        ({"statistics": "read"}, "statistics='read' is not a choice; use one of measured, stored, auto"),
        ({"normalise": "none", "normalise_by": "median"}, "leaves pixels as they are, but normalise_by='median'"),
        ({"normalise": "none", "statistics": "auto"}, "leaves pixels as they are"),
    ],
)
def test_options_that_mean_nothing_are_refused(
    folder: Path, tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        load(folder, tmp_path, **options)
