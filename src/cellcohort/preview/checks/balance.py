"""Labels that batches, epochs and ranks see unequally, and whether the table or windows of chunks are why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from cellcohort.messages import listed, several
from cellcohort.preview.checks.finding import Finding
from cellcohort.preview.describe import FEW, has_axis, percent
from cellcohort.preview.label_shares import LabelShares
from cellcohort.preview.survey import Survey
from cellcohort.sampling.axes.base import ShareAxis
from cellcohort.sampling.chunked.read_cost import in_chunks

APART = 0.02  # difference between the ranks' mean shares of a label
ABSENT = 0.05  # share of batches without a cell of a condition
MORE = 0.1  # by which a share is told to be higher than row by row
OFTEN = 2.0  # times as often as row by row, or as asked, from which on it is told


def windows_alter(survey: Survey, measure: Callable[[Survey], Any]) -> float | None:
    """What a share would be row by row, if windows of chunks make it so much more; None if they do not."""
    if survey.row_by_row is None:
        return None
    without = float(measure(survey.row_by_row))
    return without if measure(survey) > min(OFTEN * without, without + MORE) else None


def uneven(survey: Survey) -> Iterator[Finding]:
    """Conditions that many batches lack, since no axis looks at them."""
    condition = _titled(survey, "condition")
    if condition is None or has_axis(survey.sampler, ShareAxis):
        return
    lacking = condition.absent * (condition.cells > 0)
    worst, n = int(lacking.argmax()), int((lacking > ABSENT).sum())
    if not n:
        return
    more = f" (and {several(n - 1, 'more condition')} like it)" if n > 1 else ""
    said = f"{percent(lacking[worst])} of batches hold no cell of {condition.names[worst]}{more}"
    by_row = windows_alter(survey, lambda of: _absent(of, worst))
    if by_row is None:
        yield Finding(
            f"No axis looks at condition: {said}.",
            "Add the axis condition to the sampler to give each its share, or use a larger batch.",
        )
    else:
        yield Finding(
            f"No axis looks at condition, and a batch is cut from the few chunks of a window: {said}; row by row, "
            f"{percent(by_row)} would.",
            "Add the axis condition to the sampler, so that windows load chunks of each"
            f"{', read more chunks at once (batch_sampler.preload_nchunks)' * (not survey.sampler.axes)}, or use "
            "reading=rows.",
        )


def drift(survey: Survey) -> Iterator[Finding]:
    """Labels that lead far more or fewer of the batches measured than asked, by a batch at least."""
    windows = getattr(survey.sampler, "unreached", ())
    group, texts = survey.group, []
    if group is not None:
        asked, led = survey.primary_shares
        off = (np.maximum(asked, led) > OFTEN * np.minimum(asked, led)) & (np.abs(led - asked) * survey.n_batches > 1)
        order = np.argsort(-np.abs(led - asked) * off, kind="stable")[: np.count_nonzero(off)]
        texts = [f"{group.names[code]} {percent(led[code])} instead of {percent(asked[code])}" for code in order]
    if not (texts or windows) or group is None:
        return
    batches = several(survey.n_batches, "batch")
    change = "Draw more batches (batch_sampler.num_batches, trainer.max_epochs)"
    if survey.reading is None:
        yield Finding(
            f"In the {batches} measured, {group.title}s lead other shares than asked: {listed(texts, FEW)}.",
            f"{change}: they come even over an epoch.",
        )
        return
    each = f"each rank's {survey.steps:,} come from {survey.steps / survey.reading.batches:.0f} windows or so"
    said = f": {listed(texts, FEW)}" if texts else ""
    yield Finding(
        f"Few windows of chunks fit the {batches} measured ({each}), so {group.title}s lead other "
        f"shares of them than asked{said}." if texts else
        f"Few windows of chunks fit an epoch ({each}), so not each {group.title} leads in every one.",
        f"{change}, over which it evens out.",
        tuple(windows),
    )  # fmt: skip


def ranks(survey: Survey) -> Iterator[Finding]:
    """Labels that ranks see unequally, and cells that they see at the same time."""
    for held in survey.label_shares:
        worst = int(_apart(held).argmax())
        if _apart(held)[worst] <= APART:
            continue
        low, high = held.by_rank[:, worst].min(), held.by_rank[:, worst].max()
        said = (
            f"Ranks see {held.title} {held.names[worst]} unequally: {percent(low)} to {percent(high)} of their cells "
            f"over {several(survey.steps, 'step')}"
        )
        by_row = windows_alter(survey, partial(_apart_at, held.title, worst))
        if by_row is None:
            yield Finding(
                f"{said}.",
                "It evens out over more batches; with batch_sampler.scope=global"
                f"{' and reading=rows' * in_chunks(survey.sampler)} every step is shared evenly.",
            )
        else:
            yield Finding(
                f"{said}, since each reads windows of its own; row by row, they would differ by {percent(by_row)}.",
                "It evens out over more batches (batch_sampler.num_batches, trainer.max_epochs); with "
                "reading=rows and batch_sampler.scope=global every step is shared evenly.",
            )
    if not survey.shared_cells.any():
        return
    most = f"{survey.shared_cells.max():.0f} at most"
    said = f"In {percent(_common(survey))} of steps, ranks hold some of the same cells ({most})"
    by_row = windows_alter(survey, _common)
    if by_row is None:
        yield Finding(
            f"{said}.", "Use a smaller batch_sampler.batch_size or fewer ranks, so that small groups of cells go round."
        )
    else:
        yield Finding(
            f"{said}, since each reads windows of its own; row by row, in {percent(by_row)} of steps.",
            "Use fewer ranks; or reading=rows, which reads more rows for each row used.",
        )


def _titled(survey: Survey, title: str) -> LabelShares | None:
    return next((held for held in survey.label_shares if held.title == title), None)


def _absent(survey: Survey, code: int) -> float:
    held = _titled(survey, "condition")
    return 0.0 if held is None else float(held.absent[code])


def _apart(held: LabelShares) -> np.ndarray:
    return np.ptp(held.by_rank, axis=0)


def _apart_at(title: str, code: int, survey: Survey) -> float:
    held = _titled(survey, title)
    return 0.0 if held is None else float(_apart(held)[code])


def _common(survey: Survey) -> float:
    return float((survey.shared_cells > 0).mean())
