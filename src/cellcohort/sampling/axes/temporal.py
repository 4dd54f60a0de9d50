"""Part of every batch lies around one focal time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, override

import numpy as np
import pandas as pd

from cellcohort.cells import CellTable
from cellcohort.sampling.axes.base import WindowAxis, check_fraction

if TYPE_CHECKING:
    from pydantic import Field, NonNegativeFloat


class TemporallyEnriched(WindowAxis):
    """Draw most of each batch from a window around a focal time, so that negatives are hard.

    The focal time is one of the times at which the cells that the batch is built around were seen;
    all conditions of the batch share it.

    Parameters
    ----------
    window_hours : float
        Half-width of the window, in hours; both ends belong to it.
    global_fraction : float
        Share of the batch drawn outside the window, in [0, 1].
    column : str
        "hours", or another numeric column of the table.

    Raises
    ------
    ValueError
        An option is out of range, or (by the sampler) the table has no such numbers.
    """

    def __init__(
        self,
        window_hours: NonNegativeFloat = 2.0,
        global_fraction: Annotated[float, Field(ge=0, le=1)] = 0.3,
        column: str = "hours",
    ) -> None:
        numeric: Any = window_hours
        if isinstance(numeric, bool) or not isinstance(numeric, (int, float, np.number)):
            raise ValueError(f"window_hours must be a number of hours, got {window_hours!r}.")
        if not (np.isfinite(window_hours) and window_hours >= 0):
            raise ValueError(f"window_hours must be a finite number of hours >= 0, got {window_hours!r}.")
        self.window_hours = float(window_hours)
        self.global_fraction = check_fraction("global_fraction", global_fraction, one_allowed=True)
        if not isinstance(column, str):
            raise ValueError(f"column={column!r} must be the name of one column, of numbers.")
        self.column: str = column

    @property
    def half_width(self) -> float:
        """Half-width of the window, in hours."""
        return self.window_hours

    @property
    def inside(self) -> float:
        """Share of the batch drawn inside the window."""
        return 1.0 - self.global_fraction

    @override
    def values(self, cells: CellTable) -> np.ndarray:
        """Hours of every cell, float64 of shape (n_cells,); NaN where missing."""
        if self.column != "hours":
            labels = np.array(cells.column(self.column).labels, dtype=object)
            numbers = pd.to_numeric(pd.Series(labels), errors="coerce").to_numpy(dtype=np.float64)
            if np.isnan(numbers).all():
                raise ValueError(
                    f"column={self.column!r} has no numbers (labels such as {labels[0]!r}); name a numeric one."
                )
            return numbers[cells.column(self.column).codes]
        if cells.hours is None:
            raise ValueError(
                "the table has no hours, which temporal enrichment needs; name the column of times with "
                "data.columns.hours, in code CellTable.from_frame(..., hours=...), or leave this axis out."
            )
        return cells.hours
