"""Cells without their features: the same as with them, read fast, and labels merged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import InstantiationException
from hydra.utils import instantiate

from cellcohort.data import demo, tracks
from cellcohort.data.demo import load_demo
from cellcohort.data.tracks import load_cells, load_tracks
from cellcohort.datasets.protocol import LabelledCells
from cellcohort.datasets.split import split
from cellcohort.preview import findings, survey
from cellcohort.preview.cells import training_cells

MAPPED = {"features": ["area"]}


def table() -> pd.DataFrame:
    """Two experiments with the same track ids, in no order, and a condition in three spellings."""
    rows = [(e, c, t, k) for e in ("b", "a") for k, c in enumerate(["Gem", "GEM", "gem ", "mock"]) for t in range(9)]
    frame = pd.DataFrame(rows, columns=["experiment", "condition", "time", "track"])
    frame["area"], frame["dose"] = np.arange(len(frame)) * 1.5, frame["track"] % 2
    frame["dye"] = frame["time"] * 10.0
    return frame.sample(frac=1, random_state=0)


def saved(tmp_path: Path, name: str = "cells.parquet", frame: pd.DataFrame | None = None) -> Path:
    frame, path = table() if frame is None else frame, tmp_path / name
    frame.to_parquet(path) if name.endswith(".parquet") else frame.to_csv(path, index=False)
    return path


def labels(cells: Any, role: str) -> list[Any]:
    column = cells.column(role)
    return [column.labels[code] for code in column.codes]


@pytest.mark.parametrize("name", ["cells.parquet", "cells.csv", "cells.csv.gz"])
@pytest.mark.parametrize("options", [{}, {"positive": "track"}, {"positive": "view"}, {"tau_hours": (2.0, 3.0)}])
def test_they_are_those_of_the_windows_and_split_alike(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    path, mapped = saved(tmp_path, name), MAPPED | {"condition": "dose"}  # two tracks of each, so that one is held out
    whole, bare = load_tracks(path, mapped, 30, **options), load_cells(path, mapped, 30, **options)
    assert len(bare) == len(whole) == (72 if options.get("positive") != "track" else 64)
    for one, other in zip(
        (whole, *split(whole, fraction=0.3), *split(whole, by="experiment", held_out=["a"])),
        (bare, *split(bare, fraction=0.3), *split(bare, by="experiment", held_out=["a"])),
        strict=True,
    ):
        assert isinstance(other, LabelledCells) and np.array_equal(one.cells.hours, other.cells.hours)
        for role in ("experiment", "condition", "track"):
            assert labels(one.cells, role) == labels(other.cells, role)


def test_only_the_mapped_columns_are_read_and_those_that_axes_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    read = tracks.read_table
    monkeypatch.setattr(tracks, "read_table", lambda *a: [found := read(*a), asked.append(sorted(found))][0])
    for name in ("cells.parquet", "cells.csv"):
        cells = load_cells(saved(tmp_path, name), MAPPED, 30, also=["dose", "experiment", "track", "hours"]).cells
        labels_alone, of_copies = ([c for c in some if c != "index"] for some in asked[-2:])
        assert labels_alone == ["condition", "dose", "experiment", "time", "track"]
        assert of_copies == ["area", "condition", "experiment", "time", "track"]
        assert cells.column(["condition", "dose"]).labels[0] == ("GEM", 1) and not cells.has("area")


def test_features_need_not_be_there_but_what_is_mapped_must(tmp_path: Path) -> None:
    path = saved(tmp_path)
    assert len(load_cells(path, {"features": None}, 30)) == len(load_cells(path, {"features": ["sped"]}, 30)) == 72
    with pytest.raises(ValueError, match=r"'plate': no such column; the table has .*area, dose, dye"):
        load_cells(path, {"experiment": "plate"}, 30)
    with pytest.raises(ValueError, match=r"the table has no column 'dse'; it has .*dose"):
        load_cells(path, also=["dse"], interval_minutes=30).cells.column("dse")
    with pytest.raises(ValueError, match="no cell has a frame of its track 50 to 60 hours later"):
        load_cells(path, MAPPED, 30, tau_hours=(50, 60))
    dead = {"column": "dye", "above": 40, "labels": ["alive", "dead"]}
    assert load_cells(path, {"condition": dead}, 30).cells.column("condition").labels == ("alive", "dead")


def test_the_demo_gives_its_cells_too(tmp_path: Path) -> None:
    bare, whole = demo.load_cells(tmp_path, founders=40), load_demo(tmp_path, founders=40)
    assert bare.whole == whole.whole == "lineage" and labels(bare.cells, "track") == labels(whole.cells, "track")
    assert not bare.cells.has("area") and demo.load_cells(tmp_path, founders=40, also=["area"]).cells.has("area")


@pytest.mark.parametrize("key", ["condition", "drug"])
def test_labels_are_merged_by_role_or_column(tmp_path: Path, key: str) -> None:
    path = saved(tmp_path, frame=table().rename(columns={"condition": "drug"}))
    merge = {key: {"GEM": "Gem", "gem ": "Gem"}, "dose": {1: 0}, "experiment": {"b": "a"}}
    before = load_cells(path, {"condition": "drug"}, 30, also=["dose"]).cells
    for load in (load_cells, load_tracks):
        columns = {
            "condition": "drug",
            "features": ["dye"],
            "track": "area",
        }  # each row a track: merged plates share ids
        cells = load(path, columns, 30, merge_labels=merge, positive="view").cells
        assert cells.column("condition").labels == ("Gem", "mock") and cells.column("experiment").labels == ("a",)
        assert cells.column("dose").labels == (0,)
        assert labels(cells, "condition").count("Gem") == sum(x != "mock" for x in labels(before, "condition"))


def test_a_missing_label_stays_missing(tmp_path: Path) -> None:
    frame = table().reset_index(drop=True)
    frame.loc[frame.index[:3], "dose"] = np.nan
    with pytest.raises(ValueError, match="'dose' in 3 of 72 rows"):
        load_cells(saved(tmp_path, frame=frame), interval_minutes=30, merge_labels={"dose": {1: 0}}).cells.column(
            "dose"
        )


@pytest.mark.parametrize("name", ["cells.parquet", "cells.csv"])
def test_rows_without_experiment_or_condition_are_refused_or_labelled(tmp_path: Path, name: str) -> None:
    frame = table().reset_index(drop=True)
    frame["track"] += 10 * (frame["experiment"] == "b")  # else a row without an experiment may be of either
    rows = frame.index[(frame["experiment"] == "b") & (frame["track"] == 11)]
    frame.loc[rows, "experiment"], frame.loc[frame["condition"] == "mock", "condition"] = None, None
    path = saved(tmp_path, name, frame)
    told = r"'experiment' in 9 of 72 rows, 'condition' in 18 of 72 rows.* data\.missing=label, which"
    for load in (load_cells, load_tracks):
        with pytest.raises(ValueError, match=told):
            load(path, MAPPED, 30)
        with pytest.raises(ValueError, match="missing='drop' is not a choice"):
            load(path, MAPPED, 30, missing="drop")  # type: ignore[arg-type]
        cells = load(path, MAPPED, 30, {"a": 0, "b": 0, "missing": 100}, missing="label").cells
        assert cells.column("experiment").labels == ("a", "b", "missing")
        assert cells.column("condition").labels == ("GEM", "Gem", "gem ", "missing")
        alone = cells.column("experiment").codes == 2
        assert alone.sum() == 9 and cells.hours is not None and np.array_equal(alone, cells.hours >= 100)
        assert {label for label, is_alone in zip(labels(cells, "track"), alone, strict=True) if is_alone} == {
            "missing/11"
        }
        assert labels(cells, "condition").count("missing") == 18
        holes = saved(tmp_path, name, frame.assign(time=frame["time"].where(frame.index > 4)))
        with pytest.raises(ValueError, match=r"missing values: 'time' in 5 of 72 rows\. Fill or drop these rows\.$"):
            load(holes, MAPPED, 30, missing="label")
        saved(tmp_path, name, frame)


@pytest.mark.parametrize("lost", [1, 99])  # an id of another experiment too; one of this experiment only
def test_tracks_that_may_be_of_any_experiment_are_refused(tmp_path: Path, lost: int) -> None:
    frame = table().reset_index(drop=True)
    rows = (frame["experiment"] == "b") & (frame["track"] == 1)
    frame = frame.assign(experiment=frame["experiment"].mask(rows), track=frame["track"].mask(rows, lost))
    path = saved(tmp_path, frame=frame)
    told = (
        r"rows without an experiment \('experiment'\) cannot be told apart by track, since ids of 'track', such as "
        r"\d, occur in several experiments; fill or drop these 9 rows\.$"
    )
    for load in (load_cells, load_tracks):
        with pytest.raises(ValueError, match=told):
            load(path, MAPPED, 30, missing="label")


def test_a_track_with_rows_in_and_out_of_an_experiment_is_refused(tmp_path: Path) -> None:
    frame = table().reset_index(drop=True)
    frame = frame[frame["experiment"] == "b"].reset_index(drop=True)
    frame.loc[(frame["track"] == 1) & (frame["time"] > 3), "experiment"] = None
    with pytest.raises(ValueError, match=r"ids of 'track', such as 1, occur in several"):
        load_cells(saved(tmp_path, frame=frame), MAPPED, 30, missing="label")


def test_no_value_is_neither_above_a_threshold_nor_at_or_below_it(tmp_path: Path) -> None:
    frame = table()
    path = saved(tmp_path, frame=frame.assign(dye=frame["dye"].where(frame["time"] != 2)))
    mapped = MAPPED | {"condition": {"column": "dye", "above": 40, "labels": ["alive", "dead"]}}
    for load in (load_cells, load_tracks):
        with pytest.raises(ValueError, match=r"'dye' in 8 of 72 rows.* data\.missing=label"):
            load(path, mapped, 30)
        cells = load(path, mapped, 30, missing="label").cells
        assert cells.column("condition").labels == ("alive", "dead", "missing")
        assert cells.hours is not None
        told = np.select([cells.hours == 1.0, cells.hours > 2.0], ["missing", "dead"], "alive")
        assert labels(cells, "condition") == told.tolist()


def test_the_preview_takes_missing_labels_as_training_does(tmp_path: Path) -> None:
    frame = table()
    path = saved(tmp_path, frame=frame.assign(condition=np.where(frame["track"] < 2, None, "mock")))
    line = ["data=tracks", f"data.path={path}", "data.interval_minutes=30", "data.columns.features=[area]"]
    line += ["sampler=condition", "batch_sampler.batch_size=8"]

    def made(*more: str) -> Any:
        with initialize_config_dir(str(Path(__file__).parents[2] / "conf"), version_base="1.3"):
            return compose("train", [*line, *more])

    with pytest.raises(ValueError, match=r"'condition' in 36 of 72 rows.*data\.missing=label"):
        training_cells(made())
    with pytest.raises(ValueError, match=r"data\.missing=label"):
        instantiate(made().data).dataset()
    config = made("data.missing=label")
    cells = training_cells(config).cells
    training, _ = instantiate(config.split, instantiate(config.data).dataset())
    assert labels(cells, "condition") == labels(training.cells, "condition")
    for each in (cells, training.cells):
        batch = instantiate(config.batch_sampler, each).batch(0, 0)
        assert sorted(labels(each.take(batch), "condition")) == ["missing"] * 4 + ["mock"] * 4


def test_missing_values_of_all_columns_are_told_at_once(tmp_path: Path) -> None:
    """Of labels, features and columns that a split needs, by training and by the preview, until none is left."""
    holes = {"condition": [0, 1], "area": [2], "dose": [3, 4, 5]}
    frame = table().astype({"dose": float}).assign(whole=1).reset_index(drop=True)
    for name, rows in holes.items():
        frame.loc[rows, name] = None
    line = ["data=tracks", "data.interval_minutes=30", "data.columns.features=[area]"]
    line += ["batch_sampler.batch_size=8", "split.by=dose"]
    for name in holes:
        path = saved(tmp_path, f"{name}.csv", frame)
        with initialize_config_dir(str(Path(__file__).parents[2] / "conf"), version_base="1.3"):
            config = compose("train", [*line, f"data.path={path}"])
        for read in (training_cells, lambda config: instantiate(config.split, instantiate(config.data).dataset())):
            with pytest.raises((ValueError, InstantiationException), match="missing") as error:
                read(config)
            told = {one for one in holes if f"'{one}' in {len(holes[one])}" in str(error.value)}
            assert told == {one for one in holes if frame[one].isna().any()}
            assert "'whole'" not in str(error.value)
        frame[name] = frame[name].ffill().bfill()


@pytest.mark.parametrize("data", ["tracks", "table"])
@pytest.mark.parametrize("by", ["track", "well"])
def test_the_preview_says_where_a_condition_cannot_be_told_apart_from_its_wells(
    tmp_path: Path, data: str, by: str
) -> None:
    """Though no option names the column of wells; where whole wells are held out there is nothing to say."""
    rows = [(e, f"{c}{w}", c, t, k) for e in "ab" for w in range(4) for c in "xy" for k in range(5) for t in range(4)]
    frame = pd.DataFrame(rows, columns=["experiment", "Well ID", "condition", "time", "track"])
    frame["track"] += 10 * frame.groupby("Well ID").ngroup()
    path = saved(tmp_path, "cells.csv", frame.assign(area=np.arange(len(frame))))
    line = [f"data={data}", f"data.path={path}", "data.columns.track=track", "batch_sampler.batch_size=8"]
    line += ["data.interval_minutes=30", "data.columns.features=[area]"] if data == "tracks" else []
    line += ["split.by=[experiment,Well ID]"] if by == "well" else []
    with initialize_config_dir(str(Path(__file__).parents[2] / "conf"), version_base="1.3"):
        config = compose("train", line)
    source = training_cells(config)
    sampler = instantiate(config.batch_sampler, source.cells)
    found = [one for one in findings(survey(sampler, 10, source=source)) if "cannot be told apart" in one.problem]
    assert len(found) == (by == "track")
    for one in found:
        assert one.problem.startswith("Condition and Well ID cannot be told apart: each Well ID has one condition")
        assert one.typed == "'split.by=[experiment,Well ID]'" and not one.reasons


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ("[area,dye]", r"missing, infinite or too large .* features: 'dye' in 8 of 72 rows"),
        ("null", r"data\.columns\.features is empty; .*area, dye, dose"),
        ("[drug]", r"'drug'"),
        ("[plate]", r"'plate': no such column"),
    ],
)
def test_the_preview_refuses_the_features_that_training_refuses(tmp_path: Path, features: str, message: str) -> None:
    frame = table()[["experiment", "condition", "time", "track", "area", "dye", "dose"]]
    frame = frame.assign(dye=frame["dye"].where(frame["time"] != 2), drug=frame["condition"])
    line = ["data=tracks", f"data.path={saved(tmp_path, frame=frame)}", "data.interval_minutes=30"]
    with initialize_config_dir(str(Path(__file__).parents[2] / "conf"), version_base="1.3"):
        config = compose("preview", [*line, f"data.columns.features={features}", "batch_sampler.batch_size=8"])
    with pytest.raises(ValueError, match=message) as training:
        instantiate(config.data).dataset()
    with pytest.raises(ValueError, match=message) as preview:
        training_cells(config)
    assert str(preview.value) == str(training.value)
    notes = ["To see what a sampler does to labels alone, use data=table."]
    assert getattr(preview.value, "__notes__", []) == notes * (features != "[plate]"), "not of a wrong name"
    assert not hasattr(training.value, "__notes__")


def test_a_role_that_a_table_lacks_can_be_null(tmp_path: Path) -> None:
    path = tmp_path / "napari.csv"
    table().drop(columns=["experiment", "condition"]).to_csv(path)  # with an index without a name
    with pytest.raises(
        ValueError, match=r"the table has time, .* or say data\.columns\.experiment=null where there is no"
    ):
        load_cells(path, interval_minutes=30)


def test_features_that_repeat_a_label_are_told(tmp_path: Path) -> None:
    frame = table().assign(area=lambda rows: rows["condition"].str.len() * (rows["condition"] != "GEM"))
    for role, features in (("condition", ["dye", "area"]), ("experiment", ["plate"])):
        frame["plate"] = (frame["experiment"] == "a") * 0.5
        with pytest.warns(UserWarning, match=rf"'{features[-1]}' has one value in each {role}: the model is told"):
            load_tracks(saved(tmp_path, frame=frame), {"features": features}, 30)
    same = frame.assign(dye=1.0, area=frame["area"].where(frame["time"] > 0, 7.0))
    load_tracks(saved(tmp_path, frame=same), {"features": ["dye", "area"]}, 30)


def test_missing_labels_rows_that_are_there_twice_and_missing_features_are_told_at_once(tmp_path: Path) -> None:
    frame = table().reset_index(drop=True)
    frame = pd.concat([frame, frame.iloc[[5]]], ignore_index=True)
    frame.loc[[0, 1], "condition"], frame.loc[3, "area"] = None, np.nan
    faults = ["missing values: 'condition' in 2 of 73", "1 row of the same track and time", "features: 'area' in 1 of"]
    for load in (load_tracks, lambda *options: tracks.Tracks(*options).check()):
        with pytest.raises(ValueError, match="\nalso: ") as error:
            load(saved(tmp_path, frame=frame), MAPPED, 30)
        assert [fault in str(error.value) for fault in faults] == [True] * 3 and not hasattr(error.value, "__notes__")
    for mended, told in (
        (frame.fillna({"condition": "mock"}), [1, 2]),
        (frame.drop_duplicates(), [0, 2]),
        (frame.fillna({"area": 1.0}), [0, 1]),
    ):
        with pytest.raises(ValueError, match="missing") as error:
            load_tracks(saved(tmp_path, frame=mended), MAPPED, 30)
        assert [n for n, fault in enumerate(faults) if fault.partition(" of ")[0] in str(error.value)] == told
    with pytest.raises(ValueError, match=r"missing values: 'condition'[\s\S]*\nalso: .*merge_labels"):
        tracks.Tracks(saved(tmp_path, frame=frame), MAPPED, 30, merge_labels={"condition": {"Z": "Q"}}).check()
    lost = frame.assign(experiment=frame["experiment"].mask(frame["time"] < 2)).drop_duplicates()
    with pytest.raises(ValueError, match="missing values: 'experiment'") as error:
        load_tracks(saved(tmp_path, frame=lost), MAPPED, 30)
    assert "same track and time" not in str(error.value), "tracks of two experiments are one only where it is missing"


@pytest.mark.filterwarnings("ignore:.*ha(s|ve) no cell for validation:UserWarning")
@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("objective.exclude=[track,wel]", r"objective\.exclude.*no column 'wel'.*well"),
        ("objective.exclude=[dye]", r"objective\.exclude.*missing values: 'dye' in 8 of 72 rows"),
        ("model.norm=experiment", r"model\.norm=experiment needs the experiment of each cell, and the table has none"),
    ],
)
def test_the_preview_refuses_columns_of_the_objective_and_the_model_that_training_refuses(
    tmp_path: Path, option: str, message: str
) -> None:
    frame = table()
    track = frame["track"] + 10 * (frame["experiment"] == "a")
    frame = frame.assign(dye=frame["dye"].where(frame["time"] != 2), track=track, well=track)
    frame = frame.drop(columns="experiment")
    line = ["data=tracks", f"data.path={saved(tmp_path, frame=frame)}", "data.interval_minutes=30"]
    line += ["data.columns.features=[area]", "data.columns.experiment=null", "batch_sampler.batch_size=8"]
    with initialize_config_dir(str(Path(__file__).parents[2] / "conf"), version_base="1.3"):
        config = compose("preview", [*line, option])
        allowed = compose("preview", [*line, "objective.exclude=[well,condition,track]"])
    with pytest.raises(ValueError, match=message):
        training_cells(config)
    assert training_cells(allowed).cells.has("well")


@pytest.mark.parametrize(
    ("merge", "message"),
    [
        (
            {"drug": {"a": "b"}},
            "merge_labels has 'drug', which is no column of labels. It may have experiment, condition, .*dose",
        ),
        ({"time": {1: 0}}, "merge_labels has 'time', which is no column of labels"),
        ({"condition": {"Gim": "Gem"}}, r"renames 'Gim', which no row has\. Did you mean 'Gem'\? The labels .*'GEM'"),
        ({"condition": {"mok": "GEM", "xyz": "GEM"}}, r"'mok', 'xyz', which no row has\. Did you mean 'mock'\? .*\.$"),
        ({"condition": {"xyz": "GEM"}}, r"'xyz', which no row has\. The labels are 'gem ', [^(]*$"),
        ({"conditon": {"GEM": "Gem"}}, r"no column of labels\. Did you mean 'condition'\? It may have"),
        ({"dose": {"1": 0}}, r"Did you mean 1(\.0)? \(a number and the text .*different labels\)\? The labels are"),
    ],
)
def test_a_merge_that_cannot_be_is_refused(tmp_path: Path, merge: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_cells(saved(tmp_path), interval_minutes=30, merge_labels=merge)
    if "drug" in merge:
        dead = {"column": "dye", "above": 40, "labels": ["alive", "dead"]}
        with pytest.raises(ValueError, match="come from a threshold"):
            tracks.load_cells(saved(tmp_path), {"condition": dead}, 30, merge_labels={"condition": {"dead": "alive"}})


@pytest.mark.parametrize(("positive", "without"), [("track", 8), ("track_or_view", 0)])
def test_a_preview_tells_cells_that_no_batch_draws_and_what_is_seen_of_the_others(
    tmp_path: Path, positive: str, without: int
) -> None:
    line = [
        "data=tracks", f"data.path={saved(tmp_path)}", "data.columns.features=[area,dye]",
        "data.columns.condition=dose", "data.interval_minutes=30", f"data.positive={positive}",
    ]  # fmt: skip
    with initialize_config_dir(str(Path(__file__).parents[2] / "conf"), version_base="1.3"):
        config = compose("preview", line)
    first, *others = training_cells(config).lines()
    assert f" of {72 - without} cells (" in first
    told = ["8 more of 72 cells have no positive: no batch draws them, and the evaluation embeds and scores them too."]
    assert others == [*(told if without else []), "2 features: area, dye."]
