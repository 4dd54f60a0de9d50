"""A survey as plain text, 100 columns wide."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence

from cellcohort.messages import several
from cellcohort.preview.checks import Finding
from cellcohort.preview.checks.balance import absent_conditions, drift, ranks
from cellcohort.preview.checks.chunk_reads import chunk_lines, wasteful
from cellcohort.preview.checks.composition import (
    low_coverage,
    overdrawn,
    repeats,
    same_tracks,
    shortfalls,
    time_windows,
)
from cellcohort.preview.checks.copies import copies
from cellcohort.preview.checks.design import confounded, idle_axes, missed_share, not_scored, samples
from cellcohort.preview.checks.labels import spellings
from cellcohort.preview.checks.positives import (
    negatives_that_are_pairs,
    pair_lines,
    positive_lines,
    positives_elsewhere,
    without_partners,
)
from cellcohort.preview.checks.row_reads import costly, row_lines
from cellcohort.preview.checks.source_remarks import remarks
from cellcohort.preview.checks.tracks import gaps, tracks_of_conditions
from cellcohort.preview.describe import asked_lines, has_axis, table_line
from cellcohort.preview.survey import Survey
from cellcohort.preview.tables import WIDTH, tables
from cellcohort.sampling import BatchSampler, ShortfallWarning
from cellcohort.sampling.axes.base import WindowAxis
from cellcohort.sampling.baselines.base import Baseline
from cellcohort.sampling.protocol import Sampler, in_chunks

# the more it changes about a training, the earlier
CHECKS: tuple[Callable[[Survey], Iterator[Finding]], ...] = (
    *(remarks, confounded, samples, not_scored, missed_share, idle_axes, copies, tracks_of_conditions, gaps),
    *(costly, wasteful),
    *(positives_elsewhere, without_partners, negatives_that_are_pairs),
    *(shortfalls, time_windows, drift),
    *(repeats, same_tracks, absent_conditions, low_coverage, overdrawn, ranks),
)


def findings(survey: Survey, mergeable: bool = True) -> list[Finding]:
    """Find everything that a scientist should know before training.

    Parameters
    ----------
    survey : Survey
    mergeable : bool
        Whether the config of the data has ``merge_labels``.

    Returns
    -------
    list of Finding
    """
    labels = list(spellings(survey.sampler, mergeable))
    return [*labels, *(finding for check in CHECKS for finding in check(survey))]


def report(survey: Survey, found: Sequence[Finding], cover: str, source: Iterable[str] = ()) -> str:
    """Write the whole preview as text.

    Parameters
    ----------
    survey : Survey
    found : sequence of Finding
        Result of :func:`findings`.
    cover : str
        Result of :func:`cover`.
    source : iterable of str
        Sentences on where the cells come from.

    Returns
    -------
    str
    """
    lines = [
        *_paragraph("TABLE", [table_line(survey.sampler.cells) + ".", *source]),
        *_paragraph("ASKED", list(asked_lines(survey.sampler))),
        *_paragraph("PAIRS", list(pair_lines(survey))),
        *_paragraph("EPOCH", list(_epoch(survey))),
        *_paragraph("READING", [*row_lines(survey), *chunk_lines(survey), *positive_lines(survey)]),
        "",
        *_findings(found),
    ]
    for section in tables(survey):
        lines += ["", *section]
    lines += ["", *_paragraph("COVER", [cover])]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def cover(sampler: Sampler) -> str:
    """Describe the epoch that ``num_batches="cover"`` would make, or why it is not available.

    Parameters
    ----------
    sampler : Sampler

    Returns
    -------
    str
    """
    why = ""
    if isinstance(sampler, Baseline):
        why = "with a sampler of another library, which draws at random"
    elif sampler.schedule is not None:
        why = "with a schedule, since the axes of later epochs ask for something else"
    elif in_chunks(sampler):
        why = "where cells are read in chunks, since chunk windows leave rows unused"
    elif has_axis(sampler, WindowAxis):
        why = "with a time window, since focal times decide what is drawn"
    if why:
        return (
            f"batch_sampler.num_batches=cover is not available {why}. Set a number above {len(sampler):,} and see in "
            "the table of the coverage what it covers."
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ShortfallWarning)
            covering = BatchSampler(
                sampler.cells,
                sampler.axes,
                sampler.batch_size,
                sampler.seed,
                world_size=sampler.world_size,
                scope=sampler.scope,
                num_batches="cover",
            )
    except ValueError as refused:  # such an epoch would be too long, or cannot be promised
        return f"batch_sampler.{refused}"
    times = len(covering) / len(sampler)
    return (
        f"batch_sampler.num_batches=cover makes an epoch of {several(len(covering), 'batch')} per rank, "
        f"{times:.2f} times as long as now. {' '.join(covering.notes)}"
    )


def _paragraph(title: str, sentences: Sequence[str]) -> list[str]:
    return [
        line
        for i, sentence in enumerate(sentences)
        for line in textwrap.wrap(
            sentence, WIDTH, initial_indent=f"{title if i == 0 else '':<8}", subsequent_indent=" " * 8
        )
    ]


def _epoch(survey: Survey) -> Iterator[str]:
    sampler, n_ranks = survey.sampler, survey.sampler.world_size
    cut = f", cut to {survey.epoch_steps:,} by trainer.limit_train_batches" if survey.epoch_steps < len(sampler) else ""
    draws = several(survey.epoch_steps * n_ranks * sampler.batch_size, "draw")
    yield (
        f"{several(len(sampler), 'batch')} of {several(sampler.batch_size, 'cell')} on "
        f"{'each of ' * (n_ranks > 1)}{several(n_ranks, 'rank')}{cut}: {draws} from "
        f"{several(sampler.n_cells, 'cell')}. The training has {several(survey.epochs, 'epoch')}."
    )
    if n_ranks == 1:
        yield "For a training in several processes, set world_size to their number."
    part = (
        f"all of epoch {survey.epoch}"
        if survey.steps == survey.epoch_steps
        else f"the first {several(survey.steps, 'step')} of epoch {survey.epoch}"
    )
    yield f"Measured below: {several(survey.n_batches, 'batch')}, {part}; seed {sampler.seed}."


def _findings(found: Sequence[Finding]) -> Iterator[str]:
    if not found:
        yield "NO PROBLEM FOUND: the batches hold what is asked."
        return
    yield "FINDINGS"
    for number, finding in enumerate(found, 1):
        yield from textwrap.wrap(finding.problem, WIDTH, initial_indent=f"{number:3}. ", subsequent_indent=" " * 5)
        for reason in finding.reasons:
            yield from textwrap.wrap(reason, WIDTH, initial_indent="     - ", subsequent_indent=" " * 7)
        yield from textwrap.wrap(finding.change, WIDTH, initial_indent="     -> ", subsequent_indent=" " * 8)
        if finding.typed:
            yield f"        {finding.typed}"
