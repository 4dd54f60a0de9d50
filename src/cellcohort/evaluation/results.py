"""The two files that an evaluation leaves in a run directory: ``scores.csv`` and ``embeddings.parquet``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from lightning.pytorch.loggers import Logger

from cellcohort.cells import CellTable
from cellcohort.evaluation.score import Score
from cellcohort.evaluation.scores_file import COLUMNS, HOW, SCORES, write_scores
from cellcohort.files import whole
from cellcohort.messages import text_table

EMBEDDINGS = "embeddings.parquet"


@dataclass(frozen=True)
class Results:
    """What an evaluation found.

    Attributes
    ----------
    scores : pandas.DataFrame
        One row per representation ("model", "untrained", "features") and score: `representation`,
        `score`, `value`, `low` and `high` (95 % interval over experiments, NaN where there is none),
        `higher_is_better`, `n` (cells) and `note`.
    options : mapping of str to object
        Those of the evaluation.
    embeddings : pyarrow.Table
        One row per cell of the whole table: those of `experiment`, `condition`, `hours` and `track`
        that the table has, `part` ("training" or "validation") and `embedding` (a list of float32).
    """

    scores: pd.DataFrame
    options: Mapping[str, Any]
    embeddings: pa.Table

    def write(self, directory: str | os.PathLike[str], checkpoint: str = "last") -> None:
        """Write ``embeddings.parquet`` and then ``scores.csv``, each whole or not at all.

        ``scores.csv`` also holds the options and the checkpoint, in columns ``evaluation.<name>``.

        Parameters
        ----------
        directory : path
            The run directory.
        checkpoint : str
            Name of the checkpoint that is scored.
        """
        with whole(Path(directory) / EMBEDDINGS) as beside:
            pq.write_table(self.embeddings, beside, compression="zstd")
        how = {HOW + name: value for name, value in {"checkpoint": checkpoint, **self.options}.items()}
        write_scores(self.scores.assign(**how), Path(directory) / SCORES)

    def log(self, loggers: Iterable[Logger], step: int) -> None:
        """Log the scores of the model that are not NaN as ``eval/<score>``.

        Parameters
        ----------
        loggers : iterable of lightning.pytorch.loggers.Logger
        step : int
            Step of the optimizer at the end of training.
        """
        model = self.scores[(self.scores["representation"] == "model") & self.scores["value"].notna()]
        row = {f"eval/{name}": float(value) for name, value in zip(model["score"], model["value"], strict=True)}
        for logger in loggers:
            logger.log_metrics(row, step)
            logger.save()

    def text(self) -> str:
        """Format the scores as a table with one column per representation, and the notes below it.

        Returns
        -------
        str
        """
        representations = list(dict.fromkeys(self.scores["representation"]))
        rows, notes = [], []
        for name, own in self.scores.groupby("score", sort=False):
            value = own.set_index("representation")["value"]
            better = "high" if own["higher_is_better"].iloc[0] else "low"
            rows.append([str(name), better, *(f"{value[one]:.3f}" for one in representations)])
            said = own.loc[own["note"] != ""].groupby("note", sort=False)["representation"].agg(list)
            for note, of in said.items():
                whose = "" if len(of) == len(own) else f" ({', '.join(of)})"
                notes.append(f"{name}{whose}: {note}")
        table = text_table(["score", "better", *representations], rows, right=range(2, 2 + len(representations)))
        return "\n".join([table, "", *notes])


def score_table(found: Mapping[str, Sequence[Score]]) -> pd.DataFrame:
    """Return the scores of several representations, as :class:`Results` has them."""
    rows = [{"representation": name, **asdict(score)} for name, scores in found.items() for score in scores]
    return pd.DataFrame(rows).rename(columns={"name": "score"})[COLUMNS]


def embedding_table(cells: CellTable, training: np.ndarray, embedding: np.ndarray) -> pa.Table:
    """Return the embeddings of all cells with their labels, as :class:`Results` has them.

    Parameters
    ----------
    cells : CellTable
    training : numpy.ndarray of bool, shape (n_cells,)
    embedding : numpy.ndarray of float32, shape (n_cells, dim)
    """
    columns: dict[str, pa.Array] = {}
    for role in ("experiment", "condition", "track"):
        if cells.has(role):
            column = cells.column(role)
            labels = list(column.labels)
            if len({type(label) for label in labels}) > 1:  # as with a label for what is missing
                labels = [str(label) for label in labels]
            columns[role] = pa.array(labels).take(pa.array(column.codes))
    if cells.hours is not None:
        columns["hours"] = pa.array(cells.hours)
    columns["part"] = pa.array(["validation", "training"]).take(pa.array(training.astype(np.int8)))
    flat = pa.array(np.ascontiguousarray(embedding, np.float32).reshape(-1))
    columns["embedding"] = pa.FixedSizeListArray.from_arrays(flat, embedding.shape[1])
    return pa.table(columns)
