"""What a model is trained for: projections of anchors and of their positives (batch, dim) to one number."""

from cellcohort.extras import require

require("train")

from cellcohort.objectives.barlow_twins import BarlowTwins
from cellcohort.objectives.ntxent import NTXent
from cellcohort.objectives.supcon import SupCon
from cellcohort.objectives.vicreg import VICReg

__all__ = ["BarlowTwins", "NTXent", "SupCon", "VICReg"]
