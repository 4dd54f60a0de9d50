"""Nearest neighbours of mean profiles: by hand, and the published figures of BBBC021 where its table is at hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.preprocessing import StandardScaler

from cellcohort.cells import CellTable
from cellcohort.evaluation import Evaluation
from cellcohort.evaluation.mechanisms import Treatments, mechanism_scores
from cellcohort.evaluation.replicates import Replicates
from cellcohort.evaluation.score import Held, Score

WELLS = Path(__file__).parents[3] / "shared" / "data" / "bbbc021_profiles" / "wells.parquet"
DOSED = Treatments(treatment=["condition", "dose"])


def screen() -> tuple[pd.DataFrame, np.ndarray]:
    """Wells of seven treatments on a circle, each well a degree or two from the angle of its treatment."""
    rows = [  # compound, dose, mechanism, week, angle
        ("a", 1, "M", 1, 0.0), ("a", 2, "M", 1, 10.0), ("b", 1, "M", 2, 25.0),
        ("c", 1, "N", 1, 42.0), ("d", 1, "N", 1, 95.0), ("e", 1, "N", 2, 70.0),
        ("f", 1, "O", 2, 200.0), ("g", 1, "O", 2, 206.0), ("DMSO", 0, "control", 1, 300.0), ("h", 1, None, 1, 20.0),
    ]  # fmt: skip
    frame = pd.DataFrame(rows, columns=["condition", "dose", "mechanism", "experiment", "angle"])
    frame = frame.loc[np.repeat(np.arange(len(rows)), 3)].reset_index(drop=True)
    angle = np.deg2rad(frame["angle"] + np.tile([-1.0, 0.0, 1.0], len(rows)))
    return frame, np.stack([np.cos(angle), np.sin(angle)], axis=1)


def held_of(frame: pd.DataFrame) -> Held:
    return Held(CellTable.from_frame(frame, hours=None), np.ones(len(frame), bool), "table_row")


def by_name(scores: list[Score]) -> dict[str, Score]:
    assert all(score.higher_is_better for score in scores)
    return {score.name: score for score in scores}


def test_the_nearest_profile_of_another_compound_and_batch_by_hand() -> None:
    frame, inputs = screen()
    held = held_of(frame)
    found = by_name(mechanism_scores(inputs, held, "mechanism", DOSED))
    # b, 17 degrees from c, is its nearest; all others have one of their own mechanism nearest
    assert found["nsc"].value == pytest.approx(7 / 8) and found["nsc"].n == 24
    assert "8 mean profiles of 3 mechanisms" in found["nsc"].note and "chance 0.22;" in found["nsc"].note
    assert "left out: control (no two profiles of another compound)" in found["nsc"].note
    assert found["nscb"].value == pytest.approx(5 / 6) and "6 mean profiles of 2 mechanisms" in found["nscb"].note
    for lost in ("control", "O"):  # f and g are of one week
        assert f"{lost} (no two profiles of another compound and batch)" in found["nscb"].note
    m, n, o = (1 + 1 + (1 + 2 / 3) / 2) / 3, ((1 / 2 + 2 / 5) / 2 + 1 + 1) / 3, 1
    assert found["mechanism_map"].value == pytest.approx((m + n + o) / 3)
    assert "mean over 3 mechanisms, of 8 mean profiles of all cells" in found["mechanism_map"].note


def test_a_dose_is_a_treatment_only_if_it_is_named() -> None:
    frame, inputs = screen()
    held = held_of(frame)
    found = by_name(mechanism_scores(inputs, held, "mechanism", Treatments()))
    assert "7 mean profiles of 3 mechanisms" in found["nsc"].note


def test_profiles_in_several_batches_are_compared_by_batch() -> None:
    frame, points = screen()
    both = pd.concat([frame.assign(experiment=week) for week in (1, 2)], ignore_index=True)
    inputs, held = np.concatenate([points, points]), held_of(both)
    found = by_name(mechanism_scores(inputs, held, "mechanism", DOSED))
    assert "16 mean profiles of 3 mechanisms" in found["nscb"].note and "8 mean" in found["nsc"].note
    assert found["nscb"].value == found["nsc"].value == 7 / 8


def test_held_out_cells_alone_can_make_the_profiles() -> None:
    frame, points = screen()
    training = np.arange(len(frame)) % 3 > 0
    held = Held(held_of(frame).cells, training, "table_row")
    moved = points * np.where(training, -1, 1)[:, None]  # where training cells are must play no part
    only = Treatments(treatment=["dose"], cells="held_out")
    found = by_name(mechanism_scores(moved, held, "mechanism", only))
    assert found["nsc"].value == 7 / 8 and found["nsc"].n == 8 and "of held-out cells" in found["nsc"].note


def test_what_the_data_do_not_allow_has_its_reason() -> None:
    frame, points = screen()
    held = held_of(frame.assign(mechanism="M"))
    found = by_name(mechanism_scores(points, held, "mechanism", DOSED))
    assert all(np.isnan(score.value) and "needs two mechanisms" in score.note for score in found.values())
    held = held_of(frame.drop(columns="experiment"))
    found = by_name(mechanism_scores(points, held, "mechanism", DOSED))
    assert found["nsc"].value == 7 / 8 and found["nscb"].note == "the table has no experiment"
    found = by_name(mechanism_scores(np.ones_like(points), held, "mechanism", DOSED))
    assert all(np.isnan(score.value) and "the same for all cells" in score.note for score in found.values())


@pytest.mark.parametrize("kind", ["category", "string"])
def test_mechanisms_of_any_type_of_text_may_be_missing(kind: str) -> None:
    frame, points = screen()
    plain, typed = (
        by_name(mechanism_scores(points, held_of(of), "mechanism", DOSED))
        for of in (frame, frame.assign(mechanism=frame["mechanism"].astype(kind)))
    )
    assert frame["mechanism"].isna().any() and typed == plain


def test_columns_that_are_not_there_are_told_before_training() -> None:
    cells = held_of(screen()[0]).cells
    Evaluation(mechanism="mechanism", treatments=DOSED).check(cells)
    Evaluation().check(CellTable.from_frame(pd.DataFrame({"x": [1.0]}), None, None, None))
    for options, said in (
        ({"mechanism": "MoA"}, "evaluation.mechanism: the table has no column 'MoA'; it has .*mechanism"),
        ({"replicates": Replicates(pos_diffby="well")}, "evaluation.replicates: the table has no column 'well'"),
        ({"mechanism": "mechanism", "treatments": Treatments("drug")}, "evaluation.treatments: .*no column 'drug'"),
    ):
        with pytest.raises(ValueError, match=said):
            Evaluation(**options).check(cells)  # type: ignore[arg-type]


def test_scores_that_count_are_known_scores() -> None:
    with pytest.raises(ValueError, match=r"evaluation\.scores has 'nsk'; scores are .*nsc"):
        Evaluation(scores=["nsk"])
    with pytest.raises(ValueError, match=r"has nsc, for which the mechanism"):
        Evaluation(scores=["nsc"])
    with pytest.raises(ValueError, match=r"treatments\.cells='some' is not a choice; use all or held_out"):
        Treatments(cells="some")  # type: ignore[arg-type]


@pytest.mark.skipif(not WELLS.exists(), reason="bbbc021_profiles is not beside the repository")
@pytest.mark.parametrize(("scaled", "nsc", "nscb"), [("all wells", 0.864, 0.696), ("by DMSO", 0.718, 0.620)])
def test_the_known_figures_of_bbbc021_are_found(scaled: str, nsc: float, nscb: float) -> None:
    frame = pd.read_parquet(WELLS)
    features = frame.columns[~frame.columns.str.startswith("Metadata_")]
    values = frame[features].to_numpy(np.float64, copy=True)
    if scaled == "all wells":
        values = StandardScaler().fit_transform(values)
    else:
        for _, rows in frame.groupby("Metadata_Plate"):
            controls = values[rows.index[rows["Metadata_Compound"] == "DMSO"]]
            values[rows.index] = (values[rows.index] - controls.mean(0)) / (controls.std(0) + 1e-6)
    cells = CellTable.from_frame(frame.drop(columns=features), "Metadata_Week", "Metadata_Compound", None)
    held = Held(cells, np.ones(len(frame), bool), "table_row")
    treatments = Treatments(treatment=["condition", "Metadata_Concentration"])
    found = by_name(mechanism_scores(values, held, "Metadata_MoA", treatments))
    assert found["nsc"].value == pytest.approx(nsc, abs=5e-4), found
    assert found["nscb"].value == pytest.approx(nscb, abs=5e-4)
    assert "103 mean profiles of 12 mechanisms" in found["nsc"].note
    assert "92 mean profiles of 10 mechanisms" in found["nscb"].note
    for lost in ("Cholesterol-lowering", "Kinase inhibitors"):
        assert f"{lost} (no two profiles of another compound and batch)" in found["nscb"].note
