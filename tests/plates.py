"""Tiny plates with tracks, whose pixels say where they are from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import yaml
from iohub.ngff import open_ome_zarr
from iohub.ngff.models import TransformationMeta

SHAPE = (8, 2, 1, 40, 48)
CHANNELS = ("Phase", "Marker")
STORED = {"one": ("Phase", "Marker"), "two": ("GFP",), "three": ("DAPI", "GFP", "Phase")}  # of three plates
PIXELS = {"one": 0.5, "two": 0.4, "three": 0.65}  # micrometers


def pixels(salt: int, shape: Sequence[int] = SHAPE) -> np.ndarray:
    """Images (t, c, z, y, x) in which any patch is told from any other."""
    t, c, z, y, x = np.ogrid[tuple(slice(n) for n in shape)]
    return ((t * 7001 + c * 911 + z * 131 + y * 57 + x * 13 + salt * 3001 + x * y) % 60013).astype(np.uint16)


def write_plate(
    path: Path,
    fields: Mapping[str, Sequence[int]],
    version: Literal["0.4", "0.5"] = "0.5",
    channels: Sequence[str] = CHANNELS,
    chunks: Sequence[int] | None = None,
    salt: int = 0,
    shards: Sequence[int] | None = None,
    pixel_size: float = 1.0,
) -> Path:
    """A plate with a field of the given shape at each position; images are ``pixels(salt + number, shape)``.

    `shards` gives the chunks of a shard along each axis; `pixel_size` is in micrometers.
    """
    with open_ome_zarr(path, layout="hcs", mode="w-", version=version, channel_names=list(channels)) as plate:
        for number, (name, shape) in enumerate(fields.items()):
            row, column, fov = name.split("/")
            position = plate.create_position(row, column, fov)
            position.create_image(
                "0",
                pixels(salt + number, shape),
                chunks=tuple(chunks or (1, 1, *shape[2:])),
                shards_ratio=shards,
                transform=[TransformationMeta(type="scale", scale=[1.0, 1.0, 1.0, pixel_size, pixel_size])],
            )
    return path


def tracks_of(positions: Sequence[str], shape: Sequence[int] = SHAPE, seed: int = 0) -> pd.DataFrame:
    """In each position: tracks 1 and 2, which divide into 3, 4 (of 1) and 5 (of 2), and 6, which has gaps."""
    rng, rows = np.random.default_rng(seed), []
    half = shape[0] // 2
    lives = {1: range(half), 2: range(half), 3: range(half, shape[0]), 4: range(half, shape[0] - 1)}
    lives |= {5: range(half + 1, shape[0]), 6: range(0, shape[0], 3)}
    for position in positions:
        for track, frames in lives.items():
            for t in frames:
                y, x = rng.uniform(0, shape[3] - 1), rng.uniform(0, shape[4] - 1)
                rows.append((position, track, t, y, x, {3: 1, 4: 1, 5: 2}.get(track, 0)))
    columns = ["position", "track_id", "t", "y", "x", "parent_track_id"]
    return pd.DataFrame(rows, columns=columns).sample(frac=1, random_state=seed, ignore_index=True)


def entry(name: str, **changes: Any) -> dict[str, Any]:
    """The entry of a collection for a plate of wells A/1 and B/2 with its tracks beside it."""
    usual = {
        "name": name,
        "plate": f"{name}.zarr",
        "tracks": f"{name}.parquet",
        "conditions": {"mock": ["A/1"], "infected": ["B/2"]},
        "start_hours": 1.0,
        "interval_minutes": 30,
        "channels": list(CHANNELS),
    }
    return {key: value for key, value in {**usual, **changes}.items() if value is not None}


def write_collection(folder: Path, *entries: Mapping[str, Any]) -> Path:
    file = folder / "collection.yaml"
    file.write_text(yaml.safe_dump({"experiments": list(entries)}, sort_keys=False))
    return file


def two_plates(folder: Path) -> Path:
    """A collection of two plates of different versions, sizes, chunks and orders of channels."""
    positions = ("A/1/0", "B/2/0")
    small, large = SHAPE, (10, 3, 1, 64, 56)
    write_plate(folder / "one.zarr", dict.fromkeys(positions, small), "0.5")
    write_plate(
        folder / "two.zarr", dict.fromkeys(positions, large), "0.4", ("DAPI", "Marker", "Phase"), (2, 3, 1, 32, 32), 5
    )
    tracks_of(positions, small, 1).to_parquet(folder / "one.parquet")
    tracks_of(positions, large, 2).to_csv(folder / "two.csv", index=False)
    return write_collection(folder, entry("one"), entry("two", tracks="two.csv", interval_minutes=60, start_hours=0.0))


def three_plates(folder: Path) -> Path:
    """A collection of plates of two channels, of one, and of three in one chunk, and of different pixel sizes."""
    positions = ("A/1/0", "B/2/0")
    for number, (name, channels) in enumerate(STORED.items()):
        shape = (SHAPE[0], len(channels), *SHAPE[2:])
        chunks = (2, 3, 1, 20, 24) if name == "three" else None
        images = dict.fromkeys(positions, shape)
        write_plate(folder / f"{name}.zarr", images, "0.5", channels, chunks, 10 * number, pixel_size=PIXELS[name])
        tracks_of(positions, seed=number).to_parquet(folder / f"{name}.parquet")
    organelle = {"marker": "TOMM20", "organelle": "mitochondria"}
    return write_collection(
        folder,
        entry("one", channels={"Phase": "brightfield", "Marker": "viral_sensor"}, labels={"cell_line": "A549"}),
        entry("two", channels=["GFP"], labels={"marker": "viral_sensor", "cell_line": "Huh7", "dose": "10"}),
        entry("three", channels={"Phase": "brightfield", "DAPI": None, "GFP": organelle}),
    )
