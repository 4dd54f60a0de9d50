"""Batches built around one experiment, or around several."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Literal, override

import numpy as np

from cellcohort.cells import CellTable, Column
from cellcohort.messages import whole_number
from cellcohort.sampling.axes.base import GroupAxis, check_fraction, weights_by_label

if TYPE_CHECKING:
    from pydantic import Field, PositiveInt


class ExperimentAware(GroupAxis):
    """Build each batch around one experiment, so that negatives differ in biology, not in plate.

    Parameters
    ----------
    leaky : float
        Share of the batch from the other experiments, in [0, 1). They are taken in proportion to
        their number of cells.
    weights : None, "uniform" or dict of label to float
        How often each experiment leads a batch: in proportion to its number of cells (None),
        equally often, or as given. Weight 0 leaves the cells of an experiment out altogether.
        Over epochs every experiment leads as often as its weight says, however small it is.
    column : str or list of str
        The column (or columns, jointly) that tells experiments apart.
    temper : float
        Power in [0, 1] of the number of cells, where `weights` is None: 1 is in proportion to it, 0.5 to its square
        root, and 0 is equally often.
    experiments : int
        Experiments that a batch is built around. Each has an equal block of the batch, which holds the conditions and
        times that the other axes ask. They are drawn without replacement by the same weights, so that one is in a
        batch at most once. Cells leak in from the others.

    Raises
    ------
    ValueError
        An option is out of range, or (by the sampler) weights do not fit the labels of the table.
    """

    def __init__(
        self,
        leaky: Annotated[float, Field(ge=0, lt=1)] = 0.0,
        weights: Literal["uniform"] | Mapping[Hashable, float] | None = None,
        column: str | Sequence[str] = "experiment",
        temper: Annotated[float, Field(ge=0, le=1)] = 1.0,
        experiments: PositiveInt = 1,
    ) -> None:
        self.leaky = check_fraction("leaky", leaky, one_allowed=False)
        if not (weights is None or weights == "uniform" or isinstance(weights, Mapping)):
            raise ValueError(f"weights={weights!r} is not a choice; use None, 'uniform' or {{experiment: weight}}.")
        self._temper = check_fraction("temper", temper, one_allowed=True, what="a power of the number of cells")
        if weights is not None and self._temper != 1.0:
            raise ValueError(f"temper={temper!r} has no effect with weights={weights!r}; leave one of the two out.")
        self._weights = weights
        self._experiments = self.n_primary = whole_number("experiments", experiments, 1)
        self.column = column

    def __repr__(self) -> str:
        tempered = "" if self._temper == 1.0 else f", temper={self._temper!r}"
        several = "" if self.n_primary == 1 else f", experiments={self.n_primary}"
        options = f"leaky={self.leaky!r}, weights={self._weights!r}, column={self.column!r}{tempered}{several}"
        return f"ExperimentAware({options})"

    @override
    def check(self, cells: CellTable) -> None:
        """Raise ValueError where the column or a named label is not there."""
        self.weights(cells.column(self.column))

    @override
    def weights(self, column: Column) -> np.ndarray:
        """How often each experiment leads a batch, shape (n_labels,)."""
        if isinstance(self._weights, Mapping):
            return weights_by_label("weights", self._weights, column)
        counts = column.counts().astype(float)
        power = 0.0 if self._weights == "uniform" else self._temper
        return np.where(counts > 0, counts**power, 0.0)
