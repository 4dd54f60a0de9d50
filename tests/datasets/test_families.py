"""Families of tracks: made of the ids of mothers, in whatever way trackers write that there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cellcohort.cells import CellTable
from cellcohort.data.tracks import load_cells
from cellcohort.datasets.partners import PairRule, Partners
from cellcohort.datasets.split import split
from cellcohort.preparation.order import stored_order
from cellcohort.sampling import BatchSampler, TrackCapped

COLUMNS = {"experiment": "plate", "condition": "drug", "time": "frame", "track": "track_id"}
# id, mother, first frame: 2 and 3 descend from 1, 4 from 2; 6 is alone; 7 and 8 are of a mother without a row
TRACKS = [(1, None, 0), (2, 1, 4), (3, 1, 4), (4, 2, 8), (6, None, 0), (7, 5, 4), (8, 5, 4)]
FAMILIES = {1: "1", 2: "1", 3: "1", 4: "1", 6: "6", 7: "7", 8: "7"}


def table(none: Any = -1, plates: tuple[str, ...] = ("P1", "P2")) -> pd.DataFrame:
    rows = [
        (plate, "DMSO", frame, track, (track if none == "itself" else none) if mother is None else mother)
        for plate in plates
        for track, mother, first in TRACKS
        for frame in range(first, first + 4)
    ]
    return pd.DataFrame(rows, columns=["plate", "drug", "frame", "track_id", "parent_track_id"])


def cells(tmp_path: Path, frame: pd.DataFrame, kind: str = "csv", **columns: Any) -> CellTable:
    path = tmp_path / f"cells.{kind}"
    frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)
    return load_cells(path, COLUMNS | columns, 10).cells


def family_of(cells: CellTable, track: str = "track_id") -> dict[tuple[str, str], str]:
    rows = zip(*(cells.values(name).astype(str) for name in ("plate", track, "lineage")), strict=True)
    return {(plate, one): lineage for plate, one, lineage in rows}


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("none", [-1, 0, np.nan, "itself"])
def test_mothers_make_families_however_none_is_written(tmp_path: Path, none: Any, kind: str) -> None:
    found = family_of(cells(tmp_path, table(none).sample(frac=1, random_state=1), kind, parent="parent_track_id"))
    expected = {(p, str(track)): f"{p}/{of}" for p in ("P1", "P2") for track, of in FAMILIES.items()}
    assert found == expected


def test_mothers_are_of_the_same_file_where_tracks_are(tmp_path: Path) -> None:
    frame = pd.concat([table(plates=("P1",)).assign(well=well) for well in ("A1", "A2")])
    whole = cells(tmp_path, frame, track=["well", "track_id"], parent="parent_track_id")
    pairs = zip(whole.values("well"), whole.values("track_id").astype(str), whole.values("lineage"), strict=True)
    assert {(well, track): family for well, track, family in pairs} == {
        (well, str(track)): f"P1/{well}/{of}" for well in ("A1", "A2") for track, of in FAMILIES.items()
    }


@pytest.mark.parametrize("none", [-1, 0, np.nan, "itself"])
def test_mothers_are_no_families(tmp_path: Path, none: Any) -> None:
    with pytest.raises(ValueError, match=r"lineage='parent_track_id' holds .* data\.columns\.parent=parent_track_id"):
        cells(tmp_path, table(none), lineage="parent_track_id")


@pytest.mark.parametrize("none", [-1, 0])
def test_mothers_under_another_name_are_no_families(tmp_path: Path, none: int) -> None:
    frame = table(none).rename(columns={"parent_track_id": "P"})
    with pytest.raises(ValueError, match=r"lineage='P' holds"):
        cells(tmp_path, frame, lineage="P")


@pytest.mark.parametrize("first", [0, 1])
def test_families_that_are_numbered_by_themselves_are_families(tmp_path: Path, first: int) -> None:
    number = {of: first + i for i, of in enumerate(dict.fromkeys(FAMILIES.values()))}
    frame = table().assign(family=lambda f: f["track_id"].map(FAMILIES).map(number)).drop(columns="parent_track_id")
    found = cells(tmp_path, frame, lineage="family")
    assert set(found.values("lineage")) == {f"{p}/{n}" for p in ("P1", "P2") for n in number.values()}
    root = frame.assign(family=frame["track_id"].map(FAMILIES))
    assert cells(tmp_path, root, lineage="family").has("lineage")


def test_mothers_that_nobody_names_are_told(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"8 tracks of 14 are daughters.* data\.columns\.parent=parent_track_id"):
        cells(tmp_path, table())
    cells(tmp_path, table().assign(parent_track_id=-1))  # none, so there is nothing to tell


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parent_track_id": range(56)}, "28 tracks with more than one 'parent_track_id'|14 tracks with more than one"),
        ({"parent_track_id": 99}, "'parent_track_id' names no track of the same experiment, such as 99 for P1/1"),
        ({"parent_track_id": lambda f: f["track_id"].map({1: 4, 4: 1}).fillna(-1).astype(int)}, "no later than"),
    ],
)
def test_mothers_that_cannot_be_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cells(tmp_path, table().assign(**change), parent="parent_track_id")
    with pytest.raises(ValueError, match="both say which tracks are a family"):
        cells(tmp_path, table(), parent="parent_track_id", lineage="track_id")


def test_ids_of_tracks_are_no_mothers(tmp_path: Path) -> None:
    copied = table().assign(copy=lambda f: f["track_id"])
    told = r"names every track itself as its mother; data\.columns\.parent takes .* data\.columns\.parent="
    for parent in ("track_id", "copy"):
        with pytest.raises(ValueError, match=f"column '{parent}' {told}parent_track_id\\."):
            cells(tmp_path, copied, parent=parent)
    with pytest.raises(ValueError, match=f"column 'track_id' {told}null where no"):
        cells(tmp_path, table().drop(columns="parent_track_id"), parent="track_id")
    with pytest.raises(ValueError, match=r"column 'well' is one of data\.columns\.track;"):
        cells(tmp_path, table().assign(well="A1"), track=["well", "track_id"], parent="well")


def test_a_table_without_divisions_may_name_its_tracks_as_their_own_mothers(tmp_path: Path) -> None:
    alone = cells(tmp_path, table().assign(parent_track_id=lambda f: f["track_id"]), parent="parent_track_id")
    assert len(alone.column("lineage").labels) == 14


def test_no_family_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "cells.csv"
    table().to_csv(path, index=False)
    train, held = split(load_cells(path, COLUMNS | {"parent": "parent_track_id"}, 10), fraction=0.3)
    assert not {*train.cells.values("lineage")} & {*held.cells.values("lineage")}


def test_mothers_are_no_groups_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "cells.csv"
    table().to_csv(path, index=False)
    labelled = load_cells(path, COLUMNS | {"parent": "parent_track_id"}, 10)
    with pytest.raises(ValueError, match=r"split\.by names 'parent_track_id', which holds ids of mothers"):
        split(labelled, by="parent_track_id")
    with pytest.raises(ValueError, match=r"pairs\.same names 'parent_track_id'"):
        Partners(labelled.cells, PairRule(same="parent_track_id"))
    with pytest.raises(ValueError, match=r"prepare\.together names 'parent_track_id'"):
        stored_order(table(), ["plate"], "parent_track_id")
    for column in ("parent_track_id", ["plate", "parent_track_id"]):
        with pytest.raises(ValueError, match=r"sampler\.track_capped\.column names 'parent_track_id', which holds"):
            BatchSampler(labelled.cells, {"track": TrackCapped(column=column)}, 4)
    BatchSampler(labelled.cells, {"track": TrackCapped(column="lineage")}, 4)


def test_tracks_whose_ids_are_the_same_number_stay_apart(tmp_path: Path) -> None:
    frame = table(plates=("P1",)).astype({"track_id": str}).assign(family="a")
    frame["track_id"] = frame["track_id"].replace({"2": "1.00", "1": "1.0"})
    with pytest.raises(ValueError, match=r"'track_id' has P1/1\.0 and P1/1\.00, which are the same number"):
        cells(tmp_path, frame, "parquet", parent="parent_track_id")
    for whole in (cells(tmp_path, frame, "parquet"), cells(tmp_path, frame, "parquet", lineage="family")):
        assert {"1.0", "1.00"} < {*whole.values("track_id")}
    with pytest.raises(ValueError, match="holds the ids of mothers"):
        cells(tmp_path, frame, "parquet", lineage="parent_track_id")


def divisions(founders: int, generations: int) -> list[tuple[int, int]]:
    """Founder and generation of each track, in the order of time."""
    return [(of, g) for g in range(generations) for of in range(founders) for _ in range(2**g)]


@pytest.mark.parametrize(
    "tracks",
    [divisions(2, 7), divisions(5, 4), [(i, i) for i in range(30)]],
    ids=["2 large families", "5 families", "each track alone"],
)
def test_families_that_are_numbered_from_0_in_order_of_time_are_no_mothers(
    tmp_path: Path, tracks: list[tuple[int, int]]
) -> None:
    rows = [("P1", "DMSO", 4 * g + i, track, of) for track, (of, g) in enumerate(tracks, start=1) for i in range(4)]
    frame = pd.DataFrame(rows, columns=["plate", "drug", "frame", "track_id", "family"])
    found = cells(tmp_path, frame, lineage="family")
    assert set(found.values("lineage")) == {f"P1/{of}" for of, _ in tracks}


@pytest.mark.parametrize(("founders", "none"), [(1, 0), (2, 0), (2, -1), (40, -1)])
def test_mothers_of_many_divisions_are_no_families(tmp_path: Path, founders: int, none: int) -> None:
    tracks = divisions(founders, 6 if founders < 3 else 2)  # the first daughters come after all founders
    rows = [
        ("P1", "DMSO", 4 * g + i, track, none if g == 0 else (track - founders + 1) // 2)
        for track, (_, g) in enumerate(tracks, start=1)
        for i in range(4)
    ]
    frame = pd.DataFrame(rows, columns=["plate", "drug", "frame", "track_id", "P"])
    with pytest.raises(ValueError, match=r"lineage='P' holds the ids of mothers"):
        cells(tmp_path, frame, lineage="P")
