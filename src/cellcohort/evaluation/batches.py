"""The batches of a run that was trained, drawn again from its config."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cellcohort.cells import CellTable
from cellcohort.composition.log import GLOBAL, read_about, read_composition
from cellcohort.datasets.protocol import Samples
from cellcohort.evaluation.loaded_run import load_data
from cellcohort.evaluation.results import WHERE
from cellcohort.files import whole
from cellcohort.messages import listed, typed_option, whole_number
from cellcohort.preview.tables import grid
from cellcohort.runtime.stored_config import config_told, instantiate_stored, read_config
from cellcohort.sampling.batch import Batch
from cellcohort.sampling.protocol import Sampler

MOST_STEPS = 10  # that stand out
ROLES = ("experiment", "condition", "track")
NEEDED = ("data", "split", "module", "batch_sampler")


def outstanding(directory: str | os.PathLike[str]) -> str:
    """List the steps of a run with the largest recorded loss, and those with the worst shortfall.

    Parameters
    ----------
    directory : path
        A run directory.

    Returns
    -------
    str
        Two tables, or a sentence where a table would be empty.

    Raises
    ------
    FileNotFoundError
        The directory holds no run, or the run has no composition.
    """
    read_config(directory)  # tells a directory that holds no run
    held = read_composition(directory)
    of_ranks = held[held["rank"] != GLOBAL].dropna(subset="group").groupby("global_step")["group"].unique()
    held = held[held["rank"] == GLOBAL].set_index("global_step")
    losses = _losses(directory)
    worst = held.loc[held["shortfall"] > 0, "shortfall"].nlargest(MOST_STEPS)
    named = {"loss": losses.nlargest(MOST_STEPS), "shortfall": worst}
    lines = []
    for name, values in named.items():
        if values.empty:
            none = "No loss is recorded" if name == "loss" else "No batch had a shortfall"
            lines += [f"{none}.", ""]
            continue
        known = [step for step in values.index if step in held.index]
        rows = [
            [
                f"{step:,}",
                f"{held['epoch'][step]}",
                f"{held['step'][step]}",
                listed(of_ranks.get(step, ["none"]), 4),
                f"{values[step]:.4g}",
            ]
            for step in known
        ]
        title = "Steps with the largest loss of those recorded" if name == "loss" else "Steps with the worst shortfall"
        lines += [title, *grid([["step", "epoch", "batch", "primary", name], *rows]), ""]
    how = f"Show one of them: python scripts/show.py {typed_option('run', directory)} step=<step>"
    return "\n".join([*lines, f"{how} (steps, epochs and batches count from 0)"])


class StoredBatches:
    """The batches that a run trained on.

    Parameters
    ----------
    directory : path
        A run directory.
    packages : sequence of str
        Packages besides this one whose functions and classes the run may name.

    Raises
    ------
    FileNotFoundError, ValueError
        As for :func:`cellcohort.evaluation.load_run`; or the cells are not those that the run had.
    """

    def __init__(self, directory: str | os.PathLike[str], packages: Sequence[str] = ()) -> None:
        self.directory, self.packages = Path(directory), packages
        read_config(directory)  # tells a directory that holds no run
        self.about = read_about(directory)
        self.held = read_composition(directory)
        config, self.samples, _ = load_data(directory, packages)
        self.config = config
        if len(self.samples) != self.about["cells"]:
            raise ValueError(
                f"the run {directory} trained on {self.about['cells']:,} cells, but its data have {len(self.samples):,}"
                " now, so its batches cannot be drawn again. Restore the data that the run had."
            )

    def batch(self, global_step: int, rank: int = 0) -> StoredBatch:
        """Draw the batch of a step of the optimizer again.

        Parameters
        ----------
        global_step : int
            Steps that the optimizer had made before.
        rank : int
            Whose batch.

        Returns
        -------
        StoredBatch

        Raises
        ------
        ValueError
            The run has no such step or rank.
        """
        world_size = self.about["world_size"]
        if whole_number("rank", rank, 0) >= world_size:
            raise ValueError(f"rank={rank} does not exist: the run had {world_size} ranks, which count from 0.")
        row = self.held[
            (self.held["global_step"] == whole_number("step", global_step, 0)) & (self.held["rank"] == rank)
        ]
        if row.empty:
            steps = self.held["global_step"]
            raise ValueError(f"step={global_step} is not of this run, which has steps {steps.min()} to {steps.max()}.")
        stored = read_config(self.directory, NEEDED)["batch_sampler"]
        stored.pop("index_cache", None)  # a directory of whoever made the run
        sampler = instantiate_stored(
            stored, "batch_sampler", self.packages, cells=self.samples.cells, rank=rank, world_size=world_size
        )
        asked = {str(name): value for name, value in row.iloc[0].items()}
        place = int(asked["epoch"]), int(asked["step"])
        with config_told(self.directory):
            seed = int(self.config["module"]["seed"])
        _check_shares(self.samples.cells, sampler.batch(*place), asked, self.directory)
        losses = _losses(self.directory)
        loss = losses.get(global_step, np.nan) if rank == 0 else np.nan
        nearest = min(losses.index.tolist(), key=lambda step: abs(step - global_step), default=None)
        return StoredBatch(self.samples, sampler, global_step, place, asked, float(loss), seed, nearest)


@dataclass(frozen=True)
class StoredBatch:
    """One batch of a run.

    Attributes
    ----------
    samples : Samples
        The cells that the run trained on.
    sampler : Sampler
        Of its rank.
    global_step : int
        Steps that the optimizer had made before.
    place : tuple of int
        Epoch, and step in it.
    held : dict of str to object
        Its row of ``composition.parquet``.
    loss : float
        NaN where none was recorded.
    seed : int
        Of the views.
    nearest : int, optional
        The nearest step of which rank 0 recorded the loss.
    """

    samples: Samples
    sampler: Sampler
    global_step: int
    place: tuple[int, int]
    held: Mapping[str, Any]
    loss: float
    seed: int
    nearest: int | None = None

    @property
    def positions(self) -> np.ndarray:
        """Positions of its cells, int64 of shape (batch_size,)."""
        return self.sampler.batch(*self.place)

    def table(self) -> pd.DataFrame:
        """Labels of each cell and of its positive, where that is another cell.

        Returns
        -------
        pandas.DataFrame
            One row per cell: "position" in the part for training, its labels and hours, where it comes from
            ("source_file" and "source_row" and others, as far as the cells have them), "partner" (position of its
            positive where a rule of ``pairs`` chose it) with the same, and "hours_to_positive" where the positive is a
            later cell.
        """
        cells, positions = self.samples.cells, self.positions
        meta = self.samples.__getitems__(Batch(positions.tolist(), *self.place))["meta"]
        columns: dict[str, Any] = {"position": positions}
        names, where = self._names()

        def described(of: np.ndarray, prefix: str = "") -> dict[str, Any]:
            labels = {f"{prefix}{name}": _labels(cells, name, of) for name in names}
            return labels | {f"{prefix}{name}": cells.values(name).iloc[of].to_numpy() for name in where}

        columns |= described(positions)
        if cells.hours is not None:
            columns["hours"] = cells.hours[positions]
        if "partner" in meta:
            partner = np.asarray(meta["partner"])
            columns["partner"] = partner
            columns |= described(partner, "partner_")
        if "tau_hours" in meta:
            columns["hours_to_positive"] = np.asarray(meta["tau_hours"])
        return pd.DataFrame(columns)

    def _names(self) -> tuple[list[str], list[str]]:
        """Return the columns of labels, and the others that tell where a cell comes from."""
        cells, rule = self.samples.cells, self.samples.pair_rule
        named = [*ROLES, *self.sampler.strata_columns, *([] if rule is None else rule.columns)]
        labels = [name for name in dict.fromkeys(named) if cells.has(name)]
        return labels, [name for name in WHERE if cells.has(name) and name not in labels]

    def _short_table(self) -> tuple[pd.DataFrame, str]:
        """Return the table without where cells come from but for the row, if it is known; and of what it is the row."""
        table, (_, where), said = self.table(), self._names(), ""
        if "source_row" in where:
            for position, prefix in (("position", ""), ("partner", "partner_")):
                if position in table:
                    table[position] = table[f"{prefix}source_row"]
                    table = table.rename(columns={position: f"{prefix}row"})
            files = [] if "source_file" not in where else list(self.samples.cells.column("source_file").labels)
            said = f"row: counts from 0 in {files[0] if len(files) == 1 else 'its source_file, which the .csv names'}"
        others = [f"{prefix}{name}" for prefix in ("", "partner_") for name in where]
        return table.drop(columns=others, errors="ignore"), said

    def text(self, n_cells: int = 12) -> str:
        """Describe the batch: its place, what it held of what was asked, and its first cells."""
        epoch, step = self.place
        near = "" if self.nearest is None else f"; the nearest is step {self.nearest:,}"
        without = f"not recorded (rank 0 records every trainer.log_every_n_steps-th{near})"
        loss = f"{self.loss:.4g}" if np.isfinite(self.loss) else without
        lines = [
            f"step {self.global_step:,}: epoch {epoch}, batch {step} of {len(self.sampler):,}, "
            f"rank {self.sampler.rank} of {self.sampler.world_size} "
            f'(all count from 0; the progress bar of the training has "Epoch {epoch + 1}")',
            f"loss: {loss}",
        ]
        if pd.notna(self.held["group"]):
            lines.append(f"primary: {self.held['group']}")
        if np.isfinite(self.held.get("window/focal_hours", np.nan)):
            lines.append(f"focal time: {self.held['window/focal_hours']:g} h")
        lines += ["", *self._shares(), ""]
        table, row = self._short_table()
        lines += [row] if row else []
        rows = [[_told(value) for value in row] for row in table.head(n_cells).itertuples(index=False)]
        lines += grid([[str(name) for name in table.columns], *rows])
        if len(table) > n_cells:
            lines.append(f"  and {len(table) - n_cells:,} more cells")
        return "\n".join(lines)

    def _shares(self) -> list[str]:
        """Cells that each label and the time window had, beside those that were asked, and what could not be met."""
        hours = self.sampler.asked(*self.place).window_hours
        named = [
            (f"{column} {label}", key, f"{column}/asked/{label}")
            for key in self.held
            for column, _, label in [key.partition("/share/")]
            if label
        ]
        named.append(("not of the primary label", "leak/held", "leak/asked"))
        named.append((f"within {hours:g} h of the focal time", "window/held", "window/asked"))
        rows = []
        size = len(self.positions)
        for name, *keys in named:
            share, asked = (self.held.get(key, np.nan) for key in keys)
            if share > 0 or asked > 0:
                rows.append([name, f"{share * size:.0f}", f"{asked * size:.1f}" if asked == asked else ""])
        short = [
            f"{key} {self.held[key]:.4g}" for key in self.held if str(key).endswith("shortfall") and self.held[key] > 0
        ]
        said = f"shortfall: {listed(short)}" if short else "shortfall: none"
        return [*(grid([["", "cells", "asked"], *rows]) if rows else []), said]

    def write(self, directory: Path) -> list[Path]:
        """Write the table of cells, and for images a contact sheet.

        Returns
        -------
        list of pathlib.Path
            The table, and the contact sheet where there is one.
        """
        directory.mkdir(exist_ok=True)
        name = f"step{self.global_step}-rank{self.sampler.rank}"
        path = directory / f"{name}.csv"
        with whole(path) as beside:
            self.table().to_csv(beside, index=False)
        if len(self.samples.shape) == 4:
            from cellcohort.figure_files import write_png  # here, since tables need no pictures
            from cellcohort.preview.contact_sheet import sheet

            picture = directory / f"{name}.png"
            write_png(sheet(self.samples, self.sampler, [self.place[1]], self.seed, self.place[0]), picture)
            return [path, picture]
        return [path]


def _check_shares(cells: CellTable, positions: np.ndarray, held: Mapping[str, Any], directory: Path) -> None:
    """Make sure that the batch that is drawn now holds what the run logged."""
    for key, share in held.items():
        name, _, label = str(key).partition("/share/")
        if label and cells.has(name):
            now = np.mean([str(each) == label for each in _labels(cells, name, positions)])
            if abs(now - share) > 1e-6:
                raise ValueError(
                    f"the batch drawn now has a share of {now:.3g} of {name} {label}, but the run {directory} logged "
                    f"{share:.3g}: its data have changed, or another version of cellcohort, which draws other batches, "
                    "made it. Use the data and the version that the run had."
                )


def _labels(cells: CellTable, name: str, positions: np.ndarray) -> list[Any]:
    column = cells.column(name)
    return [column.labels[code] for code in column.codes[positions]]


def _told(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _losses(directory: str | os.PathLike[str]) -> pd.Series:
    """Training losses that were recorded, by step of the optimizer before it."""
    path = Path(directory) / "metrics.csv"
    if not path.is_file():
        return pd.Series(dtype=float)
    try:
        metrics = pd.read_csv(path)
        if "train/loss" not in metrics:
            return pd.Series(dtype=float)
        own = metrics[["step", "train/loss"]].apply(pd.to_numeric).astype(float).dropna()
    except (ValueError, KeyError) as error:  # pandas' errors of parsing and decoding; a column that is not there
        raise ValueError(f"{path} is damaged: {error}. Restore it from a copy, or train again.") from error
    return own.astype({"step": int}).groupby("step")["train/loss"].last()
