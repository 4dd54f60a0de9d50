"""What a sampler says of itself: to users, to those who measure its batches, and to checkpoints."""

from __future__ import annotations

import copy
from typing import Any, Literal, Self

from cellcohort.sampling.planning.shortfalls import rare_strata
from cellcohort.sampling.protocol import Options, Picker


class Description(Options):
    """What follows from the options of a sampler and from its plan."""

    scope: Literal["rank", "global"]
    _picker: Picker
    _per_epoch: Any

    def in_epoch(self, epoch: int) -> Self:
        """Return the same sampler with the axes of an epoch, by which what that epoch holds is to be measured.

        Parameters
        ----------
        epoch : int

        Returns
        -------
        BatchSampler
        """
        twin = copy.copy(self)
        twin.axes = self.axes if self.schedule is None else self.schedule.axes(epoch)
        return twin

    @property
    def n_cells(self) -> int:
        """Cells that may be drawn: those to which no axis gives weight or ratio 0."""
        return self._picker.plan.n_cells

    @property
    def unreached(self) -> tuple[str, ...]:
        """Those of `warnings` that say that ranks do not meet every group in each epoch: none, row by row."""
        return ()

    @property
    def strata_columns(self) -> list[str]:
        """The columns whose labels tell strata apart, in the order of the axes."""
        return self._picker.plan.columns

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the index holds, the cell table not counted."""
        return self._picker.nbytes

    @property
    def signature(self) -> dict[str, int | str]:
        """What the sequence of batches depends on, by option; the same on every rank."""
        return {
            "sampler": type(self).__name__,
            "cells": len(self.cells),
            **{f"axis {name}": repr(axis) for name, axis in sorted(self.axes.items())},
            **{"batch_size": self.batch_size, "seed": self.seed, "world_size": self.world_size},
            **{"scope": self.scope, "num_batches": self.num_batches},
            **({"schedule": repr(self.schedule)} if self.schedule is not None else {}),
        }

    def __repr__(self) -> str:
        axes = ", ".join(f"{name}: {axis!r}" for name, axis in self.axes.items())
        return (
            f"BatchSampler({len(self.cells):,} cells, axes={{{axes}}}, batch_size={self.batch_size}, seed={self.seed}, "
            f"rank={self.rank}, world_size={self.world_size}, scope={self.scope!r}, num_batches={self.num_batches})"
        )

    def _shortfalls(self) -> tuple[str, ...]:
        plan = self._picker.plan
        per_step = 1 if self.scope == "global" else self.world_size
        rare = rare_strata(
            plan.batches.rates(), plan.n_batches if self._per_epoch is None else self.num_batches * per_step
        )
        return (*self._picker.warnings, rare) if rare else self._picker.warnings
