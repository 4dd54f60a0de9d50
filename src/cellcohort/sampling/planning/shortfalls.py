"""What the table cannot give, said in words before the first batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cellcohort.cells import Column
from cellcohort.compiled import compiled
from cellcohort.messages import listed, several
from cellcohort.sampling.axes.base import GroupAxis, WindowAxis
from cellcohort.sampling.planning.epoch_plan import EpochPlan
from cellcohort.sampling.planning.label_shares import LabelShares
from cellcohort.sampling.planning.leaks import Leaks
from cellcohort.sampling.planning.primary_sets import PrimarySets, in_every_batch
from cellcohort.sampling.planning.quotas import Targets
from cellcohort.sampling.planning.strata import Strata
from cellcohort.sampling.rng import Whole

MOST_GROUPS = 20  # that are spoken of one by one
MOST_SHOWN = 6  # in one warning


class ShortfallWarning(UserWarning):
    """A batch cannot hold what was asked, because the table has too few cells of some kind."""


def grouped(messages: Sequence[str], whose: str = "") -> str:
    """Write messages as one warning, of which a user reads the first few; `whose` names what they concern."""
    if len(messages) == 1:
        return f"{whose}: {messages[0]}" if whose else messages[0]
    more = [f"and {len(messages) - MOST_SHOWN} more of this kind."] if len(messages) > MOST_SHOWN else []
    lines = [f"{whose or 'batches'}: the table has too few cells for what is asked:", *messages[:MOST_SHOWN], *more]
    return "\n  - ".join(lines)


def shortfalls(
    strata: Strata,
    batches: EpochPlan,
    column: Column | None,
    shares: list[LabelShares],
    group: GroupAxis | None,
    window: WindowAxis | None,
) -> tuple[str, ...]:
    """One sentence for each thing that batches cannot hold as the axes ask; `column` is that of `group`."""
    leaky = group.leaky if group and group.n_primary == 1 else 0.0
    found = _lacks(strata, batches.targets, batches.leaks, column, shares, leaky)
    if isinstance(batches, PrimarySets) and column is not None:
        found += in_every_batch(column, batches.share, batches.n_primary)
    return found + short_windows(strata, batches.targets, window.half_width, window.inside) if window else found


def _lacks(
    strata: Strata,
    targets: Targets,
    leaks: Leaks,
    group: Column | None,
    shares: list[LabelShares],
    leaky: float,
) -> tuple[str, ...]:
    """One sentence for each kind of cells that the batches of a group lack; `leaky` is asked from other groups."""
    bounds, leak = targets.first, leaks.cells
    groups = np.flatnonzero(np.diff(bounds))
    own, requested = targets.places - leak, leaky * targets.places
    cells = np.add.reduceat(strata.size, bounds[groups])
    lacks_leak, lacks_cells = leak[groups] < requested - 1e-9, own[groups] > cells
    labels = [_lacking(strata, groups, own, level, shares_of) for level, shares_of in enumerate(shares)]
    lacks_labels = [~lacks_cells & ((absent > 0) | (few > 0)) for absent, few in labels]
    flagged = lacks_leak | lacks_cells | np.logical_or.reduce([np.zeros(len(groups), bool), *lacks_labels])
    if flagged.sum() > MOST_GROUPS and group is not None:
        name, total = group.name, len(groups)
        messages = []
        if lacks_leak.any():
            messages.append(
                f"in {lacks_leak.sum():,} of {total:,} labels of {name}, the others have fewer cells than the "
                f"{requested:g} asked of them in each batch."
            )
        if lacks_cells.any():
            messages.append(
                f"{lacks_cells.sum():,} of {total:,} labels of {name} have fewer cells than places in each of their "
                f"batches, {cells.min():,} at least: cells come repeatedly."
            )
        for (column, share, _), (absent, few), lacks in zip(shares, labels, lacks_labels, strict=True):
            if lacks.any():
                messages.append(
                    f"{lacks.sum():,} of {total:,} labels of {name} lack cells of some {column.name}: on average they "
                    f"have none of {absent[lacks].mean():,.1f} and too few of {few[lacks].mean():,.1f} of the "
                    f"{np.count_nonzero(share):,} labels; other labels take these places."
                )
        return tuple(messages)
    messages = []
    for i in np.flatnonzero(flagged):
        g = groups[i]
        where = f" in {group.name} {group.labels[g]!r}" if group else ""
        if lacks_leak[i]:
            messages.append(
                f"the others have {leak[g]:g} cells for the {round(requested, 2):g} asked of them in each batch{where}."
            )
        if lacks_cells[i]:
            messages.append(
                f"{several(int(cells[i]), 'cell')}{where} for {own[g]:g} places in each of its batches: cells come "
                "repeatedly."
            )
            continue
        here = slice(bounds[g], bounds[g + 1])
        for level, shares_of in enumerate(shares):
            if lacks_labels[level][i]:
                code = strata.levels[strata.label[here], level]
                messages += _uneven(shares_of.column, shares_of.within(g), code, strata.size[here], own[g], where)
    return tuple(messages)


def rare_strata(rates: np.ndarray, n_batches: int) -> str:
    """Say how many strata are asked less than one cell in so many batches, by the cells that one takes of each."""
    requested = rates * n_batches
    n, fewest = int((requested < 1 - 1e-6).sum()), float(requested.min())
    if n == 0:
        return ""
    return (
        f"{n:,} of {len(requested):,} strata are asked less than one cell an epoch, {fewest:.2g} at least: not all are "
        "drawn in every epoch, but over epochs each comes as often as it is asked."
    )


def short_windows(
    strata: Strata, targets: Targets, half_width: float, share_inside: float, looked_at: int = 256
) -> tuple[str, ...]:
    """Return a sentence if time windows hold too few cells, found for some focal times; else nothing."""
    groups = np.flatnonzero(np.diff(targets.first))
    bounds = strata.times_indptr[targets.first[groups]], strata.times_indptr[targets.first[groups + 1]]
    in_batch = targets.cells()
    requested, there, tried = 0.0, 0.0, np.unique(np.linspace(0, len(groups) - 1, 32).astype(int))
    for i in tried:
        times = strata.times[bounds[0][i] : bounds[1][i]]
        times = times[np.isfinite(times)]
        seen = (
            np.unique(np.linspace(0, len(times) - 1, looked_at // len(tried)).astype(int))
            if len(times)
            else np.empty(0, int)
        )
        own = targets.first[groups[i]], targets.first[groups[i] + 1]
        for focal in times[seen]:
            cells, within = cells_within(strata, own, in_batch, focal, half_width)
            requested, there = requested + share_inside * cells, there + min(within, share_inside * cells)
    if there >= 0.9 * requested:
        return ()
    return (
        f"a time window of {half_width:g} hours on each side holds {there / requested:.0%} of the cells asked inside "
        "it, on average over focal times: the others are drawn outside. Use a wider window (window_hours), a smaller "
        "batch_size, or a larger global_fraction.",
    )


@compiled
def cells_within(
    strata: Strata, own: tuple[Whole, Whole], in_batch: np.ndarray, focal: float, half_width: float
) -> tuple[float, float]:
    """Cells that a batch takes from the strata of its primary group, and how many of them the time window has."""
    cells, within = 0.0, 0.0
    for s in range(own[0], own[1]):
        times = strata.times[strata.times_indptr[s] : strata.times_indptr[s + 1]]
        low = strata.times_indptr[s] + np.searchsorted(times, focal - half_width - 1e-4)
        high = strata.times_indptr[s] + np.searchsorted(times, focal + half_width + 1e-4, "right")
        cells += in_batch[s]
        within += min(in_batch[s], strata.times_start[high] - strata.times_start[low])
    return cells, within


def _lacking(
    strata: Strata, groups: np.ndarray, own: np.ndarray, level: int, shares_of: LabelShares
) -> tuple[np.ndarray, np.ndarray]:
    """How many of the labels asked for have no cells in each group, and how many too few."""
    share, in_group, possible = shares_of.share, shares_of.group, np.count_nonzero(shares_of.share)
    if in_group is not None:
        possible = np.bincount(in_group[share > 0], minlength=len(own))[groups]
        share = share / np.bincount(in_group, share, len(own)).clip(1e-300)[in_group]
    code = strata.levels[strata.label, level]
    pair, have = strata.group.astype(np.int64) * len(share) + code, strata.size
    if (pair[1:] <= pair[:-1]).any():  # strata that only another level tells apart
        pair, at = np.unique(pair, return_inverse=True)
        have = np.bincount(at, weights=have)
    of, label = np.searchsorted(groups, pair // len(share)), pair % len(share)
    asked = np.bincount(of[share[label] > 0], minlength=len(groups))
    few = np.bincount(of[have < share[label] * own[groups[of]]], minlength=len(groups))
    return possible - asked, few


def _uneven(
    column: Column, share: np.ndarray, code: np.ndarray, size: np.ndarray, places: float, where: str
) -> list[str]:
    have = np.bincount(code, weights=size, minlength=len(share))
    asked = share * places
    short = (share > 0) & (have < asked)
    absent, few = np.flatnonzero(short & (have == 0)), np.flatnonzero(short & (have > 0))
    messages = []
    if len(absent):
        rest = np.flatnonzero(have)
        only = "; it cannot be balanced there" if len(rest) == 1 else ""
        messages.append(
            f"no cells of {column.name} {_named(column, absent)}{where}, only {_named(column, rest)}{only}."
        )
    if len(few):
        counts = ", ".join(f"{have[c]:.0f} of {column.labels[c]!r} for {asked[c]:.1f} places" for c in few[:5])
        more = f" and {several(len(few) - 5, 'more label')}" if len(few) > 5 else ""
        messages.append(f"few cells of {column.name}{where}: {counts}{more}; other labels take these places.")
    return messages


def _named(column: Column, codes: np.ndarray, most: int = 5) -> str:
    more = f" and {len(codes) - most:,} more" if len(codes) > most else ""
    return listed((column.labels[c] for c in codes[:most]), most, repr) + more
