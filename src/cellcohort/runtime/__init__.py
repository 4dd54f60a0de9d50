"""One run of a command: configuration, processes, checkpoints, loggers."""

from cellcohort.extras import require

require("train")
