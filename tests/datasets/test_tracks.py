"""Tables of tracks: what is read, and what is refused before the first batch."""

from __future__ import annotations

import gzip
import re
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import OmegaConf

from cellcohort.augment.features import Augment
from cellcohort.cells import CellTable
from cellcohort.data.anndata import AnnData
from cellcohort.data.demo import Demo
from cellcohort.data.demo_timelapse import DemoTimelapse
from cellcohort.data.patches import StoredPatches
from cellcohort.data.timelapse import Timelapse
from cellcohort.data.tracks import Tracks, load_tracks
from cellcohort.datasets.features.windows import TrackWindows
from cellcohort.datasets.positives import anchor_cells

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "data" / "tcell_behav3d"
needs_shared = pytest.mark.skipif(not SHARED.exists(), reason="the T-cell tracks are not beside the repository")
MAPPED = {"features": ["area", "speed"]}
EXACT = Augment(0.0, 0.0, 0.0)


def table() -> pd.DataFrame:
    """Two experiments with the same track ids, 12 frames, one frame of track 2 not recorded."""
    rows = [(e, "mock" if k == 1 else "drug", t, k) for e in (10, 9) for k in (1, 2) for t in range(12)]
    frame = pd.DataFrame(rows, columns=["experiment", "condition", "time", "track"])
    frame = frame[~((frame["track"] == 2) & (frame["time"] == 5))].reset_index(drop=True)
    frame["area"] = frame["experiment"] * 1000 + frame["track"] * 100 + frame["time"]
    frame["speed"], frame["well"] = np.linspace(0, 20, len(frame)), "B3"
    frame["dye"] = np.where(frame["time"] > 7, 20.0, 10.0)
    return frame


def saved(tmp_path: Path, frame: pd.DataFrame, name: str = "cells.parquet") -> Path:
    path = tmp_path / name
    frame.to_parquet(path) if name.endswith(".parquet") else frame.to_csv(path, index=False)
    return path


def load(
    tmp_path: Path, frame: pd.DataFrame | None = None, name: str = "cells.parquet", **options: Any
) -> TrackWindows:
    options["columns"] = MAPPED | options.get("columns", {})
    return load_tracks(saved(tmp_path, table() if frame is None else frame, name), **{"interval_minutes": 30} | options)


