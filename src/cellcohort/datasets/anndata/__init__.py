"""AnnData files: their labels, their rows, and what kind of values they hold."""

from cellcohort.extras import require

require("stores")
