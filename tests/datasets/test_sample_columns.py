"""Wells, animals and other samples that a condition cannot be told apart from."""

from __future__ import annotations

import shlex

import numpy as np
import pandas as pd
import pytest

from cellcohort.cells import CellTable
from cellcohort.datasets.sample_columns import inseparable, sample_columns, samples_of


def frame_of(column: str = "well") -> pd.DataFrame:
    """Two experiments with two wells of `mock` and one of `drug` each, and 20 cells of each well."""
    rows = [(e, w, c) for e in "ab" for w, c in (("A1", "mock"), ("A2", "mock"), ("B1", "drug")) for _ in range(20)]
    return pd.DataFrame(rows, columns=["experiment", column, "condition"])


EVERY_OTHER = np.arange(120) % 2 == 0


@pytest.mark.parametrize("column", ["well", "Well ID", "Metadata_Plate", "donor.name", "Animal"])
def test_samples_of_one_condition_on_both_sides_of_a_split_are_found(column: str) -> None:
    found = inseparable(CellTable.from_frame(frame_of(column)), EVERY_OTHER)
    assert found is not None and found.column == column and found.alone == [] and found.n_conditions == 2
    assert str(found).startswith(f"condition and {column} cannot be told apart: each {column} has one condition")


def test_of_fields_and_their_wells_it_is_the_wells() -> None:
    frame = frame_of().assign(field=lambda rows: rows["well"] + np.where(np.arange(120) % 4 < 2, "f1", "f2"))
    found = inseparable(CellTable.from_frame(frame[["field", *frame_of()]]), EVERY_OTHER)
    assert found is not None and found.column == "well"


def test_columns_that_name_no_sample_are_not_looked_at() -> None:
    assert inseparable(CellTable.from_frame(frame_of("dose")), EVERY_OTHER) is None
    cells = CellTable.from_frame(frame_of().assign(plate="p"), condition="well")
    assert sample_columns(cells) == ["plate"], "nor is the condition itself"


def test_samples_of_two_conditions_or_of_one_side_are_separable() -> None:
    frame = frame_of()
    assert inseparable(CellTable.from_frame(frame.assign(well=frame["experiment"])), EVERY_OTHER) is None
    assert inseparable(CellTable.from_frame(frame), (frame["well"] == "A1").to_numpy()) is None


def test_wells_of_different_experiments_may_share_their_labels() -> None:
    frame = frame_of()
    swapped = frame["condition"].map({"mock": "drug", "drug": "mock"}).where(frame["experiment"] == "b")
    assert inseparable(CellTable.from_frame(frame.assign(condition=swapped.fillna(frame["condition"]))), EVERY_OTHER)


def test_conditions_of_one_sample_are_named() -> None:
    cells = CellTable.from_frame(frame_of().query("experiment == 'a'"))
    found = inseparable(cells, EVERY_OTHER[:60])
    assert found is not None and found.alone == ["drug"] and found.n_conditions == 2


def test_the_option_holds_out_wells_of_each_experiment_where_their_labels_are_shared() -> None:
    frame = frame_of()
    shared = inseparable(CellTable.from_frame(frame), EVERY_OTHER)
    assert shared is not None and shared.option == "'split.by=[experiment,well]'"
    own = inseparable(CellTable.from_frame(frame.assign(well=frame["experiment"] + frame["well"])), EVERY_OTHER)
    assert own is not None and own.option == "split.by=well"


@pytest.mark.parametrize("odd", [["A1"], {"row": "A"}, np.zeros(2)])
def test_a_column_that_can_hold_no_labels_or_is_there_twice_is_no_column_of_samples(odd: object) -> None:
    """A table may have such a column, and nobody asked for it."""
    frame = frame_of().assign(plate=[odd] * 120)
    for odd_frame in (frame, pd.concat([frame_of(), pd.DataFrame({"plate": ["p"] * 120})[["plate", "plate"]]], axis=1)):
        found = inseparable(CellTable.from_frame(odd_frame), EVERY_OTHER)
        assert found is not None and found.column == "well"


@pytest.mark.parametrize("shared", [True, False])
def test_the_option_is_one_word_to_the_shell(shared: bool) -> None:
    frame = frame_of("Well ID")
    if not shared:
        frame["Well ID"] += frame["experiment"]
    found = inseparable(CellTable.from_frame(frame), EVERY_OTHER)
    assert found is not None and shlex.split(found.option) == [
        "split.by=[experiment,Well ID]" if shared else "split.by=Well ID"
    ]


def test_cells_without_a_sample_or_a_condition_tell_nothing_of_it() -> None:
    frame = frame_of()
    frame.loc[[0, 1, 50, 51], "well"] = None
    frame.loc[[4, 5], "condition"] = None
    cells = CellTable.from_frame(frame, missing="label")
    assert len(np.unique(samples_of(cells, "well"))) == 6 + 4
    assert inseparable(cells, EVERY_OTHER) is not None
