"""Which track descends from which."""

from __future__ import annotations

import numpy as np
import pandas as pd

from cellcohort.datasets.families import roots
from cellcohort.messages import several


def descent(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the tracks of one experiment, with their mothers and families.

    Parameters
    ----------
    rows : pandas.DataFrame
        With "_field", "track_id", "parent_track_id" and "t", sorted by field, track and frame.

    Returns
    -------
    pandas.DataFrame
        One row per track, in the order of `rows`: "_field", "track_id", "first" and "n" (its rows),
        "mother" (number of the track it came from, -1 for none), "lineage" (the same number for all
        that descend from one track), "overlap" (the last frame in which its mother is still there, -1 where it begins
        later). Daughters of a mother that has no row are a family too. A track that begins no later than its mother
        has none, so that none is its own ancestor; all of it overlaps.

    Raises
    ------
    ValueError
        A track has two mothers.
    """
    key = rows[["_field", "track_id"]].to_numpy()
    starts = np.flatnonzero(np.r_[True, (key[1:] != key[:-1]).any(axis=1)])
    stops = np.r_[starts[1:], len(rows)]
    tracks = rows.iloc[starts][["_field", "track_id", "parent_track_id"]].reset_index(drop=True)
    tracks = tracks.assign(first=starts, n=stops - starts)
    parent = rows["parent_track_id"].to_numpy()
    mixed = np.flatnonzero(parent != np.repeat(parent[starts], tracks["n"]))
    if len(mixed):
        row = rows.iloc[mixed[0]]
        raise ValueError(
            f"{several(len(np.unique(key[mixed], axis=0)), 'track')} with more than one parent_track_id, such as track "
            f"{row['track_id']} of {row['position']}; give each one."
        )
    of = pd.MultiIndex.from_frame(tracks[["_field", "track_id"]])
    wanted = pd.MultiIndex.from_arrays([tracks["_field"], tracks["parent_track_id"]])
    mother = np.where(tracks["parent_track_id"] < 0, -1, of.get_indexer(wanted))
    mother = np.where(mother == np.arange(len(tracks)), -1, mother)  # a track named as its own mother has none
    begin, end = rows["t"].to_numpy()[starts], rows["t"].to_numpy()[stops - 1]
    early = (mother >= 0) & (begin <= end[mother])
    unborn = early & (begin <= begin[mother])
    overlap = np.where(early, np.where(unborn, end, end[mother]), -1)
    mother = np.where(unborn, -1, mother)
    orphan = (mother < 0) & ~unborn & (tracks["parent_track_id"] >= 0).to_numpy()
    family = np.arange(len(tracks))
    if orphan.any():  # sisters whose mother has no row share the first of them
        families = tracks[orphan].groupby(["_field", "parent_track_id"], sort=False)["first"].transform("idxmin")
        family[orphan] = families.to_numpy()
    return tracks.assign(mother=mother, lineage=family[roots(mother)], overlap=overlap)


def mothers_among(mother: np.ndarray, there: np.ndarray) -> np.ndarray:
    """Return the nearest ancestor of every track among those of which there are rows; -1 for none."""
    gone = np.ones(len(mother), bool)
    gone[there] = False
    while (lost := (mother >= 0) & gone[mother]).any():
        mother = np.where(lost, mother[mother], mother)
    return mother
