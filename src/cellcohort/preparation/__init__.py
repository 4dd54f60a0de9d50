"""From cells as they lie at their source to a store laid out for sampling."""

from cellcohort.extras import require

require("stores")

from cellcohort.preparation.order import stored_order
from cellcohort.preparation.pipeline import prepare

__all__ = ["prepare", "stored_order"]
