"""Patches around tracked cells, as anchors with a positive each."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from multiprocessing.context import get_spawning_popen
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from cellcohort.augment._crop import middle, seen
from cellcohort.augment.features import draws
from cellcohort.cells import CellTable, checked_positions
from cellcohort.datasets.images.chunks import Chunks
from cellcohort.datasets.images.gather import gather
from cellcohort.datasets.images.plates import Field
from cellcohort.datasets.images.positives import Equals, Lineages, Positive, anchor_rows
from cellcohort.datasets.images.regions import Region, brought_to
from cellcohort.datasets.partners import PairRule, chosen
from cellcohort.datasets.protocol import Paired, Views

SAMPLED = 512  # cells that statistics are taken of


class Patches(Paired, Dataset[dict[str, Any]]):
    """Patches of images around tracked cells, as anchors with a positive each.

    The positive is a patch of the same lineage some hours later, of another cell with the same
    labels, or the anchor's own. Every draw is keyed by (seed, epoch, row of the whole table): a run
    repeats exactly whatever the workers and the batch. The reads of a batch are grouped, so that each
    stored chunk is decoded once.

    Parameters
    ----------
    cells : CellTable
        All cells, in the order of `place`.
    fields : sequence of Field
        Where the images are.
    place : numpy.ndarray of int32, shape (n_cells, 5)
        Field, frame, and first slice, line and column of every patch, which is inside its image.
    region : Region
        What a patch shows.
    scale : numpy.ndarray of float32, shape (2, n_fields, n_frames, n_channels)
        What is subtracted from the pixels of each field, frame and channel, and what they are divided by. The last
        frame stands for all further ones.
    lineages : Lineages, optional
        The positives by lineage; needed for ``positive="lineage"``, which leaves cells without one out of `cells`.
    positive_columns : sequence of str
        With ``positive="columns"``, the columns in which a positive has the anchor's labels. It is drawn
        among the cells of the same part of a split.
    positive : {"lineage", "columns", "self"}
    views : Views, optional
        The augmentation, for the model's device.
    cache_bytes : int
        Bytes of decoded chunks that each process keeps.
    seed : int
        Key of the positives.
    made_with : mapping of str, optional
        Options by which `place` and `scale` were made, for whoever stores the patches; kept as it is.
    pair_rule : PairRule, optional
        Draws positives among all cells of the dataset, or of its part of a split, instead of `positive`.
    itself : bool
        With ``positive="columns"``, whether the anchor itself may be drawn.

    Attributes
    ----------
    cells : CellTable
        The cells that can be anchors; positions 0..n-1 of the dataset.
    shape : (int, int, int, int)
        Channels, slices, lines and columns that a network sees; batches hold larger patches where the views crop.
    whole : str
        "lineage": the column whose groups no split cuts in two.

    Raises
    ------
    ValueError
        No cell at all has a positive, or cells would be paired with themselves unchanged.
    """

    whole = "lineage"

    def __init__(
        self,
        cells: CellTable,
        fields: Sequence[Field],
        place: np.ndarray,
        region: Region,
        scale: np.ndarray,
        lineages: Lineages | None = None,
        positive: Positive = "lineage",
        positive_columns: Sequence[str] = (),
        views: Views | None = None,
        cache_bytes: int = 2**29,
        seed: int = 0,
        made_with: Mapping[str, Any] | None = None,
        pair_rule: PairRule | None = None,
        itself: bool = False,
    ) -> None:
        self.pair_rule = chosen(pair_rule)
        if self.pair_rule is not None:
            positive, positive_columns, itself = "self", (), False
        self._read_shape = (scale.shape[3], *(int(n) for n in region.patch))
        self.shape = seen(self._read_shape, views)
        self._sizes, self._random_slices = torch.from_numpy(region.sizes(fields)), region.z == "random"
        self.positive, self.views, self.seed = positive, views, seed
        self.made_with = dict(made_with or {})
        self.chunks = Chunks(fields, cache_bytes)
        self.positive_columns, self._lineages, self._itself = list(positive_columns), lineages, itself
        self._place = torch.from_numpy(np.ascontiguousarray(place, np.int32))
        self._scale = torch.from_numpy(np.ascontiguousarray(scale, np.float32))
        self._table: CellTable | None = cells
        rows = anchor_rows(cells, positive, positive_columns, lineages, itself)
        self._take(cells if len(rows) == len(cells) else cells.take(rows), torch.from_numpy(rows))

    def _take(self, cells: CellTable, rows: torch.Tensor) -> None:
        self._cells: CellTable | None = cells
        self._rows = rows
        self._partners = None
        self._equals = None
        if self.positive_columns:
            self._equals = Equals(cells.column(self.positive_columns).codes, self._itself)

    @property
    def cells(self) -> CellTable:
        if self._cells is None:
            raise RuntimeError("a loader's worker process holds no table; read `cells` in the main process.")
        return self._cells

    @property
    def channels(self) -> tuple[str, ...]:
        """Names of the channels of an input; several with a slash between them where experiments differ."""
        names = zip(*(field.channel_names for field in self.chunks.fields), strict=True)
        return tuple("/".join(dict.fromkeys(of_fields)) for of_fields in names)

    def channel_of(self, rows: np.ndarray) -> list[str]:
        """Name of the channel of each of some rows of the whole table, of inputs of one channel.

        Parameters
        ----------
        rows : numpy.ndarray of int, shape (n,)
            Such as ``meta["row"]`` and ``meta["positive_row"]`` of a batch.
        """
        return [self.chunks.fields[number].channel_names[0] for number in self._place.numpy()[rows, 0]]

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"Patches({len(self):,} cells, {' x '.join(map(str, self.shape))}, positive={self.positive!r})"

    def __getstate__(self) -> dict[str, Any]:
        """Without the table of cells and the views where a process is being started: workers only read."""
        if get_spawning_popen() is None:
            return self.__dict__.copy()
        return {**self.__dict__, "_partners": self.partners, **dict.fromkeys(("_cells", "_table", "views"))}

    def subset(self, positions: np.ndarray) -> Patches:
        """Return the dataset of some cells, which become positions 0..n-1.

        Positives by lineage still come from the whole table, so keep lineages whole where that matters;
        those by columns and by a rule come from the cells of the subset.

        Raises
        ------
        ValueError
            With ``positive="columns"``, a cell is left without another one of its labels.
        """
        positions = checked_positions(positions, len(self))
        part = copy.copy(self)
        part._take(self.cells.take(positions), self._rows[torch.from_numpy(positions)])
        if part._equals is not None and (alone := len(part) - len(part._equals.anchors())):
            raise ValueError(
                f"{alone} of {len(part)} cells have no other cell with equal {', '.join(self.positive_columns)} in "
                "their part of the split; use fewer or coarser data.positive_columns."
            )
        return part

    def every_cell(self) -> Patches:
        """Return the dataset of all cells of the table, those that can be no anchor among them, in its order.

        Where a cell has no positive, its own patch takes the place of one.
        """
        if self._table is None:
            raise RuntimeError("a loader's worker process holds no table; call every_cell() in the main process.")
        whole = copy.copy(self)
        whole._take(self._table, torch.arange(len(self._table)))
        whole.pair_rule = None
        return whole

    def statistics(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of every channel over the patches, float32 (n_channels,) each.

        Taken of at most 512 cells, evenly spread over the table.
        """
        sample = np.unique(np.linspace(0, len(self) - 1, SAMPLED).astype(np.int64))
        pixels = self.recorded(sample).swapaxes(0, 1).reshape(self.shape[0], -1)
        return pixels.mean(1, dtype=np.float64).astype(np.float32), pixels.std(1, dtype=np.float64).astype(np.float32)

    def recorded(self, positions: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the patches of some cells, scaled and not augmented; float32 (n, *shape).

        Slices that are drawn at random in batches are those around the cells here, and a crop is in the middle.
        """
        patches = self._patches(self._rows.numpy()[checked_positions(positions, len(self))])
        return np.ascontiguousarray(middle(patches, self.shape[2:]))

    def __getitem__(self, position: int) -> dict[str, Any]:
        """One cell, as a batch of one."""
        return self.__getitems__([position])

    def __getitems__(self, positions: Sequence[int] | np.ndarray) -> dict[str, Any]:
        """Return the tensors of one batch.

        Parameters
        ----------
        positions : Batch or sequence of int
            A :class:`~cellcohort.sampling.batch.Batch` holds its epoch and step; any other sequence
            is of epoch 0, step 0.

        Returns
        -------
        dict
            "anchor" and "positive", float32 (n, n_channels, n_slices, n_lines, n_columns); "meta", a dict of
            "position" (int64 (n,)), "epoch", "step" (int), "row" and "positive_row" (int64 (n,), rows of
            the whole table) and "tau_hours" (float32 (n,), NaN where the positive is of no later time of the lineage);
            where a rule or columns pair cells, also "partner" (int64 (n,)), the position of the positive.

        Raises
        ------
        IndexError, TypeError
            A position is not in 0..len-1, or not an integer.
        ReadError
            An image cannot be read.
        """
        epoch, step = getattr(positions, "epoch", 0), getattr(positions, "step", 0)
        position = checked_positions(positions, len(self))
        rows = self._rows.numpy()[position]
        meta: dict[str, Any] = {"position": torch.from_numpy(position), "epoch": epoch, "step": step}
        if self.partners is not None:
            partner = self.partners.draw(position, rows, epoch)
            later, tau = self._rows.numpy()[partner], torch.from_numpy(self.partners.hours_between(position, partner))
            meta["partner"] = torch.from_numpy(partner)
        elif self._equals is not None:
            partner = self._equals.draw(position, rows, (self.seed, epoch, 0))
            later, tau = self._rows.numpy()[partner], torch.full((len(rows),), float("nan"))
            meta["partner"] = torch.from_numpy(partner)
        else:
            later, tau = self._positives(rows, epoch)
        slabs = None
        if self._random_slices:
            slabs = np.concatenate([draws((self.seed, epoch, side), rows, 1)[:, 0] for side in (2, 3)])
        both = torch.from_numpy(self._patches(np.concatenate([rows, later]), slabs))
        meta |= {"row": torch.from_numpy(rows), "positive_row": torch.from_numpy(later), "tau_hours": tau}
        return {"anchor": both[: len(rows)], "positive": both[len(rows) :], "meta": meta}

    def _positives(self, rows: np.ndarray, epoch: int) -> tuple[np.ndarray, torch.Tensor]:
        """Return the row of each positive of the lineage, or the row itself, and the hours to it."""
        tau = np.full(len(rows), np.nan, np.float32)
        if self.positive == "self" or self._lineages is None:
            return rows, torch.from_numpy(tau)
        later = self._lineages.draw(rows, (self.seed, epoch, 0))
        tau = np.where(later == rows, np.nan, self._lineages.hours_between(rows, later))
        return later, torch.from_numpy(tau.astype(np.float32))

    def _patches(self, rows: np.ndarray, slabs: np.ndarray | None = None) -> np.ndarray:
        """Return the scaled patches of some rows of the whole table.

        Parameters
        ----------
        rows : numpy.ndarray of int, shape (n,)
        slabs : numpy.ndarray of float, shape (n,), optional
            In [0, 1): which of the possible first slices to take, instead of that around the cell.
        """
        place, scale = self._place.numpy()[rows], self._scale.numpy()
        if slabs is not None:
            stacks = np.array([field.shape[2] for field in self.chunks.fields])[place[:, 0]]
            place = place.copy()
            place[:, 2] = slabs * (stacks - self._read_shape[1] + 1)
        pixels = self._regions(place)
        frame = np.minimum(place[:, 1], scale.shape[2] - 1)
        centre, spread = scale[:, place[:, 0], frame, :, None, None, None]
        pixels -= centre
        pixels /= spread
        return pixels

    def _regions(self, place: np.ndarray) -> np.ndarray:
        """Return what is read at some places, brought to the shape of a patch."""
        sizes, of = np.unique(self._sizes.numpy()[place[:, 0]], axis=0, return_inverse=True)
        shape = self._read_shape
        if len(sizes) == 1 and tuple(sizes[0]) == shape[1:]:
            return gather(self.chunks, place, shape)
        pixels = np.empty((len(place), *shape), np.float32)
        for number, size in enumerate(sizes.tolist()):
            some = of.ravel() == number
            pixels[some] = brought_to(gather(self.chunks, place[some], (shape[0], *size)), shape[1:])
        return pixels
