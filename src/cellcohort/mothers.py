"""Columns that hold ids of mothers, whose cells without one are no group."""

from __future__ import annotations

from cellcohort.cells import CellTable, Name, names_of
from cellcohort.messages import spelled_plainly
from cellcohort.missing_values import MISSING_LABEL

PARENTS = ("parent", "parent_id", "parent_track", "parent_track_id", "mother", "mother_id", "mother_track_id")
_NONE = {"-1", "0", "-1.0", "0.0", MISSING_LABEL}  # of a mother


def refuse_mothers_as_groups(option: str, cells: CellTable, names: Name | None) -> None:
    """Raise ValueError where cells of the same mother are to be a group, and those without one would be one too.

    Parameters
    ----------
    option : str
        What names the columns.
    cells : CellTable
    names : str or sequence of str, optional
        Columns, of which one may hold ids of mothers, as names such as "parent_track_id" and labels such as -1 tell.
    """
    for name in names_of([names]):
        if spelled_plainly(name) in PARENTS and _NONE & {str(label) for label in cells.column(name).labels}:
            raise ValueError(
                f"{option} names {name!r}, which holds ids of mothers: all tracks without one would be one group. "
                "Name a column of families, such as 'lineage', which data.columns.parent of data=tracks makes."
            )
