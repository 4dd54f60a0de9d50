"""Training and validation cells that share no track."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from cellcohort.cells import CellTable, Name, names_of
from cellcohort.datasets.copies import copied, copy_numbers
from cellcohort.datasets.held_out_cells import (
    CHUNK,
    ROW,
    by_experiment,
    by_fold,
    by_units,
    codes_of,
    named_groups,
    strata_of,
    unit_of,
)
from cellcohort.datasets.held_out_groups import in_several
from cellcohort.datasets.protocol import LabelledCells, Paired
from cellcohort.datasets.split_warnings import (
    SMALL,
    tell_conditions_apart,
    tell_conditions_of_one_side,
    tell_what_is_not_met,
)
from cellcohort.messages import plural_of, several, whole_number
from cellcohort.mothers import refuse_mothers_as_groups

if TYPE_CHECKING:
    from pydantic import Field, NonNegativeInt

    from cellcohort.datasets.features.windows import TrackWindows


def split[Tracks: (TrackWindows, LabelledCells)](
    dataset: Tracks,
    by: Name = "track",
    fraction: Annotated[float, Field(gt=0, lt=1)] = 0.2,
    held_out: str | float | Sequence[Any] | None = None,
    seed: NonNegativeInt = 0,
    fold: int | None = None,
    folds: int | None = None,
) -> tuple[Tracks, Tracks]:
    """Divide the cells of a dataset, never cutting a track (or a lineage, where these are known) in two.

    Cells that have the same values as others, as far as the dataset knows of such copies, are kept in one part together
    with what belongs to them. Where `held_out` or whole experiments put copies or parts of a track into both parts, as
    markers of one cell are, or copies link so many tracks or groups that the rest is no share near `fraction`, those
    for validation are in neither part, and a warning gives their number. Where a rule pairs cells
    (``dataset.pair_rule``), both cells of a pair are of one part, and cells without a partner there are left out if the
    rule leaves them out.

    Parameters
    ----------
    dataset : TrackWindows or LabelledCells
    by : str or list of str
        "track" divides the tracks of every condition (that of a track's first row) of every experiment,
        so that each has cells in both parts unless it has one track only, which is then for training. Where that
        would miss `fraction` by more than 0.05, as with two tracks each, the tracks of such small strata are held out
        evenly along the list of all, in the order of conditions: `fraction` is then right for each condition as near
        as whole tracks come to it, and some strata have none. The cells of a store without tracks are divided by its
        chunks, those of a condition of an experiment with few chunks one by one.
        "experiment" holds out whole experiments, and any other column (or several, jointly), such as "well", its
        whole groups: of every condition of every experiment where these have several groups, else of all together.
    fraction : float
        Share of the cells (by track, in each condition of each experiment) or of the groups of `by` for
        validation, above 0 and below 1, as near as whole tracks or groups come to it.
    held_out : label or sequence of labels, optional
        The groups of `by` for validation, instead of a `fraction` of them; not by track.
    seed : int
        Decides what is held out.
    fold : int, optional
        Which of the `folds` is held out, from 0, instead of a `fraction`; not by track. All folds in turn hold each
        group of `by` out once.
    folds : int, optional
        Parts that the groups of `by` are dealt to, as even in number as they can be: at random, or one each in the
        order of their labels where there are as many folds as groups, which is the default with `fold`.

    Returns
    -------
    train, validation : TrackWindows or LabelledCells
        Of the same kind as `dataset`.

    Raises
    ------
    ValueError
        An option is out of range, a column or label is not in the table, a part would be empty, or no cell for
        training has a partner.

    Warns
    -----
    UserWarning
        Cells are in neither part, since training has copies of them or others of their track; by track, the cells held
        out are less than half of `fraction`; or none of them has a partner. Other than by experiment, the cells held
        out are one and a half times `fraction` or more, or conditions have none.
    """
    if not isinstance(getattr(dataset, "cells", None), CellTable):
        raise ValueError(f"a {type(dataset).__name__} is no dataset of cells; make one, such as LabelledCells(cells).")
    if not (columns := names_of([by])):
        raise ValueError(f"by={by!r} names no column to divide the cells by; use by='track', or name one or several.")
    by = columns[0] if len(columns) == 1 else columns
    if not isinstance(fraction, Real) or not 0 < fraction < 1:
        raise ValueError(f"fraction={fraction!r} must be a number above 0 and below 1.")
    whole_number("seed", seed, 0)
    if by == "track" and held_out is not None:
        raise ValueError(f"held_out={held_out} names groups of a column; use by='experiment', or leave it out.")
    _check_folds(by, held_out, fold, folds)
    if by != "track":
        refuse_mothers_as_groups("split.by", dataset.cells, by)
    held_out = _group(held_out)
    files = dataset.cells.files.of("split", dataset.whole, by, fraction, held_out, seed, fold, folds)
    training, held = map(
        dataset.subset, files.arrays(lambda: _divided(dataset, by, fraction, held_out, seed, (fold, folds)))
    )
    return _matched(training, "training"), _matched(held, "validation")


def _divided(
    dataset: TrackWindows | LabelledCells,
    by: Name,
    fraction: float,
    held_out: str | float | Sequence[Any] | None,
    seed: int,
    folds: tuple[int | None, int | None],
) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of the cells for training and of those for validation."""
    if held_out is not None:
        validation = named_groups(dataset.cells, by, held_out)
    elif folds[0] is not None:
        validation = by_fold(dataset, by, folds[0], folds[1], seed)
    elif by == "experiment":
        validation = by_experiment(dataset.cells, fraction, seed)
    else:
        validation = by_units(dataset, by, fraction, seed)
    unit = unit_of(dataset)
    for part, mask in (("training", ~validation), ("validation", validation)):
        if not mask.any():
            joined = (
                "" if by in ("track", "experiment") else f" Groups of {by!r} with cells of one {unit} are one group."
            )
            raise ValueError(
                f"no cell is left for {part} (by={by!r}, fraction={fraction}, held_out={held_out}); hold out other "
                f"groups, or split by='track' a table with two {plural_of(unit)} of one condition.{joined}"
            )
    alike = validation & copied(dataset.cells, ~validation)
    why = f"training has {'cells of the same values' if alike.any() else f'other cells of the same {unit}'}"
    remedy = f"{'Remove the copies, or split' if alike.any() else 'Split'} by other groups (split.by, split.held_out)."
    alone = validation & ~alike & ~_cut(dataset, validation)
    if not alone.any():
        raise ValueError(f"no cell is left for validation (by={by!r}, held_out={held_out}): of each, {why}. {remedy}")
    if left := int((validation & ~alone).sum()):
        warnings.warn(
            f"{several(left, 'cell')} of {len(alone):,} are in neither part of the split: they would be held out, and "
            f"{why}. {remedy}",
            stacklevel=1,
        )
    if by == "track" and (share := alone.mean()) < fraction * SMALL:
        warnings.warn(
            f"{several(int(alone.sum()), 'cell')} of {len(alone):,} are held out for validation, {share:.1%} where "
            f"split.fraction={fraction} asks for {fraction:.0%}: {_reason(dataset)}.",
            stacklevel=1,
        )
    elif tell_conditions_apart(dataset.cells, ~validation, alone, by):
        return np.flatnonzero(~validation), np.flatnonzero(alone)
    elif held_out is None and folds[0] is None and by != "experiment":
        held_whole = unit if by == "track" else " x ".join(names_of([by]))
        tell_what_is_not_met(dataset.cells, alone, fraction, held_whole, lambda: joined_groups(dataset, by))
    if by != "experiment":
        tell_conditions_of_one_side(dataset.cells, ~validation, alone)
    return np.flatnonzero(~validation), np.flatnonzero(alone)


def _cut(dataset: TrackWindows | LabelledCells, validation: np.ndarray) -> np.ndarray:
    """Which cells for validation are of a track or lineage that training has cells of."""
    if dataset.whole in (CHUNK, ROW):
        return np.zeros_like(validation)
    codes = codes_of(dataset.cells, dataset.whole)
    return validation & (np.bincount(codes[~validation], minlength=int(codes.max()) + 1) > 0)[codes]


def joined_groups(dataset: TrackWindows | LabelledCells, by: Name) -> str:
    """Say how many tracks or families have cells in several groups of `by`, which they join; empty where none has."""
    if by == "track" or dataset.whole in (CHUNK, ROW):
        return ""
    n = in_several(codes_of(dataset.cells, dataset.whole), codes_of(dataset.cells, by))
    join = "joins" if n == 1 else "join"
    return f"{several(n, unit_of(dataset))} with cells in several of them {join} these" if n else ""


def _matched[Part: (TrackWindows, LabelledCells)](part: Part, name: str) -> Part:
    """Return a part without the cells that have no partner in it, where its rule leaves them out."""
    if not isinstance(part, Paired) or part.partners is None or part.pair_rule is None:
        return part
    there = part.partners.counts(np.arange(len(part))) > 0
    if there.all():
        return part
    if not there.any():
        said = f"none of {several(len(part), 'cell')} for {name} has a partner there with {part.pair_rule}"
        if name == "training" or part.pair_rule.missing == "leave_out":
            raise ValueError(
                f"{said}, and pairs do not cross the split. Name fewer or coarser columns in pairs.same and "
                "pairs.different, or split by other groups (split.by)."
            )
        warnings.warn(f"{said}: val/loss is that of pairs of two views (pairs.missing=view).", stacklevel=1)
    if part.pair_rule.missing == "view":
        return part
    kept = part.subset(np.flatnonzero(there))  # partners are mutual, so these still have theirs
    kept.n_left_out = len(part) - len(kept)
    return kept


def _reason(dataset: TrackWindows | LabelledCells) -> str:
    copies = ", or copies of cells belong together" if copy_numbers(dataset.cells).any() else ""
    if dataset.whole in (CHUNK, ROW):
        return f"most conditions have one cell only, which is for training{copies}"
    strata = strata_of(dataset.cells)
    _, first = np.unique(codes_of(dataset.cells, dataset.whole), return_index=True)
    single = int((np.bincount(strata[first]) == 1).sum())
    return (
        f"{single:,} of {several(len(np.unique(strata)), 'condition')} of an experiment have one {dataset.whole} only, "
        f"which is for training{copies}"
    )


def _group(label: Any) -> Any:
    """Return a label as it is, and several, in a list or an array, as a tuple."""
    return tuple(map(_group, label)) if isinstance(label, Iterable) and not isinstance(label, str) else label


def _check_folds(by: Name, held_out: str | float | Sequence[Any] | None, fold: int | None, folds: int | None) -> None:
    if fold is None:
        if folds is not None:
            n = whole_number("folds", folds, 2)
            raise ValueError(f"folds={n} needs fold, which of them to hold out: 0 to {n - 1}.")
        return
    whole_number("fold", fold, 0)
    if folds is not None and fold >= whole_number("folds", folds, 2):
        raise ValueError(f"fold={fold} is not one of folds={folds}; use 0 to {folds - 1}.")
    if by == "track":
        raise ValueError(f"fold={fold} holds out groups of a column; use by='experiment', or another column.")
    if held_out is not None:
        raise ValueError(f"fold={fold} and held_out={held_out} both say what is held out; leave one of them out.")
