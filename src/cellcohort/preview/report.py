"""A survey as plain text, 100 columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from cellcohort.messages import several
from cellcohort.preview.checks.chunk_reads import chunk_lines
from cellcohort.preview.checks.finding import Finding
from cellcohort.preview.checks.positives import partner_lines
from cellcohort.preview.checks.row_reads import row_lines
from cellcohort.preview.describe import asked_lines, table_line
from cellcohort.preview.survey import Survey
from cellcohort.preview.tables import WIDTH, tables


def report(survey: Survey, found: Sequence[Finding], cover: str, source: str = "") -> str:
    """The whole preview as text.

    Parameters
    ----------
    survey : Survey
    found : sequence of Finding
        What stands out.
    cover : str
        What ``num_batches="cover"`` would be and cost.
    source : str
        Where the cells come from.
    """
    lines = [
        *_paragraph("TABLE", [table_line(survey.sampler.cells) + ".", *([source] if source else [])]),
        *_paragraph("ASKED", list(asked_lines(survey.sampler))),
        *_paragraph("EPOCH", list(_epoch(survey))),
        *_paragraph("READING", [*row_lines(survey), *chunk_lines(survey), *partner_lines(survey)]),
        "",
        *_findings(found),
    ]
    for section in tables(survey):
        lines += ["", *section]
    lines += ["", *_paragraph("COVER", [cover])]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _paragraph(title: str, sentences: Sequence[str]) -> list[str]:
    return [
        line
        for i, sentence in enumerate(sentences)
        for line in textwrap.wrap(
            sentence, WIDTH, initial_indent=f"{title if i == 0 else '':<8}", subsequent_indent=" " * 8
        )
    ]


def _epoch(survey: Survey) -> Iterator[str]:
    sampler, ranks = survey.sampler, survey.sampler.world_size
    cut = f", cut to {survey.epoch_steps:,} by trainer.limit_train_batches" if survey.epoch_steps < len(sampler) else ""
    yield (
        f"{several(len(sampler), 'batch')} of {sampler.batch_size} cells on each of "
        f"{several(ranks, 'rank')}{cut}: {survey.epoch_steps * ranks * sampler.batch_size:,} draws, and "
        f"{sampler.n_cells:,} cells to draw."
    )
    all_of_it = (
        "all of epoch 0"
        if survey.steps == survey.epoch_steps
        else f"the first {several(survey.steps, 'step')} of epoch 0"
    )
    yield f"Measured below: {several(survey.n_batches, 'batch')}, {all_of_it}; seed {sampler.seed}."


def _findings(found: Sequence[Finding]) -> Iterator[str]:
    if not found:
        yield "Nothing stands out: the batches hold what is asked."
        return
    yield "WHAT STANDS OUT"
    for number, finding in enumerate(found, 1):
        yield from textwrap.wrap(finding.problem, WIDTH, initial_indent=f"{number:3}. ", subsequent_indent=" " * 5)
        for reason in finding.reasons:
            yield from textwrap.wrap(reason, WIDTH, initial_indent="     - ", subsequent_indent=" " * 7)
        yield from textwrap.wrap(finding.change, WIDTH, initial_indent="     -> ", subsequent_indent=" " * 8)
        if finding.typed:
            yield f"        {finding.typed}"
