"""A sampler's table and axes in plain words."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cellcohort.cells import CellTable, Column, names_of
from cellcohort.composition.meter import title_of
from cellcohort.composition.metrics import label_texts
from cellcohort.messages import in_list, listed, plural_of, several
from cellcohort.sampling.axes.base import Axis, CapAxis, GroupAxis, ShareAxis, WindowAxis
from cellcohort.sampling.baselines.base import Baseline
from cellcohort.sampling.protocol import Sampler

__all__ = ["FEW", "asked_lines", "has_axis", "percent", "table_line", "title_of"]

FEW = 6  # labels that are listed in a sentence


def percent(share: float) -> str:
    """Return a share as text, such as ``33.3 %`` or ``0.08 %``; a small one is not shown as none."""
    if 0 < share < 0.00005:
        return "< 0.01 %"
    return f"{100 * share:.2f} %" if 0 < share < 0.00995 else f"{100 * share:.1f} %"


def has_axis(sampler: Sampler, kind: type[Axis]) -> bool:
    """Return whether one of the axes is of a kind."""
    return any(isinstance(axis, kind) for axis in sampler.axes.values())


def table_line(cells: CellTable) -> str:
    """Describe a table in one line."""
    parts = [
        several(len(cells.column(role).present()), role)
        for role in ("experiment", "condition", "track", *(("marker",) if cells.in_channels else ()))
        if cells.has(role)
    ]
    if cells.hours is not None:
        times = np.unique(cells.hours[~np.isnan(cells.hours)])
        parts.append(f"{times[0]:.4g} to {times[-1]:.4g} hours ({several(len(times), 'time')})")
        if missing := int(np.isnan(cells.hours).sum()):
            parts.append(f"{several(missing, 'cell')} without a time")
    return f"{several(len(cells), 'cell')}: {', '.join(parts) or 'no experiment, condition, hours or track'}"


def asked_lines(sampler: Sampler) -> Iterator[str]:
    """Describe what the axes ask of the batches, in a sentence or two for each."""
    axes = [axis for _, axis in sorted(sampler.axes.items())]
    if not axes:
        yield "No axis: every cell is equally likely, and an epoch repeats no cell."
    for axis in axes:
        if isinstance(axis, GroupAxis):
            yield _group(axis, sampler)
    for axis in axes:
        if isinstance(axis, ShareAxis):
            columns = {*names_of([axis.column])}
            within = [one for one in axes if isinstance(one, GroupAxis) and {*names_of([one.column])} < columns]
            yield _share(axis, sampler.cells.column(axis.column), f" of its {title_of(within[0])}" if within else "")
        elif isinstance(axis, WindowAxis):
            yield (
                f"{percent(axis.inside)} of each batch are cells within {axis.half_width:g} h of one focal time (both "
                f"ends included), {percent(1 - axis.inside)} are further away."
            )
        elif isinstance(axis, CapAxis):
            yield f"A batch holds at most {several(axis.most, 'cell')} of each {title_of(axis)}, if others are enough."
    if sampler.schedule is not None:
        yield from sampler.schedule.lines()
    if isinstance(sampler, Baseline):
        yield sampler.about
    if sampler.scope == "global" and sampler.world_size > 1:
        yield f"This holds for the batches of all {sampler.world_size} ranks of a step together (scope=global)."


def _group(axis: GroupAxis, sampler: Sampler) -> str:
    column = sampler.cells.column(axis.column)
    weights, cells = axis.weights(column), column.counts()
    positive = weights[(cells > 0) & (weights > 0)]
    if np.allclose(weights / weights.sum(), cells / cells.sum()):
        how = "is primary in proportion to its cells"
    elif np.allclose(positive, positive[0]):
        how = "is primary equally often"
    else:
        how = "is primary in proportion to its weight"
    left_out = [name for name, w, n in zip(label_texts(column.labels), weights, cells, strict=True) if n and not w]
    out = f" Left out: {listed(left_out, FEW, in_list)}." if left_out else ""
    primary, of = f"one primary {title_of(axis)}", "it"
    if axis.n_primary > 1:
        primary, of = f"{axis.n_primary} primary {plural_of(title_of(axis))} in equal blocks", "them"
        how += ", and has one block of a batch at most"
    whole = (
        f"{percent(1 - axis.leaky)} of its cells are of {of}, {percent(axis.leaky)} leak in from the others"
        if axis.leaky
        else f"all its cells are of {of}"
    )
    return f"Each batch has {primary}: {whole}. Each {title_of(axis)} {how}.{out}"


def _share(axis: ShareAxis, column: Column, of_group: str) -> str:
    shares = axis.shares(column)
    shares = shares / shares.sum()
    present = column.counts() > 0
    wanted = shares[present & (shares > 0)]
    labels = label_texts(column.labels)
    left_out = [name for name, s, p in zip(labels, shares, present, strict=True) if p and not s]
    out = f" Left out: {listed(left_out, FEW, in_list)}." if left_out else ""
    if np.allclose(wanted, wanted[0]):
        same = f"the cells{of_group} in a batch" if of_group else f"the batch, {percent(wanted[0])}"
        return f"Each {title_of(axis)} has the same share of {same}.{out}"
    each = [f"{in_list(name)} {percent(s)}" for name, s in zip(labels, shares, strict=True) if s > 0]
    part = f"the cells{of_group} in a batch, in proportion to" if of_group else "the batch:"
    return f"Each {title_of(axis)} has its share of {part} {listed(each, FEW)}.{out}"
