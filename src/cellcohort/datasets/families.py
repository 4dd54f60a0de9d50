"""Families of tracks of a table, found from a column that holds the id of the mother of each track."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from cellcohort.datasets.tables.ids_and_labels import as_text
from cellcohort.messages import several, spelled_plainly, typed_option
from cellcohort.mothers import PARENTS

_WHOLE = re.compile(r"^(-?\d+)\.0+$")  # a whole number that was written as a decimal, as beside missing values
_LATER = 0.95  # share of tracks that begin after those they name, from which a column of families is one of mothers
_DAUGHTERS = 4  # the most tracks of one mother, beside rare ones: two in most divisions, seldom three


class Named(NamedTuple):
    """What a column says of each track.

    Attributes
    ----------
    first : numpy.ndarray of int, shape (n_tracks,)
        A row of each track, in the order of their codes.
    track : numpy.ndarray of int, shape (n_tracks,)
        The track of the same experiment that has the value as its id; -1 where there is none.
    value : numpy.ndarray of int, shape (n_tracks,)
        Equal where experiment and value of the column are.
    marks_none : numpy.ndarray of bool, shape (n_tracks,)
        Whether the value is missing, negative, or 0 where the experiment has no track 0.
    begin : numpy.ndarray of float, shape (n_tracks,)
        Hours of the first cell of each track.
    same_id : numpy.ndarray of int, shape (n_tracks,)
        The first track of the same experiment whose id is the same number, as are "1.0" and "1.00": mostly itself.
    """

    first: np.ndarray
    track: np.ndarray
    value: np.ndarray
    marks_none: np.ndarray
    begin: np.ndarray
    same_id: np.ndarray

    @property
    def itself(self) -> np.ndarray:
        """Whether the value is the track's own id."""
        return self.track == np.arange(len(self.track))


def families(
    table: pd.DataFrame, above: Sequence[str], ids: Sequence[str], track: pd.Categorical, hours: np.ndarray, parent: str
) -> pd.Categorical:
    """Return the family of every row: the label of the track that all its tracks descend from.

    Daughters of a mother that has no row are a family too.

    Parameters
    ----------
    table : pandas.DataFrame
    above : sequence of str
        Columns of the experiment, of which all tracks of a family are.
    ids : sequence of str
        Columns that tell the tracks of an experiment apart. A mother has the same labels as its daughter in all but
        the last, which holds its id.
    track : pandas.Categorical
        The track of every row.
    hours : numpy.ndarray of float, shape (n_rows,)
    parent : str
        The column of the ids of mothers.

    Raises
    ------
    ValueError
        The column is of the ids of tracks; a track has two mothers, or begins no later than its mother; no mother is
        a track of the table; two tracks have ids that are the same number.
    """
    found, labels, value = named(table, above, ids, track, hours, parent), track.categories, table[parent].to_numpy()
    if parent in ids or (found.itself.all() and spelled_plainly(parent) not in PARENTS):
        others = [name for name in map(str, table) if spelled_plainly(name) in PARENTS and name not in ids]
        remedy = typed_option("data.columns.parent", others[0] if others else "null")
        wrong = "names every track itself as its mother" if found.itself.all() else "is one of data.columns.track"
        raise ValueError(
            f"column {parent!r} {wrong}; data.columns.parent takes the ids of mother tracks. Use {remedy}"
            f"{'' if others else ' where no column has these'}."
        )
    code = track.codes[found.first]
    if len(alike := np.flatnonzero(found.same_id != np.arange(len(labels)))):
        one, other = found.first[found.same_id[alike[0]]], found.first[alike[0]]
        raise ValueError(
            f"{ids[-1]!r} has {track[one]} and {track[other]}, which are the same number, so {parent!r} cannot tell "
            "which of them is a mother. Write the id of each track in one way, or set data.columns.parent=null."
        )
    said, first = as_text(table[parent]).cat.codes.to_numpy(), np.empty(len(labels), np.int64)
    first[code] = found.first
    if len(two := np.flatnonzero(said != said[first[track.codes]])):
        one, other = two[0], first[track.codes[two[0]]]
        raise ValueError(
            f"{several(len(np.unique(track.codes[two])), 'track')} with more than one {parent!r}, such as "
            f"{track[one]} with {value[other]} and {value[one]}; give all rows of a track the id of its mother, which "
            "is not that of the cell in the frame before."
        )
    has = ~(found.marks_none | found.itself)
    mother = np.where(has, found.track, -1)
    if has.any() and not (mother >= 0).any():
        one = found.first[np.argmax(has)]
        raise ValueError(
            f"{parent!r} names no track of the same experiment, such as {value[one]} for {track[one]}; name the column "
            f"that has ids of {ids[-1]!r}, or set data.columns.parent=null."
        )
    early = (mother >= 0) & (found.begin <= found.begin[mother])
    if early.any():
        one = found.first[np.argmax(early)]
        raise ValueError(
            f"{several(int(early.sum()), 'track')} of {len(early):,} begin no later than the mother that {parent!r} "
            f"names, such as {track[one]} with {value[one]}. Correct these; where a value stands for no mother, leave "
            "it empty."
        )
    family = np.arange(len(mother))
    orphan = has & (mother < 0)
    _, sister, of = np.unique(found.value[orphan], return_index=True, return_inverse=True)
    family[orphan] = np.flatnonzero(orphan)[sister[of]]
    of_track = np.empty(len(labels), np.int64)
    of_track[code] = code[family[roots(mother)]]
    return pd.Categorical.from_codes(of_track[track.codes], labels).remove_unused_categories()


