"""A simulated screen on OME-Zarr plates: moving, dividing and falling ill cells under four microscopes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cellcohort.data import timelapse
from cellcohort.data.timelapse import TAU_HOURS
from cellcohort.datasets.images.index import Border
from cellcohort.datasets.images.patches import Patches
from cellcohort.datasets.images.positives import Positive
from cellcohort.datasets.images.scaling import Normalise
from cellcohort.datasets.positives import TrackCells
from cellcohort.datasets.protocol import Views
from cellcohort.runtime.distributed import Launch
from cellcohort.simulation.plates import screen

PATCH = (1, 48, 48)


def load_demo_timelapse(
    path: str | Path = "outputs/demo_timelapse",
    simulation_seed: int = 0,
    founders: int = 16,
    image_size: int = 256,
    frames: int = 25,
    patch: Sequence[int] = PATCH,
    border: Border = "clamp",
    normalise: Normalise = "position",
    tau_hours: Sequence[float] = TAU_HOURS,
    tau_decay_hours: float = 2.0,
    positive: Positive = "lineage",
    positive_columns: Sequence[str] = (),
    augment: Views | None = None,
    cache_megabytes: int = 512,
    seed: int = 0,
) -> Patches:
    """Simulated plates, written on first use (about 90 MB in half a minute) and then read as any collection is.

    The condition, from a time on and in some of the cells, shows in a phase contrast and a marker channel;
    every plate has its own illumination, gain, blur, background and density, and half of them are
    OME-Zarr 0.4. ``truth.parquet`` beside the collection says what was planted in every row.

    Parameters
    ----------
    path, simulation_seed, founders, image_size, frames
        See :func:`cellcohort.simulation.plates.screen`. The first of several processes writes, the others wait.
    patch, border, normalise, tau_hours, tau_decay_hours, positive, positive_columns, augment, cache_megabytes, seed
        See :func:`cellcohort.data.timelapse.load_timelapse`. What it caches lies beside the collection.

    Raises
    ------
    ValueError
        An option is out of range.
    """
    collection = _collection(path, simulation_seed, founders, image_size, frames)
    return timelapse.load_timelapse(
        collection, None, patch, border, normalise, tau_hours, tau_decay_hours, positive, positive_columns,
        augment, collection.parent / "cache", cache_megabytes, seed,
    )  # fmt: skip


def load_cells(
    path: str | Path = "outputs/demo_timelapse",
    simulation_seed: int = 0,
    founders: int = 16,
    image_size: int = 256,
    frames: int = 25,
    patch: Sequence[int] = PATCH,
    border: Border = "clamp",
    tau_hours: Sequence[float] = TAU_HOURS,
    tau_decay_hours: float = 2.0,
    positive: Positive = "lineage",
    positive_columns: Sequence[str] = (),
    also: Sequence[str] = (),
) -> TrackCells:
    """The cells that :func:`load_demo_timelapse` would give, without reading an image.

    Parameters
    ----------
    path, simulation_seed, founders, image_size, frames, patch, border, tau_hours, tau_decay_hours, positive
        As for :func:`load_demo_timelapse`, like `positive_columns`.
    also : sequence of str
        Columns that are needed; the index has all that there are.
    """
    collection = _collection(path, simulation_seed, founders, image_size, frames)
    return timelapse.load_cells(
        collection, None, patch, border, tau_hours, tau_decay_hours, positive, positive_columns,
        collection.parent / "cache", also,
    )  # fmt: skip


def _collection(path: str | Path, *options: int) -> Path:
    """The collection of the screen; where processes were started together, one of them writes it first."""
    Launch.here().agree(lambda: str(screen(path, *options)))
    return screen(path, *options)  # there by now, save on another machine that shares no disk
