"""What every kind of data gives to the other parts: cells, their inputs, and batches of both."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import numpy as np

from cellcohort.cells import CellTable, Name, names_of
from cellcohort.datasets.partners import PairRule, Partners

if TYPE_CHECKING:
    from torch import Tensor


class Views(Protocol):
    """What makes two views of a cell differ, on whole batches and where the model is."""

    def __call__(self, inputs: Tensor, key: tuple[int, ...]) -> Tensor:
        """Augmented inputs (batch, *shape), a function of the arguments alone."""


class Remark(NamedTuple):
    """Something that a source found out about its cells, which a preview reports."""

    problem: str
    change: str  # what to do about it
    typed: str = ""  # what to add to the command line for it


class Paired:
    """A dataset whose positives a rule may choose, always among its own cells.

    Attributes
    ----------
    pair_rule : PairRule or None
        None where positives are those of the source.
    n_left_out : int
        Cells without a partner that the split left out.
    n_without_positive : int
        Cells of the whole table that are no anchors, since they have no positive: scores are of these too.
    features : sequence of str
        Names of the features that are read of a table; empty where they are none, or not known.
    positive_columns : sequence of str
        Without a rule, the columns in which a positive has the labels of its anchor, if it is chosen so.
    later_hours : (float, float) or None
        Least and greatest time from a cell to its positive, where that is a later cell of its track; else None.
    """

    pair_rule: PairRule | None = None
    n_left_out: int = 0
    n_without_positive: int = 0
    features: Sequence[str] = ()
    positive_columns: Sequence[str] = ()
    later_hours: Sequence[float] | None = None
    _partners: Partners | None = None

    @property
    def partners(self) -> Partners | None:
        """What draws positives by the rule; None without one."""
        if self._partners is None and self.pair_rule is not None and self.pair_rule.chosen:
            self._partners = Partners(self.cells, self.pair_rule)  # type: ignore[attr-defined]
        return self._partners

    @property
    def together(self) -> list[str]:
        """The columns of which equal labels make two cells a possible pair."""
        return names_of([self.positive_columns if self.pair_rule is None else self.pair_rule.same])


@dataclass
class LabelledCells(Paired):
    """The cells of a dataset without what is seen of them.

    Attributes
    ----------
    cells : CellTable
        The cells that can be anchors.
    whole : str, or list of str
        Column (or columns, jointly) of `cells` whose groups :func:`cellcohort.datasets.split.split` never cuts in two.
    pair_rule : PairRule, optional
        Which of the cells may be pairs; without, pairs are those of the source.
    remarks : sequence of Remark
        What a preview reports of the source.
    """

    cells: CellTable
    whole: Name = "track"
    pair_rule: PairRule | None = None
    remarks: Sequence[Remark] = ()

    def __len__(self) -> int:
        return len(self.cells)

    def subset(self, positions: np.ndarray) -> LabelledCells:
        """Return some of the cells, which become positions 0..n-1."""
        part = copy.copy(self)
        part.cells, part._partners = self.cells.take(positions), None
        return part


class Source(Protocol):
    """Where cells come from, before anything is read.

    The groups of ``conf/data`` make one each. Its attributes are the options of the group. It may have a method
    ``check()``, by which a preview refuses inputs of cells that training would refuse, and a method
    ``check_columns()``, which refuses a table without the columns that are named, and reads no more than its header
    where they are there.
    """

    def cells(self, also: Sequence[str] = (), pairs: PairRule | None = None) -> Any:
        """Return the cells with their labels only, as :class:`LabelledCells` or as `Samples` that read when asked.

        Parameters
        ----------
        also : sequence of str
            Columns that axes name, to be read besides.
        pairs : PairRule, optional
            As for :meth:`dataset`.
        """

    def dataset(self, pairs: PairRule | None = None) -> Any:
        """Return the cells with what is seen of them, as `Samples`.

        Parameters
        ----------
        pairs : PairRule, optional
            Which cells may be pairs, instead of those that the source makes by itself; every cell can then be an
            anchor.
        """


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
    pair_rule : PairRule or None
        Which cells are positives of each other; None where positives are those of the source.
    """

    @property
    def cells(self) -> CellTable: ...

    @property
    def whole(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def views(self) -> Views | None: ...

    @property
    def pair_rule(self) -> PairRule | None: ...

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
