"""The plate of an experiment, opened and checked against the collection."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from iohub.ngff import Plate, open_ome_zarr

from cellcohort.datasets.images.collection import Experiment
from cellcohort.datasets.images.fields import Field, stamp
from cellcohort.messages import listed, several

AXES = ["t", "c", "z", "y", "x"]


def fields_of(experiment: Experiment) -> list[Field]:
    """The fields of an experiment that the collection uses.

    Raises
    ------
    ValueError
        The plate is none, or lacks a well, position or channel that the collection names; a position
        has no condition, or images that are not (t, c, z, y, x).
    """
    plate = _open(experiment)
    try:
        positions = dict(plate.positions())
        wells = sorted({name.rpartition("/")[0] for name in positions})
        mapped = [well for of_one in experiment.conditions.values() for well in of_one]
        _check_there(experiment, "conditions", mapped, wells, "well")
        _check_there(experiment, "include", experiment.include or (), positions, "position")
        _check_there(experiment, "exclude", experiment.exclude, positions, "position")
        used = {name: position for name, position in positions.items() if experiment.uses(name)}
        if not used:
            raise ValueError(f"include and exclude leave no position of {experiment.name}; it has {listed(positions)}.")
        bare = [name for name in used if name.rpartition("/")[0] not in mapped]
        if bare:
            raise ValueError(
                f"{several(len(bare), 'position')} of {experiment.name} in wells without a condition: {listed(bare)}. "
                "Name the wells in `conditions`, these positions in `exclude`, or those to use in `include`."
            )
        return [_field(experiment, name, position) for name, position in sorted(used.items())]
    finally:
        plate.close()


def _open(experiment: Experiment) -> Plate:
    if not experiment.plate.exists():
        raise FileNotFoundError(
            f"the plate of {experiment.name} is not there: {experiment.plate} (seen from {Path.cwd()})."
        )
    try:
        plate = open_ome_zarr(experiment.plate, mode="r")
    except Exception as error:
        raise ValueError(
            f"the plate of {experiment.name} is not an OME-Zarr plate: {experiment.plate} "
            f"({type(error).__name__}: {error}). Give the folder that holds rows, columns and positions."
        ) from error
    if not isinstance(plate, Plate):
        plate.close()
        raise ValueError(
            f"the plate of {experiment.name} is a {type(plate).__name__}, not a plate: {experiment.plate}. Give the "
            "folder above, which holds rows, columns and positions."
        )
    return plate


def _field(experiment: Experiment, name: str, position: Any) -> Field:
    where = f"position {name} of {experiment.name} ({experiment.plate})"
    try:
        images, names = position.metadata.multiscales[0].datasets[0].path, list(position.channel_names)
        array, axes = position[images].native, [axis.lower() for axis in position.axis_names]
    except Exception as error:
        raise ValueError(f"{where} has no image that can be read ({type(error).__name__}: {error}).") from error
    if axes != AXES or len(array.shape) != len(AXES):
        raise ValueError(f"{where} has axes {axes} and shape {array.shape}; they must be {AXES}.")
    if unknown := [channel for channel in experiment.channels if channel not in names]:
        raise ValueError(f"{where} has no channel {listed(unknown)}; its channels are {', '.join(names)}.")
    if twice := [channel for channel in experiment.channels if names.count(channel) > 1]:
        raise ValueError(
            f"{where} has several channels called {listed(twice)}; its channels are {', '.join(names)}. Give each a "
            "name of its own in the metadata of the image."
        )
    if array.dtype.kind not in "buif":
        raise ValueError(f"{where} has pixels of type {array.dtype}; store whole or real numbers.")
    condition = experiment.condition_of(name.rpartition("/")[0])
    return Field(
        experiment=experiment.name,
        condition=str(condition),
        name=name,
        store=str(experiment.plate),
        array=f"{name}/{images}",
        shape=tuple(array.shape),
        chunks=tuple(array.chunks),
        dtype=array.dtype.str,
        channels=tuple(names.index(channel) for channel in experiment.channels),
        fills=array.attrs.get("write_empty_chunks") is False and array.fill_value is not None,
        stamp=_stamp(experiment.plate / name / images),
    )


def _stamp(array: Path) -> str:
    file = next(file for name in ("zarr.json", ".zarray") if (file := array / name).exists())
    return stamp(file)


def _check_there(experiment: Experiment, key: str, named: Sequence[str], there: Iterable[str], what: str) -> None:
    if absent := [name for name in named if name not in there]:
        raise ValueError(
            f"{key} of {experiment.name} names {several(len(absent), what)} that the plate lacks: {listed(absent)}; it "
            f"has {listed(there)}."
        )
