"""What a scientist should know before training with a sampler, and what to change."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from cellcohort.messages import listed, several
from cellcohort.preview.checks.balance import drift, ranks, uneven, windows_alter
from cellcohort.preview.checks.chunk_reads import wasteful
from cellcohort.preview.checks.finding import Finding
from cellcohort.preview.checks.labels import spellings
from cellcohort.preview.checks.positives import apart
from cellcohort.preview.checks.row_reads import costly
from cellcohort.preview.describe import has_axis, percent, title_of
from cellcohort.preview.label_shares import LabelShares
from cellcohort.preview.survey import Survey
from cellcohort.sampling.axes.base import CapAxis, GroupAxis, ShareAxis, WindowAxis
from cellcohort.sampling.chunked.read_cost import in_chunks

REASONS = 6  # told of each finding, at most
MATES = 0.02  # share of a batch's cells with another cell of their track that is worth a word
DRAWN = 0.9  # share of the cells that an epoch should draw
OVERDRAWN = 4.0  # draws per cell of the most sampled stratum over those of all cells


def findings(survey: Survey, mergeable: bool = True) -> list[Finding]:
    """Everything that stands out.

    Parameters
    ----------
    survey : Survey
    mergeable : bool
        Whether the config of the data has ``merge_labels``.
    """
    kinds: list[Callable[[Survey], Iterator[Finding]]] = [
        *(costly, wasteful, apart, _short, _windows, drift, _repeats, _mates, uneven, _coverage, _overdrawn, ranks)
    ]
    known = list(spellings(survey.sampler, mergeable))
    return [*known, *(finding for kind in kinds for finding in kind(survey))]


def _short(survey: Survey) -> Iterator[Finding]:
    """What batches hold less of than asked, and why."""
    told, absent = [], False
    for held in survey.label_shares:
        if held.rule == "share":
            texts, none_there = _labels_short(survey, held)
            told += [f"{held.title} {listed(texts, 3)}"] if texts else []
            absent |= none_there
    leaked, leak_asked = survey.numbers.get("leak/held"), survey.numbers.get("leak/asked")
    if leaked is not None and leak_asked is not None and survey.numbers["leak/shortfall"].any():
        told.append(f"leaked cells {percent(leaked.mean())} instead of {percent(leak_asked.mean())}")
    of_windows = getattr(survey.sampler, "unreached", ())  # which `drift` tells
    reasons = tuple(reason for reason in survey.sampler.warnings if reason not in of_windows)
    if not (told or reasons):
        return
    group = survey.group
    if group is not None and np.count_nonzero(group.cells) == 1:
        change = f"There is one {group.title}: leave out the axis that builds batches around it."
    elif absent and group is not None:
        change = (
            f"If the {group.title}s were meant to differ so, nothing: the other labels fill these places. Else raise "
            f"sampler.experiment_aware.leaky, or leave out the axis that builds batches around one {group.title}."
        )
    elif told:
        change = (
            "Ask less of what is rare (sampler.condition.ratio, sampler.experiment_aware.leaky), or use a smaller "
            "batch_sampler.batch_size."
        )
    else:
        change = "Nothing need change, if the places that other labels fill instead are few: see the tables."
    what = f"batches are short of {'; '.join(told)}" if told else "some batches lack some labels"
    more = (f"and {len(reasons) - REASONS} more of this kind.",) if len(reasons) > REASONS else ()
    yield Finding(f"The table cannot give all that is asked: {what}.", change, (*reasons[:REASONS], *more))


def _labels_short(survey: Survey, held: LabelShares) -> tuple[list[str], bool]:
    """The labels short by a tenth of their share and a cell, the worst first; and whether any of them has no cell."""
    group, size, asked = survey.group, survey.batch_cells, np.asarray(held.asked)
    rows, cells = held.mean[None], held.cells[None]
    where = [""]
    if group is not None and held.by_primary is not None:
        rows, n = held.by_primary, len(held.cells)
        pairs = group.column.codes.astype(np.int64) * n + held.column.codes
        cells = np.bincount(pairs, minlength=len(rows) * n).reshape(-1, n)
        where = [f" in batches of {name}" for name in group.names]
    lacking = np.nan_to_num((asked - rows) * size)
    lacking[lacking <= np.maximum(1.0, 0.1 * asked * size)] = 0
    order = [divmod(int(k), lacking.shape[1]) for k in np.argsort(-lacking, axis=None, kind="stable")]
    texts = [
        f"{held.names[code]} {percent(rows[row, code])} instead of {percent(asked[code])}{where[row]}"
        for row, code in order[: np.count_nonzero(lacking)]
    ]
    return texts, bool((cells[lacking > 0] == 0).any())


def _windows(survey: Survey) -> Iterator[Finding]:
    if "window/held" not in survey.numbers:
        return
    held, asked = survey.numbers["window/held"], survey.numbers["window/asked"]
    short, focal = survey.numbers["window/shortfall"] > 0, survey.numbers["window/focal_hours"]
    for ran_out, where, change in (
        (short & (held < asked), "in", "widen sampler.temporal.window_hours, raise sampler.temporal.global_fraction"),
        (
            short & (held > asked),
            "outside",
            "narrow sampler.temporal.window_hours, lower sampler.temporal.global_fraction",
        ),
    ):
        if not ran_out.any():
            continue
        times = (
            f" (focal times {focal[ran_out].min():g} to {focal[ran_out].max():g} h)" if np.isfinite(focal).all() else ""
        )
        led = ""
        if survey.group is not None and survey.primary is not None:
            share = [ran_out[survey.primary == code].mean() if (survey.primary == code).any() else 0.0
                     for code in range(len(survey.group.column.labels))]  # fmt: skip
            worst = int(np.argmax(share))
            led = f", most often in those of {survey.group.names[worst]} ({percent(share[worst])} of them)"
        yield Finding(
            f"Too few cells {where} the time window: {_of_batches(survey, ran_out)} have "
            f"{percent(held[ran_out].mean())} of their cells within it instead of "
            f"{percent(asked[ran_out].mean())}{times}{led}.",
            f"{change[:1].upper()}{change[1:]}, or use a smaller batch_sampler.batch_size.",
        )


def _repeats(survey: Survey) -> Iterator[Finding]:
    repeats = survey.numbers["duplicates"]
    if not repeats.any():
        return
    at_once = f"{repeats.mean():.1f} of {survey.batch_cells} places a batch on average, {repeats.max():.0f} at most"
    ways = "Use a smaller batch_sampler.batch_size"
    if has_axis(survey.sampler, GroupAxis):
        ways += (
            ", give small experiments weight 0 (sampler.experiment_aware.weights), or let more cells leak in "
            "(sampler.experiment_aware.leaky)"
        )
    elif has_axis(survey.sampler, ShareAxis):
        ways += ", or ask less of the labels with few cells (sampler.condition.ratio)"
    yield Finding(f"{_of_batches(survey, repeats > 0)} hold a cell more than once: {at_once}.", f"{ways}.")


def _mates(survey: Survey) -> Iterator[Finding]:
    if survey.same_track_share is None or survey.same_track_share.mean() <= MATES:
        return
    capped = [axis for axis in survey.sampler.axes.values() if isinstance(axis, CapAxis)]
    pairs = survey.numbers["same_track_pairs"].mean()
    by_row = windows_alter(survey, lambda of: 0.0 if of.same_track_share is None else of.same_track_share.mean())
    why = f"; row by row, {percent(by_row)} would" if by_row is not None else ""
    yield Finding(
        f"{percent(survey.same_track_share.mean())} of a batch's cells share their track with another cell of it "
        f"({pairs:.1f} pairs a batch{why}): they are near-copies, which the loss pushes apart.",
        f"Few of each {title_of(capped[0])} are at hand, so the cap gives way: use a smaller batch_sampler.batch_size"
        f"{', widen sampler.temporal.window_hours' * has_axis(survey.sampler, WindowAxis)}, "
        "or ask less of what is rare."
        if capped
        else "Add the axis track_capped to the sampler, or use a smaller batch_sampler.batch_size"
        f"{', or reading=rows' * (by_row is not None)}.",
    )


def _coverage(survey: Survey) -> Iterator[Finding]:
    share, sampler = survey.coverage_by_epoch[-1], survey.sampler
    if share >= DRAWN:
        return
    if survey.epoch_steps < len(sampler):
        change = "Raise trainer.limit_train_batches or trainer.max_epochs: each epoch draws other cells."
    elif has_axis(survey.sampler, WindowAxis) or in_chunks(sampler):
        change = f"Set batch_sampler.num_batches above {len(sampler)}, or raise trainer.max_epochs."
    else:
        change = "Set batch_sampler.num_batches=cover (its price is at the end), or raise trainer.max_epochs."
    yield Finding(
        f"Of the cells, {percent(share)} are drawn at least once in "
        f"{several(len(survey.coverage_by_epoch), 'epoch')}; the others are never seen.",
        change,
    )


def _overdrawn(survey: Survey) -> Iterator[Finding]:
    draws = survey.coverage.drawn @ np.arange(survey.coverage.drawn.shape[1])
    cells = survey.coverage.drawn.sum(axis=1)
    each, usual = draws / np.maximum(cells, 1), survey.draws.mean()
    most = int(each.argmax())
    if len(cells) > 1 and each[most] > max(2.0, OVERDRAWN * usual):
        name = survey.coverage.table()["stratum"][most]
        yield Finding(
            f"An epoch draws each of the {several(int(cells[most]), 'cell')} of {name} {each[most]:.1f} times, "
            f"{each[most] / usual:.1f} times as often as the average cell: a model may learn them by heart.",
            "Ask less of what is rare (sampler.condition.ratio, sampler.experiment_aware.weights), or train for fewer "
            "or shorter epochs.",
        )


def _of_batches(survey: Survey, which: np.ndarray) -> str:
    return f"{percent(which.mean())} of {several(survey.n_batches, 'batch')}"
