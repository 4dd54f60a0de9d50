"""How long it takes to index plates of tracked cells, to look for frames without an image, and to measure brightness.

    uv run python scripts/bench_timelapse.py
    uv run python scripts/bench_timelapse.py --plates 10 --cells 1000000

Plates of small images are written with as many tracked cells as asked, in all. The index is made as training makes it,
once from the tables and once from what was kept; brightness is measured by frame and by position. Every figure is of
one pass, since what was kept would be read in a second one. On a loaded machine, time of processors tells more.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from iohub.ngff import open_ome_zarr

from cellcohort.datasets.images.collection import read_collection
from cellcohort.datasets.images.index import make_index
from cellcohort.datasets.images.intensity import scaling
from cellcohort.datasets.images.regions import Region

FRAMES, SIZE = 50, 96
WELLS = [f"{row}/{column}" for row in "ABCD" for column in range(1, 4)]


def write(folder: Path, plates: int, cells: int) -> Path:
    """Write a collection of plates with so many cells in all."""
    rng, entries = np.random.default_rng(0), []
    images = rng.integers(100, 1000, (FRAMES, 2, 1, SIZE, SIZE)).astype(np.uint16)
    tracks = round(cells / plates / len(WELLS) / FRAMES)
    for number in range(plates):
        name = f"plate_{number}"
        with open_ome_zarr(folder / f"{name}.zarr", layout="hcs", mode="w-", version="0.5",
                           channel_names=["Phase", "Marker"]) as plate:  # fmt: skip
            for well in WELLS:
                position = plate.create_position(*well.split("/"), "0")
                position.create_image("0", images, chunks=(1, 1, 1, SIZE, SIZE))
        shape = len(WELLS), tracks, FRAMES
        well, track, t = (axis.ravel() for axis in np.indices(shape))
        half = t >= FRAMES // 2  # every track divides, and one daughter goes on
        table = pd.DataFrame(
            {
                "position": np.array([f"{one}/0" for one in WELLS], object)[well],
                "track_id": track * 2 + half + 1,
                "t": t,
                "y": rng.uniform(0, SIZE - 1, len(t)),
                "x": rng.uniform(0, SIZE - 1, len(t)),
                "parent_track_id": np.where(half, track * 2 + 1, 0),
            }
        )
        table.sample(frac=1, random_state=number).to_parquet(folder / f"{name}.parquet")
        conditions = {"mock": WELLS[: len(WELLS) // 2], "infected": WELLS[len(WELLS) // 2 :]}
        entries.append({"name": name, "plate": f"{name}.zarr", "tracks": f"{name}.parquet", "conditions": conditions,
                        "interval_minutes": 30, "channels": ["Phase", "Marker"]})  # fmt: skip
    (folder / "collection.yaml").write_text(yaml.safe_dump({"experiments": entries}))
    return folder / "collection.yaml"


def told(what: str, work: Callable[[], Any]) -> Any:
    start, used = time.perf_counter(), time.process_time()
    made = work()
    wall, cpu = time.perf_counter() - start, time.process_time() - used
    print(f"  {what:44}{wall:8.2f} s, {cpu:.2f} s of processors", flush=True)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plates", type=int, nargs="+", default=[1, 10])
    parser.add_argument("--cells", type=int, default=1_000_000)
    arguments = parser.parse_args()
    region = Region((1, 32, 32))
    for plates in arguments.plates:
        with tempfile.TemporaryDirectory() as folder:
            collection = read_collection(write(Path(folder), plates, arguments.cells))
            cache = Path(folder) / "cache"
            print(f"{plates} plates of {len(WELLS)} positions with {arguments.cells:,} cells in all")
            index = told("index and frames, from the tables", lambda: make_index(collection, region, "clamp", cache))  # noqa: B023
            told("index and frames, from what was kept", lambda: make_index(collection, region, "clamp", cache))  # noqa: B023
            told("brightness by position", lambda: scaling(index, "position", cache))  # noqa: B023
            told("brightness by frame, medians", lambda: scaling(index, "frame", cache, "median"))  # noqa: B023


if __name__ == "__main__":
    main()
