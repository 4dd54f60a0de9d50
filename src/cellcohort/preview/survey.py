"""What the batches of one epoch hold, counted over all ranks."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from cellcohort.composition.meter import Meter
from cellcohort.preview.cells import TrainingCells
from cellcohort.preview.describe import title_of
from cellcohort.preview.label_shares import Held, Sums
from cellcohort.sampling import BatchSampler, ShortfallWarning
from cellcohort.sampling.axes.base import GroupAxis, ShareAxis
from cellcohort.sampling.chunked.read_cost import Reading, in_chunks, reading
from cellcohort.sampling.coverage import Coverage, coverage_of

_ENTRIES = 4_000_000  # of the tables that are held while batches are counted
_EPOCHS, _DRAWS, _NEARLY_ALL = 10, 20_000_000, 0.999


@dataclass(frozen=True)
class Survey:
    """What the first batches of an epoch hold, and how the whole epoch covers the cells.

    A batch is what the axes rule: that of a rank, or with ``scope="global"`` that of all ranks.

    Attributes
    ----------
    sampler : BatchSampler
    epoch_steps : int
        Batches that each rank is trained on in an epoch.
    steps : int
        Of these, how many were measured.
    held : tuple of Held
    numbers : dict of str to numpy.ndarray, shape (n_batches,)
        What :class:`~cellcohort.composition.meter.Meter` says of each batch measured.
    leaders : numpy.ndarray of int, shape (n_batches,), or None
        Code of the label that each batch is built around.
    mates : numpy.ndarray, shape (n_batches,), or None
        Share of the batch's cells that are of one track with another; None without tracks.
    common : numpy.ndarray of int, shape (steps,)
        Places of a step filled by a cell that another rank holds in the same step.
    drawn : tuple of float
        Share of all cells drawn at least once, after epoch 0 and after each of the following ones.
    coverage : Coverage
        Of the whole of epoch 0, like `draws`.
    draws : numpy.ndarray of int, shape (n_cells,)
        How often each cell is drawn.
    first : numpy.ndarray of int, shape (n, cells of a batch)
        The first batches, as positions.
    source : TrainingCells or None
        Where the cells come from, if that is known.
    """

    sampler: BatchSampler
    epoch_steps: int
    steps: int
    held: tuple[Held, ...]
    numbers: dict[str, np.ndarray]
    leaders: np.ndarray | None
    mates: np.ndarray | None
    common: np.ndarray
    drawn: tuple[float, ...]
    coverage: Coverage
    draws: np.ndarray
    first: np.ndarray
    source: TrainingCells | None = None

    @cached_property
    def row_by_row(self) -> Survey | None:
        """As many batches of the same axes read row by row, which tells what the windows of chunks alter.

        None where they are read so.
        """
        if not in_chunks(self.sampler):
            return None
        of = self.sampler
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ShortfallWarning)
            twin = BatchSampler(
                of.cells, of.axes, of.batch_size, of.seed, world_size=of.world_size, num_batches=self.steps
            )
        return survey(twin, self.n_batches)

    @cached_property
    def reading(self) -> Reading | None:
        """What reading in chunks costs; None where cells are read row by row."""
        return reading(self.sampler) if in_chunks(self.sampler) else None

    @property
    def n_batches(self) -> int:
        """Batches measured."""
        return len(self.numbers["shortfall"])

    @property
    def batch_cells(self) -> int:
        """Cells of a batch."""
        return self.first.shape[1]

    @property
    def group(self) -> Held | None:
        """The column that batches are built around."""
        return next((held for held in self.held if held.rule == "group"), None)

    @property
    def leads(self) -> np.ndarray:
        """Share of batches that each label of the group leads: asked, and measured; shape (2, n_groups)."""
        axis = next(axis for axis in self.sampler.axes.values() if isinstance(axis, GroupAxis))
        weights = axis.weights(self.sampler.cells.column(axis.column))
        led = np.bincount(np.asarray(self.leaders, np.int64), minlength=len(weights))
        return np.stack([weights / weights.sum(), led / led.sum()])


def survey(
    sampler: BatchSampler,
    batches: int = 2000,
    limit: float | None = None,
    epochs: int = 1,
    n_first: int = 40,
    source: TrainingCells | None = None,
) -> Survey:
    """Go through epoch 0 of all ranks: measure its first batches, and count the draws of every cell.

    Takes about as long as drawing the batches of an epoch.

    Parameters
    ----------
    sampler : BatchSampler
        That of any rank.
    batches : int
        Batches to measure, of all ranks together.
    limit : int or float, optional
        Batches per rank that an epoch is cut to, as Lightning's ``limit_train_batches``: a number
        of them, or as a float a share.
    epochs : int
        Epochs to go through for :attr:`Survey.drawn`; no more than it takes to draw nearly all cells,
        ten, or 20 million draws.
    n_first : int
        Batches to keep for :attr:`Survey.first`.
    source : TrainingCells, optional
        Where the cells come from: what is said of a store is said of its.

    Raises
    ------
    ValueError
        `batches` is less than 1, or `limit` leaves none.
    """
    if isinstance(batches, bool) or not isinstance(batches, (int, np.integer)) or batches < 1:
        raise ValueError(f"batches={batches!r} is out of range; it is a whole number >= 1.")
    whole = len(sampler)
    epoch_steps = whole if limit is None else min(whole, int(whole * limit) if isinstance(limit, float) else limit)
    if epoch_steps < 1:
        raise ValueError(f"limit_train_batches={limit!r} of {whole} batches leaves none to train on; raise it.")
    steps = min(epoch_steps, -(-batches // sampler.world_size))
    ranks = [sampler.for_rank(rank, sampler.world_size) for rank in range(sampler.world_size)]
    counter = _Counter(sampler, ranks)
    draws = np.zeros(len(sampler.cells), np.uint32)
    chunk = max(1, min(256, _ENTRIES // (counter.widest * sampler.world_size)))
    first: list[np.ndarray] = []
    for begin in range(0, epoch_steps, chunk):
        here = range(begin, min(begin + chunk, epoch_steps))
        positions = np.stack([[rank.batch(0, step) for rank in ranks] for step in here])
        np.add.at(draws, positions.ravel(), 1)
        if begin < steps:
            counter.count(range(begin, min(here.stop, steps)), positions[: steps - begin])
        if len(first) < n_first:
            first += list(counter.as_batches(positions)[: n_first - len(first)])
    drawn = _drawn(ranks, epoch_steps, draws > 0, epochs)
    return Survey(
        sampler, epoch_steps, steps, **counter.result(), drawn=drawn, coverage=coverage_of(sampler, draws), draws=draws,
        first=np.stack(first), source=source,
    )  # fmt: skip


def _drawn(ranks: list[BatchSampler], steps: int, seen: np.ndarray, epochs: int) -> tuple[float, ...]:
    """Share of the cells seen after each epoch, given those of epoch 0."""
    shares = [float(seen.mean())]
    per_epoch = steps * len(ranks) * ranks[0].batch_size
    for epoch in range(1, min(epochs, _EPOCHS, _DRAWS // per_epoch)):
        if shares[-1] >= _NEARLY_ALL:
            break
        for step in range(steps):
            for rank in ranks:
                seen[rank.batch(epoch, step)] = True
        shares.append(float(seen.mean()))
    return tuple(shares)


class _Counter:
    """Adds up what batches hold, some steps at a time."""

    def __init__(self, sampler: BatchSampler, ranks: list[BatchSampler]) -> None:
        self._ranks, self._joint = ranks, sampler.scope == "global"
        self._meter = Meter(sampler.cells, sampler.axes, sampler.scope)
        self._keys: dict[str, Any] = {}
        self._rules: dict[str, Literal["group", "share"]] = {}
        for axis in sampler.axes.values():
            if isinstance(axis, (GroupAxis, ShareAxis)):
                self._keys[title_of(axis)] = axis.column if isinstance(axis.column, str) else tuple(axis.column)
                self._rules[title_of(axis)] = "group" if isinstance(axis, GroupAxis) else "share"
        columns = self._meter.columns
        group = next((columns[title] for title, rule in self._rules.items() if rule == "group"), None)
        self._sums = {
            title: Sums(column, len(ranks), len(group.labels) if group else 0) for title, column in columns.items()
        }
        self.widest = max([len(column.labels) for column in columns.values()] + [64])
        self._track = sampler.cells.column("track").codes if sampler.cells.has("track") else None
        self._rows: list[np.ndarray] = []
        self._leaders: list[int | None] = []
        self._mates: list[np.ndarray] = []
        self._common: list[np.ndarray] = []

    def as_batches(self, positions: np.ndarray) -> np.ndarray:
        """Positions of shape (n_steps, n_ranks, batch_size) as what the axes rule, (n_batches, cells of a batch)."""
        n_steps, n_ranks, size = positions.shape
        return positions.reshape(n_steps, -1) if self._joint else positions.reshape(n_steps * n_ranks, size)

    def count(self, steps: range, positions: np.ndarray) -> None:
        of_ranks = [[rank.asked(0, step) for rank in self._ranks] for step in steps]
        rows = self._meter.measure(positions, of_ranks)
        self._rows.append(rows[:, -1] if self._joint else rows[:, :-1].reshape(-1, rows.shape[2]))
        repeats = rows[:, :, self._meter.names.index("duplicates")]
        self._common.append(repeats[:, -1] - repeats[:, :-1].sum(axis=1))
        asked = [one for of_step in of_ranks for one in (of_step[:1] if self._joint else of_step)]
        self._leaders += [one.experiment for one in asked]
        leaders = None if asked[0].experiment is None else np.array([one.experiment for one in asked])
        for title, sums in self._sums.items():
            wanted = None
            if title in self._keys:
                wanted = np.stack([one.shares[self._keys[title]] for one in asked]).sum(axis=0)
            sums.add(self.as_batches(positions), positions, leaders, wanted)
        if self._track is not None:
            track = np.sort(self._track[self.as_batches(positions)], axis=1)
            same = np.pad(track[:, 1:] == track[:, :-1], ((0, 0), (1, 1)))
            self._mates.append((same[:, 1:] | same[:, :-1]).mean(axis=1))

    def result(self) -> dict[str, Any]:
        rows = np.concatenate(self._rows)
        return {
            "held": tuple(sums.held(title, self._rules.get(title), len(rows)) for title, sums in self._sums.items()),
            "numbers": dict(zip(self._meter.names, rows.T, strict=True)),
            "leaders": None if self._leaders[0] is None else np.array(self._leaders),
            "mates": np.concatenate(self._mates) if self._mates else None,
            "common": np.concatenate(self._common),
        }
