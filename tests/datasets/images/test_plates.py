"""Plates as others publish them: fewer axes, other chunks, shards, tables and labels beside the images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import zarr

from cellcohort.data.timelapse import load_timelapse
from cellcohort.datasets.images.patches import Patches
from cellcohort.loading.rows import make_loader
from cellcohort.sampling import BatchSampler, ConditionBalanced
from plates import entry, pixels, tracks_of, write_collection

FULL = {"t": 6, "c": 2, "z": 3, "y": 40, "x": 48}
PATCH = (1, 12, 16)
KINDS = {"t": "time", "c": "channel", "z": "space", "y": "space", "x": "space"}


def write_layout(
    path: Path,
    axes: str,
    version: str = "0.4",
    wells: Sequence[str] = ("A/1", "B/2"),
    channels: Sequence[str] | None = ("Phase", "Marker"),
    chunks: Mapping[str, int] = {"t": 1, "c": 1, "z": 1, "y": 20, "x": 48},
    per_shard: Mapping[str, int] | None = None,
) -> None:
    """A plate written with zarr alone, in two levels, with tables and labels beside the images and in the wells."""
    zarr_format = 2 if version == "0.4" else 3

    def annotate(group: zarr.Group, metadata: dict[str, Any]) -> None:
        group.attrs.update(metadata if zarr_format == 2 else {"ome": {**metadata, "version": version}})

    root = zarr.open_group(path, mode="w", zarr_format=zarr_format)
    rows, columns = (sorted({well.split("/")[i] for well in wells}) for i in (0, 1))
    listed = [
        {"path": well, "rowIndex": rows.index(well.split("/")[0]), "columnIndex": columns.index(well.split("/")[1])}
        for well in wells
    ]
    listed.append({"path": "A/2", "rowIndex": 0, "columnIndex": 1})  # not stored, as in a part of a plate
    plate = {"rows": [{"name": name} for name in rows], "columns": [{"name": name} for name in columns]}
    annotate(root, {"plate": {**plate, "wells": listed, "version": version}})
    shape = tuple(FULL.get(axis, 1) if axis in axes else 1 for axis in "tczyx")
    for number, well in enumerate(wells):
        group = root.create_group(well)
        annotate(group, {"well": {"images": [{"path": "0"}], "version": version}})
        group.create_group("tables/regions")
        group.create_group("labels")
        image = group.create_group("0")
        datasets = []
        for level in (0, 1):
            scale = [0.65 * 2**level if axis in "yx" else 1.0 for axis in axes]
            datasets.append({"path": str(level), "coordinateTransformations": [{"type": "scale", "scale": scale}]})
        named = [{"name": a, "type": KINDS[a]} | ({"unit": "micrometer"} if KINDS[a] == "space" else {}) for a in axes]
        metadata: dict[str, Any] = {"multiscales": [{"axes": named, "datasets": datasets, "version": version}]}
        if channels is not None:
            metadata["omero"] = {"channels": [{"label": name} for name in channels]}
        annotate(image, metadata)
        stored = pixels(number, shape).reshape([FULL[axis] for axis in axes])
        chunk = tuple(min(chunks[axis], FULL[axis]) for axis in axes)
        options: dict[str, Any] = {"chunks": chunk}
        if per_shard is not None:
            options["shards"] = tuple(n * per_shard[axis] for n, axis in zip(chunk, axes, strict=True))
        if zarr_format == 2:
            options["chunk_key_encoding"] = {"name": "v2", "separator": "/"}
        image.create_array("0", data=stored, **options)
        image.create_array("1", data=stored[..., ::2, ::2], chunks=(1,) * (len(axes) - 2) + (20, 24))
        label = image.create_group("labels/nuclei")
        label.create_array("0", data=np.ones(stored.shape[-2:], np.uint32), chunks=(40, 48))
        image.create_group("tables/measurements").create_array("x", data=np.arange(3.0), chunks=(3,))


def cells_of(axes: str, wells: Sequence[str] = ("A/1", "B/2")) -> pd.DataFrame:
    frames = FULL["t"] if "t" in axes else 1
    tracks = tracks_of([f"{well}/0" for well in wells], (max(frames, 2), 2, 1, FULL["y"], FULL["x"]))
    return tracks if "t" in axes else tracks[tracks["t"] == 0]


def load(folder: Path, tracks: pd.DataFrame, entries: Mapping[str, Any] | None = None, **options: Any) -> Patches:
    tracks.to_parquet(folder / "one.parquet", index=False)
    path = write_collection(folder, entry("one", coordinates="pixel", **(entries or {})))
    return load_timelapse(path, patch=PATCH, cache=folder / "cache", **options)


def check_pixels(data: Patches, axes: str, channels: Sequence[int] = (0, 1)) -> None:
    """Every patch is that of the image around its cell."""
    every = data.every_cell()
    read, frame = every.recorded(np.arange(len(every))), every.cells.frame
    shape = tuple(FULL.get(axis, 1) if axis in axes else 1 for axis in "tczyx")
    for patch, row in zip(read, frame.itertuples(), strict=True):
        image = pixels(["A/1/0", "B/2/0"].index(str(row.fov)), shape)[row.t, list(channels)]
        z, y, x = (
            int(np.clip(np.floor(at - (n - 1) / 2 + 0.5), 0, size - n))
            for at, n, size in zip((row.z, row.y, row.x), PATCH, shape[2:], strict=True)
        )
        assert np.array_equal(patch, image[:, z : z + PATCH[0], y : y + PATCH[1], x : x + PATCH[2]])


@pytest.mark.parametrize(
    ("axes", "version"),
    [("tcyx", "0.5"), ("tzyx", "0.4"), ("tyx", "0.5"), ("czyx", "0.5"), ("cyx", "0.4"), ("zyx", "0.4"), ("yx", "0.5")],
)
def test_images_may_lack_axes(tmp_path: Path, axes: str, version: str) -> None:
    write_layout(tmp_path / "one.zarr", axes, version)
    channels = ["Phase", "Marker"] if "c" in axes else ["Phase"]
    single = {} if "t" in axes else {"positive": "columns", "positive_columns": ["condition"]}
    data = load(tmp_path, cells_of(axes), {"channels": channels}, normalise="none", **single)
    assert len(data) > 0 and data.shape == (len(channels), *PATCH)
    check_pixels(data, axes, range(len(channels)))


LAYOUTS: dict[str, dict[str, Any]] = {
    "0.4, CZYX, one file per slice": {"axes": "czyx"},
    "0.4, TCZYX, chunks of several frames": {
        "axes": "tczyx",
        "chunks": {"t": 4, "c": 2, "z": 3, "y": 16, "x": 16},
    },
    "0.5, TCYX, sharded": {
        "axes": "tcyx",
        "version": "0.5",
        "per_shard": {"t": 3, "c": 2, "z": 1, "y": 2, "x": 1},
    },
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_public_layouts_are_read_end_to_end(tmp_path: Path, layout: str) -> None:
    options = LAYOUTS[layout]
    write_layout(tmp_path / "one.zarr", **options)
    single = {} if "t" in options["axes"] else {"positive": "columns", "positive_columns": ["condition"]}
    check_pixels(load(tmp_path, cells_of(options["axes"]), normalise="none", **single), options["axes"])
    data = load(tmp_path, cells_of(options["axes"]), normalise="plate", **single)
    sampler = BatchSampler(data.cells, {"condition": ConditionBalanced()}, batch_size=6)
    batches = list(make_loader(data, sampler))
    assert len(batches) == len(sampler) > 0
    for batch in batches:
        assert batch["anchor"].shape == (6, 2, *PATCH) and bool(batch["positive"].isfinite().all())
        conditions = data.cells.frame["condition"].iloc[batch["meta"]["position"].numpy()]
        assert conditions.value_counts().tolist() == [3, 3]


def test_channels_without_names_have_numbers(tmp_path: Path) -> None:
    write_layout(tmp_path / "one.zarr", "tcyx", channels=None)
    check_pixels(load(tmp_path, cells_of("tcyx"), {"channels": [1, 0]}, normalise="none"), "tcyx", (1, 0))
    with pytest.raises(ValueError, match=r"no channel Phase, Marker; its channels are 0, 1 \(numbers, since the plate"):
        load(tmp_path, cells_of("tcyx"))


def test_tables_of_images_without_time_need_no_frames_and_tracks(tmp_path: Path) -> None:
    write_layout(tmp_path / "one.zarr", "cyx")
    tracks = cells_of("cyx")
    own = {"positive": "columns", "positive_columns": ["condition"], "normalise": "none"}
    expected = load(tmp_path, tracks, **own).cells.frame
    data = load(tmp_path, tracks.drop(columns=["t", "track_id", "parent_track_id"]), {"interval_minutes": None}, **own)
    assert sorted(data.cells.frame["y"]) == sorted(expected["y"])
    assert data.cells.frame["track"].nunique() == len(data) and (data.cells.frame["hours"] == 1.0).all()
    check_pixels(data, "cyx")


def test_an_interval_is_needed_where_images_have_several_frames(tmp_path: Path) -> None:
    write_layout(tmp_path / "one.zarr", "tcyx")
    with pytest.raises(ValueError, match=r"experiment one lacks interval_minutes, .*6 frames"):
        load(tmp_path, cells_of("tcyx"), {"interval_minutes": None})
    with pytest.raises(ValueError, match="tracks of one have no column t; "):
        load(tmp_path, cells_of("tcyx").drop(columns="t"))


@pytest.mark.parametrize("axes", ["ctyx", "tcxy", "tczy"])
def test_axes_in_another_order_are_refused(tmp_path: Path, axes: str) -> None:
    write_layout(tmp_path / "one.zarr", axes)
    with pytest.raises(ValueError, match=r"has axes \[.*\] and shape .* must be t, c, z, y, x in this order"):
        load(tmp_path, cells_of("tcyx"))


def test_a_plate_that_lists_no_stored_image_is_refused(tmp_path: Path) -> None:
    write_layout(tmp_path / "one.zarr", "tcyx", wells=())
    with pytest.raises(ValueError, match=r"the plate of one lists no image that is stored"):
        load(tmp_path, cells_of("tcyx"))


def test_a_position_without_images_is_refused_with_its_name(tmp_path: Path) -> None:
    write_layout(tmp_path / "one.zarr", "tcyx")
    zarr.open_group(tmp_path / "one.zarr/B/2/0", mode="r+").attrs["multiscales"] = []
    with pytest.raises(ValueError, match=r"position B/2/0 of one .* has no image that can be read"):
        load(tmp_path, cells_of("tcyx"))


@pytest.mark.parametrize(
    "transforms",
    [None, "x", ["x"], {"type": "scale"}, [{"type": "scale", "path": "scale"}], [{"type": "scale", "scale": [2.0]}],
     [{"type": "scale", "scale": [1.0, None, 0.5, 0.5]}], [{"type": "scale", "scale": [1.0, 1.0, 0.0, 0.0]}]],
)  # fmt: skip
def test_transformations_that_say_nothing_leave_the_pixel_size_unknown(tmp_path: Path, transforms: Any) -> None:
    write_layout(tmp_path / "one.zarr", "tcyx")
    for well in ("A/1", "B/2"):
        group = zarr.open_group(tmp_path / f"one.zarr/{well}/0", mode="r+")
        multiscales: Any = group.attrs["multiscales"]
        multiscales[0]["datasets"][0]["coordinateTransformations"] = transforms
        group.attrs["multiscales"] = multiscales
    check_pixels(load(tmp_path, cells_of("tcyx"), normalise="none"), "tcyx")
    with pytest.raises(ValueError, match=r"one\.zarr gives no pixel size for position A/1/0 of one"):
        load(tmp_path, cells_of("tcyx"), pixel_size=0.5)


@pytest.mark.parametrize("wells", [None, [None], [{"row": "A"}], "x"])
def test_a_plate_whose_wells_have_no_path_is_refused(tmp_path: Path, wells: Any) -> None:
    write_layout(tmp_path / "one.zarr", "tcyx")
    zarr.open_group(tmp_path / "one.zarr", mode="r+").attrs["plate"] = {"wells": wells}
    with pytest.raises(ValueError, match=r"the plate of one lists no image that is stored.*Its metadata must list"):
        load(tmp_path, cells_of("tcyx"))


@pytest.mark.parametrize("name", ["B/2", "B/2/0"])
def test_metadata_that_are_cut_off_are_named(tmp_path: Path, name: str) -> None:
    write_layout(tmp_path / "one.zarr", "tcyx")
    file = tmp_path / "one.zarr" / name / ".zattrs"
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(ValueError, match=rf"the metadata of {name} in .*one\.zarr cannot be read .*Store them again"):
        load(tmp_path, cells_of("tcyx"))
