"""The scores in a run directory, for whoever reads them without evaluating: ``scores.csv``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

SCORES = "scores.csv"
HOW = "evaluation."  # begins the names of columns that say how all of it was scored
COLUMNS = ["representation", "score", "value", "low", "high", "higher_is_better", "n", "note"]
INTERVAL = ("low", "high")  # which files of version 0.1.0 lack
P_VALUES = ("experiment_mmd_p",)  # scores that are the outcome of a test themselves

_TELLS = {"probe": "a linear classifier", "knn": "a vote of the 15 nearest cells"}
_FITTED = {"within": "fitted on the same experiment", "across": "fitted on the other experiments"}
_WHAT = {"condition": "the condition of a cell; mean over conditions", "rarest": "cells of the rarest condition"}
MEANINGS = {  # score -> what it says, in a sentence, of cells that were held out
    f"{which}_{how}_{where}": f"How often {tells}, {fitted}, knows {what}."
    for how, tells in _TELLS.items()
    for where, fitted in _FITTED.items()
    for which, what in _WHAT.items()
} | {
    "hours_r2_across": "Share of the differences in time that a linear fit to the other experiments explains; below 0 "
    "where it does worse than the mean time.",
    "hours_mae_across": "Hours by which a linear fit to the other experiments misses the time of a cell, on average.",
    "hours_explained_across": "Share by which that error is smaller than the error of always answering the mean time.",
    "experiment_probe": "Share of cells whose experiment a linear classifier tells right: how much is left of what "
    "the experiments differ in.",
    "experiment_ilisi": "How far the neighbours of a cell are of all experiments: from 0 (of one) to 1 (of all alike).",
    "experiment_mmd2": "Distance between the cells of different experiments, within a condition; 0 where none is left.",
    "experiment_mmd_p": "How often chance alone makes that distance as large; small where experiments lie apart.",
    "track_smoothness": "How far a cell moves from a frame to the next, against the distance of any two cells.",
    "alignment": "How far a cell is from its positive. Also small where all cells collapse: see effective_rank.",
    "uniformity": "How evenly cells spread over all directions: 0 where they collapse, about -4 where even.",
    "effective_rank": "How many directions the embedding fills; 1 where all cells collapse.",
}


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
    numbers = {name: ["", "nan", "NaN"] for name in ("value", *INTERVAL)}
    scores = pd.read_csv(path, keep_default_na=False, na_values=numbers)
    scores = scores.assign(**{name: np.nan for name in INTERVAL if name not in scores})
    missing = [name for name in COLUMNS if name not in scores]
    if missing or scores.empty:
        raise ValueError(f"{path} has {len(scores)} rows and lacks the columns {', '.join(missing) or 'none'}")
    return scores


def how_scored(scores: pd.DataFrame) -> dict[str, Any]:
    """The checkpoint that scores are of, and the options of the evaluation, each as ``evaluation.<name>``."""
    own = {str(name): scores[name].iloc[0] for name in scores if str(name).startswith(HOW)}
    return {f"{HOW}checkpoint": "last"} | own
