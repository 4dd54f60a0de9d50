"""A sampler's table and rules in plain words."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cellcohort.cells import CellTable, Column
from cellcohort.composition.metrics import label_texts
from cellcohort.messages import listed, several
from cellcohort.sampling import BatchSampler
from cellcohort.sampling.axes.base import Axis, CapAxis, GroupAxis, ShareAxis, WindowAxis

FEW = 6  # labels that are told one by one in a sentence


def percent(share: float) -> str:
    """A share as text, such as ``33.3 %`` or ``0.08 %``; a small one is not shown as none."""
    if 0 < share < 0.00005:
        return "< 0.01 %"
    return f"{100 * share:.2f} %" if 0 < share < 0.00995 else f"{100 * share:.1f} %"


def names(column: Column) -> list[str]:
    """The labels of a column as texts that differ."""
    return label_texts(column.labels)


def title_of(axis: Axis) -> str:
    """The column of an axis, or several joined by ``" x "``."""
    return axis.column if isinstance(axis.column, str) else " x ".join(axis.column)


def has_axis(sampler: BatchSampler, kind: type[Axis]) -> bool:
    """Whether one of the axes is of a kind."""
    return any(isinstance(axis, kind) for axis in sampler.axes.values())


def table_line(cells: CellTable) -> str:
    """A table in one line."""
    parts = [
        several(len(cells.column(role).present()), role)
        for role in ("experiment", "condition", "track")
        if cells.has(role)
    ]
    if cells.hours is not None:
        times = np.unique(cells.hours[~np.isnan(cells.hours)])
        parts.append(f"{times[0]:.4g} to {times[-1]:.4g} hours ({several(len(times), 'time')})")
        if missing := int(np.isnan(cells.hours).sum()):
            parts.append(f"{several(missing, 'cell')} without a time")
    return f"{several(len(cells), 'cell')}: {', '.join(parts) or 'no experiment, condition, hours or track'}"


def asked_lines(sampler: BatchSampler) -> Iterator[str]:
    """What is asked of the batches, a sentence or two for each axis."""
    axes = [axis for _, axis in sorted(sampler.axes.items())]
    if not axes:
        yield "No axis: every cell is equally likely, and an epoch repeats none."
    for axis in axes:
        if isinstance(axis, GroupAxis):
            yield _group(axis, sampler)
    for axis in axes:
        if isinstance(axis, ShareAxis):
            yield _share(axis, sampler.cells.column(axis.column))
        elif isinstance(axis, WindowAxis):
            yield (
                f"{percent(axis.inside)} of each batch lies within {axis.half_width:g} h of one focal time (both ends "
                f"included), {percent(1 - axis.inside)} further away."
            )
        elif isinstance(axis, CapAxis):
            yield f"A batch holds at most {several(axis.most, 'cell')} of one {title_of(axis)}, where there are enough."
    if sampler.scope == "global" and sampler.world_size > 1:
        yield f"The {sampler.world_size} ranks' batches of a step follow these rules together (scope=global)."


def _group(axis: GroupAxis, sampler: BatchSampler) -> str:
    column = sampler.cells.column(axis.column)
    weights, cells = axis.weights(column), column.counts()
    leading = weights[(cells > 0) & (weights > 0)]
    if np.allclose(weights / weights.sum(), cells / cells.sum()):
        how = "leads batches in proportion to its cells"
    elif np.allclose(leading, leading[0]):
        how = "leads equally many batches"
    else:
        how = "leads batches in proportion to its weight"
    left_out = [name for name, w, n in zip(names(column), weights, cells, strict=True) if n and not w]
    out = f" Left out: {listed(left_out, FEW)}." if left_out else ""
    whole = (
        f"{percent(1 - axis.leaky)} of the cells are of it, {percent(axis.leaky)} leak in from the others"
        if axis.leaky
        else "all cells are of it"
    )
    return f"Each batch is built around one {title_of(axis)}: {whole}. Each {title_of(axis)} {how}.{out}"


def _share(axis: ShareAxis, column: Column) -> str:
    shares = axis.shares(column)
    present = column.counts() > 0
    wanted = shares[present & (shares > 0)]
    out = listed([name for name, s, p in zip(names(column), shares, present, strict=True) if p and not s], FEW)
    out = f" Left out: {out}." if out else ""
    if np.allclose(wanted, wanted[0]):
        return f"Each {title_of(axis)} has the same share of the batch, {percent(wanted[0])}.{out}"
    told = [f"{name} {percent(s)}" for name, s in zip(names(column), shares, strict=True) if s > 0]
    return f"Each {title_of(axis)} has its share of the batch: {listed(told, FEW)}.{out}"
