"""What every kind of data gives to the other parts: cells, their inputs, and batches of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from cellcohort.cells import CellTable, Name

if TYPE_CHECKING:
    from torch import Tensor


class Views(Protocol):
    """What makes two views of a cell differ, on whole batches and where the model is."""

    def __call__(self, inputs: Tensor, key: tuple[int, ...]) -> Tensor:
        """Augmented inputs (batch, *shape), a function of the arguments alone."""


@dataclass(frozen=True)
class LabelledCells:
    """The cells of a dataset without what is seen of them.

    Attributes
    ----------
    cells : CellTable
        The cells that can be anchors.
    whole : str, or list of str
        Column (or columns, jointly) of `cells` whose groups :func:`cellcohort.datasets.split.split` never cuts in two.
    """

    cells: CellTable
    whole: Name = "track"

    def __len__(self) -> int:
        return len(self.cells)

    def subset(self, positions: np.ndarray) -> LabelledCells:
        """Return some of the cells, which become positions 0..n-1."""
        return LabelledCells(self.cells.take(positions), self.whole)


class Source(Protocol):
    """Where cells come from, before anything is read.

    The groups of ``conf/data`` make one each. Its attributes are the options of the group.
    """

    def cells(self, also: Sequence[str] = ()) -> Any:
        """Return the cells with their labels only, as :class:`LabelledCells` or as `Samples` that read when asked.

        Parameters
        ----------
        also : sequence of str
            Columns that axes name, to be read besides.
        """

    def dataset(self) -> Any:
        """Return the cells with what is seen of them, as `Samples`."""


class Samples(Protocol):
    """Cells with an input each, as a dataset that takes positions and gives batches.

    Attributes
    ----------
    cells : CellTable
        The cells that can be anchors; positions 0..n-1 of the dataset.
    whole : str
        Column of `cells` whose groups :func:`cellcohort.datasets.split.split` never cuts in two.
    shape : tuple of int
        Shape of one input; its first axis holds features, genes or channels.
    views : Views or None
        The augmentation that is left to the model's device; None where batches come augmented.
    """

    @property
    def cells(self) -> CellTable: ...

    @property
    def whole(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def views(self) -> Views | None: ...

    def __len__(self) -> int: ...

    def subset(self, positions: np.ndarray) -> Self:
        """Return some of the cells, which become positions 0..n-1."""

    def every_cell(self) -> Self:
        """All cells of the table, those that can be no anchor among them, in its order."""

    def statistics(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation over the cells of this dataset, float32 (shape[0],) each."""

    def recorded(self, positions: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the inputs of some cells as recorded, without augmentation; float32 (n, *shape)."""

    def __getitems__(self, positions: Sequence[int]) -> dict[str, Any]:
        """Return a batch: "anchor" and "positive", float32 (n, *shape); "meta" with "position", "epoch" and "step"."""
