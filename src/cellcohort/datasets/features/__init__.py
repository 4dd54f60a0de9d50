"""Windows of features along tracks."""

from cellcohort.extras import require

require("train")
