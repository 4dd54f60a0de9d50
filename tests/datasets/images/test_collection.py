"""Collections: names as they were typed, and real times of the tracks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from omegaconf import OmegaConf

from cellcohort.data.timelapse import load_timelapse
from cellcohort.datasets.images.collection import read_collection
from plates import two_plates

ENTRY = """
experiments:
- name: {name}
  plate: p.zarr
  tracks: t.csv
  {time}
  channels: [{channels}]
  conditions: {{{label}: [A/1], other: [B/2]}}
  include: {include}
"""
REAL = np.r_[np.arange(4) * 0.5, 1.5 + 2.0 * np.arange(1, 5)]  # half-hour frames, then one every two hours


def entry(tmp_path: Path, **changes: str) -> Any:
    said = {"name": "one", "time": "interval_minutes: 1.5e1", "channels": "Phase", "label": "mock", "include": "null"}
    path = tmp_path / "c.yaml"
    path.write_text(ENTRY.format(**said | changes))
    return read_collection(path)[0]


@pytest.mark.parametrize(
    "name", ["on", "off", "yes", "no", "010", "0.10", "1e3", "12:30", "1_000", "0x1F", "null", "~", "2024-05-31"]
)
def test_names_are_what_was_typed(tmp_path: Path, name: str) -> None:
    found = entry(tmp_path, name=name, channels=f"{name}, Phase", label=name)
    assert found.name == name and found.channels == (name, "Phase") and list(found.conditions) == [name, "other"]
    assert found.interval_minutes == 15 and found.include is None
    quoted = entry(tmp_path, name=f"'{name}'", label=f'"{name}"')
    assert quoted.name == name and list(quoted.conditions) == [name, "other"]


def test_numbers_of_a_collection_are_numbers_and_no_texts(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"interval_minutes of one is 'often'; it must be a number above 0"):
        entry(tmp_path, time="interval_minutes: often")
    assert entry(tmp_path, time="interval_minutes: 030\n  start_hours: 010").start_hours == 10
    assert entry(tmp_path, time="interval_minutes: 030").interval_minutes == 30
    with pytest.raises(ValueError, match=r"interval_minutes of one is '12:30'; it must be a number above 0"):
        entry(tmp_path, time="interval_minutes: 12:30")
    with pytest.raises(ValueError, match=r"cannot be read as YAML: mock is there more than once"):
        entry(tmp_path, label="mock: [C/3], mock")


@pytest.mark.parametrize("typed", ["010", "0.10", "12:30", "on", "1e3", "1_000", "7"])
def test_a_name_of_a_config_whose_text_is_lost_is_refused(typed: str) -> None:
    given = {"name": "one", "plate": "p.zarr", "tracks": "t.csv", "interval_minutes": 5, "channels": [0]}
    config = OmegaConf.create(
        f"[{{name: {typed}}}, {{conditions: {{{typed}: [A/1]}}}}, {{conditions: {{a: [{typed}]}}}}]"
    )
    changes: Any = OmegaConf.to_container(config)
    for change, said in zip(changes, ["name of", "a condition of", "one of conditions.a of"], strict=True):
        with pytest.raises(ValueError, match=rf"{said} .* which may not be what was typed .* write it in quotes"):
            read_collection(None, [{**given, "conditions": {"a": ["A/1"]}, **change}])
    quoted = {"name": typed, "conditions": {typed: [typed]}, "channels": [typed, 2]}
    (found,) = read_collection(None, [{**given, **quoted}])
    assert (found.name, found.conditions, found.channels) == (typed, {typed: (typed,)}, (typed, "2"))
    with pytest.raises(ValueError, match="one of channels of one is 8, a int, which may not be what was typed"):
        read_collection(None, [{**given, "conditions": {"a": ["A/1"]}, "channels": [8]}])


def test_real_times_are_named_instead_of_an_interval(tmp_path: Path) -> None:
    found = entry(tmp_path, time="hours: real\n  time_unit: minutes")
    assert (found.hours, found.time_unit, found.interval_minutes) == ("real", "minutes", None)
    with pytest.raises(ValueError, match=r"experiment one has both interval_minutes and hours: give one"):
        entry(tmp_path, time="hours: real\n  interval_minutes: 5")


def loaded(path: Path, tracks: pd.DataFrame, text: str = "") -> Any:
    tracks.to_parquet(path.parent / "one.parquet", index=False)
    if text:
        path.write_text(path.read_text().replace("interval_minutes: 30", text))
    return load_timelapse(path, patch=(1, 8, 8), tau_hours=(0.5, 2.5), cache=path.parent / "cache")


def test_real_hours_of_the_tracks_are_used_where_they_are_named_and_never_replaced(tmp_path: Path) -> None:
    path = two_plates(tmp_path)
    tracks = pd.read_parquet(tmp_path / "one.parquet")
    loaded(path, tracks.assign(hours=1 + tracks["t"] / 2))  # start_hours is 1
    with pytest.raises(ValueError, match=r"tracks of one: .* 'hours' differs from t x .* in \d+ rows of \d+"):
        loaded(path, tracks.assign(hours=REAL[tracks["t"]]))
    with pytest.raises(ValueError, match=r"'minutes' of one is missing or does not rise from frame to frame"):
        loaded(path, tracks.assign(minutes=3.0), "hours: minutes\n  time_unit: minutes")
    frame = loaded(path, tracks.assign(minutes=60 * REAL[tracks["t"]])).cells.frame
    of_one = frame[frame["experiment"] == "one"]
    assert np.allclose(of_one["hours"], 1 + REAL[of_one["t"]])


def test_labels_of_the_tracks_that_differ_from_the_collection_stay_at_hand(tmp_path: Path) -> None:
    path = two_plates(tmp_path)
    tracks = pd.read_parquet(tmp_path / "one.parquet")
    dead = np.where(tracks["track_id"] == 1, "dead", "alive")
    with pytest.warns(UserWarning, match=r"tracks of one have columns that differ .*'condition' \(in \d+ rows\)"):
        cells = loaded(path, tracks.assign(condition=dead, experiment="one")).cells
    frame = cells.frame
    of_one = frame[frame["experiment"] == "one"]
    assert ((of_one["file_condition"] == "dead") == (of_one["track_id"] == 1)).all()
    assert set(of_one["condition"]) == {"mock", "infected"} and not cells.has("file_experiment")
