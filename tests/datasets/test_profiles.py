"""Profiles of wells and fields: what is read, how it is scaled, and a preview and a training of it."""

from __future__ import annotations

import re
import runpy
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from cellcohort.data.profiles import Profiles
from cellcohort.datasets.partners import PairRule
from cellcohort.datasets.split import split

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "data"
WELLS, FIELDS = (SHARED / name for name in ("bbbc021_profiles/wells.parquet", "jump_s3_controls/fields.parquet"))
COLUMNS = {"well": "Metadata_Well"}
DMSO = {"column": "Metadata_Compound", "label": "DMSO"}
FEATURES = ["Cells_Area", "Nuclei_Area", "Nuclei_Count"]


def needs(path: Path) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not path.exists(), reason=f"{path.parent.name} is not beside the repository")


def profiles() -> pd.DataFrame:
    """Three plates of 16 wells with two fields each; wells have the same names on all plates, rows are shuffled."""
    rng = np.random.default_rng(0)
    compounds = ["DMSO", "DMSO", "a", "b"]
    rows = [(f"P{p}", f"W{w}", s, compounds[w % 4]) for p in range(3) for w in range(16) for s in range(2)]
    frame = pd.DataFrame(rows, columns=[f"Metadata_{name}" for name in ("Plate", "Well", "Site", "Compound")])
    plate = frame["Metadata_Plate"].str[1:].astype(int)
    frame["Cells_Area"] = 100.0 + 30 * plate + (3.0 + plate) * rng.standard_normal(len(frame))
    frame["FileName"] = "f.tif"
    frame["Nuclei_Area"] = rng.standard_normal(len(frame)) + (frame["Metadata_Compound"] == "a")
    frame["Nuclei_Count"] = rng.integers(0, 50, len(frame))
    return frame.sample(frac=1, random_state=0)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    profiles().to_parquet(tmp_path / "profiles.parquet")
    return tmp_path / "profiles.parquet"


@pytest.mark.parametrize("kind", ["parquet", "csv", "csv.gz"])
def test_features_and_labels_are_those_of_the_table(tmp_path: Path, kind: str) -> None:
    frame, path = profiles(), tmp_path / f"profiles.{kind}"
    frame.to_parquet(path) if kind == "parquet" else frame.to_csv(path, index=kind == "csv")
    data = Profiles(path, COLUMNS).dataset()
    assert list(data.names) == FEATURES and data.shape == (3, 1) and data.cells.hours is None
    np.testing.assert_allclose(data.recorded(np.arange(96))[:, :, 0], frame[FEATURES], rtol=1e-6)
    for role, name in (("experiment", "Metadata_Plate"), ("condition", "Metadata_Compound")):
        column = data.cells.column(role)
        assert [column.labels[code] for code in column.codes] == frame[name].tolist()
    assert data.cells.values("Metadata_Site").tolist() == frame["Metadata_Site"].tolist()
    assert set(data.cells.column_names).isdisjoint(FEATURES) and data.cells.has("FileName")
    assert Profiles(path, COLUMNS).cells().cells.column("well").labels == data.cells.column("well").labels


def test_features_may_be_listed(saved: Path) -> None:
    data = Profiles(saved, COLUMNS | {"features": ["Nuclei_Count", "Metadata_Site"]}).dataset()
    np.testing.assert_array_equal(data.recorded(np.arange(96))[:, :, 0], profiles()[["Nuclei_Count", "Metadata_Site"]])


def test_two_views_of_a_row_are_a_pair_that_does_not_depend_on_the_batch(saved: Path) -> None:
    data = Profiles(saved, seed=3).dataset()
    batch, other = data.__getitems__([5, 9]), data.__getitems__([9])
    assert not np.array_equal(batch["anchor"], batch["positive"])
    np.testing.assert_array_equal(batch["anchor"][1], other["anchor"][0])
    assert len(Profiles(saved, columns={"well": None}).dataset()) == 96


