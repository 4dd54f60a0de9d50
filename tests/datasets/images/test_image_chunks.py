"""Chunks that are missing or damaged, by themselves and inside a shard."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
import zarr

from cellcohort.data.timelapse import load_timelapse
from cellcohort.datasets.images.patches import Patches
from cellcohort.datasets.images.storage import ReadError
from plates import SHAPE, entry, pixels, tracks_of, write_collection, write_plate

POSITIONS = ("A/1/0", "B/2/0")
PER_SHARD = (4, 2, 1, 2, 1)  # chunks of (1, 1, 1, 20, 48) in a shard
MISSING = 2**64 - 1


@pytest.fixture(scope="module")
def plate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plate") / "one.zarr"
    return write_plate(path, dict.fromkeys(POSITIONS, SHAPE), chunks=(1, 1, 1, 20, 48), shards=PER_SHARD)


@pytest.fixture
def folder(plate: Path, tmp_path: Path) -> Path:
    shutil.copytree(plate, tmp_path / "one.zarr")
    tracks_of(POSITIONS).to_parquet(tmp_path / "one.parquet")
    return tmp_path


def load(folder: Path, **options: Any) -> Patches:
    path = write_collection(folder, entry("one"))
    return load_timelapse(path, **{"patch": (1, 12, 16), "cache": folder / "cache", **options})


def shard_of(folder: Path, number: int = 0) -> Path:
    """The shard of B/2/0 with frames 0-3, or 4-7."""
    return folder / "one.zarr" / "B" / "2" / "0" / "0" / f"c/{number}/0/0/0/0"


def lose_chunk(shard: Path, at: tuple[int, ...] = (3, 1, 0, 0, 0)) -> None:
    """Take a chunk (frame 3 of the marker) out of a shard: its entry in the index says that it is not stored."""
    content = shard.read_bytes()
    size = 16 * int(np.prod(PER_SHARD))
    index = np.frombuffer(content[-size - 4 : -4], "<u8").reshape(*PER_SHARD, 2).copy()
    index[at] = MISSING
    shard.write_bytes(
        content[: -size - 4] + index.tobytes() + google_crc32c.value(index.tobytes()).to_bytes(4, "little")
    )


def cut_off(shard: Path) -> None:
    shard.write_bytes(shard.read_bytes()[:-40])


def everything(data: Patches) -> np.ndarray:
    every = data.every_cell()
    return every.recorded(np.arange(len(every)))


def test_a_chunk_missing_inside_a_shard_is_refused(folder: Path) -> None:
    load(folder)  # so that the index is in the cache
    lose_chunk(shard_of(folder))
    for _ in range(2):
        with pytest.raises(ReadError) as error:
            load(folder)
        for words in ("1 of 64 chunks are missing", "position B/2/0 of one", "frame 3", "channel 1", "c/0/0/0/0/0"):
            assert words in str(error.value)


def test_a_chunk_lost_from_a_shard_later_stops_the_pass(folder: Path) -> None:
    data = load(folder, cache_megabytes=0)
    everything(data)
    lose_chunk(shard_of(folder))
    with pytest.raises(ReadError, match=r"position B/2/0 of one cannot be read at frame 3, channel 1 .*not stored in"):
        everything(data)


@pytest.mark.parametrize("damage", [lose_chunk, Path.unlink])
def test_a_missing_chunk_is_fill_values_where_a_sharded_store_says_so(
    folder: Path, damage: Callable[[Path], None]
) -> None:
    damage(shard_of(folder))
    zarr.open_array(folder / "one.zarr", path="B/2/0/0", mode="r+").attrs["write_empty_chunks"] = False
    with pytest.warns(UserWarning, match="are kept: position B/2/0 of one"):
        data = load(folder, normalise="none", patch=(1, 40, 48), blank_frames="keep")
    frame = data.every_cell().cells.frame
    read = everything(data)
    here = (frame["fov"] == "B/2/0").to_numpy()
    assert np.array_equal(read[~here], pixels(0)[frame["t"][~here]])
    images = pixels(1).copy()
    images[:4] = 0 if damage is Path.unlink else images[:4]
    images[3, 1, :, :20] = 0
    assert np.array_equal(read[here], images[frame["t"][here]])


@pytest.mark.parametrize("normalise", ["position", "none"])
def test_all_of_a_shard_that_is_cut_off_is_unreadable(folder: Path, normalise: str) -> None:
    cut_off(shard_of(folder, 1))
    with pytest.raises(ReadError) as error:
        load(folder, normalise=normalise)
    for words in ("shard", "c/1/0/0/0/0", "position B/2/0 of one", "frames 4 to 7", "channels 0 to 1"):
        assert words in str(error.value)


def test_all_of_a_shard_that_is_cut_off_later_is_unreadable(folder: Path) -> None:
    data = load(folder, cache_megabytes=0)
    cut_off(shard_of(folder, 1))
    with pytest.raises(ReadError, match=r"frames 4 to 7.*channels 0 to 1"):
        everything(data)


def test_one_damaged_chunk_of_a_shard_is_named_alone(folder: Path) -> None:
    shard = shard_of(folder)
    content = bytearray(shard.read_bytes())
    size = 16 * int(np.prod(PER_SHARD))
    index = np.frombuffer(bytes(content[-size - 4 : -4]), "<u8").reshape(*PER_SHARD, 2)
    start, length = map(int, index[2, 1, 0, 1, 0])
    content[start : start + length] = b"\xff" * length
    shard.write_bytes(content)
    with pytest.raises(ReadError, match=r"position B/2/0 of one cannot be read at frame 2, channel 1 "):
        everything(load(folder, normalise="none", patch=(1, 40, 48)))


def test_a_chunk_lost_after_the_index_was_cached_is_refused(tmp_path: Path) -> None:
    write_plate(tmp_path / "one.zarr", dict.fromkeys(POSITIONS, SHAPE))
    tracks_of(POSITIONS).to_parquet(tmp_path / "one.parquet")
    load(tmp_path, normalise="none")
    (tmp_path / "one.zarr/B/2/0/0/c/3/1/0/0/0").unlink()
    with pytest.raises(ReadError, match=r"1 of 32 chunks are missing, .*frame 3, channel 1"):
        load(tmp_path, normalise="none")
