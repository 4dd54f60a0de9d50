"""See what a sampler does to a table before anything is trained on it."""

from cellcohort.preview.cells import TrainingCells, training_cells
from cellcohort.preview.cover import cover
from cellcohort.preview.finding import Finding
from cellcohort.preview.findings import findings
from cellcohort.preview.picture import picture
from cellcohort.preview.survey import Survey, survey
from cellcohort.preview.text import report

__all__ = ["Finding", "Survey", "TrainingCells", "cover", "findings", "picture", "report", "survey", "training_cells"]
