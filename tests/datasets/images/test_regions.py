"""Patches of one extent on plates of different pixel size, and the slices that they show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from iohub.ngff import open_ome_zarr

from cellcohort.data.timelapse import load_cells, load_timelapse
from cellcohort.datasets.images.patches import Patches
from cellcohort.datasets.images.regions import Region, brought_to
from cellcohort.sampling.batch import Batch
from plates import entry, tracks_of, write_collection, write_plate

SIZES = {"fine": 0.25, "coarse": 0.5}
SHAPES = {"fine": (4, 2, 1, 120, 160), "coarse": (4, 2, 1, 60, 80)}
STACK = (6, 2, 9, 24, 32)


def scene(name: str) -> np.ndarray:
    """What both microscopes see: smooth in micrometers from the corner of the image, another one at every frame."""
    shape, size = SHAPES[name], SIZES[name]
    y, x = ((np.arange(n) + 0.5) * size for n in shape[3:])
    t, c = np.arange(shape[0])[:, None, None, None, None], np.arange(2)[:, None, None, None]
    return (500 + 200 * np.sin(y[:, None] / 3 + t) * np.cos(x / 4 + c)).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same cells under two microscopes."""
    path = tmp_path_factory.mktemp("plates")
    for name, size in SIZES.items():
        write_plate(path / f"{name}.zarr", {"A/1/0": SHAPES[name]}, pixel_size=size)
        with open_ome_zarr(path / f"{name}.zarr", mode="r+") as plate:
            plate["A/1/0"].create_image("images", scene(name), chunks=(1, 1, 1, 32, 32))
            attributes = plate["A/1/0"].zgroup.attrs
            ome = json.loads(json.dumps(attributes["ome"]))
            ome["multiscales"] = [{**ome["multiscales"][0], "datasets": [
                {**ome["multiscales"][0]["datasets"][0], "path": "images"}]}]  # fmt: skip
            attributes["ome"] = ome
        tracks = tracks_of(["A/1/0"], SHAPES["coarse"])
        tracks = tracks.assign(**{axis: (tracks[axis] + 0.5) * 0.5 / size - 0.5 for axis in "yx"})
        tracks.to_parquet(path / f"{name}.parquet")
    return path


def load(folder: Path, cache: Path, **options: Any) -> Patches:
    entries = [entry(name, conditions={"mock": ["A/1"]}, coordinates="pixel") for name in SIZES]
    usual = {"patch": (1, 12, 16), "normalise": "none", "cache": cache}
    return load_timelapse(write_collection(folder, *entries), **{**usual, **options})


def expected(name: str, t: int, centre: tuple[float, float], region: tuple[int, int]) -> np.ndarray:
    """The scene around a centre, cut out of the image that was written."""
    image = scene(name)[t, :, 0]
    corner = [
        int(np.clip(np.floor(at + 0.5 - (n - 1) / 2), 0, size - n))
        for at, n, size in zip(centre, region, image.shape[1:], strict=True)
    ]
    return image[:, corner[0] : corner[0] + region[0], corner[1] : corner[1] + region[1]]


@pytest.mark.parametrize("pixel_size", [0.5, 0.25])
def test_a_patch_covers_the_same_micrometers_on_every_plate(folder: Path, tmp_path: Path, pixel_size: float) -> None:
    data = load(folder, tmp_path, pixel_size=pixel_size).every_cell()
    assert data.shape == (2, 1, 12, 16)
    frame = data.cells.frame
    made = data.recorded(np.arange(len(data)))
    half = len(frame) // 2
    assert frame["experiment"].tolist() == ["fine"] * half + ["coarse"] * half
    inside = 0
    for position, row in enumerate(frame.itertuples()):
        factor = pixel_size / SIZES[row.experiment]
        region = (round(12 * factor), round(16 * factor))
        cut = expected(row.experiment, row.t, (row.y, row.x), region)
        if factor == 1:
            np.testing.assert_array_equal(made[position, :, 0], cut)
        elif factor == 2:  # each pixel of a patch is in the middle of four
            blocks = cut.reshape(2, 12, 2, 16, 2).mean(axis=(2, 4))
            np.testing.assert_allclose(made[position, :, 0, 1:-1, 1:-1], blocks[:, 1:-1, 1:-1], rtol=2e-3)
        inside += region[0] < row.y < SHAPES[row.experiment][3] - region[0]
    pairs = made[:half], made[half:]
    near = np.abs(pairs[0] - pairs[1])[..., 2:-2, 2:-2].max(axis=(1, 2, 3, 4))
    assert inside > 10 and np.median(near) < 12, "the same cells look the same: of 400, half a pixel makes up to 17"
    both = load(folder, tmp_path).every_cell().recorded(np.arange(len(data)))
    assert np.median(np.abs(both[:half] - both[half:])[..., 2:-2, 2:-2].max(axis=(1, 2, 3, 4))) > 60


