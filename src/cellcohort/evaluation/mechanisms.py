"""Whether compounds of one mechanism have profiles that are alike: nearest neighbours, and mean average precision."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

import numpy as np

from cellcohort.cells import CellTable, Name, names_of
from cellcohort.coded_columns import factorized
from cellcohort.evaluation.replicates import ALIKE, Rule, all_alike, average_precision, on_sphere, over_labels
from cellcohort.evaluation.score import Held, Score, noted
from cellcohort.messages import in_list, joined, several

Taken = Literal["all", "held_out"]
NAMES = ("mechanism_map", "nsc", "nscb")


@dataclass(frozen=True)
class Treatments:
    """Which cells make a mean profile, and which profiles are no neighbours of each other.

    Attributes
    ----------
    compound : str or sequence of str
        Column, or columns, of the compound: two profiles of one compound are not compared.
    treatment : str or sequence of str
        What cells of one profile have in common: compound and dose. The compound is always a part of it.
    batch : str or sequence of str
        The biological batch, for ``nscb``.
    cells : {"all", "held_out"}
        Cells that profiles are means of: all, since a mechanism is no label in training, or those that were held out.

    Raises
    ------
    ValueError
        No column is named, or `cells` is neither of the two.
    """

    compound: Name = field(default_factory=lambda: ["condition"])
    treatment: Name = field(default_factory=lambda: ["condition"])
    batch: Name = field(default_factory=lambda: ["experiment"])
    cells: Taken = "all"

    def __post_init__(self) -> None:
        for option in ("compound", "treatment", "batch"):
            if not names_of([getattr(self, option)]):
                raise ValueError(f"evaluation.treatments.{option} names no column; name one, or leave it out.")
        if self.cells not in get_args(Taken):
            raise ValueError(
                f"evaluation.treatments.cells={self.cells!r} is not a choice; use {' or '.join(get_args(Taken))}."
            )

    @property
    def columns(self) -> list[str]:
        """The columns that it names."""
        return list(dict.fromkeys(names_of([self.compound, self.treatment, self.batch])))


class Profiles(NamedTuple):
    """Mean profiles with their labels.

    Attributes
    ----------
    values : numpy.ndarray of float, shape (n_profiles, dim)
    mechanism, compound, batch : numpy.ndarray of int, shape (n_profiles,)
        Codes of labels; `batch` is that of the first cell.
    cells : numpy.ndarray of int, shape (n_profiles,)
        How many cells each is the mean of.
    """

    values: np.ndarray
    mechanism: np.ndarray
    compound: np.ndarray
    batch: np.ndarray
    cells: np.ndarray

    def take(self, rows: np.ndarray) -> Profiles:
        """Return some of the profiles."""
        return Profiles(*(each[rows] for each in self))


def mechanism_scores(inputs: np.ndarray, held: Held, mechanism: str, treatments: Treatments) -> list[Score]:
    """Return how well the mean profile of a treatment finds those of other compounds with its mechanism.

    By cosine similarity. ``nsc`` is the share of
    profiles whose nearest neighbour of another compound has their mechanism (not same compound, Ljosa et al. 2013);
    ``nscb`` the same where the neighbour is of another batch too (not same compound or batch, Ando et al. 2017), and
    profiles are those of a treatment in a batch. ``mechanism_map`` is the mean average precision with which a profile
    ranks those of other compounds with its mechanism above those of other mechanisms, the mean over mechanisms. A
    mechanism of which no two profiles may be neighbours is left out, and named in the note.

    Parameters
    ----------
    inputs : numpy.ndarray of float, shape (n_cells, dim)
        :func:`~cellcohort.evaluation.replicates.centred`, or with an origin that means something, such as the controls.
    held : Held
    mechanism : str
        Column of the mechanism of each cell; cells without one take no part.
    treatments : Treatments
    """
    lacking = [name for name in treatments.columns if not held.cells.has(name)]
    if lacking and lacking != names_of([treatments.batch]):
        return [Score(name, np.nan, True, 0, f"the table has no {joined(lacking)}") for name in NAMES]
    if all_alike(inputs):
        return [Score(name, np.nan, True, 0, ALIKE) for name in NAMES]
    labels, known = _mechanisms(held.cells, mechanism)
    rows = np.flatnonzero(known if treatments.cells == "all" else known & ~held.training)
    of = "all cells" if treatments.cells == "all" else "held-out cells"
    if not len(rows):
        return [Score(name, np.nan, True, 0, f"no {mechanism} is known of {of}") for name in NAMES]
    made = _mean_profiles(inputs, held.cells, labels, rows, treatments, by_batch=False)
    names = np.array([str(label) for label in factorized(held.cells.values(mechanism))[1]])
    scores = [_map(made, names, of), _nearest("nsc", made, names, of, apart=False)]
    if lacking:
        return [*scores, Score("nscb", np.nan, True, 0, f"the table has no {joined(lacking)}")]
    made = _mean_profiles(inputs, held.cells, labels, rows, treatments, by_batch=True)
    return [*scores, _nearest("nscb", made, names, of, apart=True)]


def _mechanisms(cells: CellTable, mechanism: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of the mechanism of each cell, in the order of appearance, and of which cells it is known."""
    codes, _ = factorized(cells.values(mechanism))  # -1 for a missing one
    return codes.astype(np.int64), codes >= 0


