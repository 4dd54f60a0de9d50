"""Contrastive losses of projections: anchors (batch, dim) and their positives (batch, dim) to one number."""

from cellcohort.extras import require

require("train")

from cellcohort.objectives.ntxent import NTXent

__all__ = ["NTXent"]
