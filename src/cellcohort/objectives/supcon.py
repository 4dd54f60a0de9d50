"""The supervised contrastive loss: tell the cells of a label from all others of the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from cellcohort.cells import Name, names_of
from cellcohort.objectives.ntxent import NTXent

if TYPE_CHECKING:
    from pydantic import PositiveFloat


class SupCon(NTXent):
    """Supervised contrastive loss (Khosla et al. 2020): all cells of a batch with the anchor's label are its positives.

    The positive that comes with an anchor is one too, whatever its label. The logarithm is inside the mean over
    positives (their equation 2).

    Parameters
    ----------
    same : str or sequence of str
        Column whose labels make cells positives of each other, or several that count jointly.
    temperature : float
        Similarities are divided by it.
    gather : bool
        Take positives and negatives from the batches of all ranks, as :class:`~cellcohort.objectives.NTXent` does.
    exclude : str or sequence of str, optional
        Columns such as "track": two cells with the same label in one of them are neither positives nor negatives of
        each other.

    Attributes
    ----------
    columns : list of str or list of str
        The columns whose labels :meth:`forward` takes: those of `same` jointly, then those of `exclude`.
    measured : dict of str to torch.Tensor
        What the last call measured: "positives" per projection, and "excluded" as for NTXent.

    Raises
    ------
    ValueError
        `temperature` is not above 0, or `same` names no column.
    """

    def __init__(
        self,
        same: Name = "condition",
        temperature: PositiveFloat = 0.2,
        gather: bool = False,
        exclude: Name | None = None,
    ) -> None:
        super().__init__(temperature, gather, exclude)
        if not names_of([same]):
            raise ValueError(f"objective.same={same!r} names no column; name one, such as condition.")
        self.columns = [names_of([same]), *self.columns]

    def _sides(self, same_cell: Tensor, alike: Tensor) -> tuple[Tensor, Tensor]:
        pulled, negative = super()._sides(same_cell, alike[1:])
        positive = pulled | (alike[0] & negative)
        self.measured["positives"] = positive.sum() / len(positive) - 1  # one of them is the projection itself
        return positive, negative & ~alike[0]
