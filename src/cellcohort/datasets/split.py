"""Training and validation cells that share no track."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cellcohort.cells import CellTable, names_of
from cellcohort.datasets.protocol import LabelledCells
from cellcohort.messages import plural_of, whole_number

if TYPE_CHECKING:
    from cellcohort.datasets.features.windows import TrackWindows

CHUNK = "stored_chunk"  # column of stored cells whose groups are not cut where there are no tracks
COPIES = "copy_group"  # column of stored cells: number of the group of cells with the same values, 0 for those without


def split[Tracks: (TrackWindows, LabelledCells)](
    dataset: Tracks,
    by: str = "track",
    fraction: float = 0.2,
    held_out: Sequence[Any] | None = None,
    seed: int = 0,
) -> tuple[Tracks, Tracks]:
    """Divide the cells of a dataset, never cutting a track (or a lineage, where these are known) in two.

    Cells for validation that have the same values as a cell for training, where a store knows of such copies, are
    in neither part.

    Parameters
    ----------
    dataset : TrackWindows or LabelledCells
    by : {"track", "experiment"}
        "track" divides the tracks of every condition (that of a track's first row) of every experiment,
        so that each has cells in both parts unless it has one track only, which is then for training;
        "experiment" holds out whole experiments.
    fraction : float
        Share of the cells (by track, in each condition of each experiment) or of the experiments for
        validation, above 0 and below 1, as near as whole tracks or experiments come to it.
    held_out : sequence of labels, optional
        With ``by="experiment"``, the experiments for validation, instead of a `fraction` of them.
    seed : int
        Decides which tracks or experiments are held out.

    Returns
    -------
    train, validation : TrackWindows or LabelledCells
        Of the same kind as `dataset`.

    Raises
    ------
    ValueError
        An option is out of range, an experiment is not in the table, or a part would be empty.
    """
    if not 0 < fraction < 1:
        raise ValueError(f"fraction={fraction} must be above 0 and below 1.")
    whole_number("seed", seed, 0)
    if by == "track":
        if held_out is not None:
            raise ValueError(f"held_out={held_out} names experiments; use by='experiment', or leave it out.")
        validation = _by_track(dataset, fraction, seed)
    elif by == "experiment":
        validation = _by_experiment(dataset, fraction, held_out, seed)
    else:
        raise ValueError(f"by={by!r} is not a choice; use 'track' or 'experiment'.")
    unit = "cell" if dataset.whole == CHUNK else " x ".join(names_of([dataset.whole]))
    for part, mask in (("training", ~validation), ("validation", validation)):
        if not mask.any():
            raise ValueError(
                f"no cell is left for {part} (by={by!r}, fraction={fraction}, held_out={held_out}); "
                f"hold out other experiments, or split by='track' a table with two {plural_of(unit)} of one condition."
            )
    alone = validation & ~copied(dataset.cells, ~validation)
    if not alone.any():
        raise ValueError("each cell for validation has the same values as one for training; remove copies of cells.")
    return dataset.subset(np.flatnonzero(~validation)), dataset.subset(np.flatnonzero(alone))


def copied(cells: CellTable, among: np.ndarray) -> np.ndarray:
    """Which cells have the same values as one of those `among`, as far as is known."""
    if not cells.has(COPIES):
        return np.zeros(len(cells), bool)
    column = cells.column(COPIES)
    labels = np.array(column.labels)[column.codes]
    return (labels != 0) & np.isin(column.codes, np.unique(column.codes[among]))


def _by_experiment(
    dataset: TrackWindows | LabelledCells, fraction: float, held_out: Sequence[Any] | None, seed: int
) -> np.ndarray:
    column = dataset.cells.column("experiment")
    present = column.present()
    if held_out is None:
        n = min(max(round(fraction * len(present)), 1), len(present) - 1)
        chosen = [present[i] for i in np.random.default_rng((seed, 0)).permutation(len(present))[:n]]
    else:
        chosen = [held_out] if isinstance(held_out, str | int) else list(held_out)
        if unknown := [label for label in chosen if label not in present]:
            raise ValueError(f"held_out={unknown}: no such experiment; the table has {present}.")
    return np.isin(column.codes, [column.labels.index(label) for label in chosen])


def _by_track(dataset: TrackWindows | LabelledCells, fraction: float, seed: int) -> np.ndarray:
    cells = dataset.cells
    _, first, group, size = np.unique(
        cells.column(dataset.whole).codes, return_index=True, return_inverse=True, return_counts=True
    )
    labels = [cells.column(name).codes[first] for name in ("experiment", "condition") if cells.has(name)]
    stratum = np.unique(labels, axis=1, return_inverse=True)[1].ravel() if labels else np.zeros(len(first), int)
    held_out = np.zeros(len(first), bool)
    alike = np.split(np.argsort(stratum, kind="stable"), np.cumsum(np.bincount(stratum))[:-1])
    for number, tracks in enumerate(alike):
        if len(tracks) == 1:
            continue
        order = np.random.default_rng((seed, 1, number)).permutation(tracks)
        reached = np.cumsum(size[order])[:-1]
        n = 1 + int(np.argmin(np.abs(reached - fraction * size[tracks].sum())))
        held_out[order[:n]] = True
    return held_out[group]
