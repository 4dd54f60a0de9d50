"""What the source of the cells found out about them."""

from __future__ import annotations

from collections.abc import Iterator

from cellcohort.preview.checks import Finding
from cellcohort.preview.survey import Survey


def remarks(survey: Survey) -> Iterator[Finding]:
    """Report the remarks of the source."""
    for one in getattr(survey.source and survey.source.dataset, "remarks", ()):
        yield Finding(one.problem, one.change, typed=one.typed)
