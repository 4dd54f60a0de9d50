"""What the batches of one epoch hold, counted over all ranks."""

from __future__ import annotations

import warnings
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import sparse

from cellcohort.composition.meter import Meter, title_of
from cellcohort.composition.metrics import count_repeats
from cellcohort.messages import whole_number
from cellcohort.preview.cells import TrainingCells
from cellcohort.preview.label_shares import LabelShares, few_pairs
from cellcohort.progress_bar import progress_bar
from cellcohort.sampling import Asked, BatchSampler, ShortfallWarning
from cellcohort.sampling.axes.base import GroupAxis, ShareAxis
from cellcohort.sampling.chunked.read_cost import Reading, reading
from cellcohort.sampling.coverage import Coverage, DrawCounter, coverage_of
from cellcohort.sampling.protocol import Sampler, in_chunks

# at most so many epochs and draws are counted for `Survey.coverage_by_epoch`, and up to this coverage
_EPOCHS, _DRAWS, _NEARLY_ALL = 10, 20_000_000, 0.999
N_FIRST = 40  # batches that are kept whole


@dataclass(frozen=True)
class Survey:
    """What the first batches of an epoch hold, and how the whole epoch covers the cells.

    A batch is what the axes rule: that of a rank, or with ``scope="global"`` that of all ranks.

    Attributes
    ----------
    sampler : Sampler
    epoch_steps : int
        Batches that each rank is trained on in an epoch.
    steps : int
        Of these, how many were measured.
    label_shares : tuple of LabelShares
        One for each column that is measured.
    numbers : dict of str to numpy.ndarray, shape (n_batches,)
        The numbers of :class:`~cellcohort.composition.meter.Meter` for each batch measured.
    primary : numpy.ndarray of int, shape (n_batches,), or None
        Code of the primary label of each batch; None if there are none or several.
    same_track_share : numpy.ndarray, shape (n_batches,), or None
        Share of the batch's cells that are of one track with another; None without tracks.
    shared_cells : numpy.ndarray of int, shape (steps,)
        Places of a step filled by a cell that another rank holds in the same step.
    coverage_by_epoch : tuple of float
        Share of all cells drawn at least once, after epoch 0 and after each of the following ones.
    draws : numpy.ndarray of int, shape (n_cells,)
        How often each cell is drawn in the whole of epoch 0.
    first_batches : numpy.ndarray of int, shape (n, cells of a batch)
        The first batches, as positions.
    epochs : int
        Epochs of the training.
    source : TrainingCells or None
        Where the cells come from, if that is known.
    epoch : int
        The epoch that was drawn.
    """

    sampler: Sampler
    epoch_steps: int
    steps: int
    label_shares: tuple[LabelShares, ...]
    numbers: dict[str, np.ndarray]
    primary: np.ndarray | None
    same_track_share: np.ndarray | None
    shared_cells: np.ndarray
    coverage_by_epoch: tuple[float, ...]
    draws: np.ndarray
    first_batches: np.ndarray
    epochs: int = 1
    source: TrainingCells | None = None
    epoch: int = 0

    @cached_property
    def coverage(self) -> Coverage:
        """Of the whole of epoch 0, like `draws`."""
        return coverage_of(self.sampler, self.draws)

    @cached_property
    def row_by_row(self) -> Survey | None:
        """As many batches of the same axes read row by row, to compare chunk windows with; None where they are."""
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
        return self.first_batches.shape[1]

    @property
    def group(self) -> LabelShares | None:
        """The column of the primary label of a batch; None if batches have none or several."""
        if self.primary is None:
            return None
        return next((shares for shares in self.label_shares if shares.rule == "group"), None)

    @cached_property
    def primary_shares(self) -> np.ndarray:
        """Share of batches whose primary label each label of the group is: asked, and measured; (2, n_groups)."""
        axis = next(axis for axis in self.sampler.axes.values() if isinstance(axis, GroupAxis))
        weights = axis.weights(self.sampler.cells.column(axis.column))
        batches = np.bincount(np.asarray(self.primary, np.int64), minlength=len(weights))
        return np.stack([weights / weights.sum(), batches / batches.sum()])


