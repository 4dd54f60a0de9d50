"""The table of everything that batches held: ``composition.parquet`` in the run directory."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

STEPS_IN_MEMORY = 1000
GLOBAL = -1  # the "rank" of the global batch


class Ledger:
    """Collects rows in memory, puts them down in parts, and joins the parts to one table.

    What was put down stays whatever happens to the process: parts lie beside the table, in
    ``composition.parts``, until they are joined to it, and no file is ever half written. A run that
    is resumed in the same directory adds to the table; a step done again replaces what it left.

    Parameters
    ----------
    directory : path
        The run directory.
    names : sequence of str
        Names of the numbers in a row.
    about : dict
        What to keep with the table, as JSON under the key ``cellcohort`` of its metadata.
    """

    def __init__(self, directory: str | os.PathLike[str], names: Sequence[str], about: Mapping[str, Any]) -> None:
        self._directory = Path(directory)
        self._names, self._about = list(names), json.dumps(about, default=str)
        self._rows: list[tuple[int, int, int, Sequence[Any], np.ndarray]] = []
        _parts_of(self._directory).mkdir(parents=True, exist_ok=True)
        self._part = 1 + max((int(path.stem) for path in _parts(self._directory)), default=-1)
        table = _table_of(self._directory)
        self._joined = pq.read_metadata(table).num_rows if table.exists() else 0
        self._apart = sum(pq.read_metadata(path).num_rows for path in _parts(self._directory))

    def add(self, epoch: int, step: int, global_step: int, groups: Sequence[Any], numbers: np.ndarray) -> None:
        """Take down one step.

        Parameters
        ----------
        epoch, step, global_step : int
            The place of the batch, and how many steps the optimizer had made before it.
        groups : sequence of str or None, one per row
            The label that each batch is built around.
        numbers : numpy.ndarray of float, shape (n_ranks + 1, n_names)
            One row per rank, then the global batch.
        """
        self._rows.append((epoch, step, global_step, groups, numbers))
        if len(self._rows) >= STEPS_IN_MEMORY:
            self.flush()

    def flush(self) -> None:
        """Put down the rows in memory; join the parts once they are a twentieth of the table."""
        if self._rows:
            part = self._as_table()
            _write(part, _parts_of(self._directory) / f"{self._part:06d}.parquet")
            self._part, self._apart, self._rows = self._part + 1, self._apart + len(part), []
        if self._apart * 20 >= self._joined:
            self._join()

    def close(self) -> None:
        """Put down what is left, and leave one whole table."""
        self.flush()
        self._join()
        shutil.rmtree(_parts_of(self._directory))

    def _as_table(self) -> pa.Table:
        n_rows = len(self._rows[0][4])
        ranks = [*range(n_rows - 1), GLOBAL]
        columns = {
            name: pa.array(np.repeat([row[i] for row in self._rows], n_rows), pa.int64())
            for i, name in enumerate(("epoch", "step", "global_step"))
        }
        columns["rank"] = pa.array(np.tile(ranks, len(self._rows)), pa.int32())
        columns["group"] = pa.array([group for row in self._rows for group in row[3]], pa.string())
        numbers = np.concatenate([row[4] for row in self._rows])
        columns |= {name: pa.array(numbers[:, i]) for i, name in enumerate(self._names)}
        return pa.table(columns, metadata={"cellcohort": self._about})

    def _join(self) -> None:
        parts = _parts(self._directory)
        if parts:
            whole = _gather(self._directory)
            _write(whole, _table_of(self._directory))
            self._joined, self._apart = len(whole), 0
            for path in parts:
                path.unlink()


def read_composition(directory: str | os.PathLike[str]) -> pd.DataFrame:
    """The composition of every batch of a run, also of one that still runs or was killed.

    Parameters
    ----------
    directory : path
        The run directory.

    Returns
    -------
    pandas.DataFrame
        One row per (epoch, step, rank), in that order; rank -1 is the global batch.

    Raises
    ------
    FileNotFoundError
        There is no composition in the directory.
    """
    table = _gather(Path(directory))
    if table is None:
        raise FileNotFoundError(
            f"{directory} has no {_table_of(Path(directory)).name}: no training step was recorded there yet. "
            "Give the directory that train.py printed as `run:`."
        )
    return table.to_pandas()


def _table_of(directory: Path) -> Path:
    return directory / "composition.parquet"


def _parts_of(directory: Path) -> Path:
    return directory / "composition.parts"


def _parts(directory: Path) -> list[Path]:
    return sorted(_parts_of(directory).glob("*.parquet"))


def _gather(directory: Path) -> pa.Table | None:
    """The table and its parts as one, of which the newest rows of each step count."""
    table = _table_of(directory)
    files = ([table] if table.exists() else []) + _parts(directory)
    if not files:
        return None
    tables = [pq.read_table(path) for path in files]
    whole = pa.concat_tables(tables, promote_options="default")
    key = pd.DataFrame({name: whole[name].to_numpy() for name in ("epoch", "step", "rank")})
    key["source"] = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    key = key[key["source"] == key.groupby(["epoch", "step"])["source"].transform("max")]
    rows = key.sort_values(["epoch", "step", "rank"]).index.to_numpy()
    return whole.take(rows).replace_schema_metadata(tables[-1].schema.metadata)


def _write(table: pa.Table, path: Path) -> None:
    draft = path.with_suffix(".draft")
    pq.write_table(table, draft, compression="zstd")
    os.replace(draft, path)
