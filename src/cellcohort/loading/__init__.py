"""From batches of positions to tensors: row by row, or by chunks."""

from cellcohort.extras import require

require("train")
