"""One number about a representation, and what it was computed on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cellcohort.cells import CellTable, Column
from cellcohort.messages import listed

COPY_GROUPS = ("lineage", "track")  # columns whose cells are near-copies of each other
FEWEST_GROUPS = 10  # groups of an experiment, for one cell of each to stand for the experiment
RESAMPLES = 1000
FEWEST_EXPERIMENTS = 3  # for an interval over experiments


@dataclass(frozen=True)
class Score:
    """A score of a representation.

    Attributes
    ----------
    name : str
        In snake_case; the same names for all data and all representations.
    value : float
        NaN where the data do not allow the score; `note` then gives the reason.
    higher_is_better : bool
    n : int
        Cells that it was computed on.
    note : str
        The unit or the level of chance, and what was left out.
    low, high : float
        Ends of the 95 % interval over experiments, from resampling whole experiments; NaN where there is none.
    """

    name: str
    value: float
    higher_is_better: bool
    n: int
    note: str = ""
    low: float = np.nan
    high: float = np.nan


@dataclass(frozen=True)
class Held:
    """The cells that scores are computed on: some to fit on, and some that were held out.

    Attributes
    ----------
    cells : CellTable
        In the order of the rows of a representation.
    training : numpy.ndarray of bool, shape (n_cells,)
        Cells that probes and scalers may be fitted on; the others are scored.
    whole : str or sequence of str
        Column, or columns, of `cells` whose groups have all their cells in one of the two parts.
    """

    cells: CellTable
    training: np.ndarray
    whole: str | Sequence[str]

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
    def marker(self) -> Column | None:
        """What the channel of each row shows, where a row is a cell in one channel."""
        return self.cells.column("marker") if self.cells.in_channels else None

    def of_markers(self) -> Iterator[tuple[str, np.ndarray, Held]]:
        """Give what is compared with each other: the rows of each marker, or all where a row is no single channel.

        Yields
        ------
        label : str
            The marker, with a space after it; empty where there is none.
        rows : numpy.ndarray of int, shape (n,)
        part : Held
            Of these rows.
        """
        if self.marker is None:
            yield "", np.arange(len(self.cells)), self
            return
        for code in np.unique(self.marker.codes):
            rows = np.flatnonzero(self.marker.codes == code)
            yield f"{self.marker.labels[code]} ", rows, Held(self.cells.take(rows), self.training[rows], self.whole)

    @cached_property
    def unlabelled(self) -> np.ndarray:
        """Which cells have no condition, though the table has conditions; bool (n_cells,)."""
        if not self.cells.has("condition"):
            return np.zeros(len(self.cells), bool)
        return self.cells.unlabelled("condition")

    @cached_property
    def nested(self) -> bool:
        """Whether no experiment holds two conditions, though there are several of both."""
        return self._is_nested(~self.unlabelled)

    def _is_nested(self, rows: np.ndarray) -> bool:
        if self.condition is None:
            return False
        codes = np.stack([self.experiment.codes[rows], self.condition.codes[rows]])
        experiments, conditions = np.unique(codes, axis=1)
        return len(np.unique(conditions)) > 1 and len(np.unique(experiments)) == len(experiments) > 1

    @property
    def difference_of_conditions(self) -> str:
        """What to note of a difference between experiments that may be one between conditions."""
        if not self._is_nested(~self.unlabelled & ~self.training):
            return ""
        which = "holds two conditions" if self.nested else "has held-out cells of two conditions"
        return (
            f"confounded: no experiment {which}, so that a difference between conditions looks like one between "
            "experiments"
        )

    @cached_property
    def group(self) -> np.ndarray:
        """Codes of the groups of `whole`, of each experiment apart."""
        return self._in_experiments(self.whole)

    @property
    def copies(self) -> np.ndarray:
        """Codes of groups of near-copies, shape (n_cells,): one cell stands for each where neighbours are counted.

        Lineages, tracks or whatever the split keeps whole, such as wells; of the latter there must be at least
        `FEWEST_GROUPS` in each experiment. Without any of these every cell stands for itself.
        """
        return self._copies[1]

    @property
    def copy_name(self) -> str:
        """Name of the column, or columns, of :attr:`copies`."""
        return self._copies[0]

    @cached_property
    def _copies(self) -> tuple[str, np.ndarray]:
        whole = self.whole if isinstance(self.whole, str) else " x ".join(self.whole)
        found = [(whole, self.group, 2 if whole in COPY_GROUPS else FEWEST_GROUPS)]
        found += [(name, self._in_experiments(name), 2) for name in COPY_GROUPS if self.cells.has(name)]
        for name, group, enough in found:
            pairs = np.unique(np.stack([self.experiment.codes, group])[:, ~self.training], axis=1)
            if np.unique(pairs[0], return_counts=True)[1].min(initial=enough) >= enough:
                return name, group
        return "cell", np.arange(len(self.cells))

    def _in_experiments(self, names: str | Sequence[str]) -> np.ndarray:
        own = [names] if isinstance(names, str) else list(names)
        return self.cells.column([*(["experiment"] if self.cells.has("experiment") else []), *own]).codes


def one_per_group(group: np.ndarray, draw: int) -> np.ndarray:
    """Rows of one cell of each group, shape (n_groups,): the first cells for draw 0, the second ones for draw 1, ...

    A group with fewer cells begins again with its first. Draws differ by chance where rows are in random order.
    """
    order = np.argsort(group, kind="stable")
    _, first, sizes = np.unique(group[order], return_index=True, return_counts=True)
    return order[first + draw % sizes]


def bootstrap_interval(values: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """95 % interval of a macro-average over classes, from resampling experiments (cluster bootstrap).

    Parameters
    ----------
    values, weights : numpy.ndarray of float, shape (n_experiments, n_classes)
        Sums over the cells of an experiment and class, and how many cells these are. The statistic is the mean
        over classes of the sum of values over that of weights.

    Returns
    -------
    low, high : float
        Both NaN for fewer than `FEWEST_EXPERIMENTS` experiments. Resamples without a cell of some class are left out.
    """
    n = len(values)
    if n < FEWEST_EXPERIMENTS:
        return np.nan, np.nan
    times = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
    sums, totals = times @ values, times @ weights
    whole = (totals > 0).all(axis=1)
    if whole.sum() < RESAMPLES / 10:
        return np.nan, np.nan
    low, high = np.quantile((sums[whole] / totals[whole]).mean(axis=1), [0.025, 0.975])
    return float(low), float(high)


def noted(*parts: str, left_out: Sequence[str] = ()) -> str:
    """Return the parts of a note that are not empty, and what was left out: of more than six, the first three."""
    said = [part for part in parts if part]
    return "; ".join([*said, f"left out: {listed(left_out, 3 if len(left_out) > 6 else 6)}"] if left_out else said)
