"""The plate of an experiment: its fields of view, opened and checked against the collection."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path
from typing import Any

import zarr

from cellcohort.datasets.images.collection import Experiment
from cellcohort.files import stamp
from cellcohort.messages import listed, several

AXES = "tczyx"
ABSENT = -1  # number of a channel that a position lacks
ALIKE = 1.02  # pixel sizes up to this many times another are taken for the same
MICROMETERS = {
    **dict.fromkeys(("micrometer", "micrometre", "micron", "um", "µm", "μm"), 1.0),
    **dict.fromkeys(("nanometer", "nanometre", "nm"), 1e-3),
    **dict.fromkeys(("millimeter", "millimetre", "mm"), 1e3),
    **dict.fromkeys(("centimeter", "centimetre", "cm"), 1e4),
    **dict.fromkeys(("meter", "metre", "m"), 1e6),
    **dict.fromkeys(("angstrom", "å"), 1e-4),
}


@dataclass(frozen=True)
class Field:
    """One field of view: the images of one position of a plate.

    Attributes
    ----------
    experiment, condition, name : str
        The name is that of the position in its plate, "A/1/0".
    store, array : str
        Path of the plate, and of the array of images inside it.
    axes : str
        Axes of the array, among "tczyx" and in this order.
    shape, chunks : tuple of int
        Over (t, c, z, y, x), in pixels and frames, 1 along an axis that the array lacks; a chunk is what is
        decoded at once.
    dtype : str
        Type of a pixel, as numpy writes it.
    in_columns : bool
        Whether the numbers of a chunk are stored with the first axis running fastest.
    channels : tuple of int
        The channels that make an input, in its order; :data:`ABSENT` for one that the position lacks, or in which a
        cell index has no cell here.
    channel_names : tuple of str
    fills : bool
        Whether the store leaves out chunks that hold nothing but the fill value: ``write_empty_chunks: false``
        among the attributes of the array. Otherwise a missing chunk is damage.
    pixel_size, origin : tuple of float
        Along z, y and x, in micrometers: the size of a pixel, that of a cell index where the plate gives none, else
        NaN; and the place of the centre of the first pixel.
    levels : tuple of float
        How many times smaller than the images each further level of their pyramid is.
    stamp : str
        Changes when the metadata of the array are written anew.
    """

    experiment: str
    condition: str
    name: str
    store: str
    array: str
    axes: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: str
    in_columns: bool
    channels: tuple[int, ...]
    channel_names: tuple[str, ...]
    fills: bool
    pixel_size: tuple[float, ...]
    origin: tuple[float, ...]
    levels: tuple[float, ...]
    stamp: str

    @property
    def well(self) -> str:
        return self.name.rpartition("/")[0]

    def with_channel(self, channel: int) -> Field:
        """Return the same images with one channel of the input only."""
        return replace(self, channels=(self.channels[channel],), channel_names=(self.channel_names[channel],))


def fields_of(experiment: Experiment, may_lack: bool = False) -> list[Field]:
    """Return the fields of an experiment that the collection uses.

    Parameters
    ----------
    experiment : Experiment
    may_lack : bool
        Whether positions may lack some of the channels, if others have them.

    Returns
    -------
    list of Field
        Sorted by name. Tables, labels and other groups beside the images are not read.

    Raises
    ------
    FileNotFoundError, ValueError
        `experiment.plate` is not a plate, or lacks a well, position or channel that the collection names; a position
        has no condition, or its images cannot be used.
    """
    plate = _open(experiment)
    positions = _positions(plate)
    if not positions:
        raise ValueError(
            f"the plate of {experiment.name} lists no image that is stored: {experiment.plate}. Its metadata must list "
            "the wells, and those of each well the images."
        )
    wells = sorted({name.rpartition("/")[0] for name in positions})
    mapped = [well for of_one in experiment.conditions.values() for well in of_one]
    _check_there(experiment, "conditions", mapped, wells, "well")
    include = "fov" if experiment.indexed else "include"
    _check_there(experiment, include, experiment.include or (), positions, "position")
    _check_there(experiment, "exclude", experiment.exclude, positions, "position")
    used = {name: position for name, position in positions.items() if experiment.uses(name)}
    if not used:
        raise ValueError(f"include and exclude leave no position of {experiment.name}; it has {listed(positions)}.")
    bare = [name for name in used if name.rpartition("/")[0] not in mapped and not experiment.indexed]
    if bare:
        raise ValueError(
            f"{several(len(bare), 'position')} of {experiment.name} in wells without a condition: {listed(bare)}. "
            "Name the wells in `conditions`, these positions in `exclude`, or those to use in `include`."
        )
    fields = [_field(experiment, name, position, may_lack) for name, position in sorted(used.items())]
    nowhere = tuple(
        channel
        for number, channel in enumerate(experiment.channels)
        if all(field.channels[number] == ABSENT for field in fields)
    )
    if nowhere:  # which the first position then refuses
        _field(replace(experiment, channels=nowhere), *min(used.items()), may_lack)
    _warn_of_sizes(experiment, fields)
    return fields


def _warn_of_sizes(experiment: Experiment, fields: Sequence[Field]) -> None:
    """Warn where a cell index gives other pixel sizes than the plate, whose own are used."""
    given = [(field, experiment.pixel_sizes.get(field.name, (nan, nan))[1]) for field in fields]
    unlike = [(field, size) for field, size in given if 0 < field.pixel_size[1] * ALIKE < size]
    unlike += [(field, size) for field, size in given if field.pixel_size[1] > size * ALIKE]
    if unlike:
        field, size = unlike[0]
        warnings.warn(
            f"pixel_size_xy_um of {experiment.name} in the cell index is not what its plate says in "
            f"{several(len(unlike), 'position')}, such as {field.name} with {size:g} and {field.pixel_size[1]:g} "
            "micrometers; those of the plate are used.",
            stacklevel=3,
        )


def _open(experiment: Experiment) -> zarr.Group:
    if not experiment.plate.exists():
        correct = "store_path in the cell index" if experiment.indexed else "`plate` in the collection"
        raise FileNotFoundError(
            f"the plate of {experiment.name} is not there: {experiment.plate} (seen from {Path.cwd()}). Correct "
            f"{correct}, where a path that is not absolute begins at the folder of the file."
        )
    try:
        group = zarr.open_group(experiment.plate, mode="r", use_consolidated=False)
    except Exception as error:
        raise ValueError(
            f"the plate of {experiment.name} is not an OME-Zarr plate: {experiment.plate} "
            f"({type(error).__name__}: {error}). Give the folder that holds rows, columns and positions."
        ) from error
    if "plate" not in (metadata := _metadata(group)):
        kinds = {"multiscales": "one position", "well": "one well", "bioformats2raw.layout": "a series of images"}
        kind = next((kind for key, kind in kinds.items() if key in metadata), "a group without metadata of a plate")
        raise ValueError(
            f"the plate of {experiment.name} is not a plate but {kind}: {experiment.plate}. Give the folder whose "
            "metadata have `plate`, which holds rows, columns and positions."
        )
    return group


def _metadata(group: zarr.Group) -> Mapping[str, Any]:
    """Return the OME metadata of a group: among its attributes up to version 0.4, later under "ome"."""
    attributes = group.attrs.asdict()
    found = attributes.get("ome", attributes)
    return found if isinstance(found, Mapping) else {}


def _positions(plate: zarr.Group) -> dict[str, zarr.Group]:
    """Return the images that the metadata of a plate list and that are stored, by name such as "A/1/0"."""
    found = {}
    for well in _paths(_metadata(plate)["plate"], "wells"):
        if (group := _group(plate, well)) is None:
            continue  # a part of a plate, as downloads of one well are
        for image in _paths(_metadata(group).get("well"), "images"):
            if (position := _group(plate, f"{well}/{image}")) is not None:
                found[f"{well}/{image}"] = position
    return found


def _paths(metadata: Any, key: str) -> list[str]:
    """Return the paths of the wells of a plate, or of the images of a well."""
    entries = (metadata.get(key) if isinstance(metadata, Mapping) else None) or []
    return [str(one["path"]).strip("/") for one in entries if isinstance(one, Mapping) and "path" in one]


def _group(plate: zarr.Group, name: str) -> zarr.Group | None:
    """Return a group of a plate; None where it is not stored."""
    try:
        group = plate.get(name)
    except ValueError as error:  # as from files that are cut off
        raise ValueError(
            f"the metadata of {name} in {plate.store_path} cannot be read ({type(error).__name__}: {error}). Store "
            "them again, or take it out of what the metadata of the plate list."
        ) from error
    return group if isinstance(group, zarr.Group) else None


def _field(experiment: Experiment, name: str, position: zarr.Group, may_lack: bool) -> Field:
    where = f"position {name} of {experiment.name} ({experiment.plate})"
    metadata = _metadata(position)
    try:
        image = metadata["multiscales"][0]
        path = str(image["datasets"][0]["path"])
        array = position[path]
        if not isinstance(array, zarr.Array):
            raise TypeError(f"{path} is a group, not an array")
        axes = [(axis if isinstance(axis, str) else axis["name"]).lower() for axis in image.get("axes", AXES)]
    except Exception as error:
        raise ValueError(f"{where} has no image that can be read ({type(error).__name__}: {error}).") from error
    if not _usable(axes) or len(array.shape) != len(axes):
        raise ValueError(
            f"{where} has axes {axes} and shape {array.shape}. The axes must be t, c, z, y, x in this order, of which "
            "t, c and z may be missing. Store the images so, or leave the position out by `exclude`."
        )
    if array.dtype.kind not in "buif":
        raise ValueError(f"{where} has pixels of type {array.dtype}; store integers or real numbers.")
    size = dict(zip(axes, array.shape, strict=True))
    chunk = dict(zip(axes, array.chunks, strict=True))
    steps, origins = _transformed(image, 0, axes)
    in_index = experiment.pixel_sizes.get(name, (nan, nan))
    steps = {**dict(zip("zyx", (*in_index, in_index[1]), strict=True)), **steps}
    return Field(
        experiment=experiment.name,
        condition=str(experiment.condition_of(name.rpartition("/")[0])),
        name=name,
        store=str(experiment.plate),
        array=f"{name}/{path}",
        axes="".join(axes),
        shape=tuple(size.get(axis, 1) for axis in AXES),
        chunks=tuple(chunk.get(axis, 1) for axis in AXES),
        dtype=array.dtype.str,
        in_columns=getattr(array.metadata, "order", "C") == "F",
        channels=_channels(experiment, name, metadata, size.get("c", 1), where, may_lack),
        channel_names=experiment.channels,
        fills=array.attrs.get("write_empty_chunks") is False and array.fill_value is not None,
        pixel_size=tuple(steps.get(axis, nan) for axis in "zyx"),
        origin=tuple(origins.get(axis, 0.0) for axis in "zyx"),
        levels=_levels(image, axes),
        stamp=_stamp(experiment.plate / name / path),
    )


def _usable(axes: Sequence[str]) -> bool:
    """Whether axes are in order and have lines and columns."""
    places = [AXES.find(axis) for axis in axes]
    return places == sorted(set(places)) and places[0] >= 0 and {"y", "x"} <= set(axes)


def _channels(
    experiment: Experiment, position: str, metadata: Mapping[str, Any], n: int, where: str, may_lack: bool
) -> tuple[int, ...]:
    """Return the number of each channel of the collection; without names in the metadata, names are the numbers."""
    listed_ones = (metadata.get("omero") or {}).get("channels") or []
    labels = [str(channel.get("label", i)) for i, channel in enumerate(listed_ones[:n])]
    names = labels + [str(i) for i in range(len(labels), n)]
    needed = [channel for channel in experiment.channels if position in experiment.seen.get(channel, (position,))]
    unknown = [channel for channel in needed if channel not in names]
    if unknown and (not may_lack or experiment.indexed or len(unknown) == len(experiment.channels)):
        each = "" if may_lack else ", or make each channel a sample of its own by data.channels=each"
        unnamed = "" if labels else " (numbers, since the plate has no `omero` metadata, which would name them)"
        raise ValueError(
            f"{where} has no channel {listed(unknown)}; its channels are {', '.join(names)}{unnamed}. Correct the "
            "name, or list such positions in an entry of their own, by `include`, with the channels that they have"
            f"{each}."
        )
    if twice := [channel for channel in experiment.channels if names.count(channel) > 1]:
        raise ValueError(
            f"{where} has several channels called {listed(twice)}; its channels are {', '.join(names)}. Give each a "
            "name of its own in the metadata of the image."
        )
    return tuple(names.index(channel) if channel in names else ABSENT for channel in experiment.channels)


def _transformed(
    image: Mapping[str, Any], level: int, axes: Sequence[str]
) -> tuple[dict[str, float], dict[str, float]]:
    """Size of a pixel and place of the first one, along each axis of space and in micrometers.

    A size of 1 along lines and columns is left out: writers give it where they do not know the size.
    """
    factor, shift = [1.0] * len(axes), [0.0] * len(axes)
    parts = (image["datasets"][level], image)  # in this order, by the specification
    for kind, numbers in (one for part in parts for one in _transforms(part, len(axes))):
        if kind == "scale":
            factor = [a * b for a, b in zip(factor, numbers, strict=True)]
            shift = [a * b for a, b in zip(shift, numbers, strict=True)]
        else:
            shift = [a + b for a, b in zip(shift, numbers, strict=True)]
    units = [None if isinstance(axis, str) else axis.get("unit") for axis in image.get("axes", AXES)]
    sizes, origins = dict(zip(axes, factor, strict=True)), dict(zip(axes, shift, strict=True))
    if sizes["y"] == sizes["x"] == 1.0:
        return {}, {}
    in_micrometers = dict(zip(axes, (MICROMETERS.get(str(unit or "um").lower(), nan) for unit in units), strict=True))
    space = [axis for axis in axes if axis in "zyx"]
    return (
        {axis: sizes[axis] * in_micrometers[axis] for axis in space},
        {axis: origins[axis] * in_micrometers[axis] for axis in space},
    )


def _levels(image: Mapping[str, Any], axes: Sequence[str]) -> tuple[float, ...]:
    """How many times smaller each further level of the pyramid is along the lines."""
    line = axes.index("y")
    sizes = []
    for dataset in image["datasets"]:
        scales = [numbers[line] for kind, numbers in _transforms(dataset, len(axes)) if kind == "scale"]
        sizes.append(scales[0] if scales else nan)
    return tuple(size / sizes[0] for size in sizes[1:] if size > sizes[0] > 0)


def _transforms(part: Mapping[str, Any], n: int) -> Iterator[tuple[str, list[float]]]:
    """Give the scales and translations of an image or a level that have a number for each axis; others say nothing."""
    listed_ones = part.get("coordinateTransformations")
    for one in listed_ones if isinstance(listed_ones, Sequence) else []:
        kind = str(one.get("type")) if isinstance(one, Mapping) else ""
        numbers = one.get(kind) if kind in ("scale", "translation") else None
        if isinstance(numbers, Sequence) and len(numbers) == n and all(isinstance(x, int | float) for x in numbers):
            yield kind, [float(x) for x in numbers]


def _stamp(array: Path) -> str:
    file = next(file for name in ("zarr.json", ".zarray") if (file := array / name).exists())
    return stamp(file)


def _check_there(experiment: Experiment, key: str, named: Sequence[str], there: Iterable[str], what: str) -> None:
    if absent := [name for name in named if name not in there]:
        raise ValueError(
            f"{key} of {experiment.name} names {several(len(absent), what)} that the plate lacks: {listed(absent)}; it "
            f"has {listed(there)}."
        )