@pytest.mark.parametrize("each", ["experiment", "Metadata_Site", "all rows"])
def test_scaling_by_controls_is_that_of_pandas(saved: Path, each: str) -> None:
    scale_by = {"experiment": DMSO, "all rows": {"each": "experiment"}}.get(each, {**DMSO, "each": each})
    values = Profiles(saved, COLUMNS, scale_by).dataset().recorded(np.arange(96))[:, :, 0]
    frame = profiles().reset_index(drop=True)
    by = "Metadata_Site" if each == "Metadata_Site" else "Metadata_Plate"
    for _, rows in frame.groupby(by):
        controls = rows.loc[(rows["Metadata_Compound"] == "DMSO") | (each == "all rows"), FEATURES]
        expected = (rows[FEATURES] - controls.mean()) / controls.std(ddof=0)
        np.testing.assert_allclose(values[rows.index], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:'Cells_Area' has one value in each condition")
def test_a_feature_that_does_not_vary_among_controls_is_centred(tmp_path: Path) -> None:
    frame = profiles().reset_index(drop=True)
    frame["Cells_Area"] = np.where(frame["Metadata_Compound"] == "a", 9.0, 7.0)
    frame.to_parquet(tmp_path / "profiles.parquet")
    data = Profiles(tmp_path / "profiles.parquet", COLUMNS, DMSO).dataset()
    np.testing.assert_allclose(data.recorded(np.arange(96))[:, 0, 0], frame["Cells_Area"] - 7.0)


@pytest.mark.parametrize("seed", range(3))
def test_validation_divides_no_well_and_wells_of_two_plates_are_two(saved: Path, seed: int) -> None:
    data = Profiles(saved, COLUMNS).dataset()
    assert len(data.cells.column("well").present()) == 48
    train, validation = split(data, seed=seed)
    keys = [set(zip(*(part.cells.values(f"Metadata_{n}") for n in ("Plate", "Well")), strict=True))
            for part in (train, validation)]  # fmt: skip
    assert not keys[0] & keys[1] and len(keys[0] | keys[1]) == 48
    assert set(validation.cells.column("condition").present()) == {"DMSO", "a", "b"}


def test_pairs_cross_plates(saved: Path) -> None:
    rule = PairRule(same=["condition"], different=["experiment"])
    data = Profiles(saved, COLUMNS).dataset(rule)
    partner = data.__getitems__(np.arange(96))["meta"]["partner"].numpy()
    one, other = profiles(), profiles().iloc[partner]
    assert (one["Metadata_Compound"].to_numpy() == other["Metadata_Compound"].to_numpy()).all()
    assert (one["Metadata_Plate"].to_numpy() != other["Metadata_Plate"].to_numpy()).all()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"columns": {"condition": "Metadata_Drug"}},
            r"^data.columns.condition='Metadata_Drug': no such column.*Metadata_Compound",
        ),
        ({"columns": {"well": ["Metadata_Plate", "well"]}}, r"well='well': no such column"),
        ({"columns": {"time": "t"}}, r"'time', which means nothing"),
        ({"columns": {"features": ["Cells_Area", "Cells_Aera"]}}, r"'Cells_Aera': not in the table"),
        ({"columns": {"condition": "Nuclei_Count", "features": ["Nuclei_Count"]}}, r"'Nuclei_Count': not in the table"),
        ({"columns": {"features": ["FileName"]}}, r"'FileName' has type .*not numbers"),
        ({"scale_by": DMSO | {"label": "dmso"}}, r"label='dmso' is no label of 'Metadata_Compound', which has 'DMSO'"),
        ({"scale_by": DMSO | {"column": "Drug"}}, r"no column 'Drug'"),
        ({"scale_by": {"column": "Metadata_Compound"}}, r"data\.scale_by has column; it needs column and label"),
    ],
)
def test_what_cannot_be_read_is_refused(saved: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Profiles(saved, **options).dataset()
    with pytest.raises(ValueError, match=said):
        Profiles(saved, **options).cells()


def test_a_table_without_features_or_with_holes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "profiles.parquet"
    profiles().drop(columns=FEATURES).to_parquet(path)
    with pytest.raises(ValueError, match=r"no column is a feature.*The table has index, Metadata_Plate"):
        Profiles(path).dataset()
    frame = profiles()
    frame.loc[3, "Cells_Area"] = np.nan
    frame.to_parquet(path)
    row = frame.index.get_loc(3)  # of the file
    hole = rf"features: 'Cells_Area' in 1 of 96 rows \(row {row}, counted from 0\)"
    with pytest.raises(ValueError, match=hole):
        Profiles(path).dataset()
    frame.assign(Metadata_Compound=frame["Metadata_Compound"].mask(frame["Metadata_Plate"] == "P2")).to_parquet(path)
    with pytest.raises(ValueError, match=rf"missing values: 'Metadata_Compound' in 32 .*\nalso: .*{hole}"):
        Profiles(path).dataset()  # both at once


def test_a_feature_whose_name_is_there_twice_is_refused(tmp_path: Path) -> None:
    frame = profiles().rename(columns={"Nuclei_Area": "Cells_Area"})
    frame.to_csv(tmp_path / "p.csv", index=False)
    with pytest.raises(ValueError, match="has Cells_Area more than once in its header"):
        Profiles(tmp_path / "p.csv", {"features": ["Cells_Area"]}).dataset()


def test_an_experiment_without_controls_is_named(tmp_path: Path) -> None:
    frame = profiles()
    frame[(frame["Metadata_Plate"] != "P1") | (frame["Metadata_Compound"] != "DMSO")].to_parquet(tmp_path / "p.parquet")
    with pytest.raises(ValueError, match=r"in every experiment: 'P1' has 0\. "):
        Profiles(tmp_path / "p.parquet", COLUMNS, DMSO).dataset()


def run(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *line: str) -> None:
    monkeypatch.setattr(sys, "argv", [f"scripts/{script}.py", *line, f"hydra.run.dir={folder}"])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*(num_workers|LeafSpec|log_every_n_steps).*")
        runpy.run_path(str(ROOT / "scripts" / f"{script}.py"), run_name="__main__")


def test_profiles_are_previewed_and_trained_on(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import_module("matplotlib")  # of an extra, which a preview draws with
    line = [
        "data=profiles", f"data.path={saved}", "data.columns.well=Metadata_Well",
        "data.scale_by={column: Metadata_Compound, label: DMSO}", "pairs.same=[condition]",
        "pairs.different=[experiment]", "objective.exclude=[condition]", "sampler=condition",
        "batch_sampler.batch_size=12",
    ]  # fmt: skip
    run("preview", tmp_path / "preview", monkeypatch, *line)
    text = (tmp_path / "preview" / "preview.txt").read_text()
    assert "100.0 % cross experiments" in text and "whole wells (data.columns.well)" in text
    assert f"3 features: {', '.join(FEATURES)}." in text
    debug = ["logger=none", "evaluation=none", "loader.num_workers=0", "trainer=debug", "trainer.limit_train_batches=5"]
    run("train", tmp_path / "run", monkeypatch, *line, *debug)
    losses = pd.read_csv(tmp_path / "run" / "metrics.csv")["train/loss"].dropna()
    assert len(losses) == 5 and np.isfinite(losses).all()


def recipe(name: str, path: Path) -> Any:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = compose("train", [f"recipe={name}", f"data.path={path}"])
    return instantiate(config.data).dataset(instantiate(config.pairs))


@needs(WELLS)
def test_the_recipe_reads_the_wells_of_bbbc021() -> None:
    data, frame = recipe("bbbc021", WELLS), pd.read_parquet(WELLS)
    assert data.shape == (516, 1) and len(data.cells.column("well").present()) == len(data) == 632
    values = data.recorded(np.arange(632))[:, :, 0]
    for _, rows in frame.groupby("Metadata_Plate"):
        controls = values[rows.index[rows["Metadata_Compound"] == "DMSO"]]
        np.testing.assert_allclose(controls.mean(0), 0, atol=1e-3)
    treatment = frame["Metadata_Compound"] + frame["Metadata_Concentration"].astype(str)
    partner = data.__getitems__(np.arange(632))["meta"]["partner"].numpy()
    assert (treatment == treatment.iloc[partner].to_numpy()).all() and (partner != np.arange(632)).mean() > 0.95


@needs(FIELDS)
def test_the_recipe_reads_the_fields_of_jump() -> None:
    data, frame = recipe("jump_controls", FIELDS), pd.read_parquet(FIELDS)
    assert data.shape == (65, 1) and len(data) == 1800
    wells = frame[["Metadata_Batch", "Metadata_Plate", "Metadata_Well"]].drop_duplicates()
    assert len(data.cells.column("well").present()) == len(wells)
    assert (data.partners.counts(np.arange(1800)) > 100).all()


@pytest.mark.parametrize("odd", [np.full(96, np.nan), np.arange(96) + 5])
def test_columns_without_values_and_numbers_of_rows_are_no_features(tmp_path: Path, odd: np.ndarray) -> None:
    profiles().assign(Odd=odd[: len(profiles())]).to_parquet(tmp_path / "profiles.parquet")
    with pytest.warns(UserWarning, match=r"1 column that may hold numbers is left out of the features: 'Odd' \("):
        assert list(Profiles(tmp_path / "profiles.parquet").dataset().names) == FEATURES


@pytest.mark.parametrize(
    ("name", "odd"),
    [
        *((one, True) for one in ("Time [hpi]", "hours", "cellID", "object_index", "Row", "ImageFrame", "Well")),
        *((one, False) for one in ("Columnar", "Nuclei_Widths", "TimelessArea", "Cells_AreaShape_FormFactor")),
    ],
)
def test_features_that_nobody_named_and_that_may_be_labels_are_told(tmp_path: Path, name: str, odd: bool) -> None:
    path = tmp_path / "profiles.parquet"
    profiles().assign(**{name: np.tile([1.5, 7.0, 3.25], 32)}).to_parquet(path)
    chosen = Profiles(path, COLUMNS).cells()
    assert list(chosen.features) == [*FEATURES, name]
    assert [repr(name) in one.problem for one in chosen.remarks] == [True] * odd
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        Profiles(path, COLUMNS).dataset()
    assert [repr(name) in str(one.message) for one in told] == [True] * odd
    named = Profiles(path, COLUMNS | {"features": [*FEATURES, name]}).cells()
    assert not named.remarks and list(named.features) == [*FEATURES, name]


def test_one_feature_need_not_be_a_list(saved: Path) -> None:
    assert list(Profiles(saved, {"features": FEATURES[1]}).dataset().names) == [FEATURES[1]]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["1.5", "1.#INF", "2", "3"], r"'Odd' \('1\.#INF' in 1 row\)"),
        (["1", "1.0", "2", "3"], r"'Odd' \(numbers with marks, in several ways or with leading zeros, '3'\)"),
        (["1,000", "2,500", "900", "1,800"], r"'Odd' \(numbers with marks, .*, '1,800'\)"),
        (["5 %", "2.5%", "9%", "1%"], r"'Odd' \(numbers with marks, .*, '1%'\)"),
        (["7", "8", "9", "10"], r"'Odd' \(the number of the row\)"),
        ([""] * 4, r"'Odd' \(no value in any row\)"),
        (["f1.tif", "f2.tif", "f3.tif", "4"], ""),
    ],
)
def test_a_column_of_numbers_that_is_no_feature_is_told(tmp_path: Path, values: list[str], said: str) -> None:
    frame = profiles().iloc[:4].assign(Odd=values)
    frame.to_csv(tmp_path / "profiles.csv", index=False)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert list(Profiles(tmp_path / "profiles.csv").dataset().names) == FEATURES
    assert len(told) == bool(said)
    assert not said or re.search(rf"^1 column that may hold numbers .*{said}\. Correct", str(told[0].message))
