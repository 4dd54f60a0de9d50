"""The cells that a training run would sample, without their features."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from cellcohort.cells import CellTable, Name, names_of
from cellcohort.datasets.copies import describe_copies
from cellcohort.datasets.held_out_cells import CHUNK, ROW, unit_of
from cellcohort.datasets.sample_columns import Inseparable, inseparable
from cellcohort.datasets.split import joined_groups
from cellcohort.datasets.split_warnings import pairs_without_validation
from cellcohort.messages import joined, listed, several

FRACTIONS = (0.25, 0.34, 0.5)  # of cells to hold out, that are tried
SEEDS = 4  # that are tried, for a share nearer to the one asked for
NEAR = (3 / 4, 4 / 3)  # share held out over the one asked for, between which nothing is told
FEATURES = 8  # names of features that are listed


@dataclass(frozen=True)
class MissedShare:
    """A share of the cells for validation that is not near the one asked for.

    Attributes
    ----------
    share, fraction : float
        The share, and that of ``split.fraction``.
    cause : str
        Why it is so, in words.
    typed : str
        An option by which the share is near; empty where none was found.
    """

    share: float
    fraction: float
    cause: str
    typed: str


@dataclass(frozen=True)
class TrainingCells:
    """The cells of a training, and where they come from.

    Attributes
    ----------
    dataset : LabelledCells or Samples
        The part for training.
    n_all : int
        Cells that there are, with those held out for validation.
    by : str or list of str
        What the cells held out share: ``split.by``.
    columns : mapping
        Which column of the source is what: ``data.columns``; empty where it has no such option.
    n_copies : int
        Cells that are in neither part, since training holds copies of them.
    copies : str
        How many cells have the same values as others, in words; empty where none has.
    objective : mapping
        The config of the objective; empty where it is not known.
    inseparable : Inseparable or None
        A column of samples, such as the well, that the condition cannot be told apart from in held-out cells.
    not_scored : sequence of str
        Conditions of experiments without held-out cells, where the experiment has some.
    scored_with : float or None
        A larger ``split.fraction`` that leaves none of these; None where that is not known.
    held_out : CellTable or None
        The cells for validation; None where they are not known.
    missed_share : MissedShare or None
        The share held out, where it is not near the one asked for.
    """

    dataset: Any
    n_all: int
    by: Name
    columns: Mapping[str, Any]
    n_copies: int = 0
    copies: str = ""
    objective: Mapping[str, Any] = MappingProxyType({})
    inseparable: Inseparable | None = None
    not_scored: Sequence[str] = ()
    scored_with: float | None = None
    held_out: CellTable | None = None
    missed_share: MissedShare | None = None

    @property
    def cells(self) -> CellTable:
        """The table to sample."""
        return self.dataset.cells

    @property
    def store(self) -> Any:
        """The :class:`~cellcohort.datasets.stored.store.Store` that the cells are read from, or None."""
        return getattr(self.dataset, "store", None)

    def held_out_line(self) -> str:
        """Describe in words how many cells are held out and which belong together.

        Returns
        -------
        str
        """
        if self.by == "experiment":
            what = "experiments (split.by=experiment)"
        elif self.by != "track":
            what = f"groups of {joined(names_of([self.by]))} (split.by)"
        elif self.dataset.whole == CHUNK:
            what = "chunks of the store (no track is named, data.columns.track)"
        elif self.dataset.whole == ROW:
            unit = "well" if "well" in self.columns else "track"
            what = f"rows of the table (no {unit} is named, data.columns.{unit})"
        elif self.dataset.whole == "well":  # that split.by=track stands for, where there are no tracks
            what = "wells (data.columns.well)"
        else:
            what = f"{joined([f'{name}s' for name in names_of([self.dataset.whole])])} (split.by=track)"
        n_out = self.n_all - len(self.cells) - self.n_copies - self.dataset.n_left_out
        share = f"{100 * n_out / self.n_all:.1f} %"
        line = f"{n_out:,} of {self.n_all:,} cells ({share}) are held out for validation: whole {what}."
        if self.n_copies:
            line += f" {several(self.n_copies, 'cell')} more are left out: training holds cells of the same values."
        return line

    def lines(self) -> Iterator[str]:
        """Describe what is held out, what is never drawn and what is seen of a cell, in a sentence each.

        Yields
        ------
        str
        """
        yield self.held_out_line()
        if n := self.dataset.n_without_positive:
            yield (
                f"{n:,} more of {several(self.n_all + n, 'cell')} {'has' if n == 1 else 'have'} no positive: no batch "
                "draws them, and the evaluation embeds and scores them too."
            )
        if names := self.dataset.features:
            yield f"{several(len(names), 'feature')}: {listed(names, FEATURES)}."


def training_cells(config: DictConfig) -> TrainingCells:
    """Return the training cells of a config.

    Parameters
    ----------
    config : omegaconf.DictConfig
        The composed config of a training.

    Returns
    -------
    TrainingCells

    Raises
    ------
    hydra.errors.InstantiationException
        `data` has a key that its source does not take, or an option of it is out of range.
    ValueError
        Training would refuse the cells or their features, or those that are held out are too few for a batch of every
        rank.
    """
    by = [] if config.split.by == "track" else names_of([config.split.by])
    source = instantiate(config.data)
    if hasattr(source, "check"):  # of tables, whose features can be read at once; first, since it sees all columns
        source.check()
    objective = OmegaConf.to_container(config.objective, resolve=True)
    told_apart = names_of([objective.get("exclude"), objective.get("same")])  # type: ignore[union-attr]
    norm = config.model.get("norm")
    also = {*_columns(config.sampler), *by, *told_apart, *(["experiment"] if norm == "experiment" else [])}
    whole = source.cells(sorted(also), instantiate(config.pairs))
    _check_labels(whole.cells, told_apart, norm)
    training, validation = instantiate(config.split, whole)
    instantiate(config.validation_sampler, validation.cells, world_size=config.get("world_size", 1))
    n_all = len(whole.cells)
    columns = dict(config.data.get("columns") or {})
    n_copies = n_all - sum(len(part.cells) + part.n_left_out for part in (training, validation))
    store = getattr(whole, "store", None)
    copies = describe_copies(whole.cells) if store is None else str(store.manifest.get("copies", ""))
    either, fitted = _sides(whole.cells, training.cells, validation.cells)
    found = TrainingCells(
        training,
        n_all,
        config.split.by,
        columns,
        n_copies,
        copies,
        objective,  # type: ignore[arg-type]
        inseparable(either, fitted) if whole.cells.has("condition") else None,
        not_scored := pairs_without_validation(either, ~fitted),
        _larger_fraction(config, whole) if not_scored else None,
        validation.cells,
        None if n_copies else _missed_share(config, whole, validation),
    )
    if found.store is not None and config.batch_sampler.get("chunk_size"):
        found.store.check_chunk_size(config.batch_sampler.chunk_size)
    return found


def _sides(cells: CellTable, training: CellTable, validation: CellTable) -> tuple[CellTable, np.ndarray]:
    """Return the cells of either part, and which of them are for training."""
    rows = np.arange(len(cells)) if cells.rows is None else cells.rows
    held_out, fitted = (np.isin(rows, part.rows) for part in (validation, training) if part.rows is not None)
    either = np.flatnonzero(held_out | fitted)
    return cells.take(either), fitted[either]


def _larger_fraction(config: DictConfig, whole: Any) -> float | None:
    """Return a larger share to hold out, by which each condition of an experiment has cells on both sides."""
    if config.split.get("held_out") is not None or config.split.get("fold") is not None:
        return None
    for fraction in (one for one in FRACTIONS if one > config.split.fraction):
        with warnings.catch_warnings(), suppress(ValueError):
            warnings.simplefilter("ignore")
            training, validation = instantiate(config.split, whole, fraction=fraction)
            either, fitted = _sides(whole.cells, training.cells, validation.cells)
            if not (pairs_without_validation(either, ~fitted) or pairs_without_validation(either, fitted)):
                return fraction
    return None


def _missed_share(config: DictConfig, whole: Any, validation: Any) -> MissedShare | None:
    """Return the share that is held out, where groups are not whole experiments and it is not near the one asked."""
    option = config.split
    if option.by == "experiment" or option.get("held_out") is not None or option.get("fold") is not None:
        return None
    share, fraction = _share(validation, whole), float(option.fraction)
    if _is_near(share, fraction):
        return None
    tracked, unit = whole.whole not in (CHUNK, ROW), unit_of(whole)
    if option.by == "track":
        units = several(len(whole.cells.column(whole.whole).present()), unit) if tracked else "cells"
        cause = (
            f"each {unit} is held out whole, and the {units} of the conditions of experiments are few or uneven in size"
        )
    else:
        group = whole.cells.column(names_of([option.by]))
        name = " x ".join(names_of([option.by]))
        cause = f"each {name} is held out whole, and the {len(group.present()):,} of them are few or uneven in size"
        if joins := joined_groups(whole, names_of([option.by])):
            cause += f"; {joins}"
    return MissedShare(share, fraction, cause, _nearer(config, whole))


def _nearer(config: DictConfig, whole: Any) -> str:
    """Return a seed or a fraction by which a share near the one asked for is held out, of those that are tried."""
    seed, fraction = int(config.split.seed), float(config.split.fraction)
    tries: list[tuple[str, float]] = [("seed", seed + more) for more in range(1, SEEDS + 1)]
    tries += [("fraction", round(fraction * part, 3)) for part in (1.25, 0.8) if fraction * part < 1]
    for name, value in tries:
        with warnings.catch_warnings(), suppress(ValueError):
            warnings.simplefilter("ignore")
            training, validation = instantiate(config.split, whole, **{name: value})
            share = _share(validation, whole)
            if not all(_is_near(share, asked) for asked in (fraction, value if name == "fraction" else fraction)):
                continue
            either, fitted = _sides(whole.cells, training.cells, validation.cells)
            if not pairs_without_validation(either, fitted):  # which would have no cell for training
                return f"split.{name}={value}"
    return ""


def _share(validation: Any, whole: Any) -> float:
    return (len(validation.cells) + validation.n_left_out) / len(whole.cells)


def _is_near(share: float, fraction: float) -> bool:
    return NEAR[0] * fraction <= share <= NEAR[1] * fraction


def _check_labels(cells: CellTable, of_objective: Sequence[str], norm: str | None) -> None:
    """Refuse columns of the objective, and a normalisation, that training would refuse at its first batch."""
    if norm == "experiment" and not cells.has("experiment"):
        raise ValueError(
            "model.norm=experiment needs the experiment of each cell, and the table has none; name its column with "
            "data.columns.experiment, or use model.norm=batch."
        )
    for name in of_objective:
        try:
            cells.column(name)
        except ValueError as error:
            raise ValueError(f"a column of the objective (objective.exclude, objective.same): {error}") from error


def _columns(axes: Mapping[str, Any]) -> Iterator[str]:
    """Return the columns that a config's axes name."""
    for axis in axes.values():
        column = axis.get("column") or ()
        yield from [column] if isinstance(column, str) else column
