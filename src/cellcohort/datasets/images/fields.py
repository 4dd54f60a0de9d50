"""A field of view: where its images are, and what shape they have."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Field:
    """One field of view: the images of one position of a plate.

    Attributes
    ----------
    experiment, condition, name : str
        The name is that of the position in its plate, "A/1/0".
    store, array : str
        Path of the plate, and of the array of images inside it.
    shape, chunks : tuple of int
        Over (T, C, Z, Y, X), in pixels and frames; a chunk is what is decoded at once.
    dtype : str
        Type of a pixel, as numpy writes it.
    channels : tuple of int
        The channels that make an input, in its order.
    fills : bool
        Whether the store says that chunks which hold nothing but the fill value were left unwritten:
        ``write_empty_chunks: false`` among the attributes of the array. Else a missing chunk is damage.
    stamp : str
        Changes when the metadata of the array are written anew.
    """

    experiment: str
    condition: str
    name: str
    store: str
    array: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: str
    channels: tuple[int, ...]
    fills: bool
    stamp: str

    @property
    def well(self) -> str:
        return self.name.rpartition("/")[0]


def stamp(file: Path) -> str:
    """What changes when a file is written anew: its place, size and time."""
    about = file.stat()
    return f"{file.resolve()} {about.st_size} {about.st_mtime_ns}"