def test_batches_hold_the_patches_that_are_recorded(folder: Path, tmp_path: Path) -> None:
    data = load(folder, tmp_path, pixel_size=0.4)
    batch = data.__getitems__(np.arange(len(data)))
    every = data.every_cell()
    for side, rows in (("anchor", "row"), ("positive", "positive_row")):
        np.testing.assert_array_equal(batch[side], every.recorded(batch["meta"][rows].numpy()))


def test_plates_that_differ_in_pixel_size_are_remarked(folder: Path, tmp_path: Path) -> None:
    load(folder, tmp_path)

    def remarks(**options: Any) -> list[Any]:
        return list(load_cells(folder / "collection.yaml", patch=(1, 12, 16), cache=tmp_path, **options).remarks)

    (one,) = remarks()
    assert "0.25 in fine (3 micrometers), 0.5 in coarse (6 micrometers)" in one.problem
    assert one.typed == "data.pixel_size=0.5"
    assert not remarks(pixel_size=0.5)


def test_positions_that_differ_in_pixel_size_are_remarked(tmp_path: Path) -> None:
    write_plate(tmp_path / "one.zarr", dict.fromkeys(("A/1/0", "B/2/0"), SHAPES["coarse"]), pixel_size=0.5)
    with open_ome_zarr(tmp_path / "one.zarr", mode="r+") as plate:
        plate["B/2/0"].set_scale("0", "y", 1.25)
        plate["B/2/0"].set_scale("0", "x", 1.25)
    tracks_of(["A/1/0", "B/2/0"], SHAPES["coarse"]).to_parquet(tmp_path / "one.parquet")
    path = write_collection(tmp_path, entry("one", coordinates="pixel"))
    (one,) = load_cells(path, patch=(1, 12, 16), cache=tmp_path / "cache").remarks
    assert one.problem.startswith("Positions differ in the size of a pixel")
    assert "0.5 in one, position A/1/0 (6 micrometers), 1.25 in one, position B/2/0 (15 micrometers)" in one.problem
    assert one.typed == "data.pixel_size=1.25"


def test_an_image_of_one_value_stays_so_however_it_is_scaled() -> None:
    for size in ((7, 9), (24, 30), (12, 16)):
        made = brought_to(np.full((2, 3, 1, *size), 5.0, np.float32), (1, 12, 16))
        assert made.shape == (2, 3, 1, 12, 16)
        np.testing.assert_allclose(made, 5.0, rtol=1e-6)


def test_pixels_that_become_fewer_are_averaged_and_none_is_left_out() -> None:
    noise = np.random.default_rng(0).normal(0, 1, (1, 1, 1, 128, 128)).astype(np.float32)
    made = brought_to(noise, (1, 16, 16))
    assert made.std() < 0.15, "of 64 pixels or more each; of four it would be 0.5"
    np.testing.assert_allclose(made.mean(), noise.mean(), atol=0.01)


