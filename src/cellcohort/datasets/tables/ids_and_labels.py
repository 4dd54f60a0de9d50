"""Labels and ids of a table as text, and what is an id of none."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from cellcohort.cells import CellTable
from cellcohort.coded_columns import factorized
from cellcohort.messages import several
from cellcohort.missing_values import WORDS_FOR_MISSING, Missing, said_words

_ZERO = re.compile(r"^-?\d+\.0+$")  # a whole number written as a decimal


def as_text(values: pd.Series) -> pd.Series:
    """Labels as text; an empty one is a missing value."""
    codes, labels = factorized(values)
    texts = _texts(labels)
    distinct = {text: place for place, text in enumerate(dict.fromkeys(text for text in texts if text))}
    place = np.array([distinct.get(text, -1) for text in texts] + [-1])  # -1 stands for a missing label
    return pd.Series(pd.Categorical.from_codes(place[codes], pd.Index(list(distinct), dtype=object)), name=values.name)


def _texts(labels: Any) -> list[str]:
    """Labels as a text file has them."""
    index = pd.Index(labels)
    if isinstance(index.dtype, pd.CategoricalDtype):
        index = index.astype(index.dtype.categories.dtype)
    if _objects(index):
        return [label.decode(errors="replace") if isinstance(label, bytes) else str(label) for label in index]
    if pd.api.types.is_float_dtype(index.dtype):
        return [str(label) for label in np.asarray(index)]  # which pandas would take for 64 bits
    return index.astype(str).tolist()


def _objects(values: pd.Series | pd.Index) -> bool:
    return pd.api.types.is_object_dtype(values.dtype)


def on_tracks(table: pd.DataFrame, track: Sequence[str]) -> np.ndarray:
    """Return the rows that are of a track."""
    loose, words = np.zeros(len(table), bool), Counter[str]()
    for name in track:
        _check_written_once(table[name])
        of_none = _of_none(table[name])
        words.update(table.loc[of_none, name].astype(str))
        loose |= of_none | table[name].isna().to_numpy()
    if loose.all() and len(loose):
        raise ValueError(
            f"{', '.join(map(repr, track))}: no value in any row, so there are no tracks; name another column."
        )
    if loose.any():
        warnings.warn(
            f"{int(loose.sum())} of {len(loose)} rows are of no track ({', '.join(map(repr, track))} is missing"
            f"{said_words(words)}), and are left out.",
            stacklevel=4,
        )
    return np.flatnonzero(~loose)


def ids_of(
    table: pd.DataFrame, names: Sequence[str], words: Mapping[str, Mapping[str, int]]
) -> tuple[pd.DataFrame, dict[str, Mapping[str, int]]]:
    """Return the table with missing values for words such as "None" among ids that are all numbers.

    Parameters
    ----------
    table : pandas.DataFrame
    names : sequence of str
        Columns of ids, those of which the table lacks being left to others.
    words : mapping of str to mapping of str to int
        Words of each column that were taken for missing values before, and how often.

    Returns
    -------
    table : pandas.DataFrame
    words : dict of str to mapping of str to int
        With those found here.

    Raises
    ------
    ValueError
        One number is written in two ways, such as 1 and 1.0.
    """
    found = dict(words)
    for name in (name for name in names if name in table):
        _check_written_once(table[name])
        of_none = _of_none(table[name])
        if of_none.any():
            found[name] = Counter(table.loc[of_none, name].astype(str))
            table = table.assign(**{name: table[name].astype(object).mask(of_none)})
    return table, found


def _check_written_once(ids: pd.Series) -> None:
    if _objects(ids) or pd.api.types.is_string_dtype(ids):
        labels = {str(label) for label in factorized(ids)[1]}
        if twice := sorted(label for label in labels if label.partition(".")[0] in labels and _ZERO.search(label)):
            more = f", and {len(twice) - 1} more such pairs" if len(twice) > 1 else ""
            raise ValueError(
                f"{ids.name!r} has {twice[0].partition('.')[0]!r} and {twice[0]!r} as ids{more}: one number written in "
                "two ways would be two. Write all ids alike."
            )


def _of_none(ids: pd.Series) -> np.ndarray:
    """Rows whose id is a word such as "None", among ids that are all numbers."""
    if not (_objects(ids) or pd.api.types.is_string_dtype(ids) or isinstance(ids.dtype, pd.CategoricalDtype)):
        return np.zeros(len(ids), bool)
    labels = pd.Series(ids.unique()).dropna().astype(object)
    words = labels.map(lambda label: isinstance(label, str) and _is_no_id(label.strip()))
    others = labels[~words]
    if not words.any() or not len(others) or pd.to_numeric(others, errors="coerce").isna().any():
        return np.zeros(len(ids), bool)
    return ids.isin(labels[words].tolist()).to_numpy(bool)


def _is_no_id(label: str) -> bool:
    """Whether a text is a word for a missing value, or a mark such as "-"."""
    return label.lower() in WORDS_FOR_MISSING or not re.search(r"\w", label)


def told_apart(table: pd.DataFrame, names: Sequence[str], missing: Missing) -> pd.Categorical:
    """Labels that are joined of several columns, in the order of the first one and then of the others."""
    texts = pd.DataFrame({name: as_text(table[name]) for name in names})
    column = CellTable.from_frame(texts, None, None, None, missing=missing).column(list(dict.fromkeys(names)))
    labels = ["/".join(parts) for parts in column.labels]
    if len(set(labels)) < len(labels):
        raise ValueError(
            f"{', '.join(map(repr, names))} hold labels that are the same once joined by '/', such as 'a/b', 'c' and "
            "'a', 'b/c'; rename these."
        )
    return pd.Categorical.from_codes(column.codes, pd.Index(labels, dtype=object))


def refuse_tracks_of_no_experiment(table: pd.DataFrame, experiment: Sequence[str], track: Sequence[str]) -> None:
    """Raise ValueError where rows lack an experiment, and ids of tracks do not tell of which one they are.

    Parameters
    ----------
    table : pandas.DataFrame
    experiment, track : sequence of str
        Columns that are a key jointly.
    """
    if not (n := int(table[list(experiment)].isna().any(axis=1).sum())):
        return
    of, ids = (told_apart(table, names, "label") for names in (experiment, track))
    pairs = pd.DataFrame({"of": of.codes, "id": ids.codes}).drop_duplicates()
    repeated = pairs["id"].to_numpy()[pairs["id"].duplicated()]
    if len(repeated):
        raise ValueError(
            f"data.missing=label: rows without an experiment ({', '.join(map(repr, experiment))}) cannot be told apart "
            f"by track, since ids of {', '.join(map(repr, track))}, such as {ids.categories[repeated[0]]}, occur "
            f"in several experiments; fill or drop these {several(n, 'row')}."
        )
