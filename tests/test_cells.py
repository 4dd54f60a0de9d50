from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cellcohort.cells import CellTable


def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "plate": ["b", "a", "b", "a"],
            "drug": ["x_y", "x", "y", "x"],
            "h": [0, 1, 2, 3],
            "marker": [2, 10, 2, 1],
        }
    )


def make(f: pd.DataFrame, **options: object) -> CellTable:
    return CellTable.from_frame(f, **{"experiment": "plate", "condition": "drug", "hours": "h", **options})  # type: ignore[arg-type]


def test_codes_follow_sorted_labels() -> None:
    cells = make(frame())
    assert cells.column("experiment").labels == ("a", "b")
    assert cells.column("experiment").codes.tolist() == [1, 0, 1, 0]
    assert cells.column("marker").labels == (1, 2, 10)
    assert cells.hours is not None and cells.hours.dtype == np.float64
    assert "4 cells" in repr(cells)


@pytest.mark.parametrize("n", [127, 128, 129, 32_768])
def test_joint_labels_may_fill_a_kind_of_integers(n: int) -> None:
    f = pd.DataFrame({"experiment": "plate", "condition": [f"{i % n:05}" for i in range(n + 3)]})
    joint = CellTable.from_frame(f).column(["experiment", "condition"])
    assert joint.labels == tuple(("plate", f"{i:05}") for i in range(n))
    assert joint.codes.tolist() == [i % n for i in range(n + 3)]


def test_joint_labels_cannot_collide() -> None:
    f = frame().assign(plate=["a", "a_x", "a", "a"], drug=["x_y", "y", "x", "x"])
    joint = make(f).column(["experiment", "condition"])
    assert joint.labels == (("a", "x"), ("a", "x_y"), ("a_x", "y"))
    assert joint.codes.tolist() == [1, 2, 0, 0]


@pytest.mark.parametrize("dtype", [object, "string", "category", "string[pyarrow]"])
def test_every_kind_of_column_codes_alike(dtype: object) -> None:
    f = frame()
    f["plate"] = f["plate"].astype(dtype)
    column = make(f).column("experiment")
    assert column.labels == ("a", "b") and column.codes.tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize("dtype", ["int64", "Int64", "int64[pyarrow]", "category"])
def test_number_labels_stay_numbers(dtype: str) -> None:
    f = frame()
    f["plate"] = pd.Series([7, 3, 7, 3]).astype(dtype)
    assert make(f).column("experiment").labels == (3, 7)


def test_labels_decide_not_category_codes() -> None:
    f = frame()
    f["plate"] = pd.Categorical(f["plate"], categories=["zz", "b", "a"])
    column = make(f).column("experiment")
    assert column.labels == ("a", "b") and column.present() == ["a", "b"]


@pytest.mark.parametrize("hole", [None, np.nan, pd.NA])
@pytest.mark.parametrize("dtype", [object, "string", "category", "string[pyarrow]"])
def test_missing_labels(hole: object, dtype: object) -> None:
    f = frame()
    f["plate"] = pd.Series(["b", hole, "b", hole], dtype=object).astype(dtype)
    with pytest.raises(ValueError, match=r"'plate' in 2 of 4 rows"):
        make(f)
    column = make(f, missing="label").column("experiment")
    assert column.labels == ("b", "missing") and column.codes.tolist() == [0, 1, 0, 1]


def test_missing_label_does_not_merge_with_a_label_of_that_name() -> None:
    f = frame()
    f["plate"] = ["missing", None, "b", "b"]
    with pytest.raises(ValueError, match="a label 'missing'"):
        make(f, missing="label")


def test_missing_values_are_counted_per_column() -> None:
    f = frame()
    f.loc[:1, "plate"] = None
    f.loc[0, "h"] = np.nan
    with pytest.raises(ValueError, match=r"'plate' in 2 of 4 rows, 'h' in 1 of 4 rows"):
        make(f)
    hours = make(f, missing="label").hours
    assert hours is not None and np.isnan(hours[0])


