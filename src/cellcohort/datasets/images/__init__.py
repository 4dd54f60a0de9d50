"""Time-lapse microscopy: a collection of plates and tracks becomes an index of cells, and cells become patches."""

from cellcohort.extras import require

require("images")