@pytest.mark.parametrize("name", ["cells.parquet", "cells.csv", "cells.csv.gz"])
def test_the_order_of_rows_and_the_kind_of_file_play_no_part(tmp_path: Path, name: str) -> None:
    data = load(tmp_path, table().sample(frac=1, random_state=3), name, frames=2, augment=EXACT, positive="track")
    cells = data.cells
    assert cells.column("experiment").labels == ("9", "10"), "labels are texts, and those of numbers in their order"
    assert cells.column("track").labels == ("10/1", "10/2", "9/1", "9/2")
    assert cells.column("well").labels == ("B3",), "other columns stay at hand for the axes"
    batch = data.__getitems__(list(range(len(data))))
    area, hours = batch["anchor"][:, 0, -1].numpy(), cells.hours
    assert np.array_equal(area % 100 * 0.5, hours)
    assert np.array_equal(area // 1000, np.array([9, 10])[cells.column("experiment").codes])
    assert (batch["positive"][:, 0, -1].numpy() // 100 == area // 100).all(), "ids that repeat are not mixed up"


def test_hours_are_start_plus_frames_and_start_may_differ_between_experiments(tmp_path: Path) -> None:
    data = load(tmp_path, interval_minutes=12, start_hours={9: 4, 10: 6.5})
    hours, codes = data.cells.hours, data.cells.column("experiment").codes
    assert hours is not None and [hours[codes == c].min() for c in (0, 1)] == [4.0, 6.5]
    assert np.isclose(hours.max(), 6.5 + 11 * 0.2)
    in_hours = load(tmp_path, table().assign(time=lambda f: f["time"] * 1.25), interval_minutes=60, tau_hours=(1, 3))
    assert in_hours.cells.hours is not None and in_hours.cells.hours.max() == 11 * 1.25


def test_a_condition_may_be_a_threshold(tmp_path: Path) -> None:
    dead = {"column": "dye", "above": 10, "labels": ["alive", "dead"]}
    cells = load(tmp_path, columns={"condition": dead}).cells
    condition = cells.column("condition")
    assert condition.labels == ("alive", "dead")
    assert np.array_equal(condition.codes == 1, cells.column("time").codes > 7), "the threshold itself is not above"
    with pytest.raises(ValueError, match=r"dye: mapped in data\.columns, so the model must not see it"):
        load(tmp_path, columns={"condition": dead, "features": ["area", "dye"]})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"column": "dye", "above": 10}, "a threshold has column, above and labels"),
        ({"column": "dye", "above": 10, "labels": ["dead", "dead"]}, "two labels"),
        ({"column": "dye", "above": float("nan"), "labels": ["alive", "dead"]}, "above=nan"),
        ({"column": "well", "above": 1, "labels": ["alive", "dead"]}, "'well' has type .* not numbers"),
        (
            {"column": "dyes", "above": 1, "labels": ["alive", "dead"]},
            "condition='dyes': no such column; the table has .*dye",
        ),
    ],
)
def test_a_threshold_that_cannot_be_is_refused(tmp_path: Path, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(tmp_path, columns={"condition": wrong})


def test_a_table_without_experiments_and_conditions_can_be_read(tmp_path: Path) -> None:
    frame = table().query("experiment == 9").drop(columns=["experiment", "condition"])
    cells = load(tmp_path, frame, columns={"experiment": None, "condition": None}).cells
    assert cells.column("track").labels == ("1", "2") and not cells.has("experiment")


def test_features_may_be_read_as_logs(tmp_path: Path) -> None:
    data = load(tmp_path, log1p=["speed"])
    assert np.isclose(
        data.recorded([len(data) - 1])[0, 1].max(), np.log1p(table().query("experiment == 10")["speed"].max())
    )
    with pytest.raises(ValueError, match="log1p of wells, not a feature; the features are area, speed"):
        load(tmp_path, log1p=["wells"])
    with pytest.raises(ValueError, match="log1p of 'speed', which goes down to -3"):
        load(tmp_path, table().assign(speed=-3.0), log1p=["speed"])


def test_lineages_are_known_inside_an_experiment(tmp_path: Path) -> None:
    data = load(tmp_path, table().assign(family=7), columns={"lineage": "family"})
    assert data.whole == "lineage" and data.cells.column("lineage").labels == ("10/7", "9/7")
    with pytest.raises(ValueError, match="tracks with more than one 'well', such as 9/1"):
        load(tmp_path, table().assign(well=lambda f: f["time"] > 3), columns={"lineage": "well"})


def test_rows_without_experiment_condition_or_time_are_counted(tmp_path: Path) -> None:
    frame = table().astype({"experiment": "Int64", "time": "Float64"})
    frame.loc[:2, "experiment"], frame.loc[5:8, "condition"], frame.loc[9, "time"] = pd.NA, None, pd.NA
    with pytest.raises(ValueError, match=r"'experiment' in 3 of 46 rows, 'condition' in 4 .*, 'time' in 1 "):
        load(tmp_path, frame)
    dead = {"column": "dye", "above": 10, "labels": ["alive", "dead"]}
    with pytest.raises(ValueError, match="'dye' in 46 of 46"):
        load(tmp_path, table().assign(dye=np.nan), columns={"condition": dead})


def test_missing_and_infinite_features_are_counted(tmp_path: Path) -> None:
    frame = table().astype({"area": float})
    frame.loc[:3, "area"], frame.loc[4, "speed"] = np.nan, np.inf
    with pytest.raises(
        ValueError, match=r"'area' in 4, 'speed' in 1 of 46 rows \(rows 0, 1, 2, 3, 4, counted from 0\)\. Fill or drop"
    ):
        load(tmp_path, frame)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("", "", "lines 4, 7 of cells.csv"),
        ("a table\n", "\n\n", "lines 5, 8 of cells.csv"),
        ("", "# a comment\n", "rows 2, 5, counted from 0"),
    ],
)
def test_rows_of_a_text_file_are_its_lines(tmp_path: Path, before: str, after: str, said: str) -> None:
    """Lines are those that an editor shows; where some are left out, rows are counted from 0."""
    frame = table().astype({"area": float})
    frame.loc[[2, 5], "area"] = np.nan
    path = tmp_path / "cells.csv"
    path.write_text(before + frame.to_csv(index=False) + after)
    about = pytest.warns(UserWarning, match="begin with #") if "#" in after else nullcontext()
    with about, pytest.raises(ValueError, match=re.escape(f"'area' in 2 of 46 rows ({said})")):
        load_tracks(path, MAPPED, 30)


