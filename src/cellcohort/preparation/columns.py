"""What a store can hold of obs: columns of text, numbers or booleans, under names that zarr accepts."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pandas as pd

from cellcohort.datasets.anndata.obs import kind_of

LONGEST = 200  # bytes of a name; file systems hold 255, and zarr may add to it
TAKEN = ("", "_index", "zarr.json")


def storable(obs: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, str], list[str]]:
    """Columns of obs as a store holds them.

    Parameters
    ----------
    obs : pandas.DataFrame
        One row per cell.

    Returns
    -------
    stored : pandas.DataFrame
        The same rows; a column whose name zarr cannot hold has another one.
    names : dict of str to str
        The original name of each column that has another one in `stored`.
    notes : list of str
        A sentence for each column that is stored under another name, or left out.
    """
    notes, columns = [], {}
    safe = safe_names(map(str, obs.columns))
    for (name, column), stored in zip(obs.items(), safe, strict=True):
        column = column.infer_objects()
        if kind_of(column) is None:
            notes.append(
                f"obs column {str(name)!r} is left out of the store: it holds {column.dtype} values, not text, numbers "
                "or booleans."
            )
            continue
        if stored != name:
            notes.append(
                f"obs column {str(name)!r} is stored as {stored!r}, since zarr cannot hold its name; options such as "
                f"data.columns still name it {str(name)!r}."
            )
        # anndata writes no nullable floats
        columns[stored] = column.astype(float) if str(column.dtype) in ("Float32", "Float64") else column
    names = {stored: str(name) for name, stored in zip(obs.columns, safe, strict=True) if stored != name}
    stored_obs = pd.DataFrame(columns, index=obs.index.rename(None))
    return stored_obs, {stored: name for stored, name in names.items() if stored in columns}, notes


def safe_names(names: Iterable[str]) -> list[str]:
    """Each name, or, where zarr cannot hold it or a file system would take it for another one, a name like it."""
    names = list(names)
    taken: set[str] = set()
    safe = {}
    for name in sorted(names, key=lambda name: not _holdable(name)):  # names that stay come first
        free, number = name, 1
        while not _holdable(free) or free.casefold() in taken:
            base = re.sub(r"\W+", "_", name).strip("_")[:40] or "column"
            free, number = base if number == 1 else f"{base}_{number}", number + 1
        taken.add(free.casefold())
        safe[name] = free
    return [safe[name] for name in names]


def _holdable(name: str) -> bool:
    try:
        short = len(name.encode()) <= LONGEST
    except UnicodeEncodeError:
        return False
    return short and name not in TAKEN and not name.startswith((".", "__")) and not re.search(r"[/\\\0]", name)
