"""What reading a store row by row costs, and what reading it in chunks would."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from cellcohort.preview.checks.chunk_reads import WASTEFUL
from cellcohort.preview.checks.finding import Finding
from cellcohort.preview.checks.store_layout import lay_out
from cellcohort.preview.survey import Survey
from cellcohort.sampling import ShortfallWarning
from cellcohort.sampling.chunked.layout_search import chunks_of_batches
from cellcohort.sampling.chunked.read_cost import in_chunks, reading

BATCHES = 16  # of rank 0, spread over the epoch, of which requests are counted
COSTLY = 4.0  # rows read per row used from which on reading in chunks is advised
WINDOW_ROWS = 4096  # of the windows that are tried; a store of fewer than two windows is read soon, however it is read
DEFAULTS = {"chunk_size": 64, "preload_nchunks": 64}  # those of reading=chunks


@dataclass(frozen=True)
class RowReading:
    """What a batch asks of a store, on average.

    Attributes
    ----------
    rows : int
        Rows that the batch holds, its positives among them.
    runs : float
        Runs of rows that are asked for, one for rows that are near each other.
    chunk_rows : int
        Rows of a chunk, which is decoded whole.
    amplification : float or None
        Rows decoded per row used; None where the store does not say how its rows are chunked.
    """

    rows: int
    runs: float
    chunk_rows: int
    amplification: float | None


def row_reading(survey: Survey) -> RowReading | None:
    """Count what some batches of an epoch ask for; None where no store is read row by row."""
    source, sampler = survey.source, survey.sampler
    if source is None or source.store is None or in_chunks(sampler):
        return None
    dataset, store = source.dataset, source.store
    rank = sampler.for_rank(0, sampler.world_size)
    steps = np.unique(np.linspace(0, survey.epoch_steps - 1, BATCHES).astype(int))
    anchors = dataset.rows[np.stack([rank.batch(0, int(step)) for step in steps])]
    later = dataset.positives(anchors.ravel(), np.arange(len(store)), 0).reshape(anchors.shape)
    paired = not np.array_equal(later, anchors)
    rows = np.sort(np.concatenate([anchors, later], axis=1) if paired else anchors, axis=1)
    n = store.chunk_rows
    runs = (np.diff(rows, axis=1) > n).sum() + len(rows)
    chunks = rows // n
    # a run is read from its first to its last row, and what lies between is decoded too
    between = np.where(np.diff(rows, axis=1) > n, 1, np.diff(chunks, axis=1))
    decoded = n * (between.sum() + len(rows))
    told = bool(store.manifest) or not store.sparse
    return RowReading(rows.shape[1], runs / len(rows), n, decoded / rows.size if told else None)


def row_lines(survey: Survey) -> Iterator[str]:
    """A sentence on what is read; none where there is no store, or it is read in chunks."""
    cost = row_reading(survey)
    if cost is None:
        return
    decoded = ""
    if cost.amplification is not None:
        decoded = (
            f" and decodes chunks of {cost.chunk_rows} rows whole: {cost.amplification:.2f} rows are read for every "
            "row used"
        )
    yield f"Row by row: a batch of {cost.rows:,} rows asks the store for {cost.runs:,.1f} runs of them{decoded}."
    if _large(survey):
        yield "With reading=chunks, batches as exact are cut from chunks that are read together."


def costly(survey: Survey) -> Iterator[Finding]:
    """That reading row by row reads much in vain, if so, and what reading in chunks would read."""
    cost = row_reading(survey)
    if cost is None or cost.amplification is None or cost.amplification <= COSTLY or not _large(survey):
        return
    change, line = _chunked(survey, cost)
    yield Finding(
        f"{cost.amplification:.1f} rows are read for every row that a batch uses: cells are read row by row, and the "
        f"store gives whole chunks of {cost.chunk_rows} rows, {cost.runs:,.0f} runs of them for each batch.",
        change,
        typed=line,
    )


def _large(survey: Survey) -> bool:
    return survey.source is not None and len(survey.source.store) >= 2 * WINDOW_ROWS


def _chunked(survey: Survey, cost: RowReading) -> tuple[str, str]:
    """What to change, in words and to type, after trying it."""
    from cellcohort.sampling import ChunkedBatchSampler  # here, since it loads annbatch

    sampler, n = survey.sampler, cost.chunk_rows
    step = chunks_of_batches(sampler.batch_size, n)
    options: dict[str, Any] = {"chunk_size": n, "preload_nchunks": max(1, WINDOW_ROWS // n // step) * step}
    laying, group_by = lay_out(survey)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ShortfallWarning)  # the report says it
            tried = ChunkedBatchSampler(
                sampler.cells, sampler.axes, sampler.batch_size, seed=sampler.seed, world_size=sampler.world_size,
                num_batches=len(sampler), **options,
            )  # fmt: skip
    except ValueError as error:
        more = f" {laying}." if group_by else ""
        return f"reading=chunks cannot cut these batches yet: {error}{more}", group_by
    in_vain = reading(tried).amplification
    read = f"With reading=chunks, batches as exact are cut from windows of chunks: {in_vain:.1f} rows are read for each"
    if group_by and in_vain > WASTEFUL:
        return f"{read}, and fewer when the store is laid out for it. {laying}.", group_by
    typed = ["reading=chunks", *(f"batch_sampler.{k}={v}" for k, v in options.items() if v != DEFAULTS[k])]
    typed += ["batch_sampler.scope=rank"] * (sampler.scope == "global")
    typed += ["batch_sampler.num_batches=null"] * bool(sampler.notes)  # which only "cover" has
    return f"{read}. Preview it too: windows alter what no axis rules.", " ".join(typed)
