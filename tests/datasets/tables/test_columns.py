"""Columns of a table by role: joint keys, real times, and columns that have the name of one that is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cellcohort.augment.features import Augment
from cellcohort.cells import CellTable
from cellcohort.data.table import Table
from cellcohort.data.tracks import load_cells, load_tracks

COLUMNS = {"experiment": None, "condition": None, "time": "t", "track": "id", "features": ["f"]}
REAL = np.r_[np.arange(4) * 0.5, 1.5 + 2.0 * np.arange(1, 5)]  # half-hour frames, then one every two hours


def table(**columns: Any) -> pd.DataFrame:
    rows = pd.DataFrame([(d, k, t) for d in ("a", "b") for k in (1, 2) for t in range(8)], columns=["day", "k", "t"])
    rows["id"], rows["real"] = rows["day"] + rows["k"].astype(str), REAL[rows["t"]]
    return rows.assign(f=np.arange(len(rows)) / 4, **columns)


def saved(tmp_path: Path, frame: pd.DataFrame, kind: str = "parquet") -> Path:
    path = tmp_path / f"t.{kind}"
    frame.to_parquet(path) if kind == "parquet" else frame.to_csv(path, index=False)
    return path


@pytest.mark.parametrize("kind", ["parquet", "csv"])
@pytest.mark.parametrize(
    ("unit", "values"),
    [
        ("hours", REAL),
        ("minutes", REAL * 60),
        ("days", REAL / 24),
        ("seconds", REAL * 3600),
        ("timestamps", pd.Timestamp("2024-05-31 22:10") + pd.to_timedelta(REAL, "h")),
        ("timestamps", (pd.Timestamp("2024-05-31 22:10") + pd.to_timedelta(REAL, "h")).tz_localize("Europe/Paris")),
    ],
)
def test_real_times_are_used_where_they_are_named(tmp_path: Path, kind: str, unit: Any, values: Any) -> None:
    frame = table()
    frame["real"] = np.asarray(values)[frame["t"]] if unit != "timestamps" else values[frame["t"]]
    columns = COLUMNS | {"hours": "real"}
    for load in (load_cells, load_tracks):
        cells = load(saved(tmp_path, frame, kind), columns, start_hours=3, time_unit=unit).cells
        assert np.allclose(cells.hours, 3 + np.tile(REAL, 4))


def test_timestamps_count_from_the_first_one_of_each_experiment(tmp_path: Path) -> None:
    start = pd.to_datetime({"year": 2024, "month": 5, "day": table()["day"].map({"a": 1, "b": 9})})
    frame = table(when=start + pd.to_timedelta(table()["real"], "h"))
    columns = COLUMNS | {"experiment": "day", "hours": "when"}
    cells = load_cells(saved(tmp_path, frame), columns, time_unit="timestamps").cells
    assert np.allclose(cells.hours, np.tile(REAL, 4))


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (
            {"hours": "real"},
            {"interval_minutes": 30},
            "interval_minutes=30 is of frames, but data.columns.hours='real'",
        ),
        ({}, {"interval_minutes": 30, "time_unit": "days"}, "time_unit='days' is of real times; name their column"),
        ({"hours": "real"}, {"time_unit": "weeks"}, "time_unit='weeks' is not a choice; use one of hours, minutes"),
        ({"hours": "real"}, {"time_unit": "timestamps"}, "'real' holds numbers, no timestamps"),
        ({"hours": "day"}, {"time_unit": "timestamps"}, "'day' holds no timestamps such as 2024-05-31 14:30"),
        ({"hours": "day"}, {}, "'day' has type .* not numbers"),
        ({"hours": ["real", "t"]}, {}, r"columns\.hours=\['real', 't'\] must be the name of one column"),
        ({"time": None}, {}, r"columns\.time and data\.columns\.hours are null; name one of the two"),
    ],
)
def test_times_that_cannot_be_are_refused(tmp_path: Path, columns: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_cells(saved(tmp_path, table()), COLUMNS | columns, **options)


@pytest.mark.parametrize("columns", [{}, {"hours": "other"}])
def test_a_column_of_other_hours_is_not_replaced(tmp_path: Path, columns: Any) -> None:
    frame = table(hours=table()["real"], other=table()["t"] * 0.5)
    options = {} if columns else {"interval_minutes": 30}
    for load in (load_cells, load_tracks):
        with pytest.raises(ValueError, match=r"own column 'hours' differs from .* in 16 rows of 32, by up to 6 h"):
            load(saved(tmp_path, frame), COLUMNS | columns, **options)
        rounded = frame.assign(hours=(frame["t"] * 0.5 + 0.004).round(3))
        assert load(saved(tmp_path, rounded), COLUMNS | columns, **options).cells.hours.max() == 3.5
    with pytest.raises(ValueError, match=r"own column 'hours' differs from .* in 32 rows of 32"):
        load_cells(saved(tmp_path, frame.assign(hours="late")), COLUMNS | columns, **options)


@pytest.mark.parametrize("name", ["Hours", "hours_post_infection", "HPI", "Hours Post-Infection"])
@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_hours_under_another_name_are_compared_with_those_of_frames(tmp_path: Path, name: str, kind: str) -> None:
    frame = table(**{name: table()["real"]})
    for load in (load_cells, load_tracks):
        with pytest.raises(ValueError, match=rf"own column '{name}' differs .*columns\.hours={name} \(and no"):
            load(saved(tmp_path, frame, kind), COLUMNS, 30)
        cells = load(saved(tmp_path, frame, kind), COLUMNS | {"hours": name}).cells
        assert np.array_equal(cells.hours, frame["real"]) and cells.has(name)
        same = frame.assign(**{name: frame["t"] / 2, "note": 5.0})
        assert load(saved(tmp_path, same, kind), COLUMNS, 30).cells.hours.max() == 3.5
        other = {"hours": "since"}  # real times are named: what other columns count from is known to who named them
        assert (
            load(saved(tmp_path, frame.assign(since=frame["real"] + 4), kind), COLUMNS | other).cells.hours.min() == 4
        )
        label = COLUMNS | {"condition": name}
        assert load(saved(tmp_path, frame.assign(**{name: "late"}), kind), label, 30).cells.has("condition")


@pytest.mark.parametrize("word", ["None", "NA", " nan "])
@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_words_among_ids_that_are_numbers_are_missing(tmp_path: Path, word: str, kind: str) -> None:
    frame = table(family=table()["k"].astype(str))
    loose = frame.assign(family=frame["family"].where(frame.index > 2, word))
    columns = COLUMNS | {"lineage": "family"}
    said = rf"'family' in 3 of 32 rows \(the word '{word}' in 3\)"
    with pytest.raises(ValueError, match=said):
        load_cells(saved(tmp_path, loose, kind), columns, 30)
    named = loose.assign(family="f" + loose["family"].where(loose.index > 2)).fillna({"family": word})
    named = named.assign(id=named.index)
    loaded = load_cells(saved(tmp_path, named, kind), columns, 30, positive="view").cells
    assert word in loaded.column("lineage").labels, "a name among names"
    with pytest.raises(ValueError, match=said):
        Table(saved(tmp_path, loose, kind), {"experiment": "day", "condition": "day", "track": "family"}).cells()


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_lists_of_columns_are_joint_keys(tmp_path: Path, kind: str) -> None:
    frame = table(drug=np.where(table()["k"] == 1, "x", "y"), dose=10).drop(columns="id")
    columns = {
        "experiment": ["day", "dose"],
        "condition": ["drug", "dose"],
        "time": "t",
        "track": ["day", "k"],
        "lineage": ["day", "drug"],
        "features": ["f"],
    }
    for load in (load_cells, load_tracks):
        data = load(saved(tmp_path, frame, kind), columns, 30, {"a/10": 0, "b/10": 5})
        cells = data.cells
        assert cells.column("experiment").labels == ("a/10", "b/10")
        assert cells.column("condition").labels == ("x/10", "y/10")
        assert cells.column("track").labels == tuple(f"{d}/10/{k}" for d in "ab" for k in (1, 2))
        assert data.whole == "lineage" and cells.column("lineage").labels[0] == "a/10/x"
        assert cells.hours is not None and cells.hours.max() == 5 + 3.5
        assert cells.column(["drug", "dose"]).labels == (("x", "10"), ("y", "10")), "the columns stay"
    with pytest.raises(ValueError, match="'day' in 1 of 32 rows"):
        load_cells(saved(tmp_path, frame.assign(day=frame["day"].where(frame.index > 0))), columns | {"track": "k"}, 30)


def test_joined_labels_that_would_read_alike_are_refused(tmp_path: Path) -> None:
    frame = table(one=np.where(table()["day"] == "a", "p/q", "p"), two=np.where(table()["day"] == "a", "r", "q/r"))
    with pytest.raises(ValueError, match="'one', 'two' hold labels that are the same once joined"):
        load_cells(saved(tmp_path, frame), COLUMNS | {"experiment": ["one", "two"]}, 30)


def test_cell_tables_take_joint_roles_and_default_columns_need_not_be_there() -> None:
    frame = table()
    cells = CellTable.from_frame(frame, experiment=["day", "k"], track=["day", "k"])
    assert cells.column("experiment").labels == (("a", 1), ("a", 2), ("b", 1), ("b", 2))
    assert not cells.has("condition") and cells.hours is None
    with pytest.raises(ValueError, match="condition='drug' is not a column"):
        CellTable.from_frame(frame, condition="drug")
    with pytest.raises(ValueError, match="hours='hours_post_infection' is not a column"):
        CellTable.from_frame(frame, hours="hours_post_infection")


def test_numbers_that_are_categories_are_times_and_features(tmp_path: Path) -> None:
    frame = table().astype({"t": "category", "f": "category"})
    data = load_tracks(saved(tmp_path, frame), COLUMNS, 30, augment=Augment(0, 0, 0), positive="track")
    assert data.cells.hours is not None and data.cells.hours.max() < 3.5 and data.recorded([1])[0, 0, -1] == 0.25
    assert CellTable.from_frame(frame, hours="t").hours.max() == 7
    with pytest.raises(ValueError, match="'day' has type category"):
        load_cells(saved(tmp_path, frame.astype({"day": "category"})), COLUMNS | {"time": "day"}, 30)


def test_columns_with_the_name_of_one_that_is_made_stay_at_hand(tmp_path: Path) -> None:
    frame = table(track=7, lineage="L", condition="own").astype({"k": "int16"})
    above = {"column": "f", "above": 3, "labels": ["low", "high"]}
    columns = COLUMNS | {"condition": above, "lineage": "day", "features": ["real"]}
    for load in (load_cells, load_tracks):
        cells = load(saved(tmp_path, frame), columns, 30).cells
        assert cells.column("condition").labels == ("high", "low") and cells.column("lineage").labels == ("a", "b")
        assert cells.column("file_condition").labels == ("own",) and cells.column("file_track").labels == (7,)
        assert cells.column("file_lineage").labels == ("L",)
    with pytest.raises(ValueError, match="columns 'track', which is made anew, and 'file_track'"):
        load_tracks(saved(tmp_path, frame.assign(file_track=1)), columns, 30)
    same = table(track=table()["id"])
    assert not load_tracks(saved(tmp_path, same), COLUMNS, 30).cells.has("file_track"), "nothing is lost"


@pytest.mark.parametrize(
    "values",
    [
        np.array([0.1, 10], np.float32),
        pd.to_datetime(["2024-05-31", "2024-06-01"]),
        pd.to_datetime(["2024-05-31 10:00", "2024-06-01 11:30"]),
        pd.Categorical([0.5, 1e-7]),
        pd.array([True, False], "boolean"),
    ],
)
def test_labels_of_every_type_are_the_texts_of_the_csv_file(tmp_path: Path, values: Any) -> None:
    frame = table().assign(dose=pd.Series(values).repeat(16).reset_index(drop=True))
    columns = COLUMNS | {"condition": "dose"}
    binary, text = (load_cells(saved(tmp_path, frame, kind), columns, 30).cells for kind in ("parquet", "csv"))
    assert binary.column("condition").labels == text.column("condition").labels
    assert np.array_equal(binary.column("condition").codes, text.column("condition").codes)


def test_labels_of_bytes_are_texts_and_lists_are_no_labels(tmp_path: Path) -> None:
    columns = COLUMNS | {"condition": "drug"}
    frame = table(drug=[b"mock", "\u00b5".encode()] * 16)
    assert load_cells(saved(tmp_path, frame), columns, 30).cells.column("condition").labels == ("mock", "\u00b5")
    with pytest.raises(ValueError, match=r"'drug' holds values that can be no labels, such as array.*, a ndarray; "):
        load_cells(saved(tmp_path, table(drug=[[1, 2]] * 32)), columns, 30)


@pytest.mark.parametrize("role", ["experiment", "condition", "track"])
def test_an_empty_list_of_columns_is_refused(tmp_path: Path, role: str) -> None:
    with pytest.raises(ValueError, match=rf"columns\.{role}=\[\] names no column; use null where there is none"):
        load_cells(saved(tmp_path, table()), COLUMNS | {role: []}, 30)


@pytest.mark.parametrize(
    ("role", "columns", "load"),
    [
        ("time", {"condition": "t"}, load_cells),
        ("time", {"experiment": ["day", "t"]}, load_cells),
        ("hours", {"condition": "real", "hours": "real", "track": None}, lambda *options: Table(*options).cells()),
    ],
)
def test_a_column_is_not_both_labels_and_times(tmp_path: Path, role: str, columns: Any, load: Any) -> None:
    mapped = (COLUMNS if role == "time" else {"experiment": "day"}) | columns
    with pytest.raises(ValueError, match=rf"and data\.columns\.{role} both name '(t|real)', which cannot be labels"):
        load(saved(tmp_path, table()), mapped)


def test_what_is_no_time_is_quoted(tmp_path: Path) -> None:
    stamps = [f"2024-05-31 1{t % 8}:00" for t in range(32)]
    columns = COLUMNS | {"hours": "when"}
    for wrong in ("NA", "31.05.2024 10:00"):
        path = saved(tmp_path, table(when=[*stamps[:-1], wrong]))
        with pytest.raises(ValueError, match=f"in 1 row of 32, such as '{wrong}'. Write them so, or drop these rows"):
            load_cells(path, columns, time_unit="timestamps")
        with pytest.raises(ValueError, match=r"'when' has type .*, not numbers, such as '2024-05-31 10:00'"):
            load_cells(path, columns)
