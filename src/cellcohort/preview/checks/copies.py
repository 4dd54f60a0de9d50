"""Cells that have the same values as other cells."""

from __future__ import annotations

from collections.abc import Iterator

from cellcohort.preview.checks import Finding
from cellcohort.preview.survey import Survey


def copies(survey: Survey) -> Iterator[Finding]:
    """Find cells that are in the source more than once, under other names."""
    if survey.source is not None and survey.source.copies:
        again = "" if survey.source.store is None else " Then prepare the store again."
        yield Finding(
            f"There are {survey.source.copies}", f"Remove the copies from the source, if they are not meant.{again}"
        )
