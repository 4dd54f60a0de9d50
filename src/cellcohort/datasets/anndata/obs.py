"""Labels of AnnData files: every column is read by itself, and the columns of several files are joined by kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import anndata
import numpy as np
import pandas as pd
from pandas.api.types import infer_dtype, union_categoricals

TEXT, NUMBERS, BOOLEANS, EMPTY = "text", "numbers", "booleans", "missing values only"
LARGEST_EXACT = 2**53  # up to which 64-bit floats tell whole numbers apart
_OF_OBJECTS = {"string": TEXT, "boolean": BOOLEANS}


def kind_of(column: pd.Series) -> str | None:
    """Return what a column holds: "text", "numbers", "booleans", "missing values only", or None for all else.

    Of a categorical column that is what its categories are.
    """
    if column.isna().all():
        return EMPTY
    values: Any = column.cat.categories if _categorical(column) else column
    dtype: Any = values.dtype
    if pd.api.types.is_bool_dtype(dtype):
        return BOOLEANS
    if pd.api.types.is_numeric_dtype(dtype):
        return None if pd.api.types.is_complex_dtype(dtype) else NUMBERS
    if pd.api.types.is_object_dtype(dtype):
        return _OF_OBJECTS.get(infer_dtype(values, skipna=True))
    return TEXT if pd.api.types.is_string_dtype(dtype) else None


def read_obs(group: Any) -> tuple[pd.DataFrame, dict[str, str]]:
    """Return the columns of obs of one file, and why others are left out.

    Parameters
    ----------
    group : h5py.Group or zarr.Group
        The group of obs.

    Returns
    -------
    obs : pandas.DataFrame
        Its index holds the names of the cells.
    left_out : dict of str to str
        The reason for each column that is not in `obs`.

    Raises
    ------
    ValueError
        The group does not hold a table.
    """
    try:
        names: Any = anndata.io.read_elem(group[group.attrs.get("_index", "_index")])
        index = pd.Index([str(name) for name in names], dtype=object)
        order = dict.fromkeys(map(str, group.attrs["column-order"]))
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"obs is damaged, since its index cannot be read ({error}); write the file again.") from error
    columns, left_out = {}, {}
    for name in order:
        try:
            values: Any = anndata.io.read_elem(group[name])
        except Exception as error:
            left_out[name] = f"cannot be read ({error.__cause__ or error})".replace("\n", " ")
            continue
        if getattr(values, "shape", None) != (len(index),):
            left_out[name] = (
                f"has shape {getattr(values, 'shape', ())} and not one value for each of {len(index)} cells"
            )
            continue
        columns[name] = pd.Series(values, index=index)
    return pd.DataFrame(columns, index=index), left_out


def join_obs(parts: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return the rows of several files below each other, with missing values where a file lacks a column of another.

    Booleans and integers with missing values become nullable ones, so that a missing value stays one. Categories are
    joined by label, whatever codes the files give them.

    Parameters
    ----------
    parts : mapping of str to pandas.DataFrame
        The obs of every file, by its path.

    Raises
    ------
    ValueError
        A column is of different kinds in different files.
    """
    names = list(dict.fromkeys(name for part in parts.values() for name in part.columns))
    columns = {name: _joined(name, parts) for name in names}
    index = pd.Index(np.concatenate([part.index for part in parts.values()]), dtype=object)
    return pd.DataFrame({name: column.array for name, column in columns.items()}, index=index)


def _joined(name: str, parts: Mapping[str, pd.DataFrame]) -> pd.Series:
    kinds: dict[str, str] = {}  # the first file of each kind
    for path, part in parts.items():
        if name in part and (kind := kind_of(part[name])) != EMPTY:
            kinds.setdefault(str(kind or part[name].dtype), path)
    if len(kinds) > 1:
        (one, first), (other, second), *_ = kinds.items()
        raise ValueError(
            f"obs column {name!r} has {one} in {first}, but {other} in {second}; write it as the same type in "
            "all files, or remove it from one."
        )
    kind = next(iter(kinds), EMPTY)
    columns = [part[name] if name in part else pd.Series(np.nan, index=part.index) for part in parts.values()]
    if len(columns) == 1:
        return columns[0]
    full = [column for column in columns if kind_of(column) != EMPTY]
    if full and all(map(_categorical, full)):
        return _categories(columns, full)
    if kind == BOOLEANS:
        together = pd.concat([column.astype(object).astype("boolean") for column in columns])
        return together if together.isna().any() else together.astype(bool)
    if kind == NUMBERS:
        return _numbers(name, columns, full)
    if kind == TEXT:
        texts = [column.astype(object).astype("str") for column in columns]  # pandas 2 writes "nan" for none
        return pd.concat([text.where(column.notna(), None) for text, column in zip(texts, columns, strict=True)])
    return pd.concat([column.astype(float) if kind == EMPTY else column for column in columns])


def _categories(columns: Sequence[pd.Series], full: Sequence[pd.Series]) -> pd.Series:
    if len({column.dtype for column in columns}) == 1:
        return pd.concat(columns)
    categories = [column.cat.categories for column in full]
    dtype = categories[0].append(list(categories[1:])).dtype
    parts = []
    for column in columns:
        if _categorical(column):
            parts.append(pd.Categorical.from_codes(column.cat.codes, column.cat.categories.astype(dtype)))
        else:
            parts.append(pd.Categorical.from_codes(np.full(len(column), -1), categories[0].astype(dtype)))
    return pd.Series(union_categoricals(parts, sort_categories=True))


def _numbers(name: str, columns: Sequence[pd.Series], full: Sequence[pd.Series]) -> pd.Series:
    dtype = np.result_type(*map(_number_type, full))
    together: Any = dtype
    if dtype.kind in "iu" and any(column.isna().any() for column in columns):
        together = dtype.name.replace("int", "Int").replace("u", "U")  # pandas' name of the nullable type
    whole = [column for column in full if dtype.kind == "f" and _number_type(column).kind in "iu"]
    greatest = max((max(map(abs, column.dropna().astype(object))) for column in whole), default=0)
    if greatest > LARGEST_EXACT:
        raise ValueError(
            f"obs column {name!r} has whole numbers up to {greatest} in one file and real or negative numbers in "
            "another: joined, they would be rounded. Write it as text in all files, or remove it from one."
        )
    return pd.concat(
        [(column.astype(object) if _categorical(column) else column).astype(together) for column in columns]
    )


def _number_type(column: pd.Series) -> np.dtype:
    dtype: Any = column.cat.categories.dtype if _categorical(column) else column.dtype
    return getattr(dtype, "numpy_dtype", dtype)


def _categorical(column: pd.Series) -> bool:
    return isinstance(column.dtype, pd.CategoricalDtype)
