"""Few cells of one track in a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, override

from cellcohort.cells import CellTable
from cellcohort.messages import whole_number
from cellcohort.mothers import refuse_mothers_as_groups
from cellcohort.sampling.axes.base import CapAxis

if TYPE_CHECKING:
    from pydantic import PositiveInt


class TrackCapped(CapAxis):
    """Keep cells of one track out of each other's negatives.

    Neighbouring frames of a track are near-copies, which a contrastive loss would push apart.

    Parameters
    ----------
    max_cells : int
        Cells of one track that a batch may hold.
    column : str or list of str
        "track", or the column (or columns, jointly) whose labels are capped, such as a lineage.

    Raises
    ------
    ValueError
        `max_cells` is no integer >= 1, or (by the sampler) the table has no such column, or it holds ids
        of mothers.

    Notes
    -----
    The cap gives way to every quota: where the cells that a batch may come from have too few
    tracks, or nearly all are of a few tracks, a batch holds more than `max_cells` of some. Cells
    that the cap turns away, and those that take their place, are drawn once less or more often in
    an epoch than the others.
    """

    def __init__(self, max_cells: PositiveInt = 1, column: str | Sequence[str] = "track") -> None:
        self.max_cells, self.column = whole_number("max_cells", max_cells, 1), column

    @property
    def most(self) -> int:
        """Cells of one track that a batch may hold."""
        return self.max_cells

    @override
    def check(self, cells: CellTable) -> None:
        """Raise ValueError where the table has no such column, or it holds ids of mothers."""
        if self.column == "track" and not cells.has("track"):
            raise ValueError(
                "the table has no tracks, which TrackCapped caps; name their column with data.columns.track, "
                "in code CellTable.from_frame(..., track=...), or leave this axis out."
            )
        super().check(cells)
        refuse_mothers_as_groups("sampler.track_capped.column", cells, self.column)
