"""From cells as they lie at their source to a store laid out for sampling."""

from cellcohort.preparation.layout import stored_order
from cellcohort.preparation.steps import prepare

__all__ = ["prepare", "stored_order"]
