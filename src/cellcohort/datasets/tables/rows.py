"""The cells of a table in which every row is one, without frames that follow each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from cellcohort.cells import CellTable, names_of
from cellcohort.datasets.held_out_cells import ROW
from cellcohort.datasets.tables.columns import from_file, refuse_times_as_labels, set_aside
from cellcohort.datasets.tables.ids_and_labels import as_text, ids_of, told_apart
from cellcohort.datasets.tables.merge_labels import MergeLabels, merged
from cellcohort.missing_values import Missing, refuse_missing


def cells_of_rows(
    frame: pd.DataFrame, roles: Mapping[str, Any], merge_labels: MergeLabels = None, missing: Missing = "error"
) -> CellTable:
    """Return the cells of a table, in its order; labels of experiments and conditions are texts.

    Parameters
    ----------
    frame : pandas.DataFrame
    roles : mapping of str to str, list of str or None
        Column by role: "experiment" and "condition", and where there are any "hours", "track" and "well". A well is
        known by its experiment and its label; the column "well" of the cells holds both.
    merge_labels, missing
        As for :class:`cellcohort.data.table.Table`.

    Returns
    -------
    CellTable
        With a column :data:`~cellcohort.datasets.held_out_cells.ROW` besides, the number of every row.

    Raises
    ------
    ValueError
        A column is not in the table or has missing values, or the table has a column of a name that is made.
    """
    file = frame.attrs.get("path")
    named = {role: roles.get(role) for role in ("experiment", "condition", "hours", "track")}
    refuse_times_as_labels(named)
    labels = [name for name in names_of((named["experiment"], named["condition"])) if name in frame]
    well = names_of([roles.get("well")])
    frame = frame.assign(**{name: as_text(frame[name]) for name in labels})
    ids = [*names_of([named["track"]]), *well]
    frame, words = ids_of(frame, [name for name in ids if name not in labels], frame.attrs.get("words", {}))
    refuse_missing(frame, [*names_of([named["hours"]]), *ids], labels, missing, "data.missing=label", words)
    frame = merged(frame, merge_labels, roles, [named["hours"]])
    if ROW in frame:
        raise ValueError(f"the table has a column {ROW!r}, which is needed to hold cells out; rename it.")
    if well:
        if "well" in labels:
            raise ValueError("the column 'well' is named as experiment or condition, and wells need this name; rename.")
        wells = {"well": told_apart(frame, [*names_of([named["experiment"]]), *well], missing)}
        frame = set_aside(frame, wells, well)[0].assign(**wells)
    every = np.arange(len(frame), dtype=np.int32)
    frame = from_file(frame.assign(**{ROW: every}), every, file)
    cells = CellTable.from_frame(frame, **named, missing=missing)
    cells.keys = tuple(names_of(roles.values()))
    return cells