def test_other_columns_with_missing_values_are_told_once(tmp_path: Path) -> None:
    frame = table().astype({"area": float, "condition": object, "well": object})
    frame.loc[[2, 5], "area"], frame.loc[3, "condition"], frame.loc[4, "well"] = np.nan, None, None
    with pytest.raises(ValueError) as error:
        load(tmp_path, frame)
    said = str(error.value)
    assert said.count("Other columns with missing values") == 1
    assert said.endswith("matter where they are used: 'well' in 1."), "not those that are told of already"


def test_a_row_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    frame = pd.concat([table(), table().iloc[[3, 4]].assign(area=1.0)])
    with pytest.raises(ValueError, match=r"2 rows of the same track and time .*such as track 10/1 at time=3\."):
        load(tmp_path, frame)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"experiment": "plate"},
            "^data.columns.experiment='plate': no such column; the table has experiment, condition, time",
        ),
        ({"features": ["area", "sped"]}, "feature 'sped': no such column"),
        ({"features": []}, "features is empty; .* Columns of numbers: area, speed, dye"),
        ({"features": ["area", "track"]}, "track: mapped"),
        ({"features": ["area", "area"]}, "area: there twice"),
        ({"features": ["area", "well"]}, "'well' has type .* not numbers"),
        ({"track": None}, "data.columns.track is null"),
        (
            {"tracks": "track"},
            "no entry tracks; it has experiment, condition, time, hours, track, lineage, parent",
        ),
        ({"time": "well"}, "'well' has type .* not numbers"),
    ],
)
def test_a_mapping_that_does_not_fit_is_refused(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(tmp_path, columns=columns)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"interval_minutes": None}, "interval_minutes=None: say the minutes"),
        ({"interval_minutes": 0}, "interval_minutes=0"),
        ({"start_hours": {9: 1.0, 11: 2.0}}, r"start_hours is for \[9, 11\], the experiments .* \['10', '9'\]"),
        ({"start_hours": {9: 1.0, "9": 2.0, 10: 1.0}}, r"start_hours is for \[9, '9', 10\], .*; give each one, once"),
        ({"start_hours": {9: 1.0}}, "give each one"),
    ],
)
def test_times_that_cannot_be_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(tmp_path, **options)


def test_a_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"say data\.path="):
        load_tracks()
    with pytest.raises(FileNotFoundError, match=r"no file nowhere\.csv"):
        load_tracks("nowhere.csv")
    (tmp_path / "cells.xlsx").write_text("x")
    with pytest.raises(ValueError, match=r"none of \.parquet, \.csv, .* and \.tsv\.gz"):
        load_tracks(tmp_path / "cells.xlsx")
    (tmp_path / "empty.csv").write_text("\n")
    with pytest.raises(ValueError, match="is empty"):
        load_tracks(tmp_path / "empty.csv")


def imaris(tmp_path: Path, header: str = "Area,Speed,Time,TrackID,", end: str = ",") -> Path:
    rows = "".join(f"{t + 0.5},{t},{t},{k}{end}\n" for k in (1, 2) for t in range(9))
    path = tmp_path / "Position.csv.gz"
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write(f"\ufeff\nPosition\n ==================== \n{header}\n{rows}")
    return path


BARE = {"experiment": None, "condition": None, "time": "Time", "track": "TrackID", "features": ["Area"]}


def test_a_csv_with_a_preamble_and_trailing_commas_is_read(tmp_path: Path) -> None:
    data = load_tracks(imaris(tmp_path), BARE, 30)
    assert len(data) == 18 and data.cells.column("track").labels == ("1", "2")
    assert [name for name in ("Speed", "Time", "TrackID", "Unnamed: 4") if data.cells.has(name)] == [
        "Speed",
        "Time",
        "TrackID",
    ]
    with pytest.raises(ValueError, match="track='Track': no such column; the table has Area, Speed, Time, TrackID"):
        load_tracks(imaris(tmp_path), BARE | {"track": "Track"}, 30)


