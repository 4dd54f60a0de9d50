"""One number about a representation, and what it was computed on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from cellcohort.cells import CellTable, Column


@dataclass(frozen=True)
class Score:
    """A score of a representation.

    Attributes
    ----------
    name : str
        In snake_case; the same names for all data and all representations.
    value : float
        NaN where the data do not allow the score; `note` then says why.
    higher_is_better : bool
    n : int
        Cells that it was computed on.
    note : str
        The unit or the level of chance, and what was left out.
    """

    name: str
    value: float
    higher_is_better: bool
    n: int
    note: str = ""


@dataclass(frozen=True)
class Held:
    """The cells that scores are computed on: some to fit on, and some that were held out.

    Attributes
    ----------
    cells : CellTable
        In the order of the rows of a representation.
    training : numpy.ndarray of bool, shape (n_cells,)
        Cells that probes and scalers may be fitted on; the others are scored.
    whole : str
        Column of `cells` whose groups have all their cells in one of the two parts.
    """

    cells: CellTable
    training: np.ndarray
    whole: str

    @property
    def experiment(self) -> Column:
        """The experiments; one for all cells where the table has none."""
        if self.cells.has("experiment"):
            return self.cells.column("experiment")
        return Column("experiment", np.zeros(len(self.cells), np.int8), ("all cells",))

    @property
    def condition(self) -> Column | None:
        """The conditions, if the table has any."""
        return self.cells.column("condition") if self.cells.has("condition") else None

    @property
    def group(self) -> np.ndarray:
        """Codes of the groups of `whole`, of each experiment apart."""
        if self.cells.has("experiment"):
            return self.cells.column(["experiment", self.whole]).codes
        return self.cells.column(self.whole).codes


def noted(*parts: str, left_out: Sequence[str] = ()) -> str:
    """The parts of a note that are not empty, and what was left out."""
    said = [part for part in parts if part]
    return "; ".join([*said, f"left out: {', '.join(left_out)}"] if left_out else said)


def mean(values: Iterable[float]) -> float:
    """The mean; NaN of no values."""
    values = list(values)
    return float(np.mean(values)) if values else float("nan")
