"""Image patches from a store that is read in chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cellcohort.augment import made
from cellcohort.augment.image import ImageViews
from cellcohort.cells import Name
from cellcohort.data.anndata import labelled, opened
from cellcohort.datasets.partners import PairRule, chosen
from cellcohort.datasets.positives import Tau, TauDraw
from cellcohort.datasets.protocol import Views
from cellcohort.datasets.stored.cells import StoredCells
from cellcohort.datasets.stored.pairs import Pairs
from cellcohort.datasets.tables.merge_labels import MergeLabels
from cellcohort.mapped_arrays import ArrayFiles
from cellcohort.missing_values import Missing
from cellcohort.mothers import refuse_mothers_as_groups

__all__ = ["StoredPatches", "load_patches"]

COLUMNS: Mapping[str, Any] = MappingProxyType(
    {"experiment": "experiment", "condition": "condition", "hours": "hours", "track": "track"}
)


@dataclass(frozen=True)
class StoredPatches:
    """Image patches of a store, which are read batch by batch.

    Attributes
    ----------
    path : str or Path
        A store that ``scripts/prepare.py source=timelapse`` wrote; with ``prepare.together=<pair_by>`` the
        positives of most cells are in memory when the cells are.
    columns, merge_labels, missing
        As for :class:`~cellcohort.data.anndata.AnnData`.
    pair_by : str or list of str, optional
        Column (or columns, jointly) whose cells are each other's positives, `tau_hours` apart: "lineage" takes all of
        one family, "track" the same cell only. It is not cut by a split. A cell without a later one in memory is
        paired with a second view of itself, and ``meta["second_views"]`` says how many of a batch are. None pairs all
        so.
    tau_hours : (float, float)
        Least and greatest time from anchor to positive, in hours, both inclusive.
    tau : {"uniform", "exponential", "fixed"}
        How that time is drawn among those at which there are cells: each alike, longer ones less often, or always the
        shortest.
    tau_decay_hours : float, optional
        With ``tau="exponential"``: a time longer by this much is drawn 1/e times as often. None stands for 2 hours.
    augment : callable or mapping
        ``augment(inputs, key)`` makes the views where the model is; or its node of a config.
    seed : int
        Key of the positives.
    index_cache : path, optional
        As for :class:`~cellcohort.data.anndata.AnnData`.
    """

    path: str | Path | None = None
    columns: Mapping[str, Any] = COLUMNS
    merge_labels: MergeLabels = None
    missing: Missing = "error"
    pair_by: Name | None = "lineage"
    tau_hours: Sequence[float] = (0.5, 6.0)
    tau: Tau = "uniform"
    tau_decay_hours: float | None = None
    augment: Views | Mapping[str, Any] = ImageViews()  # noqa: RUF009  # frozen
    seed: int = 0
    index_cache: str | Path | None = None

    def cells(self, also: Sequence[str] = (), pairs: PairRule | None = None) -> StoredCells:  # noqa: ARG002
        """Read the labels of the store; it has all columns of obs.

        Parameters
        ----------
        also : sequence of str
            Columns that are needed.
        pairs : PairRule, optional
            Which cells may be pairs, instead of those that the options of this source make.

        Raises
        ------
        FileNotFoundError, ValueError
            As :meth:`dataset`.
        """
        return self.dataset(pairs)

    def dataset(self, pairs: PairRule | None = None) -> StoredCells:
        """Read the labels of the store; its patches are read batch by batch.

        Parameters
        ----------
        pairs : PairRule, optional
            Which cells may be pairs, instead of those that the options of this source make.

        Raises
        ------
        FileNotFoundError, ValueError
            As for :class:`~cellcohort.data.anndata.AnnData`; or there are no hours to pair by.
        """
        how = TauDraw(self.tau, self.tau_decay_hours)
        store, pair_by = opened(self.path), self.pair_by
        if len(store.shape) < 2:
            raise ValueError(
                f"{self.path} holds profiles of {store.shape[0]} features, no patches; read it with data=anndata."
            )
        columns, files = {**COLUMNS, **self.columns}, ArrayFiles(self.index_cache)
        cells, unpaired = labelled(store, columns, self.merge_labels, self.missing, files, [pair_by])
        views = made(self.augment)
        whole = unpaired if pair_by is None else pair_by  # whatever the pairs are, so that splits can be compared
        if pair_by is None or chosen(pairs):
            return StoredCells(store, cells, whole, views, pair_rule=pairs)
        if cells.hours is None:
            raise ValueError(f"pair_by={pair_by!r} needs times; name data.columns.hours, or set data.pair_by=null.")
        refuse_mothers_as_groups("data.pair_by", cells, pair_by)
        files = cells.files.of("clock", pair_by, self.tau_hours)
        later = Pairs(cells.column(pair_by).codes, cells.hours, self.tau_hours, self.seed, how, files)
        stored = StoredCells(store, cells, whole, views, later)
        stored.later_hours = self.tau_hours
        return stored


def load_patches(path: str | Path | None = None, columns: Mapping[str, Any] = COLUMNS, **options: Any) -> StoredCells:
    """Read the labels of a store of patches; the options are those of :class:`StoredPatches`."""
    return StoredPatches(path, columns, **options).dataset()