def test_a_plate_without_a_pixel_size_is_named(folder: Path, tmp_path: Path) -> None:
    write_plate(tmp_path / "bare.zarr", {"A/1/0": SHAPES["coarse"]})
    tracks_of(["A/1/0"], SHAPES["coarse"]).to_parquet(tmp_path / "bare.parquet")
    path = write_collection(tmp_path, entry("bare", conditions={"mock": ["A/1"]}))
    with pytest.raises(ValueError, match=r"bare\.zarr gives no pixel size for position A/1/0.*data\.pixel_size=null"):
        load_timelapse(path, patch=(1, 12, 16), pixel_size=0.5, cache=tmp_path / "cache")
    with pytest.raises(
        ValueError, match=r"pixel_size=0\.001 makes a patch of .* smaller than one pixel .* of 0\.25 microm"
    ):
        load(folder, tmp_path, pixel_size=0.001)
    with pytest.raises(
        ValueError, match=r"\[1, 40, 60\].*, which is \[1, 160, 240\] pixels of the plate, does not fit into 2"
    ):
        load(folder, tmp_path, pixel_size=1.0, patch=(1, 40, 60))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"pixel_size": 0.0}, "pixel_size=0.0 must be"),
        ({"pixel_size": float("nan")}, "pixel_size=nan must be"),
        ({"z": "middle"}, "z='middle' is not a choice; use one of centre, random, focus, max"),
        ({"z": "max", "patch": (3, 12, 16)}, r"z='max' makes one slice.*\[3, 12, 16\] has 3; set data\.patch=\[1, 12"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Region(**{"patch": (1, 12, 16), **options})


# ---- slices


def stack(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(100, 1000, STACK).astype(np.uint16)


def stacked(folder: Path) -> Path:
    write_plate(folder / "one.zarr", {"A/1/0": STACK, "B/2/0": STACK}, chunks=(1, 1, 4, 24, 32))
    with open_ome_zarr(folder / "one.zarr", mode="r+") as plate:
        for number, (_, position) in enumerate(plate.positions()):
            position["0"][:] = stack(number)
    tracks_of(["A/1/0", "B/2/0"], STACK).to_parquet(folder / "one.parquet")
    return folder


@pytest.fixture(scope="module")
def stacks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stacked(tmp_path_factory.mktemp("stacks"))


def load_stacks(folder: Path, cache: Path, **options: Any) -> Patches:
    usual = {"patch": (3, 24, 32), "normalise": "none", "cache": cache, "tau_hours": (0.5, 2.0)}
    return load_timelapse(write_collection(folder, entry("one")), **{**usual, **options})


def slices_of(patches: np.ndarray, frame: pd.DataFrame, n: int = 3) -> list[int]:
    """The first slice of each patch, as large as an image in the plane; exactly one fits."""
    images = {"A/1/0": stack(0), "B/2/0": stack(1)}
    found = []
    for patch, row in zip(patches, frame.itertuples(), strict=True):
        image = images[row.fov][row.t]
        (first,) = [z for z in range(STACK[2] - n + 1) if np.array_equal(patch, image[:, z : z + n])]
        found.append(first)
    return found


def test_random_slabs_are_evenly_drawn_by_seed_epoch_and_cell_and_evaluation_takes_the_centre(
    stacks: Path, tmp_path: Path
) -> None:
    data = load_stacks(stacks, tmp_path, z="random")
    frame = data.every_cell().cells.frame
    assert set(slices_of(data.recorded(np.arange(len(data))), data.cells.frame)) == {3}
    drawn = []
    for epoch in range(40):
        batch = data.__getitems__(Batch(list(range(len(data))), epoch, 0))
        sides = [
            slices_of(batch[side].numpy(), frame.iloc[batch["meta"][rows].numpy()])
            for side, rows in (("anchor", "row"), ("positive", "positive_row"))
        ]
        assert sides[0] != sides[1] and sides[0] != drawn[-len(data) :]
        drawn += sides[0]
    again = data.__getitems__(Batch([4, 2], 39, 7))
    assert np.array_equal(again["anchor"], batch["anchor"][[4, 2]]), "a draw is of the cell and the epoch alone"
    share = np.bincount(drawn, minlength=7) / len(drawn)
    assert len(share) == 7 and share == pytest.approx(np.full(7, 1 / 7), abs=0.05)


def test_the_greatest_value_of_all_slices_is_one_slice(stacks: Path, tmp_path: Path) -> None:
    data = load_stacks(stacks, tmp_path, z="max", patch=(1, 24, 32)).every_cell()
    made, images = data.recorded(np.arange(len(data))), {"A/1/0": stack(0), "B/2/0": stack(1)}
    assert data.shape == (2, 1, 24, 32)
    for patch, row in zip(made, data.cells.frame.itertuples(), strict=True):
        np.testing.assert_array_equal(patch[:, 0], images[row.fov][row.t].max(axis=1))


@pytest.mark.parametrize("options", [{"z": "max", "patch": (1, 12, 16)}, {"z": "random", "patch": (5, 12, 16)}])
def test_cells_near_the_first_slice_do_not_reach_over_the_border_where_slices_are_not_those_around_them(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    folder = stacked(tmp_path)
    file = folder / "one.parquet"
    pd.read_parquet(file).assign(z=0.0, y=12.0, x=16.0).to_parquet(file)
    assert len(load_stacks(folder, tmp_path / "cache", border="drop", **options).every_cell()) == len(
        pd.read_parquet(file)
    )
    with pytest.raises(ValueError, match="border='drop' leaves no cell"):
        load_stacks(folder, tmp_path / "cache", border="drop", patch=(5, 12, 16))


def test_the_slice_in_focus_is_the_one_that_is_stored(tmp_path: Path) -> None:
    folder = stacked(tmp_path)
    of_channel = {"per_timepoint": {"0": 0, "1": 2, "2": 5}, "fov_statistics": {"z_focus_mean": 6.4}}
    with open_ome_zarr(folder / "one.zarr", mode="r+") as plate:
        plate["A/1/0"].zattrs["focus_slice"] = {"Other": {"per_timepoint": {"0": 8}}, "Marker": of_channel}
        plate["B/2/0"].zattrs["focus_slice"] = {"Other": {"dataset_statistics": {"z_focus_mean": 8}}}
    data = load_stacks(folder, tmp_path / "cache", z="focus").every_cell()
    frame = data.cells.frame
    wanted = {0: 0, 1: 1, 2: 4}  # of three slices, inside the stack; 6.4 is nearest to the seventh slice
    expected = [6 if row.fov == "B/2/0" else wanted.get(row.t, 5) for row in frame.itertuples()]
    assert slices_of(data.recorded(np.arange(len(data))), frame) == expected
    assert not list((tmp_path / "cache").glob("focus-*"))


def test_the_slice_in_focus_is_that_of_the_strongest_details(tmp_path: Path) -> None:
    """Blurred more, the further a slice is from one that drifts through the stack."""
    from scipy.ndimage import gaussian_filter

    folder = stacked(tmp_path)
    sharp = np.random.default_rng(0).normal(0, 300, STACK[3:])
    focus = [2, 3, 4, 5, 6, 7]
    sigma = 0.8 + 0.5 * np.abs(np.arange(STACK[2]) - np.array(focus)[:, None])
    images = np.stack([[1000 + gaussian_filter(sharp, one) for one in of_frame] for of_frame in sigma])
    images = images + np.random.default_rng(1).normal(0, 3, images.shape)
    with open_ome_zarr(folder / "one.zarr", mode="r+") as plate:
        plate["A/1/0"]["0"][:, 0] = images.astype(np.uint16)
        plate["B/2/0"].zattrs["focus_slice"] = {"Phase": {"fov_statistics": {"z_focus_mean": 1}}}

    def first() -> dict[tuple[str, int], int]:
        data = load_stacks(folder, tmp_path / "cache", z="focus", patch=(1, 24, 32)).every_cell()
        rows = zip(data.cells.frame["fov"], data.cells.frame["t"], strict=True)
        return dict(zip(rows, data._place.numpy()[:, 2].tolist(), strict=True))

    found = first()
    assert found == {(fov, t): focus[t] if fov == "A/1/0" else 1 for fov, t in found}
    with open_ome_zarr(folder / "one.zarr", mode="r+") as plate:
        plate["A/1/0"]["0"][2] = 7
    with pytest.warns(UserWarning, match="frame 2 is of one value"):
        assert first() == {place: z for place, z in found.items() if place != ("A/1/0", 2)}, "none is looked for there"
    with open_ome_zarr(folder / "one.zarr", mode="r+") as plate:
        plate["A/1/0"]["0"][:] = 7
    with pytest.warns(UserWarning, match="frames 0 to 5 are of one value"):
        assert set(first()) == {place for place in found if place[0] == "B/2/0"}