def named(
    table: pd.DataFrame, above: Sequence[str], ids: Sequence[str], track: pd.Categorical, hours: np.ndarray, column: str
) -> Named:
    """Return what a column says of each track; the parameters are those of :func:`families`."""
    _, first = np.unique(track.codes, return_index=True)
    begin = pd.Series(hours).groupby(track.codes).min().to_numpy()
    rows = table.take(first)
    shared = [as_text(rows[name]).cat.codes.to_numpy() for name in [*above, *ids[:-1]]]
    own, value = _texts(rows[ids[-1]]), _texts(rows[column])
    codes, _ = pd.factorize(np.concatenate([own, value]))
    own_keys, keys = (pd.MultiIndex.from_arrays([*shared, part]) for part in np.split(codes, 2))
    unique = np.flatnonzero(~own_keys.duplicated())
    there, same_id = (np.append(unique, -1)[own_keys[unique].get_indexer(some)] for some in (keys, own_keys))
    number = pd.to_numeric(pd.Series(value), errors="coerce").to_numpy(np.float64)
    marks_none = (value == "") | (number < 0) | ((number == 0) & (there < 0))
    return Named(first, there, keys.factorize()[0], marks_none, begin, same_id)


def refuse_mothers(
    table: pd.DataFrame,
    above: Sequence[str],
    ids: Sequence[str],
    track: pd.Categorical,
    hours: np.ndarray,
    lineage: str,
) -> None:
    """Raise ValueError where a column that was named as the families holds the ids of mothers.

    Parameters
    ----------
    table, above, ids, track, hours
        As for :func:`families`.
    lineage : str
        The column of the families.
    """
    found = named(table, above, ids, track, hours, lineage)
    # a track whose id names a family is of this family itself
    chained = (found.track >= 0) & (found.value[found.track] != found.value)
    marks = found.marks_none
    likely = spelled_plainly(lineage) in PARENTS and (marks | chained).any()
    if not likely and marks.any() and chained.any():
        later = found.begin[found.track[chained]] < found.begin[chained]
        n_alike = np.bincount(found.value)[found.value]  # tracks of each value: few daughters, or a whole family
        divides = np.median(n_alike) > 1 and np.median(n_alike[chained]) <= _DAUGHTERS
        likely = later.mean() >= _LATER and divides
    if likely:
        raise ValueError(
            f"data.columns.lineage={lineage!r} holds the ids of mothers: all tracks without one would be one family. "
            f"Use {typed_option('data.columns.parent', lineage)} instead, which finds the families."
        )


def tell_mothers(
    table: pd.DataFrame, above: Sequence[str], ids: Sequence[str], track: pd.Categorical, hours: np.ndarray
) -> None:
    """Warn of a column with a name such as "parent_track_id" by which tracks are mothers of others.

    The parameters are those of :func:`families`.
    """
    for name in (name for name in map(str, table) if spelled_plainly(name) in PARENTS):
        try:
            n = len(track.categories) - len(families(table, above, ids, track, hours, name).categories)
        except ValueError:
            continue
        if n:
            warnings.warn(
                f"{name!r} tells families of tracks, and is not used: {several(n, 'track')} of "
                f"{len(track.categories):,} are daughters, which the split may part from their mothers. Scores are "
                f"then too high. Use {typed_option('data.columns.parent', name)}, which keeps families whole.",
                stacklevel=4,
            )


def roots(mother: np.ndarray) -> np.ndarray:
    """Return the first ancestor of every track, by jumps that double in length.

    Parameters
    ----------
    mother : numpy.ndarray of int, shape (n_tracks,)
        Number of the mother of each, -1 for none; no track is its own ancestor.
    """
    root = np.where(mother < 0, np.arange(len(mother)), mother)
    while not np.array_equal(further := root[root], root):
        root = further
    return root


def _texts(values: pd.Series) -> np.ndarray:
    """Ids as text, whole numbers alike however they were written; "" where one is missing."""
    texts = as_text(values)
    plain = [_WHOLE.sub(r"\1", text) for text in texts.cat.categories]
    return np.array([*plain, ""], dtype=object)[texts.cat.codes.to_numpy()]