def _mean_profiles(
    values: np.ndarray, cells: CellTable, mechanism: np.ndarray, rows: np.ndarray, by: Treatments, by_batch: bool
) -> Profiles:
    def codes(*names: Name) -> np.ndarray:
        return cells.column(list(dict.fromkeys(names_of(names)))).codes[rows].astype(np.int64)

    batch = codes(by.batch) if by_batch else np.zeros(len(rows), np.int64)
    key = np.stack([codes(by.compound, by.treatment), mechanism[rows], batch])
    _, first, profile, n = np.unique(key, axis=1, return_index=True, return_inverse=True, return_counts=True)
    sums = np.zeros((len(n), values.shape[1]))
    np.add.at(sums, profile.ravel(), values[rows])
    return Profiles(sums / n[:, None], mechanism[rows][first], codes(by.compound)[first], batch[first], n)


def _without_lonely(made: Profiles, apart: bool) -> tuple[Profiles, np.ndarray, np.ndarray]:
    """Leave out the mechanisms of which no two profiles may be neighbours.

    Returns
    -------
    kept : Profiles
    may_be : numpy.ndarray of bool, shape (n_kept, n_kept)
        Which profiles may be neighbours.
    left_out : numpy.ndarray of int
        Codes of mechanisms.
    """
    may_be = made.compound[:, None] != made.compound
    if apart:
        may_be &= made.batch[:, None] != made.batch
    found = (may_be & (made.mechanism[:, None] == made.mechanism)).any(axis=1)
    kept = np.flatnonzero(np.isin(made.mechanism, made.mechanism[found]))
    return made.take(kept), may_be[np.ix_(kept, kept)], np.setdiff1d(made.mechanism, made.mechanism[kept])


def _nearest(name: str, made: Profiles, names: np.ndarray, of: str, apart: bool) -> Score:
    kept, may_be, lost = _without_lonely(made, apart)
    who = "compound and batch" if apart else "compound"
    left_out = [f"{in_list(names[code])} (no two profiles of another {who})" for code in lost]
    right = may_be & (kept.mechanism[:, None] == kept.mechanism)
    scored = right.any(axis=1)
    if len(np.unique(kept.mechanism)) < 2:
        said = f"needs two mechanisms that profiles of another {who} have"
        return Score(name, np.nan, True, 0, noted(said, left_out=left_out))
    points = on_sphere(kept.values)
    nearest = np.where(may_be, points @ points.T, -np.inf).argmax(axis=1)
    value = right[np.arange(len(right)), nearest][scored].mean()
    chance = (right.sum(axis=1)[scored] / may_be.sum(axis=1)[scored]).mean()
    note = noted(
        f"chance {chance:.3g}",
        f"{several(int(scored.sum()), 'mean profile')} of {several(len(np.unique(kept.mechanism)), 'mechanism')}, of "
        f"{of}; the nearest of another {who}, by cosine",
        left_out=[several(int((~scored).sum()), "profile without such a neighbour")] * bool((~scored).any()) + left_out,
    )
    return Score(name, float(value), True, int(kept.cells.sum()), note)


def _map(made: Profiles, names: np.ndarray, of: str) -> Score:
    kept, _, lost = _without_lonely(made, apart=False)
    left_out = [f"{in_list(names[code])} (one compound)" for code in lost]
    found = average_precision(
        kept.values, Rule([kept.mechanism], [kept.compound], [], [kept.mechanism])
    ) if len(np.unique(kept.mechanism)) > 1 else None  # fmt: skip
    if found is None:
        said = "needs two mechanisms of two compounds each"
        return Score("mechanism_map", np.nan, True, 0, noted(said, left_out=left_out))
    scored = np.isfinite(found.value)
    _, label = np.unique(kept.mechanism[scored], return_inverse=True)
    value, chance = (over_labels(each[scored], label) for each in (found.value, found.chance))
    note = noted(
        f"chance {chance:.3g}",
        f"mean over {several(int(label.max()) + 1, 'mechanism')}, of {several(int(scored.sum()), 'mean profile')} of "
        f"{of}",
        left_out=left_out,
    )
    return Score("mechanism_map", value, True, int(kept.cells[scored].sum()), note)
