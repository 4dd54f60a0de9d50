"""Finished runs against each other: what can be said of a sampling strategy, and what cannot."""

from cellcohort.extras import require

require("evaluate")

from cellcohort.comparison.runs import FinishedRun, LeftOut, continued, counted, read_runs
from cellcohort.comparison.statistics import Estimate, estimate, holm
from cellcohort.comparison.table import Arm, arms_of, compare
from cellcohort.comparison.text import (
    behind_baselines,
    coverage_of_intervals,
    markdown,
    remarks,
    scored_otherwise,
    terminal,
)

__all__ = [
    "Arm",
    "Estimate",
    "FinishedRun",
    "LeftOut",
    "arms_of",
    "behind_baselines",
    "compare",
    "continued",
    "counted",
    "coverage_of_intervals",
    "estimate",
    "holm",
    "markdown",
    "read_runs",
    "remarks",
    "scored_otherwise",
    "terminal",
]
