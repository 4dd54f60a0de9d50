"""Cells of a store that is read in chunks."""

from cellcohort.extras import require

require("stores")
