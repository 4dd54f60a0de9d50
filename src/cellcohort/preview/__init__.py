"""See what a sampler does to a table before anything is trained on it."""

from cellcohort.extras import require

require("train")
require("evaluate")

from cellcohort.preview.cells import TrainingCells, training_cells
from cellcohort.preview.checks import Finding
from cellcohort.preview.figure import picture
from cellcohort.preview.report import cover, findings, report
from cellcohort.preview.survey import Survey, survey

__all__ = ["Finding", "Survey", "TrainingCells", "cover", "findings", "picture", "report", "survey", "training_cells"]
