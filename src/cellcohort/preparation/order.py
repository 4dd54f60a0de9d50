"""In which order a store holds its cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from cellcohort.cells import CellTable
from cellcohort.messages import listed, meant, typed_option, whole_number
from cellcohort.missing_values import Missing, refuse_missing, without_empty
from cellcohort.mothers import refuse_mothers_as_groups
from cellcohort.sampling.rng import key_of, uniform


def stored_order(
    obs: pd.DataFrame,
    group_by: Sequence[str],
    together: str | None = None,
    seed: int = 0,
    missing: Missing = "error",
    columns: Mapping[str, Sequence[str]] | None = None,
) -> tuple[np.ndarray, dict[str, int]]:
    """Return the rows of `obs` in the order in which they are to be stored.

    Strata follow each other in the order of their labels, so that a run of rows holds one stratum.
    Within a stratum the order is a keyed shuffle, so that any run is a fair sample of it: of cells,
    or, with `together`, of whole groups of cells, such as lineages, whose cells keep the order they have.

    Parameters
    ----------
    obs : pandas.DataFrame
        One row per cell.
    group_by : sequence of str
        Columns whose labels together make the strata; empty for a plain shuffle.
    together : str, optional
        Column whose groups stay together inside a stratum; its labels tell groups of different
        experiments apart.
    seed : int
        Key of the shuffle.
    missing : {"error", "label"}
        What cells without a label of `group_by` do: "error" refuses them and gives their number; "label" makes
        them strata of their own, with the label "missing".
    columns : mapping of str to sequence of str, optional
        The columns that each file had from which `obs` was put together.

    Returns
    -------
    order : numpy.ndarray of int64, shape (n_cells,)
        Row of `obs` of every stored row.
    sizes : dict of str to int
        Cells per stratum, in the stored order.

    Raises
    ------
    ValueError
        A column is not there, or not in all files, is named twice, or has missing values; `together` may have none.
    """
    whole_number("seed", seed, 0)
    if isinstance(group_by, str) or group_by is None:
        raise ValueError(
            f"prepare.group_by={group_by!r} must be a list of columns; use "
            f"{typed_option('prepare.group_by', [group_by] if group_by else [])}."
        )
    if twice := [name for name in dict.fromkeys(group_by) if group_by.count(name) > 1]:
        raise ValueError(f"prepare.group_by={list(group_by)} names {listed(twice, show=repr)} twice; name it once.")
    asked = [("prepare.group_by", name) for name in group_by]
    if together is not None:
        asked.append(("prepare.together", together))
    if lacking := [f"{option} names {name!r}" for option, name in asked if name not in obs.columns]:
        raise ValueError(
            f"{', '.join(lacking)}, but the cells have the columns {listed(obs.columns)}; name some of these, "
            "such as 'prepare.group_by=[plate,drug]', or prepare.group_by=[] for none."
        )
    for option, name in asked:
        _refuse_where_absent(option, name, columns or {})
    obs = without_empty(obs, [*group_by, *([together] if together else [])])
    refuse_missing(obs, [together], group_by, missing, "prepare.missing=label")
    cells = CellTable.from_frame(obs, experiment=None, condition=None, hours=None, missing=missing)
    refuse_mothers_as_groups("prepare.together", cells, together)
    rows = np.arange(len(cells))
    stratum, sizes = np.zeros(len(cells), int), {"all": len(cells)}
    if group_by:
        column = cells.column(list(group_by))
        stratum = column.codes
        sizes = {
            " x ".join(map(str, label)): int(n) for label, n in zip(column.labels, column.counts(), strict=True) if n
        }
    unit = rows if together is None else cells.column(together).codes
    place = uniform(key_of(seed), unit.astype(np.uint64))
    return np.lexsort((rows, unit, place, stratum)), sizes


def _refuse_where_absent(option: str, name: str, columns: Mapping[str, Sequence[str]]) -> None:
    """Refuse a column that some files have and others lack, since it reads as missing values there."""
    lacking = {file: there for file, there in columns.items() if name not in there}
    if 0 < len(lacking) < len(columns):
        file, there = next(iter(lacking.items()))
        common = [column for column in there if all(column in others for others in columns.values())]
        raise ValueError(
            f"{option} names {name!r}, which is no column of obs in {listed(lacking, 5)}, as it is in other files. "
            f"{meant([name], there)}{file} has {listed(there)}. Give it that column, or name one that all files have: "
            f"{listed(common) or 'there is none'}."
        )
