"""What other programs wrote among the attributes of a position, such as the brightness that VisCy measures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import zarr

from cellcohort.datasets.images.plates import Field

LEVELS = {"frame": "timepoint_statistics", "position": "fov_statistics", "plate": "dataset_statistics"}


def attributes_of(field: Field) -> Mapping[str, Any]:
    """Return the attributes of the position of a field."""
    group = zarr.open_group(field.store, path=field.name, mode="r", use_consolidated=False)
    return group.attrs.asdict()


def stored_statistics(
    attributes: Mapping[str, Any], channel: str, level: str, frames: Iterable[int]
) -> dict[int, Mapping[str, float]]:
    """Return the brightness of a channel by frame, as ``viscy preprocess`` stores it in a position.

    The attribute "normalization" has for each channel "dataset_statistics", "fov_statistics" and
    "timepoint_statistics", the last by the number of the frame; each holds "mean", "std", "median", "iqr", "p5", "p95"
    and others.

    Parameters
    ----------
    attributes : mapping
        Of the position.
    channel : str
    level : {"frame", "position", "plate"}
    frames : iterable of int
        For ``level="frame"``; otherwise one entry, that of frame 0, is of all frames.

    Returns
    -------
    dict of int to mapping of str to float
        Without the frames of which nothing is stored.
    """
    of_channel = _below(_below(attributes, "normalization"), channel)
    found = _below(of_channel, LEVELS[level])
    if level != "frame":
        return {0: found} if found else {}
    return {t: of_frame for t in frames if (of_frame := _below(found, str(t)))}


def _below(found: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the mapping under a key; empty where there is none."""
    below = found.get(key)
    return below if isinstance(below, Mapping) else {}
