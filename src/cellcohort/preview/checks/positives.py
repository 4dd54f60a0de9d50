"""Which positives anchors have: whether the rule of pairs finds any, and whether they are in the same chunk window."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from cellcohort.datasets.partners import pushed_apart
from cellcohort.messages import several, typed_option
from cellcohort.preview.checks import Finding
from cellcohort.preview.describe import percent
from cellcohort.preview.survey import Survey
from cellcohort.sampling.protocol import in_chunks

WINDOWS = 8  # of rank 0 that are counted
COMPARED = 256  # cells of a batch that are compared with each other
MANY = 0.1  # share of anchors with positives in the store but not in their chunk window, above which it is a finding


def second_views(survey: Survey) -> tuple[float, float] | None:
    """Return the shares of anchors without a positive in their chunk window and in the store; None without pairs."""
    source = survey.source
    found = None if source is None else _in_windows(survey)
    if source is None or found is None:
        return None
    anchors, later = found
    return float((later == anchors).mean()), float((source.dataset.positives(anchors, None, 0) == anchors).mean())


def _in_windows(survey: Survey) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the rows of the store of the anchors of some windows, and of their positives."""
    source, sampler = survey.source, survey.sampler
    if source is None or source.store is None or not in_chunks(sampler) or not source.dataset.paired:
        return None
    rank, anchors, later = sampler.for_rank(0, sampler.world_size), [], []
    for _, positions in islice(rank.requests(0), WINDOWS):
        read = rank.load_request(positions, len(source.store))["requests"]
        window = np.concatenate([np.arange(run.start, run.stop) for run in read])
        anchors.append(rank.rows[np.concatenate(positions)])
        later.append(source.dataset.positives(anchors[-1], window, 0))
    return np.concatenate(anchors), np.concatenate(later)


def _by_rule(survey: Survey) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the positions of some anchors, and of the partners that a rule gives them."""
    if survey.source is None or survey.source.dataset.partners is None:
        return None
    rows = survey.source.cells.rows
    if found := _in_windows(survey):
        return found if rows is None else (np.searchsorted(rows, found[0]), np.searchsorted(rows, found[1]))
    anchors = survey.first_batches.ravel()
    return anchors, survey.source.dataset.partners.draw(anchors, anchors if rows is None else rows[anchors], 0)


def without_partner(survey: Survey) -> float:
    """Return the share of the cells that have no partner on their side of the split; 0 without a rule of pairs."""
    partners = None if survey.source is None else survey.source.dataset.partners
    return 0.0 if partners is None else float((partners.counts(np.arange(len(survey.sampler.cells))) == 0).mean())


def pair_lines(survey: Survey) -> Iterator[str]:
    """Describe the rule of pairs, whom it finds no partner for, and which columns its pairs cross."""
    found, source = _by_rule(survey), survey.source
    if found is None or source is None:
        return
    yield f"A positive has {source.dataset.pair_rule}."
    if n := source.dataset.n_left_out:
        left_out = several(n, "cell")
        yield f"{left_out} of the training part have no such partner there and are left out (pairs.missing=leave_out)."
    elif share := without_partner(survey):
        n = round(share * len(source.cells))
        yield (
            f"{several(n, 'cell')} ({percent(share)}) of the training part have no such partner there and are paired "
            "with a second view of themselves (pairs.missing=view)."
        )
    else:
        yield "Every cell of the training part has such a partner there."
    anchors, partners = (positions[found[0] != found[1]] for positions in found)
    crossing = []
    for role in ("experiment", "condition"):
        if len(anchors) and source.cells.has(role):
            codes = source.cells.column(role).codes
            crossing.append(f"{percent(float((codes[anchors] != codes[partners]).mean()))} cross {role}s")
    if crossing:
        yield f"Of the pairs of the first batches {' and '.join(crossing)}."


def positive_lines(survey: Survey) -> Iterator[str]:
    """Describe the positives of cells that are read in chunks, in a sentence."""
    shares = second_views(survey)
    if shares is not None:
        yield (
            f"Positives are drawn among the rows of a chunk window: {percent(shares[0])} of the anchors have none "
            f"there and are paired with a second view of themselves; {percent(shares[1])} have none in the whole store."
        )


def without_partners(survey: Survey) -> Iterator[Finding]:
    """Find a rule that leaves many cells without a partner."""
    if survey.source is None or (share := without_partner(survey)) <= MANY:
        return
    yield Finding(
        f"{percent(share)} of the cells have no partner with {survey.source.dataset.pair_rule} in the training part: "
        "they are paired with a second view of themselves.",
        "Name fewer or coarser columns in pairs.same and pairs.different, or leave these cells out.",
        typed="pairs.missing=leave_out",
    )


def negatives_that_are_pairs(survey: Survey) -> Iterator[Finding]:
    """Find negatives that could be positives, where the objective does not spare them."""
    source = survey.source
    if source is None or not (said := pushed_apart(source.dataset.together, source.objective)):
        return
    codes = source.cells.column(source.dataset.together).codes[survey.first_batches[:, :COMPARED]]
    n = codes.shape[1]
    alike = ((codes[:, :, None] == codes[:, None]).sum() / len(codes) - n) / max(n * (n - 1), 1)
    problem, _, change = said.partition("; ")
    yield Finding(
        f"{percent(float(alike))} of the negatives of a cell could be its positives: {problem}.",
        f"{change[0].upper()}{change[1:]}",
    )


def positives_elsewhere(survey: Survey) -> Iterator[Finding]:
    """Find anchors that are paired with themselves because their positives are in other chunk windows."""
    shares = second_views(survey)
    if shares is None or survey.source is None or shares[0] - shares[1] <= MANY:
        return
    source, whole = survey.source, survey.source.dataset.whole
    what, line = f"a later cell of their {whole}", ""
    change = "Use a larger batch_sampler.preload_nchunks, or read row by row."
    if rule := source.dataset.pair_rule:
        what = f"a cell with {rule}"
    elif source.store.manifest.get("together") != whole:
        change = f"Prepare the store so that the cells of a {whole} lie side by side; batches then hold more of them."
        line = typed_option("prepare.together", whole)
    yield Finding(
        f"{percent(shares[0] - shares[1])} of the anchors are paired with a second view of themselves, although the "
        f"store has {what}: it is not in their chunk window.",
        change,
        typed=line,
    )
