"""Cells of a collection of time-lapse plates, each as the patch around it."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import pandas as pd

from cellcohort.datasets.images.patches import Patches as TimelapsePatches
from cellcohort.datasets.images.storage import keys_of
from cellcohort.datasets.protocol import Samples, Source
from cellcohort.files import fingerprint

SAMPLED = 64  # patches that are looked at to see whether they are made as before
LABELS = ("experiment", "condition", "hours", "track", "lineage", "fov", "t", "y", "x")


class Patches:
    """The patches of a dataset of images, cut once, so that training reads them in runs and not plane by plane.

    Parameters
    ----------
    collection : Source
        For instance a :class:`cellcohort.data.timelapse.Timelapse`. All cells of its table are taken, those that can
        be no anchor among them, as recorded.
    """

    sparse = False
    features: list[str] | None = None
    notes: tuple[str, ...] = ()

    def __init__(self, collection: Source) -> None:
        if getattr(collection, "channels", "together") == "each":
            raise ValueError(
                "source.collection.channels=each: a store of patches has cells in all their channels; leave it out, or "
                "train from the plates with data=timelapse data.channels=each."
            )
        if getattr(collection, "z", "centre") == "random":
            raise ValueError(
                "source.collection.z=random: a store has one patch of each cell, and nothing is drawn from it; choose "
                "another z, or train from the plates with data=timelapse data.z=random."
            )
        self._samples: Samples = collection.dataset().every_cell()
        self.shape = tuple(self._samples.shape)

    @property
    def options(self) -> dict[str, Any]:
        options = self._samples.made_with if isinstance(self._samples, TimelapsePatches) else {}
        return {"kind": type(self._samples).__name__, "shape": list(self.shape), **options}

    @property
    def state(self) -> dict[str, str]:
        labels = pd.util.hash_pandas_object(self.obs, index=False).to_numpy()
        spread = np.unique(np.linspace(0, len(labels) - 1, SAMPLED).astype(int))
        images = repr(self._images()).encode()
        return {"labels and images": fingerprint(labels, self._samples.recorded(spread), images)}

    def _images(self) -> list[str]:
        """Return what changes when a file of the images is written anew; empty where they are not on disk."""
        if not isinstance(self._samples, TimelapsePatches):
            return []
        chunks = self._samples.chunks
        keys = (keys_of(number, field, range(field.shape[0])) for number, field in enumerate(chunks.fields))
        return chunks.stamps(chain.from_iterable(keys))

    @property
    def columns(self) -> dict[str, list[str]]:
        return {type(self._samples).__name__: self.obs.columns.tolist()}

    @property
    def obs(self) -> pd.DataFrame:
        cells = self._samples.cells
        labels = {}
        for name in LABELS:
            if name == "hours" and cells.hours is not None:
                labels[name] = cells.hours
            elif name != "hours" and cells.has(name):
                column = cells.column(name)
                each = ["/".join(map(str, one)) if isinstance(one, tuple) else one for one in column.labels]
                labels[name] = np.array(each)[column.codes]
        obs = pd.DataFrame(labels)
        for name in (name for name in cells.column_names if name not in obs):  # labels of the collection and the tracks
            values = cells.values(name).reset_index(drop=True)
            obs[name] = values if pd.api.types.is_numeric_dtype(values) else pd.Categorical(values)
        obs["source_file"] = pd.Categorical([type(self._samples).__name__] * len(obs))
        obs["source_row"] = np.arange(len(obs))
        obs.index = obs.index.astype(str)
        return obs

    def read(self, start: int, stop: int) -> np.ndarray:
        return self._samples.recorded(np.arange(start, stop)).astype(np.float32)
