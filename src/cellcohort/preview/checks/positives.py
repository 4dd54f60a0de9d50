"""Whether positives of cells that are read in chunks are in the same chunk window."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from cellcohort.preview.checks import Finding
from cellcohort.preview.describe import percent
from cellcohort.preview.survey import Survey
from cellcohort.sampling.protocol import in_chunks

WINDOWS = 8  # of rank 0 that are counted
MANY = 0.1  # share of anchors with positives in the store but not in their chunk window, above which it is a finding


def second_views(survey: Survey) -> tuple[float, float] | None:
    """Return the shares of anchors without a positive in their chunk window and in the store; None without pairs."""
    source, sampler = survey.source, survey.sampler
    if source is None or source.store is None or not in_chunks(sampler):
        return None
    dataset, n = source.dataset, len(source.store)
    rank, anchors, later = sampler.for_rank(0, sampler.world_size), [], []
    for _, positions in islice(rank.requests(0), WINDOWS):
        read = rank.load_request(positions, n)["requests"]
        window, rows = (
            np.concatenate([np.arange(run.start, run.stop) for run in read]),
            rank.rows[np.concatenate(positions)],
        )
        found = dataset.positives(rows, window, 0)
        if found is rows:
            return None
        anchors.append(rows)
        later.append(found)
    every = np.concatenate(anchors)
    anywhere = dataset.positives(every, np.arange(n), 0)
    return float((np.concatenate(later) == every).mean()), float((anywhere == every).mean())


def positive_lines(survey: Survey) -> Iterator[str]:
    """Describe the positives of cells that are read in chunks, in a sentence."""
    shares = second_views(survey)
    if shares is not None:
        yield (
            f"Positives are drawn among the rows of a chunk window: {percent(shares[0])} of the anchors have none "
            f"there and are paired with a second view of themselves; {percent(shares[1])} have none in the whole store."
        )


def positives_elsewhere(survey: Survey) -> Iterator[Finding]:
    """Find anchors that are paired with themselves because their positives are in other chunk windows."""
    shares = second_views(survey)
    if shares is None or survey.source is None or shares[0] - shares[1] <= MANY:
        return
    source, whole = survey.source, survey.source.dataset.whole
    change, line = "Use a larger batch_sampler.preload_nchunks, or read row by row.", ""
    if source.store.manifest.get("together") != whole:
        change = f"Prepare the store so that the cells of a {whole} lie side by side; batches then hold more of them."
        line = f"prepare.together={whole}"
    yield Finding(
        f"{percent(shares[0] - shares[1])} of the anchors are paired with a second view of themselves, although the "
        f"store has a later cell of their {whole}: it is not in their chunk window.",
        change,
        typed=line,
    )
