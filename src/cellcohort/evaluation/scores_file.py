"""The scores in a run directory, for whoever reads them without evaluating: ``scores.csv``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cellcohort.files import fingerprint, whole
from cellcohort.messages import typed_option

SCORES = "scores.csv"
DIGEST = "digest"  # column that holds the digest of all others
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
    "replicate_map": "How high the replicates of a cell rank among other cells, by their likeness: 1 where they come "
    "first.",
    "mechanism_map": "How high other compounds of the same mechanism rank among the mean profiles of treatments.",
    "nsc": "Share of mean profiles whose nearest profile of another compound has their mechanism.",
    "nscb": "The same where the nearest profile is of another batch too.",
}
RANGES = {  # lowest and highest value that a score can have
    "condition": (0.0, 1.0),
    "rarest": (0.0, 1.0),
    "experiment_probe": (0.0, 1.0),
    "experiment_ilisi": (0.0, 1.0),
    "experiment_mmd_p": (0.0, 1.0),
    "hours_r2": (-np.inf, 1.0),
    "hours_mae": (0.0, np.inf),
    "hours_explained": (-np.inf, 1.0),
    "track_smoothness": (0.0, np.inf),
    "alignment": (0.0, 4.0),
    "uniformity": (-np.inf, 0.0),
    "effective_rank": (1.0, np.inf),
    "replicate_map": (0.0, 1.0),
    "mechanism_map": (0.0, 1.0),
    "nsc": (0.0, 1.0),
}


def score_range(name: str) -> tuple[float, float]:
    """Return the lowest and the highest value that a score can have; infinite where there is no bound."""
    return next((ends for start, ends in RANGES.items() if name.startswith(start)), (-np.inf, np.inf))


def write_scores(scores: pd.DataFrame, path: Path) -> None:
    """Write a table of scores with a digest of it in every row, by which a file that was cut or changed is known."""
    with whole(path) as beside:
        scores.assign(**{DIGEST: _digest(scores)}).to_csv(beside, index=False)


def _digest(scores: pd.DataFrame) -> str:
    return fingerprint(scores.to_csv(index=False).encode())


def read_scores(directory: str | os.PathLike[str]) -> pd.DataFrame:
    """Read the scores in a run directory.

    Parameters
    ----------
    directory : path
        The run directory.

    Returns
    -------
    pandas.DataFrame
        One row per representation and score, as in :class:`cellcohort.evaluation.Results`.

    Raises
    ------
    FileNotFoundError
        The run was not evaluated.
    ValueError
        The file is damaged, has no rows, or lacks a column.
    """
    path = Path(directory) / SCORES
    again = f"python scripts/evaluate.py {typed_option('run', directory)}"
    if not path.is_file():
        raise FileNotFoundError(f"{directory} has no {SCORES}; make it by: {again}")
    try:
        text = pd.read_csv(path, dtype=str, keep_default_na=False)
    except ValueError as error:  # pandas' errors of parsing and decoding
        raise ValueError(f"{path} is damaged: it cannot be read ({error}); make it again: {again}") from error
    if DIGEST in text:
        told = set(text.pop(DIGEST))
        if told != {_digest(text)}:
            raise ValueError(
                f"{path} is damaged: it was cut off or changed after it was written; make it again: {again}"
            )
    missing = [name for name in COLUMNS if name not in text and name not in INTERVAL]
    if missing or text.empty:
        lacks = f"lacks the columns {', '.join(missing)}" if missing else "has no rows"
        raise ValueError(f"{path} {lacks}; make it again: {again}")
    numbers = {name: ["", "nan", "NaN"] for name in ("value", *INTERVAL)}
    scores = pd.read_csv(path, keep_default_na=False, na_values=numbers).drop(columns=DIGEST, errors="ignore")
    return scores.assign(**{name: np.nan for name in INTERVAL if name not in scores})


def how_scored(scores: pd.DataFrame) -> dict[str, Any]:
    """Return the checkpoint that scores are of, and the options of the evaluation, each as ``evaluation.<name>``."""
    own = {str(name): scores[name].iloc[0] for name in scores if str(name).startswith(HOW)}
    return {f"{HOW}checkpoint": "last"} | own
