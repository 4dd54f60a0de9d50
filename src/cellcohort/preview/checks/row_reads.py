"""What reading a store row by row costs, and what reading it in chunks would cost."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cellcohort.preview.checks import Finding
from cellcohort.preview.checks.chunk_reads import WASTEFUL
from cellcohort.preview.checks.store_layout import layout_advice
from cellcohort.preview.survey import Survey
from cellcohort.sampling import ShortfallWarning
from cellcohort.sampling.chunked.read_cost import reading
from cellcohort.sampling.protocol import in_chunks

BATCHES = 16  # of rank 0, spread over the epoch, whose requests are counted
COSTLY = 4.0  # read amplification above which reading in chunks is advised
WINDOW_ROWS = 4096  # of the chunk windows that are tried; a store of fewer than two of them is read fast anyway
PRELOAD_NCHUNKS = 64  # that of reading=chunks


@dataclass(frozen=True)
class RowReading:
    """What a batch requests of a store, on average.

    Attributes
    ----------
    rows : int
        Rows of the batch, with its positives.
    runs : float
        Runs of rows that are requested, one for rows that are near each other.
    chunk_rows : int
        Rows of a chunk, which is decoded whole.
    amplification : float or None
        Rows decoded per row used; None where the chunks of the store are not known.
    """

    rows: int
    runs: float
    chunk_rows: int
    amplification: float | None


def row_reading(survey: Survey) -> RowReading | None:
    """Count what some batches of an epoch request; None where no store is read row by row."""
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
    known = bool(store.manifest) or not store.sparse
    return RowReading(rows.shape[1], runs / len(rows), n, decoded / rows.size if known else None)


def row_lines(survey: Survey) -> Iterator[str]:
    """Describe what is read row by row, in sentences; none where there is no store, or it is read in chunks."""
    cost = row_reading(survey)
    if cost is None:
        return
    decoded = ""
    if cost.amplification is not None:
        decoded = (
            f" and decodes whole chunks of {cost.chunk_rows} rows: {cost.amplification:.2f} rows are read for every "
            "row used"
        )
    yield f"Row by row: a batch of {cost.rows:,} rows requests {cost.runs:,.1f} runs of rows from the store{decoded}."
    if _large(survey):
        yield "With reading=chunks, equally exact batches come from chunks that are read together."


def costly(survey: Survey) -> Iterator[Finding]:
    """Find a read amplification above 4 row by row, and say what reading in chunks would read."""
    cost = row_reading(survey)
    if cost is None or cost.amplification is None or cost.amplification <= COSTLY or not _large(survey):
        return
    change, line = _chunked(survey, cost)
    yield Finding(
        f"{cost.amplification:.1f} rows are read for every row that a batch uses: cells are read row by row, and the "
        f"store decodes whole chunks of {cost.chunk_rows} rows, in {cost.runs:,.0f} runs for each batch.",
        change,
        typed=line,
    )


def _large(survey: Survey) -> bool:
    return survey.source is not None and len(survey.source.store) >= 2 * WINDOW_ROWS


def _chunked(survey: Survey, cost: RowReading) -> tuple[str, str]:
    """Return what to change and what to type for it, after trying it."""
    from cellcohort.sampling import ChunkedBatchSampler  # here, since it loads annbatch

    sampler, n = survey.sampler, cost.chunk_rows
    preload = max(1, WINDOW_ROWS // n, -(-sampler.batch_size // n))
    laying, group_by = layout_advice(survey)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ShortfallWarning)  # the report gives them
            tried = ChunkedBatchSampler(
                sampler.cells,
                sampler.axes,
                sampler.batch_size,
                chunk_size=n,
                preload_nchunks=preload,
                seed=sampler.seed,
                world_size=sampler.world_size,
                num_batches=len(sampler),
            )
    except ValueError as error:
        more = f" {laying}." if group_by else ""
        return f"reading=chunks cannot make these batches yet: {error}{more}", group_by
    amplification = reading(tried).amplification
    read = f"With reading=chunks, equally exact batches read {amplification:.1f} rows for each row used"
    if group_by and amplification > WASTEFUL:
        return f"{read}, and fewer when the store is laid out for it. {laying}.", group_by
    typed = ["reading=chunks", *[f"batch_sampler.preload_nchunks={preload}"] * (preload != PRELOAD_NCHUNKS)]
    typed += ["batch_sampler.scope=rank"] * (sampler.scope == "global")
    typed += ["batch_sampler.num_batches=null"] * bool(sampler.notes)  # which only "cover" has
    return f"{read}. Preview it too: chunk windows change the shares of labels that no axis governs.", " ".join(typed)
