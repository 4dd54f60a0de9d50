"""Finished runs against each other: what can be said of a sampling strategy, and what cannot."""

from cellcohort.comparison.runs import FinishedRun, LeftOut, read_runs
from cellcohort.comparison.statistics import Estimate, estimate, holm
from cellcohort.comparison.table import Arm, arms_of, compare
from cellcohort.comparison.text import markdown, remarks, terminal

__all__ = [
    "Arm",
    "Estimate",
    "FinishedRun",
    "LeftOut",
    "arms_of",
    "compare",
    "estimate",
    "holm",
    "markdown",
    "read_runs",
    "remarks",
    "terminal",
]
