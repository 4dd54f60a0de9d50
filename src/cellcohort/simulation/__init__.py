"""A simulated screen under a microscope: the lives of cells, how they look, and the plates they are stored on."""

from cellcohort.extras import require

require("images")
