"""Cells of a store that have the same values as other cells."""

from __future__ import annotations

from collections.abc import Iterator

from cellcohort.preview.checks import Finding
from cellcohort.preview.survey import Survey


def copies(survey: Survey) -> Iterator[Finding]:
    """Find cells that are in the store more than once, under other names."""
    store = None if survey.source is None else survey.source.store
    if store is not None and (said := store.manifest.get("copies")):
        yield Finding(
            f"The store holds {said}", "Remove the copies from the source and prepare it again, if they are not meant."
        )
