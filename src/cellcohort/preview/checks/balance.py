"""Labels that batches, epochs and ranks see unequally, because of the table or because of chunk windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from cellcohort.messages import in_list, listed, several
from cellcohort.preview.checks import Finding
from cellcohort.preview.checks.design import nested
from cellcohort.preview.describe import FEW, has_axis, percent
from cellcohort.preview.label_shares import LabelShares
from cellcohort.preview.survey import Survey
from cellcohort.sampling.axes.base import GroupAxis, ShareAxis
from cellcohort.sampling.protocol import in_chunks

RANKS_DIFFER = 0.02  # difference between the ranks' mean shares of a label, above which it is a finding
ABSENT = 0.05  # share of batches without a cell of a condition
MORE = 0.1  # difference to the share row by row
OFTEN = 2.0  # times the share row by row, or the share asked


def with_chunk_windows(survey: Survey, measure: Callable[[Survey], float]) -> float | None:
    """Return what a share would be row by row, if chunk windows make it much larger.

    Parameters
    ----------
    survey : Survey
    measure : callable
        Gives the share in a survey.

    Returns
    -------
    float or None
        None where cells are read row by row, or where the share is about the same.
    """
    if survey.row_by_row is None:
        return None
    without = float(measure(survey.row_by_row))
    return without if measure(survey) > min(OFTEN * without, without + MORE) else None


def absent_conditions(survey: Survey) -> Iterator[Finding]:
    """Find conditions that many batches lack because no axis governs the condition."""
    condition = _titled(survey, "condition")
    if condition is None or has_axis(survey.sampler, ShareAxis):
        return
    if nested(survey.sampler) and has_axis(survey.sampler, GroupAxis):
        return  # no setting gives such a batch two conditions, which `confounded` reports
    lacking = condition.absent * (condition.cells > 0)
    worst, n = int(lacking.argmax()), int((lacking > ABSENT).sum())
    if not n:
        return
    more = f" (and {several(n - 1, 'more condition')} like it)" if n > 1 else ""
    what = f"{percent(lacking[worst])} of batches hold no cell of {condition.names[worst]}{more}"
    by_row = with_chunk_windows(survey, partial(_absent, worst))
    if by_row is None:
        yield Finding(
            f"No axis governs the condition: {what}.",
            "Add the axis condition to the sampler to give each its share, or use a larger batch.",
        )
        return
    wider = "" if survey.sampler.axes else ", read more chunks at once (batch_sampler.preload_nchunks)"
    yield Finding(
        f"No axis governs the condition, and each batch comes from the chunks of one chunk window: {what}; row by "
        f"row it would be {percent(by_row)}.",
        f"Add the axis condition to the sampler, so that chunk windows hold all of them{wider}, or set reading=rows.",
    )


def drift(survey: Survey) -> Iterator[Finding]:
    """Find labels that are primary in far more or fewer of the batches than asked, by a batch at least."""
    unreached = survey.sampler.unreached
    group, texts = survey.group, []
    if group is not None:
        asked, found = survey.primary_shares
        off = (np.maximum(asked, found) > OFTEN * np.minimum(asked, found)) & (
            np.abs(found - asked) * survey.n_batches > 1
        )
        order = np.argsort(-np.abs(found - asked) * off, kind="stable")[: np.count_nonzero(off)]
        texts = [
            f"{in_list(group.names[code])}: {percent(found[code])} instead of {percent(asked[code])}" for code in order
        ]
    if group is None or not (texts or unreached):
        return
    batches = several(survey.n_batches, "batch")
    change = "Draw more batches (batch_sampler.num_batches, trainer.max_epochs)"
    if survey.reading is None:
        yield Finding(
            f"In the {batches} measured, each {group.title} is primary in another share of the batches than asked "
            f"({listed(texts, FEW)}).",
            f"{change}: over epochs the shares even out.",
        )
        return
    windows = several(max(1, round(survey.steps / survey.reading.batches)), "chunk window")
    few = f"The {survey.steps:,} batches of each rank come from about {windows}"
    if texts:
        problem = f"{few}, so some {group.title}s are primary more or less often than asked: {listed(texts, FEW)}."
    else:
        problem = f"{few}, so not every {group.title} is primary in every epoch."
    yield Finding(problem, f"{change}, over which it evens out.", unreached)


def ranks(survey: Survey) -> Iterator[Finding]:
    """Find labels that ranks see unequally, and cells that ranks hold at the same time."""
    for shares in survey.label_shares:
        worst = int(_difference(shares).argmax())
        if _difference(shares)[worst] <= RANKS_DIFFER:
            continue
        low, high = shares.by_rank[:, worst].min(), shares.by_rank[:, worst].max()
        what = (
            f"Ranks see {shares.title} {shares.names[worst]} unequally: {percent(low)} to {percent(high)} of their "
            f"cells over {several(survey.steps, 'step')}"
        )
        by_row = with_chunk_windows(survey, partial(_difference_at, shares.title, worst))
        rows = "reading=rows and " if in_chunks(survey.sampler) else ""
        equal = f"{rows}batch_sampler.scope=global shares every step equally"
        if by_row is None:
            yield Finding(f"{what}.", f"No action needed for long trainings: it evens out. Otherwise {equal}.")
        else:
            yield Finding(
                f"{what}, since each rank has chunk windows of its own; row by row it would be {percent(by_row)}.",
                f"Draw more batches (batch_sampler.num_batches, trainer.max_epochs): it evens out. Otherwise {equal}.",
            )
    if not survey.shared_cells.any():
        return
    what = (
        f"In {percent(_shared(survey))} of steps, ranks hold some of the same cells "
        f"({survey.shared_cells.max():.0f} at most)"
    )
    by_row = with_chunk_windows(survey, _shared)
    if by_row is None:
        yield Finding(
            f"{what}.",
            "Use a smaller batch_sampler.batch_size or fewer ranks: small strata have too few cells for all.",
        )
    else:
        yield Finding(
            f"{what}, since each rank reads chunk windows of its own; row by row, in {percent(by_row)} of steps.",
            "Use fewer ranks; or reading=rows, which reads more rows for each row used.",
        )


def _titled(survey: Survey, title: str) -> LabelShares | None:
    return next((shares for shares in survey.label_shares if shares.title == title), None)


def _absent(code: int, survey: Survey) -> float:
    condition = _titled(survey, "condition")
    return 0.0 if condition is None else float(condition.absent[code])


def _difference(shares: LabelShares) -> np.ndarray:
    return np.ptp(shares.by_rank, axis=0)


def _difference_at(title: str, code: int, survey: Survey) -> float:
    shares = _titled(survey, title)
    return 0.0 if shares is None else float(_difference(shares)[code])


def _shared(survey: Survey) -> float:
    return float((survey.shared_cells > 0).mean())
