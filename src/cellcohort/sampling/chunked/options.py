"""Options of samplers that read in chunks, checked."""

from __future__ import annotations

from typing import Any

from cellcohort.cells import CellTable
from cellcohort.messages import several, whole_number


def refuse_options_of_rows(schedule: Any, scope: Any, num_batches: Any) -> None:
    """Raise ValueError if an option is set that only samplers that read row by row have."""
    if schedule:
        raise ValueError(
            "a schedule of options is not supported where cells are read in chunks, since the chunk windows are "
            "laid out for one setting; leave it out (schedule=null), or read row by row (reading=rows)."
        )
    if scope != "rank":
        raise ValueError(
            f"scope={scope!r} is not supported where cells are read in chunks: every rank has windows of its own. "
            "Use scope='rank', or read row by row."
        )
    if isinstance(num_batches, str):
        raise ValueError(
            f"num_batches={num_batches!r} is not supported where cells are read in chunks; use an integer >= 1, "
            "or null (None), which is as many as the cells fill."
        )
    if num_batches is not None:
        whole_number("num_batches", num_batches, 1)


def chunks_of_window(
    cells: CellTable, batch_size: Any, chunk_size: int, preload_nchunks: Any
) -> tuple[int, tuple[str, ...]]:
    """Return how many chunks a window may load, and a note if the store has fewer than are allowed."""
    given = whole_number("preload_nchunks", preload_nchunks, 1)
    in_store = (len(cells) - 1 if cells.rows is None else int(cells.rows.max())) // chunk_size + 1
    if (fewest := -(-min(whole_number("batch_size", batch_size, 1), len(cells)) // chunk_size)) > given:
        raise ValueError(
            f"batches of {batch_size} cells are larger than a chunk window of preload_nchunks={given} chunks of "
            f"{chunk_size} rows; use batch_sampler.preload_nchunks={fewest} or more, or a smaller batch_size."
        )
    if given <= in_store:
        return given, ()
    return in_store, (
        f"preload_nchunks={given} gives way to {in_store}, as the cells lie in {several(in_store, 'chunk')} of "
        f"{chunk_size} rows.",
    )
