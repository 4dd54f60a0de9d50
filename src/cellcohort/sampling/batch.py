"""A batch as the loader receives it, and what was asked of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np


class Batch(list[int]):
    """The positions of one batch: a list of int that knows its place in the sequence.

    Attributes
    ----------
    epoch, step : int
        The place: ``sampler.batch(epoch, step)`` gives these positions again, on any process.
        Whatever is drawn at random for the cells of a batch is keyed by them.
    """

    def __init__(self, positions: Iterable[int], epoch: int = 0, step: int = 0) -> None:
        super().__init__(positions)
        self.epoch, self.step = epoch, step

    def __reduce__(self) -> tuple[type[Batch], tuple[list[int], int, int]]:
        return Batch, (list(self), self.epoch, self.step)


@dataclass(frozen=True)
class Asked:
    """What the axes asked of one batch, before any pool ran out.

    Attributes
    ----------
    shares : dict of str to numpy.ndarray of float, shape (n_labels,)
        For each column that an axis governs (as ``cells.column(name).labels`` orders its labels),
        the share of the batch asked of every label. Each sums to 1.
    experiments : tuple of int
        Codes of the labels that the batch is built around: mostly one, and none when no axis groups batches.
    leaky : float
        Share of the batch asked from other labels than `experiments`.
    focal_hours, window_hours, inside : float
        Focal time, half-width of the window around it, and the share of the batch asked inside
        the window. NaN when no axis looks at time.
    """

    shares: dict[str, np.ndarray] = field(default_factory=dict)
    experiments: tuple[int, ...] = ()
    leaky: float = 0.0
    focal_hours: float = np.nan
    window_hours: float = np.nan
    inside: float = np.nan

    @property
    def experiment(self) -> int | None:
        """Code of the label that the batch is built around; None where it is none or several."""
        return self.experiments[0] if len(self.experiments) == 1 else None
