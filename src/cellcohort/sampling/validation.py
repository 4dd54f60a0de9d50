"""Errors of validation batches, told as theirs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cellcohort.messages import several


@contextmanager
def told_as_validation(fixed: bool, n_cells: int) -> Iterator[None]:
    """Let an error of fixed batches, which are those of validation, name these, their cells and their options."""
    try:
        yield
    except ValueError as error:
        if fixed:
            said = str(error).replace("batch_sampler.", "validation_sampler.")
            error.args = (
                f"validation batches, drawn from {several(n_cells, 'held-out cell')}: {said} Change options "
                "of validation_sampler, which training does not use, or hold out more cells (split.fraction, "
                "split.held_out).",
            )
        raise
