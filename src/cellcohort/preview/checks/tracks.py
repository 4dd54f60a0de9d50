"""What the table says of tracks: those of several conditions, and frames that are not there."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from cellcohort.cells import CellTable
from cellcohort.datasets.positives import Clock
from cellcohort.messages import in_list, joined, several
from cellcohort.preview.checks import Finding
from cellcohort.preview.describe import percent
from cellcohort.preview.survey import Survey

LONGER = 1.5  # times the usual interval of an experiment, above which frames are missing


def tracks_of_conditions(survey: Survey) -> Iterator[Finding]:
    """Find tracks whose cells have two conditions or more."""
    cells = survey.sampler.cells
    if not (cells.has("track") and cells.has("condition")):
        return
    track, condition = cells.column("track"), cells.column("condition")
    known = ~cells.unlabelled("condition")  # cells without a label may be of the condition of the others
    pairs = np.unique((track.codes.astype(np.int64) * len(condition.labels) + condition.codes)[known])
    of, label = np.divmod(pairs, len(condition.labels))
    found, counts = np.unique(of, return_counts=True)
    if not (mixed := found[counts > 1]).size:
        return
    named = track.labels[mixed[0]]
    name = "/".join(map(str, named)) if isinstance(named, tuple) else named
    labels = joined([in_list(condition.labels[code]) for code in label[of == mixed[0]][:4]])
    yield Finding(
        f"{len(mixed):,} of {several(len(found), 'track')} have cells of two conditions or more, such as track {name} "
        f"({labels}): their positives cross conditions, and the split holds them out by the condition of their first "
        "cell.",
        "No action needed if the condition changes during a track by design. Else correct the labels, or name the "
        "columns that tell tracks apart (data.columns.track may be a list).",
    )


def gaps(survey: Survey) -> Iterator[Finding]:
    """Find frames that tracks lack where positives would be in them."""
    cells = survey.sampler.cells
    tau = None if survey.source is None else survey.source.dataset.later_hours
    if tau is None or cells.hours is None or not cells.has("track"):
        return
    found = _gaps(cells, (float(tau[0]), float(tau[1])))
    if found is None:
        return
    n_gaps, n_tracks, n_frames, longest, n_lost = found
    least, most = tau
    lost = (
        f"{several(n_lost, 'cell')} ({percent(n_lost / len(cells))}) have no frame of their track {least:g} to "
        f"{most:g} hours later because of that"
        if n_lost
        else f"no positive lies beyond one of up to {longest:.3g} hours (data.tau_hours is {least:g} to {most:g})"
    )
    yield Finding(
        f"{n_gaps:,} of {several(n_tracks, 'track')} have gaps, {several(n_frames, 'frame')} in all: {lost}.",
        "Widen data.tau_hours so that it reaches over the gaps, or close them where cells are tracked.",
    )


def _gaps(cells: CellTable, tau: tuple[float, float]) -> tuple[int, int, int, float, int] | None:
    """Return tracks with gaps, tracks, missing frames, hours of the longest gap and cells without a positive for it.

    None where no gap keeps a cell from a positive.
    """
    hours = np.asarray(cells.hours)
    codes = cells.column("track").codes
    order = np.lexsort((hours, codes))
    track, time = codes[order].astype(np.int64), hours[order]
    same = track[1:] == track[:-1]
    step = np.diff(time)
    experiment = cells.column("experiment").codes[order] if cells.has("experiment") else np.zeros(len(cells), np.int8)
    later = same & (step > 0)  # several rows of one time are views of several channels
    usual = pd.Series(step[later]).groupby(experiment[1:][later]).median()
    interval = usual.reindex(experiment).to_numpy()
    wide = same & (step > LONGER * interval[1:])
    if not wide.any():
        return None
    frames = np.rint(step[wide] / interval[1:][wide]).astype(int) - 1
    with_gap = np.unique(track[1:][wide])
    own = np.flatnonzero(np.isin(track, with_gap))
    last = pd.Series(time).groupby(track).max().reindex(track[own]).to_numpy()
    small = 1e-6 * interval[own]
    first = np.maximum(np.ceil((tau[0] - small) / interval[own]), 1) * interval[own]  # hours to the first later frame
    due = (first <= tau[1] + small) & (time[own] + first <= last + small)
    clock = Clock.of(track[own], time[own], tau)
    start, stop = clock.later(clock.time)
    lost = int((due & (start >= stop)).sum())
    longest = float(step[wide].max())
    if not lost and longest <= tau[1]:
        return None
    return len(with_gap), len(np.unique(track)), int(frames.sum()), longest, lost
