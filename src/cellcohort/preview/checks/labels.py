"""The labels of a table that may be two spellings of one name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cellcohort.cells import Column
from cellcohort.messages import several
from cellcohort.preview.checks.alike import alike, merge_option
from cellcohort.preview.checks.finding import Finding
from cellcohort.sampling import BatchSampler


def spellings(sampler: BatchSampler, mergeable: bool) -> Iterator[Finding]:
    """Labels that look like two spellings of one name, and the line that merges them."""
    cells = sampler.cells
    roles = [role for role in ("experiment", "condition") if cells.has(role)]
    columns: dict[str, tuple[str, Column]] = {}
    for name in [*roles, *sampler.strata_columns]:
        column = cells.column(name)
        columns.setdefault(column.name, (name, column))
    for name, column in columns.values():
        counts = dict(zip(column.labels, column.counts().tolist(), strict=True))
        merged: dict[Any, Any] = {}
        looks: list[str] = []
        for group in alike([label for label in column.labels if counts[label]]):
            kept = max(group, key=lambda label: counts[label])
            told = [f"{label!r} ({several(counts[label], 'cell')})" for label in group]
            merged |= {label: kept for label in group if label != kept}
            looks.append(f"{' and '.join(told)}")
        if looks:
            yield Finding(
                f"These labels of {name} look alike, but are sampled as different ones: {'; '.join(looks)}.",
                "If they mean the same, add this (without those that do not):"
                if mergeable
                else "If they mean the same, give them one name in the table.",
                typed=merge_option(name, merged) if mergeable else "",
            )