def test_a_csv_whose_rows_do_not_fit_its_header_is_not_shifted(tmp_path: Path) -> None:
    data = load_tracks(imaris(tmp_path, header="Area,Speed,Time,TrackID"), BARE, 30, augment=EXACT, positive="track")
    assert data.cells.column("track").labels == ("1", "2") and data.recorded([0]).min() == 0.5
    with pytest.raises(ValueError, match="another number of fields than its header"):
        load_tracks(imaris(tmp_path, header="Area,Speed,Time,TrackID", end=",um"), BARE, 30)


@needs_shared
def test_a_raw_imaris_file_is_read() -> None:
    columns = BARE | {"features": ["Position X", "Position Y"]}
    data = load_tracks(next((SHARED / "raw").glob("*.csv.gz")), columns, 2)
    assert len(data) == 29_535 and len(data.cells.column("track").present()) == 321


def config(*overrides: str) -> Any:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose("train", list(overrides)).data


@needs_shared
def test_the_recipe_maps_the_t_cells() -> None:
    data = instantiate(config("recipe=tcell", f"data.path={SHARED / 'tcell_tracks.parquet'}")).dataset()
    cells = data.cells
    assert len(cells) == 252_276 and len(cells.column("track").present()) == 1_936
    experiment, condition = cells.column("experiment"), cells.column("condition")
    assert experiment.labels == ("1", "2", "3", "5", "6") and condition.labels == ("alive", "dead")
    dead = [condition.codes[experiment.codes == code].mean() for code in range(5)]
    assert min(dead) > 0.13 and max(dead) < 0.35
    assert "dead_dye_mean" not in data.names and np.isclose(cells.hours.max(), 669 * 2 / 60)
    batch = data.__getitems__(list(range(0, len(data), 1000)))
    assert np.isfinite(batch["anchor"].numpy()).all() and batch["anchor"].shape[1:] == data.shape


def test_the_recipe_without_a_path_says_so() -> None:
    with pytest.raises(ValueError, match=r"say data\.path="):
        instantiate(config("recipe=tcell")).dataset()


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("tracks", Tracks),
        ("demo", Demo),
        ("timelapse", Timelapse),
        ("demo_timelapse", DemoTimelapse),
        ("anndata", AnnData),
        ("patches", StoredPatches),
    ],
)
def test_the_config_says_the_defaults_of_the_code(name: str, source: Any) -> None:
    node = OmegaConf.load(ROOT / "conf" / "data" / f"{name}.yaml")
    (augmentation,) = [choice["/augment@augment"] for choice in node.pop("defaults") if "/augment@augment" in choice]
    assert node.pop("_target_") == f"{source.__module__}.{source.__name__}" and node.pop("_convert_") == "all"
    assert node.pop("_recursive_") is False, "views are made with the dataset"
    defaults = {field.name: field.default for field in fields(source)}
    views = OmegaConf.load(ROOT / "conf" / "augment" / f"{augmentation}.yaml")
    views_in_code = defaults.pop("augment")
    assert views_in_code is None or instantiate(views) == views_in_code
    assert set(node) == set(defaults)
    if "seed" in node:
        assert node._get_node("seed")._value() == "${seed}"
        node.seed = 0
    if "index_cache" in node:
        assert node._get_node("index_cache")._value() == "${oc.select:batch_sampler.index_cache,null}"
        node.index_cache = None
    said = OmegaConf.to_container(node)
    if "columns" in said:
        assert said["columns"] == defaults["columns"]
    assert {k: tuple(v) if isinstance(v, list) else v for k, v in said.items()} == {
        k: str(v) if isinstance(v, Path) else v for k, v in defaults.items()
    }


@pytest.mark.parametrize("most", [1e9, 1e13])
def test_a_greatest_time_beyond_all_hours_means_any_later_frame(most: float) -> None:
    frame = pd.DataFrame({"track": np.repeat(np.arange(20_000), 3), "hours": np.tile([0.0, 1.0, 2.0], 20_000)})
    cells = CellTable.from_frame(frame, None, None, "hours", "track")
    assert np.array_equal(
        anchor_cells(cells, (0.5, most), "track").cells.hours, anchor_cells(cells, (0.5, 9.0), "track").cells.hours
    )
