"""How a store has to be laid out for the axes."""

from __future__ import annotations

from cellcohort.messages import joined, typed_option
from cellcohort.preview.survey import Survey
from cellcohort.sampling.axes.base import GroupAxis, ShareAxis, WindowAxis


def layout_advice(survey: Survey) -> tuple[str, str]:
    """Return what to do so that a chunk holds cells that the axes ask for together, and what to type for it.

    Both are empty where the store is laid out so.
    """
    labels, times = layout_columns(survey)
    store = None if survey.source is None else survey.source.store
    known = None if store is None else store.manifest.get("group_by")
    if known is None:
        return f"Lay the store out by {joined([*labels, *times])} with scripts/prepare.py", ""
    missing = [name for name in [*labels, *times] if name not in known]
    if not missing:
        return "", ""
    wanted = [name for name in dict.fromkeys([*known, *labels]) if name not in times] + times
    now = f"by {joined(known)}, but not by {joined(missing)}" if known else f"at random, not by {joined(missing)}"
    return (
        f"Prepare the store again (scripts/prepare.py): it is laid out {now}",
        typed_option("prepare.group_by", wanted),
    )


def layout_columns(survey: Survey) -> tuple[list[str], list[str]]:
    """Return the columns that axes use, by their names in the store: those of labels, and those of times."""
    labels: list[str] = []
    times: list[str] = []
    cells, roles = survey.sampler.cells, {} if survey.source is None else survey.source.columns
    for axis in sorted(survey.sampler.axes.values(), key=lambda axis: not isinstance(axis, GroupAxis)):
        if isinstance(axis, WindowAxis):
            times += [roles.get(name) or name for name in axis.columns]
        elif isinstance(axis, (GroupAxis, ShareAxis)):
            labels += [cells.column(name).name for name in axis.columns]
    return list(dict.fromkeys(labels)), times
