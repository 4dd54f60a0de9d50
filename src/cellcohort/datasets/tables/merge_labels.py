"""Several spellings of one label, made one label."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pandas as pd

from cellcohort.cells import Name
from cellcohort.coded_columns import factorized
from cellcohort.labels import by_label
from cellcohort.messages import listed, meant

MergeLabels = Mapping[str, Mapping[Any, Any]] | None


def merged(
    table: pd.DataFrame,
    merge_labels: MergeLabels,
    roles: Mapping[str, Name | None],
    numbers: Collection[str | None] = (),
) -> pd.DataFrame:
    """Return the table with other names for some labels.

    Parameters
    ----------
    table : pandas.DataFrame
    merge_labels : mapping of str to mapping of label to label, optional
        Other names for labels, by role or column: ``{"condition": {"GEM": "Gem"}}``.
    roles : mapping of str to str, list of str or None
        Column by role; one of several columns is renamed by its own name.
    numbers : collection of str or None
        Columns that hold numbers, which are no labels.

    Raises
    ------
    ValueError
        It is no mapping of mappings, or names a column of labels or a label that is not there.
    """
    if merge_labels is None:
        return table
    if not all(isinstance(level, Mapping) for level in (merge_labels, *getattr(merge_labels, "values", list)())):
        raise ValueError(
            f"merge_labels={merge_labels!r} must be a mapping of columns to mappings of old labels to new ones; write "
            "{condition: {GEM: Gem, gem: Gem}}."
        )
    columns = {role: name for role, name in roles.items() if isinstance(name, str) and name not in numbers}
    for key, new_names in merge_labels.items():
        name = columns.get(key, key)
        if name not in table.columns or name in numbers:
            there = dict.fromkeys([*columns, *table.columns.difference(list(numbers), sort=False)])
            raise ValueError(
                f"merge_labels has {key!r}, which is no column of labels. {meant([key], list(there))}It may have "
                f"{listed(there)}."
            )
        codes, uniques = factorized(table[name])
        labels = uniques.tolist()
        new_names, absent = by_label(new_names, labels)
        if absent:
            raise ValueError(
                f"merge_labels.{key} renames {listed(absent, show=repr)}, which no row has. {meant(absent, labels)}"
                f"The labels are {listed(labels, show=repr)}."
            )
        if all(isinstance(label, str) for label in labels):
            new_names = {label: _text(new, key) for label, new in new_names.items()}
        renamed = [new_names.get(label, label) for label in labels]
        distinct = list(dict.fromkeys(renamed))
        place = np.array([distinct.index(label) for label in renamed] + [-1])  # -1 stands for a missing label
        table = table.assign(**{name: pd.Categorical.from_codes(place[codes], pd.Index(distinct, dtype=object))})
    return table


def _text(label: Any, key: str) -> str:
    """Return a new name among names that are texts."""
    if isinstance(label, str) or (isinstance(label, int) and not isinstance(label, bool)):
        return str(label)
    raise ValueError(
        f"merge_labels.{key} gives the name {label!r}, which YAML made of what was typed; put it in quotes."
    )