@pytest.mark.parametrize(
    ("column", "choices", "advised"),
    [("h", ["error"], False), ("id", ["error", "label"], False), ("drug", ["error"], True)],
)
def test_missing_labels_are_advised_only_where_they_can_be_one(column: str, choices: list[Any], advised: bool) -> None:
    """Cells without hours are of no time, and those without a track are not one track."""
    f = frame().assign(id=["1", "1", "2", "3"])
    f.loc[0, column] = None
    for choice in choices:
        with pytest.raises(ValueError, match=f"'{column}' in 1 of 4 rows. Fill or drop these rows") as caught:
            make(f, track="id", missing=choice)
        assert ("missing='label'" in str(caught.value)) == advised


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"experiment": "well"}, r"experiment='well' is not a column; the table has plate, drug, h, marker"),
        (
            {"experiment": "well"},
            r"Give experiment the name of one of these, or None .* command line .* data\.columns\.experiment, or null",
        ),
        ({"hours": "time"}, r"hours='time' is not a column"),
        ({"hours": "plate"}, r"hours='plate' has type .*, not numbers"),
        ({"missing": "drop"}, r"missing='drop' is not a choice"),
    ],
)
def test_bad_input(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(frame(), **options)


def test_empty_infinite_and_repeated_columns() -> None:
    with pytest.raises(ValueError, match="no rows"):
        make(frame().iloc[:0])
    with pytest.raises(ValueError, match="infinite in 1 row;"):
        make(frame().assign(h=[0, 1, np.inf, 2]))
    twice = pd.concat([frame(), frame()[["plate"]]], axis=1)
    with pytest.raises(ValueError, match="names 2 columns"):
        make(twice)


def test_unknown_column_lists_what_is_there() -> None:
    with pytest.raises(ValueError, match=r"no column 'stain'; it has experiment, condition, plate, drug, h, marker"):
        make(frame()).column("stain")
    with pytest.raises(ValueError, match=r"it has experiment, condition, track, plate, drug, h, marker\."):
        make(frame().assign(track="a"), track="track").column("stain")


def test_a_role_that_no_column_has_is_told_with_the_key_that_names_it() -> None:
    cells = make(frame().assign(track="a", hours=0.0), condition=None, hours="hours", track="track")
    with pytest.raises(
        ValueError, match=r"no condition is named.*data\.columns\.condition, in code.*axis `condition`"
    ) as e:
        cells.column("condition")
    assert str(e.value).endswith("Other columns of the table: drug, h, marker.")


def test_take_keeps_the_labels() -> None:
    part = make(frame()).take(np.array([1, 3]))
    assert len(part) == 2 and part.column("experiment").labels == ("a", "b")
    assert part.column("experiment").present() == ["a"]
    assert part.column("marker").labels == (1, 10)
    assert part.hours is not None and part.hours.tolist() == [1.0, 3.0]


def test_pickles() -> None:
    cells = pickle.loads(pickle.dumps(make(frame())))
    assert cells.column("condition").labels == ("x", "x_y", "y")


@pytest.mark.parametrize(
    ("positions", "said"),
    [
        (np.arange(4) % 2 == 0, r"positions have type bool; use integers, np.flatnonzero\(mask\) for a mask"),
        (np.array([-2, 1]), "positions reach from -2 to 1; use 0 to 3"),
        (np.array([0, 4]), "positions reach from 0 to 4; use 0 to 3"),
    ],
)
def test_only_positions_in_the_table_are_taken(positions: np.ndarray, said: str) -> None:
    cells = CellTable.from_frame(pd.DataFrame({"experiment": list("abab")}), condition=None, hours=None)
    with pytest.raises((IndexError, TypeError), match=said):
        cells.take(positions)
    assert len(cells.take(np.array([3, 3, 0]))) == 3


def test_columns_that_are_not_named_may_be_absent() -> None:
    cells = CellTable.from_frame(pd.DataFrame({"experiment": ["a", "b"], "other": [1, 2]}))
    assert cells.has("experiment") and not cells.has("condition") and cells.hours is None
    for name in ("condition", "hours"):
        with pytest.raises(ValueError, match=f"{name}='{name}' is not a column"):
            CellTable.from_frame(pd.DataFrame({"experiment": ["a"]}), **{name: name})


def test_tracks_of_one_label_in_two_experiments_are_two() -> None:
    frame = pd.DataFrame({"experiment": [*"aabb"], "condition": "x", "id": [7, 8, 7, 9]})
    track = CellTable.from_frame(frame, track="id").column("track")
    assert track.codes.tolist() == [0, 1, 2, 3] and track.labels[2] == ("b", 7) and track.name == "id"
    assert CellTable.from_frame(frame, experiment=None, track="id").column("track").labels == (7, 8, 9)
    assert CellTable.from_frame(frame.assign(id=[7, 8, 1, 9]), track="id").column("track").labels == (1, 7, 8, 9)
    assert CellTable.from_frame(frame, track="id").column("id").labels == (7, 8, 9)


def test_only_plain_tables_are_taken() -> None:
    frame = pd.DataFrame({"experiment": ["a"], "condition": ["b"]})
    with pytest.raises(ValueError, match=r"the table is a dict; give a pandas\.DataFrame"):
        CellTable.from_frame(frame.to_dict())  # type: ignore[arg-type]
    frame.columns = pd.MultiIndex.from_product([["x"], frame.columns])
    with pytest.raises(ValueError, match=r"the columns of the table have 2 levels, such as \('x', 'experiment'\)"):
        CellTable.from_frame(frame)


@pytest.mark.parametrize("options", [{"experiment": 0}, {"condition": ["a", 1]}, {"hours": ["t", "u"]}, {"track": 1.5}])
def test_a_role_is_the_name_of_a_column(options: dict[str, Any]) -> None:
    frame = pd.DataFrame({"experiment": ["a"], "condition": ["b"], "t": [1.0], "u": [1.0], 0: ["a"]})
    role = next(iter(options))
    with pytest.raises(ValueError, match=rf"{role}=.* must be the name of (a|one) column, .*or None"):
        CellTable.from_frame(frame, **options)


@pytest.mark.parametrize("value", [[1, 2], {"a": 1}, {1, 2}, np.array([1, 2])])
def test_lists_are_no_labels(value: Any) -> None:
    frame = pd.DataFrame({"experiment": ["a", "a"], "condition": pd.Series([value, "b"], dtype=object)})
    with pytest.raises(ValueError, match=r"'condition' holds values that can be no labels, such as .*; make each"):
        CellTable.from_frame(frame)