def survey(
    sampler: Sampler,
    batches: int = 2000,
    limit: float | None = None,
    epochs: int = 1,
    source: TrainingCells | None = None,
    epoch: int = 0,
) -> Survey:
    """Draw an epoch of all ranks: measure its first batches, and count the draws of every cell.

    Takes about as long as drawing the batches of an epoch.

    Parameters
    ----------
    sampler : Sampler
        The sampler of any rank.
    batches : int
        Batches to measure, of all ranks together.
    limit : int or float, optional
        Batches per rank that an epoch is cut to, as Lightning's ``limit_train_batches``: a number
        of them, or as a float a share.
    epochs : int
        Epochs of the training. :attr:`Survey.coverage_by_epoch` counts as many, but no more than it takes
        to draw nearly all cells, ten, or 20 million draws.
    source : TrainingCells, optional
        Where the cells come from; needed for what the report says of a store.
    epoch : int
        The epoch to draw, by default the first.

    Returns
    -------
    Survey

    Raises
    ------
    ValueError
        If `batches` is less than 1, or `limit` leaves none.
    """
    whole_number("batches", batches, 1)
    whole = len(sampler)
    epoch_steps = whole if limit is None else min(whole, int(whole * limit) if isinstance(limit, float) else limit)
    if epoch_steps < 1:
        raise ValueError(f"limit_train_batches={limit!r} of {whole} batches leaves none to train on; raise it.")
    steps = min(epoch_steps, -(-batches // sampler.world_size))
    ranks = [sampler.for_rank(rank, sampler.world_size) for rank in range(sampler.world_size)]
    record, counter = _Record(sampler), DrawCounter(len(sampler.cells))
    begins = range(0, epoch_steps, record.steps_at_once)
    for begin in progress_bar(begins, "drawing the batches of an epoch", "batches"):
        here = range(begin, min(begin + record.steps_at_once, epoch_steps))
        positions = np.stack([[rank.batch(epoch, step) for rank in ranks] for step in here])
        counter.add(positions)
        if measured := range(begin, min(here.stop, steps)):
            asked = [[rank.asked(epoch, step) for rank in ranks] for step in measured]
            record.add(positions[: len(measured)], asked)
    draws = counter.draws.copy()
    return Survey(
        sampler,
        epoch_steps,
        steps,
        label_shares=record.label_shares(),
        numbers=dict(zip(record.meter.names, np.concatenate(record.numbers).T, strict=True)),
        primary=record.primary_codes(),
        same_track_share=np.concatenate(record.same_track) if record.same_track else None,
        shared_cells=np.concatenate(record.shared_cells),
        coverage_by_epoch=(counter.share, *_later_coverage(ranks, epoch_steps, counter, epochs, epoch)),
        draws=draws,
        first_batches=record.first_batches,
        epochs=epochs,
        source=source,
        epoch=epoch,
    )


def _later_coverage(ranks: list[Sampler], steps: int, counter: DrawCounter, epochs: int, first: int) -> list[float]:
    """Share of the cells drawn after each epoch but the first, which is counted already."""
    shares: list[float] = []
    per_epoch = steps * len(ranks) * ranks[0].batch_size
    for epoch in range(first + 1, min(epochs, first + _EPOCHS, first + max(1, _DRAWS // per_epoch))):
        if counter.share >= _NEARLY_ALL:
            break
        for step in range(steps):
            counter.add(np.stack([rank.batch(epoch, step) for rank in ranks]))
        shares.append(counter.share)
    return shares


class _Record:
    """What was measured so far; a batch is what the axes rule."""

    def __init__(self, sampler: Sampler) -> None:
        self.meter = Meter(sampler.cells, sampler.axes, sampler.scope)
        self.steps_at_once = self.meter.steps_at_once(sampler.world_size)
        self._joint, self._world_size = sampler.scope == "global", sampler.world_size
        self._axes = {title_of(a): a for a in sampler.axes.values() if isinstance(a, (GroupAxis, ShareAxis))}
        self._keys = {title: axis.key for title, axis in self._axes.items()}
        self._track = sampler.cells.column("track").codes if sampler.cells.has("track") else None
        self._asked = {title: np.zeros(len(self.meter.columns[title].labels)) for title in self._axes}
        group = next((title for title, axis in self._axes.items() if isinstance(axis, GroupAxis)), None)
        self._group, self._n_groups = group, 0 if group is None else len(self.meter.columns[group].labels)
        self._weights = np.zeros(0)
        if group is not None and isinstance(axis := self._axes[group], GroupAxis):
            column = self.meter.columns[group]
            self._weights = np.where(column.counts() > 0, axis.weights(column), 0)
        self._asked_of: dict[str, dict[int, np.ndarray]] = {title: {} for title in self._axes}
        self._counts: dict[str, list[sparse.csr_array]] = defaultdict(list)
        self._primary: list[int | None] = []
        self.numbers: list[np.ndarray] = []
        self.same_track: list[np.ndarray] = []
        self.shared_cells: list[np.ndarray] = []
        self._first: list[np.ndarray] = []

    def add(self, positions: np.ndarray, asked: list[list[Asked]]) -> None:
        """Measure the batches of some steps, int64 of shape (n_steps, world_size, batch_size)."""
        counts = self.meter.count(positions)
        rows = self.meter.measure(positions, asked, counts)
        self.numbers.append(self._of_batches(rows))
        for title, count in counts.items():
            self._counts[title].append(sparse.csr_array(count.reshape(-1, count.shape[2]).astype(np.int32)))
        duplicates = rows[:, :, self.meter.names.index("duplicates")]
        self.shared_cells.append(duplicates[:, -1] - duplicates[:, :-1].sum(axis=1))
        for ranks in asked:
            for one in ranks[:1] if self._joint else ranks:
                self._primary.append(one.experiment)
                for title, key in self._keys.items():
                    self._asked[title] += one.shares[key]
                    if one.experiment is not None and few_pairs(self._n_groups, self.meter.columns[title]):
                        self._asked_of[title][one.experiment] = one.shares[key]
        if self._track is not None:
            with_another = self._of_batches(count_repeats(self._track[positions]))[:, 2]
            self.same_track.append(with_another / (positions.shape[2] * (self._world_size if self._joint else 1)))
        if len(self._first) < N_FIRST:
            self._first += [*positions.reshape(len(self.numbers[-1]), -1)][: N_FIRST - len(self._first)]

    def _of_batches(self, rows: np.ndarray) -> np.ndarray:
        """Of rows for ranks and their union, shape (n_steps, world_size + 1, n), those of batches."""
        return rows[:, -1] if self._joint else rows[:, :-1].reshape(-1, rows.shape[2])

    @property
    def first_batches(self) -> np.ndarray:
        """The first batches, int64 of shape (n, cells of a batch)."""
        return np.stack(self._first)

    def primary_codes(self) -> np.ndarray | None:
        """Code of the primary label of each batch, or None."""
        return None if self._primary[0] is None else np.array(self._primary, np.int64)

    def _asked_share(self, title: str) -> np.ndarray:
        """Return the share asked of each label over all batches, in which each primary label comes by its weight.

        Where one has no batch among those measured, or there are too many to keep, it is the mean of those measured.
        """
        of, weights = self._asked_of[title], self._weights
        if of and {*np.flatnonzero(weights).tolist()} <= {*of}:
            return np.average([of[code] for code in of], axis=0, weights=[weights[code] for code in of])
        return self._asked[title] / len(self._primary)

    def label_shares(self) -> tuple[LabelShares, ...]:
        """Return the counts of all batches, column by column."""
        return tuple(
            LabelShares(
                title,
                column,
                None if title not in self._axes else "group" if title == self._group else "share",
                self._asked_share(title) if title in self._axes else None,
                self._asked_of.get(title, {}),
                sparse.vstack(self._counts[title], format="csr"),
                self._world_size,
                self._joint,
                self.primary_codes(),
                self._n_groups,
            )
            for title, column in self.meter.columns.items()
        )
