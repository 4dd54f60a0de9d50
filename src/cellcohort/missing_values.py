"""Missing values of a table: refused with their number, or a label of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

import pandas as pd

from cellcohort.messages import listed

Missing = Literal["error", "label"]
MISSING_LABEL = "missing"
WORDS_FOR_MISSING = ("na", "n/a", "#n/a", "n.a.", "<na>", "nan", "none", "null")  # in any case


def without_empty(frame: pd.DataFrame, names: Iterable[str]) -> pd.DataFrame:
    """Return a table with missing values for empty texts in columns of labels, those that it has."""
    empty = {name: frame[name] == "" for name in names if name in frame.columns and not _of_numbers(frame[name])}
    return frame.assign(**{name: frame[name].mask(rows.fillna(False)) for name, rows in empty.items() if rows.any()})


def _of_numbers(values: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(values) or pd.api.types.is_datetime64_any_dtype(values)


def refuse_missing(
    frame: pd.DataFrame,
    needed: Iterable[str | None],
    labels: Iterable[str | None],
    missing: Missing,
    remedy: str,
    words: Mapping[str, Mapping[str, int]] | None = None,
    whole: pd.DataFrame | None = None,
) -> None:
    """Raise ValueError, with counts, where columns of a table have missing values.

    Parameters
    ----------
    needed, labels : iterable of str or None
        Columns that may have none at all, and those that may with ``missing="label"``; what the table lacks is
        left to others.
    missing : {"error", "label"}
    remedy : str
        How the reader of the message says ``missing="label"``.
    words : mapping of str to mapping of str to int, optional
        Words of a text file that were taken for missing values, and how often, by column.
    whole : pandas.DataFrame, optional
        The table with all its columns, where `frame` has some only.
    """
    if missing not in get_args(Missing):
        raise ValueError(f"missing={missing!r} is not a choice; use 'error' or 'label'.")
    columns = {**dict.fromkeys(labels, True), **dict.fromkeys(needed, False)}  # whether a label may stand for it
    holes = {
        name: int(frame[name].isna().sum())
        for name, may in columns.items()
        if name is not None and name in frame.columns and not (may and missing == "label")
    }
    counts = ", ".join(
        f"{name!r} in {n} of {len(frame)} rows{said_words((words or {}).get(name, {}))}"
        for name, n in holes.items()
        if n
    )
    if counts:
        may = " or ".join(repr(name) for name, n in holes.items() if n and columns[name])
        or_label = f", or use {remedy}, which makes those without {may} a label of their own" if may else ""
        said = f"missing values: {counts}. Fill or drop these rows{or_label}."
        raise MissingValues(said, frame if whole is None else whole, columns)


class MissingValues(ValueError):
    """Missing values in some columns of a table.

    Parameters
    ----------
    said : str
        What the message says of these columns; it goes on with the other columns that have missing values.
    frame : pandas.DataFrame
    told : iterable of str
        The columns that it names.
    """

    def __init__(self, said: str, frame: pd.DataFrame, told: Iterable[Any]) -> None:
        self.said, self.told = said, set(told)
        self.others = _in_others(frame, self.told)
        super().__init__(said + said_others(self.others))


def in_other_columns(frame: pd.DataFrame, told: Iterable[Any]) -> str:
    """Name the columns beside some that have missing values too, so that all can be mended at once; "" if none has.

    Parameters
    ----------
    frame : pandas.DataFrame
    told : iterable of str
        Columns that are named already.
    """
    return said_others(_in_others(frame, told))


def _in_others(frame: pd.DataFrame, told: Iterable[Any]) -> dict[str, int]:
    holes = frame.loc[:, ~frame.columns.isin(list(told))].isna().sum()
    return {str(name): int(n) for name, n in holes.items() if n}


def said_others(holes: Mapping[str, int]) -> str:
    """Return a sentence, with a space before it, of columns with missing values beside others; "" if there are none."""
    counts = listed((f"{name!r} in {n}" for name, n in holes.items()), 6)
    return f" Other columns with missing values, which matter where they are used: {counts}." if counts else ""


def said_words(words: Mapping[str, int]) -> str:
    """Put the words of a text file that were taken for missing values in brackets; empty if there are none."""
    return f" (the word {', '.join(f'{word!r} in {n:,}' for word, n in words.items())})" if words else ""
