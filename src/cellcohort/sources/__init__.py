"""What a store can be prepared from: one module per kind of source, all with the attributes of `Source`."""

from __future__ import annotations

from cellcohort.extras import require

require("stores")

from collections.abc import Sequence
from typing import Any, Protocol

import pandas as pd


class Source(Protocol):
    """Cells in the order in which they lie at their source, read by runs of rows.

    It is pickled to the workers, which only call :meth:`read`.

    Attributes
    ----------
    shape : tuple of int
        Shape of one cell's input.
    sparse : bool
        Whether :meth:`read` gives sparse rows.
    features : list of str or None
        Names along the first axis of an input, where they have names.
    obs : pandas.DataFrame
        One row per cell, with "source_file" and "source_row" to find it again.
    columns : dict of str to sequence of str
        The columns of obs that each file has; `obs` has missing values where a file lacks a column of another.
    notes : sequence of str
        What is to be known of the cells before they are read, in sentences.
    options : dict of str to object
        How they are read.
    state : dict of str to str
        By file or other part, what changes when what :meth:`read` gives may have changed.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def sparse(self) -> bool: ...

    @property
    def features(self) -> list[str] | None: ...

    @property
    def obs(self) -> pd.DataFrame: ...

    @property
    def columns(self) -> dict[str, Sequence[str]]: ...

    @property
    def notes(self) -> Sequence[str]: ...

    @property
    def options(self) -> dict[str, Any]: ...

    @property
    def state(self) -> dict[str, str]: ...

    def read(self, start: int, stop: int) -> Any:
        """Read rows start..stop-1, float32 (stop - start, *shape): a numpy array, or a scipy CSR matrix."""
