"""What a trained encoder has learned: scores on held-out cells, beside those of baselines."""

from cellcohort.extras import require

require("train")
require("evaluate")

from cellcohort.evaluation.evaluation import Evaluation
from cellcohort.evaluation.load_run import LoadedRun, load_run
from cellcohort.evaluation.mechanisms import Treatments
from cellcohort.evaluation.replicates import Replicates
from cellcohort.evaluation.results import Results
from cellcohort.evaluation.scores_file import read_scores

__all__ = ["Evaluation", "LoadedRun", "Replicates", "Results", "Treatments", "load_run", "read_scores"]
