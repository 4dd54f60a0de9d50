"""A simulated screen on OME-Zarr plates: moving, dividing and falling ill cells under four microscopes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cellcohort.data.timelapse import PatchOptions
from cellcohort.datasets.images.collection import read_collection
from cellcohort.datasets.images.patches import Patches
from cellcohort.datasets.partners import PairRule
from cellcohort.datasets.protocol import LabelledCells
from cellcohort.runtime.distributed import Launch
from cellcohort.simulation.plates import screen

PATCH = (1, 48, 48)


@dataclass(frozen=True)
class DemoTimelapse(PatchOptions):
    """Simulated plates, written on first use (about 90 MB in half a minute) and then read as any collection is.

    The condition, from a time on and in some of the cells, shows in a phase contrast and a marker channel;
    every plate has its own illumination, gain, blur, background and density, and half of them are
    OME-Zarr 0.4. ``truth.parquet`` beside the collection says what was planted in every row.

    Attributes
    ----------
    path, simulation_seed, founders, image_size, frames
        See :func:`cellcohort.simulation.plates.screen`. The first of several processes writes, the others wait.
    patch, channels, pixel_size, z, border, blank_frames, faulty_cells, missing, normalise, normalise_by, statistics
        As for :class:`cellcohort.data.timelapse.PatchOptions`.
    tau_hours, tau, tau_decay_hours, positive, positive_columns, positive_channel, augment, cache_megabytes, seed
        As for :class:`cellcohort.data.timelapse.PatchOptions`. What is cached lies beside the collection.
    """

    path: str | Path = "outputs/demo_timelapse"
    simulation_seed: int = 0
    founders: int = 16
    image_size: int = 256
    frames: int = 25
    patch: Sequence[int] = field(default=PATCH, kw_only=True)

    def cells(self, also: Sequence[str] = (), pairs: PairRule | None = None) -> LabelledCells:  # noqa: ARG002
        """Read the cells without their images.

        Parameters
        ----------
        also : sequence of str
            Columns that are needed; the index has all that there are.
        pairs : PairRule, optional
            Which cells may be pairs, instead of those that the options of this source make.

        Raises
        ------
        ValueError
            An option is out of range.
        """
        collection = self._collection()
        return self._cells_of(read_collection(collection), collection.parent / "cache", pairs)

    def dataset(self, pairs: PairRule | None = None) -> Patches:
        """Read the index of the cells; their images are read batch by batch.

        Parameters
        ----------
        pairs : PairRule, optional
            Which cells may be pairs, instead of those that the options of this source make.

        Raises
        ------
        ValueError
            As for :meth:`cells`.
        """
        collection = self._collection()
        return self._patches_of(read_collection(collection), collection.parent / "cache", pairs)

    def _collection(self) -> Path:
        """Return the collection; where processes were started together, one of them writes it first."""
        options = (self.path, self.simulation_seed, self.founders, self.image_size, self.frames)
        Launch.here().agree(lambda: str(screen(*options)))
        return screen(*options)  # there by now, save on another machine that shares no disk


def load_demo_timelapse(path: str | Path = "outputs/demo_timelapse", **options: Any) -> Patches:
    """Read simulated plates; the options are those of :class:`DemoTimelapse`."""
    return DemoTimelapse(path, **options).dataset()


def load_cells(path: str | Path = "outputs/demo_timelapse", also: Sequence[str] = (), **options: Any) -> LabelledCells:
    """Read the cells of simulated plates without their images; the options are those of :class:`DemoTimelapse`."""
    return DemoTimelapse(path, **options).cells(also)
