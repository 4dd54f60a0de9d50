"""Cells that cannot be right: their centre lies outside the image, or their mother is still there."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Literal, get_args

import numpy as np
import pandas as pd

from cellcohort.datasets.images.collection import Experiment
from cellcohort.datasets.images.coordinates import in_pixels
from cellcohort.datasets.images.plates import Field
from cellcohort.datasets.protocol import Remark
from cellcohort.messages import several

FaultyCells = Literal["drop", "error"]
OUTSIDE, OVERLAP = 1, 2  # in the column "_fault" of the index; 0 where nothing is wrong
LARGE = 0.5  # share of the cells of an experiment above which its coordinates or its tracks are wrong as a whole
EXPLAINED = 0.05  # share above which coordinates are wrong as a whole where another unit places all cells inside


def outside(place: dict[str, np.ndarray], shape: np.ndarray) -> dict[str, np.ndarray]:
    """Tell along which axes centres lie outside their image; a pixel reaches half a pixel around its centre.

    Parameters
    ----------
    place : dict of str to numpy.ndarray of float, shape (n,)
        "z", "y" and "x" in pixels.
    shape : numpy.ndarray of int, shape (n, 5)
        Of the images (t, c, z, y, x).

    Returns
    -------
    dict of str to numpy.ndarray of bool, shape (n,)
    """
    return {axis: (place[axis] < -0.5) | (place[axis] >= shape[:, i] - 0.5) for i, axis in enumerate("zyx", start=2)}


def faulty_cells(
    frame: pd.DataFrame,
    field: np.ndarray,
    experiments: Sequence[Experiment],
    of_each: Sequence[Sequence[Field]],
    choice: FaultyCells,
) -> tuple[np.ndarray, list[Remark]]:
    """Return which cells are to be left out, and what is to be known of them.

    Parameters
    ----------
    frame : pandas.DataFrame
        Of the index, with "_fault".
    field : numpy.ndarray of int, shape (n_cells,)
        The field of each cell, counted over all experiments.
    experiments : sequence of Experiment
    of_each : sequence of sequence of Field
        The fields of each.
    choice : {"drop", "error"}

    Raises
    ------
    ValueError
        Over half of the cells of an experiment are faulty, or 5 % where coordinates in micrometers would explain it;
        some are with ``choice="error"``; or that is no choice.
    """
    if choice not in get_args(FaultyCells):
        raise ValueError(f"faulty_cells={choice!r} is not a choice; use {' or '.join(get_args(FaultyCells))}.")
    fault, remarks, first = frame["_fault"].to_numpy(), list[Remark](), 0
    for experiment, fields in zip(experiments, of_each, strict=True):
        here = (field >= first) & (field < first + len(fields))
        rows, number = frame[here], field[here] - first
        share = (rows["_fault"] > 0).mean() if len(rows) else 0.0
        for problem, advice, most in _faults(rows, number, experiment, fields):
            if choice == "error" or share > most:
                way_out = "" if share > most else " data.faulty_cells=drop leaves them out."
                raise ValueError(f"{problem}. {advice}{way_out}")
            remark = Remark(f"{problem}; they are left out.", advice, "data.faulty_cells=error")
            if remark in remarks:  # said of another channel of the same cells
                continue
            remarks.append(remark)
            warnings.warn(f"{problem}; they are left out. {advice} data.faulty_cells=error refuses them.", stacklevel=3)
        first += len(fields)
    return fault > 0, remarks


def _faults(
    rows: pd.DataFrame, number: np.ndarray, experiment: Experiment, fields: Sequence[Field]
) -> Iterator[tuple[str, str, float]]:
    """Describe each kind of fault of an experiment with an example, what to do, and the share that is left out."""
    fault = rows["_fault"].to_numpy()
    if (far := fault == OUTSIDE).any():
        shape = np.array([field.shape for field in fields])[number]
        place = {axis: rows[axis].to_numpy(float) for axis in "zyx"}
        counts = ", ".join(f"{axis} in {n}" for axis, bad in outside(place, shape).items() if (n := int(bad.sum())))
        one = int(np.argmax(far))
        where = ", ".join(f"{axis}={rows[axis].iloc[one]}" for axis in "tzyx")
        size = dict(zip("tczyx", shape[one].tolist(), strict=True))
        yield (
            f"tracks of {experiment.name} lie outside their image: {counts} of {len(rows)} rows, such as track "
            f"{rows['track_id'].iloc[one]} of {rows['fov'].iloc[one]} with {where}, where the image has {size}",
            *_unit(place, number, fields, experiment),
        )
    if (both := fault == OVERLAP).any():
        one = int(np.argmax(both))
        yield (
            f"tracks of {experiment.name} are there while their mother still is: {several(int(both.sum()), 'row')} of "
            f"{len(rows)} in {several(rows['track'][both].nunique(), 'track')}, such as track "
            f"{rows['track_id'].iloc[one]} of {rows['fov'].iloc[one]} at t={rows['t'].iloc[one]}, whose "
            f"parent_track_id is {rows['parent_track_id'].iloc[one]}",
            "Is 0 meant for none? Leave it empty there.",
            LARGE,
        )


def _unit(
    place: dict[str, np.ndarray], number: np.ndarray, fields: Sequence[Field], experiment: Experiment
) -> tuple[str, float]:
    """Return what to do about coordinates that lie outside, and up to which share they are left out."""
    size = fields[0].pixel_size[1]
    if experiment.coordinates == "micrometer":
        said = f"They were read as micrometers, at a pixel size of {size:.4g}; for pixels, set coordinates: pixel."
        return said, LARGE
    if all(f.pixel_size[1] > 0 and f.pixel_size[2] > 0 for f in fields):
        found = in_pixels({axis: place[axis] for axis in "yx"}, number, fields)
        shape = np.array([f.shape for f in fields])[number]
        if all((found[axis] < shape[:, i]).all() for axis, i in (("y", 3), ("x", 4))):
            said = (
                f"As micrometers, at the plate's pixel size of {size:.4g}, they would lie inside: if they are, "
                f"{experiment.in_pixels}."
            )
            return said, EXPLAINED if experiment.coordinates is None else LARGE
    return "Give z, y and x in pixels.", LARGE
