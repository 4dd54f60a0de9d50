"""The scores in a run directory, for whoever reads them without evaluating: ``scores.csv``."""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd

SCORES = "scores.csv"
COLUMNS = ["representation", "score", "value", "higher_is_better", "n", "note"]


def read_scores(directory: str | os.PathLike[str]) -> pd.DataFrame:
    """The scores in a run directory.

    Raises
    ------
    FileNotFoundError
        The run was not evaluated.
    ValueError
        The file has no rows, or lacks a column.
    """
    path = Path(directory) / SCORES
    if not path.exists():
        raise FileNotFoundError(f"{directory} has no {SCORES}; make it by: python scripts/evaluate.py run={directory}")
    scores = pd.read_csv(path, keep_default_na=False, na_values={"value": ["", "nan", "NaN"]})
    missing = [name for name in COLUMNS if name not in scores]
    if missing or scores.empty:
        raise ValueError(f"{path} has {len(scores)} rows and lacks the columns {', '.join(missing) or 'none'}")
    return scores
