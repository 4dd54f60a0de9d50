"""The table of everything that batches held: ``composition.parquet`` in the run directory."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from cellcohort.files import whole

STEPS_IN_MEMORY = 1000
GLOBAL = -1  # the "rank" of the global batch


class CompositionLog:
    """Buffers rows, writes them in parts, and joins the parts to one table.

    Rows that were written survive the end of the process: parts are kept beside the table, in
    ``composition.parts``, until they are joined to it, and every file is written whole. A run that
    is resumed in the same directory adds to the table; a step done again replaces its earlier rows.

    Parameters
    ----------
    directory : path
        The run directory.
    names : sequence of str
        Names of the numbers in a row.
    about : dict
        Stored with the table, as JSON under the key ``cellcohort`` of its metadata.
    """

    def __init__(self, directory: str | os.PathLike[str], names: Sequence[str], about: Mapping[str, Any]) -> None:
        self._directory = Path(directory)
        self._names, self._about = list(names), json.dumps(about, default=str)
        self._blocks: list[tuple[np.ndarray, np.ndarray, np.ndarray, Sequence[Sequence[Any]], np.ndarray]] = []
        self._waiting = 0
        _parts_of(self._directory).mkdir(parents=True, exist_ok=True)
        self._part = 1 + max((int(path.stem) for path in _parts(self._directory)), default=-1)
        table = _table_of(self._directory)
        self._joined = pq.read_metadata(table).num_rows if table.is_file() else 0
        self._apart = sum(pq.read_metadata(path).num_rows for path in _parts(self._directory))

    def add(
        self, epoch: int, step: int, global_steps: Sequence[int], groups: Sequence[Sequence[Any]], numbers: np.ndarray
    ) -> None:
        """Add consecutive steps.

        Parameters
        ----------
        epoch, step : int
            The epoch and the first of the steps.
        global_steps : sequence of int, one per step
            How many steps the optimizer had made before.
        groups : sequence over steps of sequence over rows of str or None
            The label that each batch is built around.
        numbers : numpy.ndarray of float, shape (n_steps, n_ranks + 1, n_names)
            One row per rank, then the global batch.
        """
        steps = np.arange(step, step + len(numbers))
        self._blocks.append((np.full(len(steps), epoch), steps, np.asarray(global_steps), groups, numbers))
        self._waiting += len(steps)
        if self._waiting >= STEPS_IN_MEMORY:
            self.flush()

    def flush(self) -> None:
        """Write the rows in memory; join the parts whenever that doubles the table."""
        if self._blocks:
            part = self._as_table()
            _write(part, _parts_of(self._directory) / f"{self._part:06d}.parquet")
            self._part, self._apart, self._waiting, self._blocks = self._part + 1, self._apart + len(part), 0, []
        if self._apart >= self._joined:
            self._join()

    def close(self) -> None:
        """Write the remaining rows and leave one table."""
        self.flush()
        self._join()
        shutil.rmtree(_parts_of(self._directory))

    def _as_table(self) -> pa.Table:
        epoch, step, global_step = (np.concatenate([block[i] for block in self._blocks]) for i in range(3))
        numbers = np.roll(np.concatenate([block[4] for block in self._blocks]), 1, axis=1)  # the global batch first
        groups = [group for block in self._blocks for rows in block[3] for group in (rows[-1], *rows[:-1])]
        n_steps, n_rows, _ = numbers.shape
        columns = {
            "epoch": pa.array(np.repeat(epoch, n_rows)),
            "step": pa.array(np.repeat(step, n_rows)),
            "global_step": pa.array(np.repeat(global_step, n_rows)),
            "rank": pa.array(np.tile(np.arange(GLOBAL, n_rows - 1), n_steps)),
            "group": pa.array(groups, pa.string()),
        }
        columns |= {name: pa.array(numbers[:, :, i].ravel()) for i, name in enumerate(self._names)}
        return pa.table(columns, metadata={"cellcohort": self._about})

    def _join(self) -> None:
        parts = _parts(self._directory)
        if len(_files(self._directory)) == 1 == len(parts):
            parts[0].replace(_table_of(self._directory))
            self._joined, self._apart = self._apart, 0
        elif parts:
            table = _gather(_files(self._directory))
            _write(table, _table_of(self._directory))
            self._joined, self._apart = len(table), 0
            for path in parts:
                path.unlink()


def read_composition(directory: str | os.PathLike[str]) -> pd.DataFrame:
    """Return the composition of every batch of a run, also of one that still runs or was killed.

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
    ValueError
        A file of it is damaged.
    """
    return _gather(_files_there(directory)).to_pandas()


def read_about(directory: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what is kept with the composition of a run: its batch size, world size, axes, cells and labels.

    Raises
    ------
    FileNotFoundError
        There is no composition in the directory.
    ValueError
        A file of it is damaged.
    """
    path = _files_there(directory)[-1]
    with _damage_told(path):
        about: dict[str, Any] = json.loads(pq.read_schema(path).metadata[b"cellcohort"])
    return about


def _table_of(directory: Path) -> Path:
    return directory / "composition.parquet"


def _parts_of(directory: Path) -> Path:
    return directory / "composition.parts"


def _parts(directory: Path) -> list[Path]:
    return sorted(part for part in _parts_of(directory).glob("[0-9]*.parquet") if part.is_file())


def _files(directory: Path) -> list[Path]:
    """Return the table, if there is one, and its parts, oldest first."""
    table = _table_of(directory)
    return ([table] if table.is_file() else []) + _parts(directory)


def _files_there(directory: str | os.PathLike[str]) -> list[Path]:
    files = _files(Path(directory))
    if not files:
        raise FileNotFoundError(
            f"{directory} has no {_table_of(Path(directory)).name}: no training step was logged there yet. "
            "Give the directory that train.py printed as `run:`."
        )
    return files


def _gather(files: list[Path]) -> pa.Table:
    """Return files as one table with the newest rows of each step."""
    tables = []
    for path in files:
        with _damage_told(path):
            tables.append(pq.read_table(path))
    together = pa.concat_tables(tables, promote_options="default")
    key = pd.DataFrame({name: together[name].to_numpy() for name in ("epoch", "step", "rank")})
    key["source"] = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    key = key[key["source"] == key.groupby(["epoch", "step"])["source"].transform("max")]
    rows = key.sort_values(["epoch", "step", "rank"]).index.to_numpy()
    return together.take(rows).replace_schema_metadata(tables[-1].schema.metadata)


@contextmanager
def _damage_told(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{path} is damaged: {reason}. Restore it from a copy, or train again.") from error


def _write(table: pa.Table, path: Path) -> None:
    with whole(path) as beside:
        pq.write_table(table, beside, compression="zstd")
