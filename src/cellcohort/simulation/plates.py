"""Simulated plates on disk: OME-Zarr, tracks, the collection that joins them, and the truth."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from iohub import open_ome_zarr
from iohub.ngff.models import ChannelAxisMeta, SpaceAxisMeta, TimeAxisMeta
from omegaconf import OmegaConf

from cellcohort.files import fingerprint, whole
from cellcohort.messages import whole_number
from cellcohort.simulation.lives import HOURS, live
from cellcohort.simulation.microscope import Microscope, dust

WELLS = {"mock": ("A/1", "A/2"), "infected": ("B/1", "B/2"), "rare_drug": ("C/1",)}
RARE = 0.4  # founders in a well of rare_drug, as a share of those in another well
CHANNELS = ("Phase", "Marker")
AXES = [
    TimeAxisMeta(name="T", unit="second"),
    ChannelAxisMeta(name="C"),
    *(SpaceAxisMeta(name=name, unit="micrometer") for name in "ZYX"),
]
LABELS = ("experiment", "position", "condition")
TRACKS = ("position", "track_id", "t", "y", "x", "parent_track_id")
TRUTH = (*LABELS, "track_id", "t", "y", "x", "family", "phase", "radius", "expression", "onset_hours", "response")


@dataclass(frozen=True)
class Plate:
    """One experiment: how it was seeded, imaged and stored.

    Parameters
    ----------
    name : str
    density : float
        Factor on the founders of a field.
    microscope : Microscope
    version : {"0.4", "0.5"}
        Of OME-Zarr.
    channels : tuple of str
        :data:`CHANNELS` in the order in which they are stored.
    wider : int
        Pixels that a field is wider than it is high.
    """

    name: str
    density: float
    microscope: Microscope
    version: Literal["0.4", "0.5"] = "0.5"
    channels: tuple[str, ...] = CHANNELS
    wider: int = 0


PLATES = (
    Plate("plate_1", 1.0, Microscope(1800, 260, 120, 0.6, 6.0, 1.0, 0.25, 0.2, 0.5)),
    Plate("plate_2", 0.7, Microscope(1100, 420, 240, 1.2, 7.5, 0.8, 0.1, 0.4, 2.5), "0.4", CHANNELS[::-1]),
    Plate("plate_3", 1.3, Microscope(2600, 180, 80, 0.8, 5.0, 1.2, 0.4, 0.1, 4.0), "0.5", wider=32),
    Plate("plate_4", 0.9, Microscope(1400, 600, 380, 1.6, 9.0, 0.9, 0.15, 0.3, 5.5), "0.4"),
)


def screen(path: str | Path, seed: int = 0, founders: int = 16, image_size: int = 256, frames: int = 25) -> Path:
    """Return the simulated screen with these options, written if it is not there, which a line tells.

    It has a directory of its own under `path`, named by a fingerprint of the options and of the code that
    writes it; the directory gets its name when all is in it, so that what has the name is whole.

    Parameters
    ----------
    path : str or Path
        Directory of the simulated screens.
    seed : int
        The same seed gives the same files' contents.
    founders : int
        Cells in the first frame of a field of average density.
    image_size : int
        Height of a field in pixels.
    frames : int
        From 0 to 48 hours.

    Returns
    -------
    pathlib.Path
        Its ``collection.yaml``; ``truth.parquet`` lies beside it.

    Raises
    ------
    ValueError
        An option is out of range.
    """
    options = (
        whole_number("simulation_seed", seed, 0),
        whole_number("founders", founders, 2),
        whole_number("image_size", image_size, 64),
        whole_number("frames", frames, 2),
    )
    code = [file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py"))]
    home = Path(path) / fingerprint(options, *code)
    if not home.exists():
        said = (
            f"simulating {len(PLATES)} time-lapse plates in {home}, which takes a minute or so; later runs read them."
        )
        print(said, file=sys.stderr, flush=True)
        with whole(home) as beside:
            write_screen(beside, *options)
    return home / "collection.yaml"


def write_screen(directory: Path, seed: int, founders: int, image_size: int, frames: int) -> None:
    """Write all plates with their tracks, ``collection.yaml`` and ``truth.parquet`` into a new directory."""
    directory.mkdir(parents=True)
    experiments, truths = [], []
    for number, plate in enumerate(PLATES):
        shape = (image_size, image_size + plate.wider)
        cells = _write_plate(directory / f"{plate.name}.zarr", plate, (seed, number), founders, shape, frames)
        found = cells[cells["tracked"]].reset_index(drop=True)
        found[list(TRACKS)].to_parquet(directory / f"{plate.name}_tracks.parquet", index=False)
        truths.append(found[list(TRUTH)])
        experiments.append(_entry(plate, frames))
    pd.concat(truths, ignore_index=True).to_parquet(directory / "truth.parquet", index=False)
    OmegaConf.save({"experiments": experiments}, directory / "collection.yaml")


def _entry(plate: Plate, frames: int) -> dict[str, Any]:
    return {
        "name": plate.name,
        "plate": f"{plate.name}.zarr",
        "tracks": f"{plate.name}_tracks.parquet",
        "conditions": {condition: list(wells) for condition, wells in WELLS.items()},
        "start_hours": 0.0,
        "interval_minutes": HOURS * 60 / (frames - 1),
        "channels": list(CHANNELS),
    }


def _write_plate(
    store: Path, plate: Plate, key: tuple[int, int], founders: int, shape: tuple[int, int], frames: int
) -> pd.DataFrame:
    """Write one plate and give all of its cells, those that are not tracked among them."""
    parts = []
    order = [CHANNELS.index(name) for name in plate.channels]
    form: dict[str, Any] = {"layout": "hcs", "channel_names": list(plate.channels), "axes": AXES}
    with open_ome_zarr(store, mode="w-", version=plate.version, **form) as written:
        fields = [(condition, well) for condition, wells in WELLS.items() for well in wells]
        for number, (condition, well) in enumerate(fields):
            rng = np.random.default_rng((*key, number))
            n = max(round(founders * plate.density * (RARE if condition == "rare_drug" else 1)), 2)
            cells, specks = live(rng, condition, n, shape, frames), dust(rng, *shape)
            images = np.empty((frames, len(CHANNELS), 1, *shape), np.uint16)
            for t in range(frames):
                images[t, :, 0] = plate.microscope.image(rng, cells[cells["t"] == t], condition, specks)[order]
            position = written.create_position(*well.split("/"), "0")
            position.create_image("0", images, chunks=(1, 1, 1, *shape))
            cells[list(LABELS)] = plate.name, f"{well}/0", condition
            parts.append(cells)
    return pd.concat(parts, ignore_index=True)
