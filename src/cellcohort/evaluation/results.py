"""The two files that an evaluation leaves in a run directory: ``scores.csv`` and ``embeddings.parquet``."""

from __future__ import annotations

import os
import warnings
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
WHERE = (  # columns that tell where a cell comes from
    *("source_file", "source_row", "fov", "t", "track_id", "well"),
    *("channel", "marker"),
)
ROLES = ("experiment", "condition", "track")
TAKEN = (*ROLES, "hours", "part", "embedding", "obs_name")


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
        that the table has, `part` ("training" or "validation") and `embedding` (a list of float32); and to
        find a cell again, `obs_name` (of stores), `source_file` and `source_row` (of tables and of stores), `fov`,
        `t` and `track_id` (position, frame and track, of images), `well`, `channel` and `marker` (where a row is a cell
        in one channel), and the columns of a table that ``data.columns`` names. A column named as one of the others
        gets ``file_`` before its name.
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

    def export(self, directory: str | os.PathLike[str], format: str) -> Path:
        """Write the embeddings as an AnnData, ``embeddings.h5ad``, with ``obsm["X_cellcohort"]``.

        Parameters
        ----------
        directory : path
            The run directory.
        format : {"h5ad"}

        Returns
        -------
        pathlib.Path
        """
        import anndata  # here, since most evaluations export nothing

        obs = self.embeddings.drop_columns(["embedding"]).to_pandas()
        names = obs.pop("obs_name") if "obs_name" in obs else pd.Series(obs.index)
        obs = obs.assign(part=obs["part"].astype("category")).set_axis(names.astype(str).to_numpy())
        embedding: Any = np.stack(self.embeddings["embedding"].to_numpy())
        path = Path(directory) / f"embeddings.{format}"
        with whole(path) as beside, warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Observation names are not unique")
            anndata.AnnData(obs=obs, obsm={"X_cellcohort": embedding}).write_h5ad(beside)
        return path

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
        rows, notes = [], dict[tuple[str, str], list[str]]()
        for name, own in self.scores.groupby("score", sort=False):
            value = own.set_index("representation")["value"]
            better = "high" if own["higher_is_better"].iloc[0] else "low"
            rows.append([str(name), better, *(f"{value[one]:.3f}" for one in representations)])
            said = own.loc[own["note"] != ""].groupby("note", sort=False)["representation"].agg(list)
            for note, of in said.items():
                whose = "" if len(of) == len(own) else f" ({', '.join(of)})"
                notes.setdefault((whose, str(note)), []).append(str(name))
        table = text_table(["score", "better", *representations], rows, right=range(2, 2 + len(representations)))
        return "\n".join([table, "", *(f"{', '.join(of)}{whose}: {note}" for (whose, note), of in notes.items())])


def score_table(found: Mapping[str, Sequence[Score]]) -> pd.DataFrame:
    """Return the scores of several representations, as :class:`Results` has them."""
    rows = [{"representation": name, **asdict(score)} for name, scores in found.items() for score in scores]
    return pd.DataFrame(rows).rename(columns={"name": "score"})[COLUMNS]


def embedding_table(
    cells: CellTable, training: np.ndarray, embedding: np.ndarray, obs_names: np.ndarray | None = None
) -> pa.Table:
    """Return the embeddings of all cells with their labels, as :class:`Results` has them.

    Parameters
    ----------
    cells : CellTable
    training : numpy.ndarray of bool, shape (n_cells,)
    embedding : numpy.ndarray of float32, shape (n_cells, dim)
    obs_names : numpy.ndarray of str, shape (n_cells,), optional
        Names of the cells.
    """
    columns: dict[str, pa.Array] = {} if obs_names is None else {"obs_name": pa.array(obs_names, pa.string())}
    of_roles = {cells.column(role).name for role in ROLES if cells.has(role)}
    of_roles |= {"hours"} if cells.hours is not None else set()
    for name in dict.fromkeys((*WHERE, *cells.keys)):
        if name in cells.column_names and not (name in TAKEN and name in of_roles):
            columns[f"file_{name}" if name in TAKEN else name] = _array(cells.values(name))
    for role in ROLES:
        if cells.has(role):
            column = cells.column(role)
            joint = isinstance(column.labels[0], tuple)  # labels of several columns are tuples
            labels = [" x ".join(map(str, label)) for label in column.labels] if joint else list(column.labels)
            if len({type(label) for label in labels}) > 1:  # as with a label for what is missing
                labels = [str(label) for label in labels]
            columns[role] = pa.array(labels).take(pa.array(column.codes))
    if cells.hours is not None:
        columns["hours"] = pa.array(cells.hours)
    columns["part"] = pa.array(["validation", "training"]).take(pa.array(training.astype(np.int8)))
    flat = pa.array(np.ascontiguousarray(embedding, np.float32).reshape(-1))
    columns["embedding"] = pa.FixedSizeListArray.from_arrays(flat, embedding.shape[1])
    return pa.table(columns)


def _array(values: pd.Series) -> pa.Array:
    """Return a column as it is, or as text where it holds values of several types."""
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array(values.astype(object).where(values.notna().to_numpy(), None).map(str, na_action="ignore"))
