"""What reading in chunks costs a sampler, in words."""

from __future__ import annotations

from collections.abc import Iterator

from cellcohort.messages import several
from cellcohort.preview.checks.finding import Finding
from cellcohort.preview.checks.store_layout import columns, lay_out
from cellcohort.preview.describe import has_axis
from cellcohort.preview.survey import Survey
from cellcohort.sampling.axes.base import ShareAxis, WindowAxis
from cellcohort.sampling.chunked.read_cost import in_chunks

STEPS_PER_SECOND = 10  # for which requests are told, since how fast a model trains is not known
WASTEFUL = 1.5  # rows read per row used from which on a store had better be laid out anew


def chunk_lines(survey: Survey) -> Iterator[str]:
    """Sentences on what is read; none where cells are read row by row."""
    sampler, cost = survey.sampler, survey.reading
    if cost is None or not in_chunks(sampler):
        return
    per_batch = cost.chunks / cost.batches
    yield (
        f"Windows of {cost.chunks:.1f} chunks of {sampler.chunk_size} rows are cut into {cost.batches:.1f} batches "
        f"each ({per_batch:.1f} chunks a batch): {cost.amplification:.2f} rows are read for every row used; "
        f"{cost.least:.2f} are the least with which all cells of a kind come equally often from this store, unless "
        "batches of one window share cells."
    )
    yield (
        f"The largest window measured holds {cost.most_rows:,} rows in memory, {cost.most_rows * 4e-3:,.1f} MB for "
        f"every 1,000 float32 numbers of a cell. At {STEPS_PER_SECOND} steps a second each rank asks the store for "
        f"{per_batch * STEPS_PER_SECOND:,.0f} chunks a second."
    )
    if cost.shared:
        yield (
            f"{cost.shared:.2%} of the places hold a cell that another batch of their window holds too, since their "
            "strata have fewer cells than the window asks for."
        )


def wasteful(survey: Survey) -> Iterator[Finding]:
    """That a store is not laid out for the axes, or that windows cannot use what they load, if so."""
    sampler, cost = survey.sampler, survey.reading
    if cost is None or not in_chunks(sampler) or cost.amplification <= WASTEFUL:
        return
    change, line = lay_out(survey)
    if not any(columns(survey)):
        if len(sampler) % sampler.per_window == 0:
            return
        why = f"an epoch of {several(len(sampler), 'batch')} ends in a window, of which {sampler.per_window} can be cut"
        change = f"Set batch_sampler.num_batches to a multiple of {sampler.per_window}."
    elif change or survey.source is None:
        why = "the cells that it asks for are spread over many chunks"
        change += "; until then ask less of what is rare (sampler.condition.ratio)" * has_axis(sampler, ShareAxis) + "."
    else:
        why = f"it asks for cells of so many kinds that chunks of {sampler.chunk_size} rows hold too many of each"
        smaller = _smaller(sampler.chunk_size, survey.source.store.chunk_rows)
        wider = ", or widen sampler.temporal.window_hours" * has_axis(sampler, WindowAxis)
        change = f"The store is laid out for the axes already: {smaller}{wider}."
    yield Finding(f"{cost.amplification:.1f} rows are read for every row that a batch uses: {why}.", change, typed=line)


def _smaller(chunk_size: int, stored: int) -> str:
    """How smaller chunks are had of a store with chunks of so many rows."""
    if chunk_size > stored:
        return f"read chunks as the store has them (batch_sampler.chunk_size={stored})"
    half = max(1, stored // 2)
    return f"prepare smaller chunks (prepare.chunk_rows={half}) and read these (batch_sampler.chunk_size={half})"
