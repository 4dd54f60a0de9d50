"""What reading in chunks costs a sampler."""

from __future__ import annotations

from collections.abc import Iterator

from cellcohort.messages import several
from cellcohort.preview.checks import Finding
from cellcohort.preview.checks.store_layout import layout_advice, layout_columns
from cellcohort.preview.describe import has_axis
from cellcohort.preview.survey import Survey
from cellcohort.sampling.axes.base import ShareAxis, WindowAxis
from cellcohort.sampling.protocol import in_chunks

STEPS_PER_SECOND = 10  # for which requests are given, since the speed of the model is not known
WASTEFUL = 1.5  # read amplification above which another layout of the store is advised


def chunk_lines(survey: Survey) -> Iterator[str]:
    """Describe what is read in chunks, in sentences; none where cells are read row by row."""
    sampler, cost = survey.sampler, survey.reading
    if cost is None or not in_chunks(sampler):
        return
    per_batch = cost.chunks / cost.batches
    yield (
        f"Each chunk window of {cost.chunks:.1f} chunks of {sampler.chunk_size} rows gives {cost.batches:.1f} batches "
        f"({per_batch:.1f} chunks a batch). Read amplification: {cost.amplification:.2f} rows are read for every row "
        f"used; the least at which all cells of a stratum come equally often from this store is {cost.least:.2f}, "
        "unless batches of one chunk window share cells."
    )
    yield (
        f"The largest chunk window measured holds {cost.most_rows:,} rows in memory: {cost.most_rows * 4e-3:,.1f} MB "
        f"for every 1,000 float32 numbers of a cell. At {STEPS_PER_SECOND} steps a second each rank requests "
        f"{per_batch * STEPS_PER_SECOND:,.0f} chunks a second."
    )
    if cost.shared:
        yield (
            f"{cost.shared:.2%} of the places hold a cell that another batch of their chunk window holds too, since "
            "their strata have fewer cells than the chunk window needs."
        )


def wasteful(survey: Survey) -> Iterator[Finding]:
    """Find a store that is not laid out for the axes, or chunk windows whose rows are not all used."""
    sampler, cost = survey.sampler, survey.reading
    if cost is None or not in_chunks(sampler) or cost.amplification <= WASTEFUL:
        return
    change, line = layout_advice(survey)
    if not any(layout_columns(survey)):
        if len(sampler) % sampler.per_window == 0:
            return
        batches = several(len(sampler), "batch")
        why = f"an epoch of {batches} ends within a chunk window, which gives {sampler.per_window} batches"
        change = f"Set batch_sampler.num_batches to a multiple of {sampler.per_window}."
    elif change or survey.source is None:
        why = "the cells that the axes ask for are spread over many chunks"
        until = "; until then, ask for less of what is rare (sampler.condition.ratio)"
        change += f"{until if has_axis(sampler, ShareAxis) else ''}."
    else:
        why = f"chunks of {sampler.chunk_size} rows hold more cells of one stratum than a chunk window uses"
        wider = ", or widen sampler.temporal.window_hours" if has_axis(sampler, WindowAxis) else ""
        smaller = _smaller(sampler.chunk_size, survey.source.store.chunk_rows)
        change = f"The store is laid out for the axes already: {smaller}{wider}."
    yield Finding(f"{cost.amplification:.1f} rows are read for every row that a batch uses: {why}.", change, typed=line)


def _smaller(chunk_size: int, stored: int) -> str:
    """Say how to read smaller chunks of a store with chunks of so many rows."""
    if chunk_size > stored:
        return f"read chunks as the store has them (batch_sampler.chunk_size={stored})"
    half = max(1, stored // 2)
    return f"prepare smaller chunks (prepare.chunk_rows={half}) and read these (batch_sampler.chunk_size={half})"
