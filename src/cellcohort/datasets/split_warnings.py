"""What a split of cells does not give, which scores will lack: told before anything is trained."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from cellcohort.cells import CellTable, Name
from cellcohort.messages import in_list, listed, plural_of, several

SMALL = 0.5  # part of the share asked for, of either part of the split, below which a part is small


def tell_what_is_not_met(
    cells: CellTable, held_out: np.ndarray, fraction: float, unit: str, joined: Callable[[], str]
) -> None:
    """Warn of a share far above the one that is asked for, and of conditions without cells for validation.

    Parameters
    ----------
    cells : CellTable
    held_out : numpy.ndarray of bool, shape (n_cells,)
    fraction : float
    unit : str
        Name of what is held out whole.
    joined : callable
        Returns in words how many families or tracks join several of these; an empty text where none does.
    """
    share, n = held_out.mean(), several(int(held_out.sum()), "cell")
    if share - fraction >= SMALL * min(fraction, 1 - fraction):
        warnings.warn(
            f"{n} of {len(cells):,} are held out for validation, {share:.1%} where split.fraction={fraction} asks for "
            f"{fraction:.0%}: each {unit} is held out whole, and there are few. Hold out experiments "
            "(split.by=experiment), or name those to hold out (split.held_out).",
            stacklevel=1,
        )
    if lost := _without(cells, held_out):
        why = f" ({said})" if (said := joined()) else ""
        warnings.warn(
            f"{_of_conditions(cells, lost)} no cell for validation ({listed(lost, 3, show=repr)}), since they have too "
            f"few {plural_of(unit)} for split.fraction={fraction}{why}: no score on held-out cells speaks of them. Use "
            "a larger split.fraction, smaller groups (split.by), or merge rare conditions (data.merge_labels).",
            stacklevel=1,
        )


def tell_conditions_apart(cells: CellTable, training: np.ndarray, held_out: np.ndarray, by: Name) -> bool:
    """Warn, and return True, where no condition has cells in both parts, which is all there is to tell then.

    Parameters
    ----------
    cells : CellTable
    training, held_out : numpy.ndarray of bool, shape (n_cells,)
    by : str or list of str
        What is held out.
    """
    if not cells.has("condition"):
        return False
    fit, held = (_with(cells, part) for part in (training, held_out))
    if by == "experiment" or set(fit) & set(held) or not fit or not held:
        return False
    warnings.warn(
        f"No condition has cells in both parts of the split (split.by={by!r}): {len(held):,} of "
        f"{several(len({*fit, *held}), 'condition')} {'is' if len(held) == 1 else 'are'} held out "
        f"({listed(held, 3, show=repr)}), with {held_out.mean():.1%} of the cells. No probe can learn these; only "
        "scores that need no labels for training speak of them. Hold out other groups (split.by).",
        stacklevel=1,
    )
    return True


def tell_conditions_of_one_side(cells: CellTable, training: np.ndarray, held_out: np.ndarray) -> None:
    """Warn of conditions without cells for training, and of experiments whose two parts share no condition.

    Parameters
    ----------
    cells : CellTable
    training, held_out : numpy.ndarray of bool, shape (n_cells,)
    """
    remedy = "Hold out other groups (split.by, split.held_out, split.seed)"
    if lost := _without(cells, training):
        warnings.warn(
            f"{_of_conditions(cells, lost)} no cell for training ({listed(lost, 3, show=repr)}): no probe can learn "
            f"them. {remedy}.",
            stacklevel=1,
        )
    if not (cells.has("experiment") and cells.has("condition")):
        return
    experiment = cells.column("experiment")
    of, (here, there) = _in_parts(cells, training, held_out)
    apart = np.setdiff1d(np.intersect1d(of[here], of[there]), of[here & there])
    if len(apart):
        warnings.warn(
            f"In {len(apart):,} of {several(len(experiment.present()), 'experiment')} "
            f"({listed((experiment.labels[code] for code in apart), 3, in_list)}), cells for validation have "
            "other conditions than those for training: conditions cannot be scored within these. "
            f"{remedy}, or whole experiments (split.by=experiment).",
            stacklevel=1,
        )


def pairs_without_validation(cells: CellTable, held_out: np.ndarray) -> list[str]:
    """Name conditions of experiments that have no cell for validation, though others of the experiment have some.

    Parameters
    ----------
    cells : CellTable
        The cells of either part.
    held_out : numpy.ndarray of bool, shape (n_cells,)

    Returns
    -------
    list of str
        Such as ``mock of plate_1``.
    """
    if not (cells.has("experiment") and cells.has("condition")):
        return []
    of, (fit, held) = _in_parts(cells, ~held_out, held_out)
    lost = fit & ~held & np.isin(of, of[held])
    labels = cells.column(["experiment", "condition"]).labels
    return ["{1} of {0}".format(*labels[code]) for code in np.flatnonzero(lost)]


def _in_parts(cells: CellTable, *parts: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the experiment of each pair of experiment and condition, and for each part which of them it has."""
    joint, known = cells.column(["experiment", "condition"]), ~cells.unlabelled("condition")
    of = np.zeros(len(joint.labels), np.int64)
    of[joint.codes] = cells.column("experiment").codes
    return of, [np.bincount(joint.codes[part & known], minlength=len(of)) > 0 for part in parts]


def _with(cells: CellTable, part: np.ndarray) -> list[Any]:
    """Return the conditions that have a cell in a part of the table; a missing label is none."""
    condition = cells.column("condition")
    known = part & ~cells.unlabelled("condition")
    kept = np.bincount(condition.codes[known], minlength=len(condition.labels)) > 0
    return [condition.labels[code] for code in np.flatnonzero(kept)]


def _without(cells: CellTable, part: np.ndarray) -> list[Any]:
    """Return the conditions that have no cell in a part of the table."""
    if not cells.has("condition"):
        return []
    there = {*_with(cells, part)}
    return [label for label in _with(cells, np.ones(len(cells), bool)) if label not in there]


def _of_conditions(cells: CellTable, lost: list[Any]) -> str:
    has = "has" if len(lost) == 1 else "have"
    return f"{len(lost):,} of {several(len(_with(cells, np.ones(len(cells), bool))), 'condition')} {has}"
