"""What the design of the experiments lets anyone conclude, whatever the sampler does."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cellcohort.cells import Column
from cellcohort.messages import in_list, listed, several
from cellcohort.preview.checks import Finding
from cellcohort.preview.describe import FEW, has_axis, percent, title_of
from cellcohort.preview.survey import Survey
from cellcohort.sampling.axes.base import GroupAxis, ShareAxis
from cellcohort.sampling.protocol import Sampler


def pairs_of(sampler: Sampler) -> tuple[np.ndarray, np.ndarray] | None:
    """Find which experiments hold which conditions; the label of cells without one (``missing="label"``) is none.

    Parameters
    ----------
    sampler : Sampler

    Returns
    -------
    (numpy.ndarray of int, numpy.ndarray of int), each of shape (n_pairs,), or None
        The codes of an experiment and of a condition that some cell has together, each pair once; None where the table
        lacks either column.
    """
    cells = sampler.cells
    if not (cells.has("experiment") and cells.has("condition")):
        return None
    experiment, condition = cells.column("experiment"), cells.column("condition")
    known = ~cells.unlabelled("condition")
    pairs = np.unique(experiment.codes[known].astype(np.int64) * len(condition.labels) + condition.codes[known])
    return np.divmod(pairs, len(condition.labels))


def nested(sampler: Sampler) -> bool:
    """Whether there are several experiments and conditions, but no experiment has two conditions."""
    pairs = pairs_of(sampler)
    return pairs is not None and _nested(sampler, pairs[0])


def _nested(sampler: Sampler, experiments: np.ndarray) -> bool:
    present = [len(sampler.cells.column(role).present()) for role in ("experiment", "condition")]
    return bool(len(np.unique(experiments)) == len(experiments) > 0) and min(present) > 1


def confounded(survey: Survey) -> Iterator[Finding]:
    """Find effects of conditions and experiments that cannot be told apart, in all experiments or in some."""
    sampler = survey.sampler
    pairs = pairs_of(sampler)
    if pairs is None:
        return
    experiment, condition = sampler.cells.column("experiment"), sampler.cells.column("condition")
    n_experiments, n_conditions = len(experiment.present()), len(condition.present())
    alone = [experiment.labels[code] for code in np.flatnonzero(np.bincount(pairs[0]) == 1)]
    if n_experiments == n_conditions == 1:
        yield Finding(
            "There is one experiment and one condition: cells can be compared over time and between tracks only.",
            "Add other experiments or conditions, or name the columns that hold them (data.columns).",
        )
        return
    if _nested(sampler, pairs[0]):
        problem = (
            "Experiment and condition are confounded: no experiment holds two conditions. "
            f"{_conclusions(experiment, condition)}"
        )
        change = "If you can, repeat two conditions or more, such as a control, in every experiment."
        if has_axis(sampler, GroupAxis) and has_axis(sampler, ShareAxis):
            problem += " A batch of one experiment cannot be balanced over conditions."
            change = "Leave out the axis experiment_aware; the axis condition then balances over all experiments."
        yield Finding(problem, change)
        return
    if alone and n_conditions > 1 and n_experiments > 1:
        yield Finding(
            f"Only one condition in {len(alone):,} of {several(n_experiments, 'experiment')} "
            f"({listed(alone, FEW, in_list)}): there, conditions cannot be compared within the experiment.",
            "Compare conditions over the experiments that hold several.",
        )
    n = np.bincount(pairs[1], minlength=len(condition.labels))
    single = [f"{condition.labels[c]!r} in {experiment.labels[e]!r}" for e, c in zip(*pairs, strict=True) if n[c] == 1]
    if single and n_experiments > 1:
        are = "is" if len(single) == 1 else "are"
        yield Finding(
            f"{len(single):,} of {several(int((n > 0).sum()), 'condition')} {are} in one experiment only "
            f"({listed(single, FEW)}): what is of the condition cannot be told from what is of the experiment.",
            "Compare such a condition with others of its experiment, and repeat it in another experiment if you can.",
        )


def samples(survey: Survey) -> Iterator[Finding]:
    """Find wells, animals or other samples that a condition cannot be told apart from."""
    found = None if survey.source is None else survey.source.inseparable
    if found is None or nested(survey.sampler):  # where the experiments are the reason already
        return
    of, n = found.column, len(found.alone)
    said = str(found)
    only = (
        f"{n:,} of {several(found.n_conditions, 'condition')} {'has' if n == 1 else 'have'} one {of} only "
        f"({listed(found.alone, FEW, in_list)}), so that no split tells the two apart."
    )
    yield Finding(
        f"{said[0].upper()}{said[1:]}. A score of the condition may be one of the {of}.",
        "Hold out whole ones.",
        (only,) if n else (),
        found.option,
    )


def not_scored(survey: Survey) -> Iterator[Finding]:
    """Find conditions of experiments that have no held-out cells, though others of the experiment have some."""
    source = survey.source
    if source is None or not (pairs := source.not_scored):
        return
    fraction = source.scored_with
    yield Finding(
        f"{several(len(pairs), 'condition')} of experiments {'has' if len(pairs) == 1 else 'have'} no held-out cells "
        f"({listed(pairs, FEW)}): scores within the experiment leave them out.",
        "Hold out more, so that each condition of an experiment has some."
        if fraction
        else "Use a larger split.fraction, hold out other or smaller groups (split.by, split.held_out), or repeat "
        "these conditions in their experiments.",
        typed=f"split.fraction={fraction}" if fraction else "",
    )


def missed_share(survey: Survey) -> Iterator[Finding]:
    """Find a share of held-out cells that is not near the one asked for."""
    missed = None if survey.source is None else survey.source.missed_share
    if missed is None:
        return
    yield Finding(
        f"{percent(missed.share)} of the cells are held out for validation, where split.fraction={missed.fraction:g} "
        f"asks for {percent(missed.fraction)}: {missed.cause}.",
        "Hold out other groups, which come nearer to this share."
        if missed.typed
        else "Use smaller groups (split.by), name those to hold out (split.held_out), or take the share as it is.",
        typed=missed.typed,
    )


def _conclusions(experiment: Column, condition: Column) -> str:
    """Return what can and cannot be concluded where each experiment has one condition."""
    _, first = np.unique(experiment.codes, return_index=True)
    n = np.bincount(condition.codes[first], minlength=len(condition.labels))
    n = n[n > 0]
    if n.max() == 1:
        return (
            "Each condition has one experiment, so nothing can be concluded about conditions: any difference may be "
            "one between experiments."
        )
    single = int((n == 1).sum())
    only = f" ({several(single, 'condition')} of {len(n):,} {'has' if single == 1 else 'have'} one)" if single else ""
    return (
        "It can be tested whether experiments that are held out are recognized by their condition, for conditions with "
        f"several experiments{only}. It cannot be concluded that the condition causes a difference between single "
        "experiments."
    )


def idle_axes(survey: Survey) -> Iterator[Finding]:
    """Find axes whose column has one label, so that they change nothing."""
    for name, axis in sorted(survey.sampler.axes.items()):
        if not isinstance(axis, (GroupAxis, ShareAxis)):
            continue
        labels = survey.sampler.cells.column(axis.column).present()
        if len(labels) == 1:
            yield Finding(
                f"All cells have the same {title_of(axis)}, {labels[0]!r}: the axis {name} changes nothing.",
                f"Leave out the axis {name}, or name another column (column).",
            )
