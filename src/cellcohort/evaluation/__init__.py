"""What a trained encoder has learned: scores on held-out cells, beside those of baselines."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cellcohort.extras import require

require("train")
require("evaluate")

from cellcohort.evaluation.scores_file import read_scores

if TYPE_CHECKING:
    from cellcohort.evaluation.evaluation import Evaluation
    from cellcohort.evaluation.loaded_run import LoadedRun, load_run
    from cellcohort.evaluation.mechanisms import Treatments
    from cellcohort.evaluation.replicates import Replicates
    from cellcohort.evaluation.results import Results

__all__ = ["Evaluation", "LoadedRun", "Replicates", "Results", "Treatments", "load_run", "read_scores"]
_MODULES = {
    "Evaluation": "evaluation",
    "LoadedRun": "loaded_run",
    "Replicates": "replicates",
    "Results": "results",
    "Treatments": "mechanisms",
    "load_run": "loaded_run",
}


def __getattr__(name: str) -> Any:
    """Return what is imported on first use: who reads scores alone should not wait for torch and JAX."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
