"""Cells that cannot be right are counted and left out, and are refused where they are many."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from cellcohort.data.timelapse import load_cells, load_timelapse
from cellcohort.preview import findings, survey
from cellcohort.preview.cells import TrainingCells
from cellcohort.sampling import BatchSampler
from plates import SHAPE, entry, tracks_of, write_collection, write_plate

POSITIONS = ("A/1/0", "B/2/0")
HALF = SHAPE[0] // 2


@pytest.fixture(scope="module")
def plates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plates")
    for name, size in (("one", 1.0), ("two", 0.5)):
        write_plate(folder / f"{name}.zarr", dict.fromkeys(POSITIONS, SHAPE), pixel_size=size)
    return folder


def options_of(plates: Path, folder: Path, change: Callable[[pd.DataFrame], pd.DataFrame], **options: Any) -> Any:
    change(tracks_of(POSITIONS)).to_parquet(folder / "one.parquet")
    name = options.pop("plate", "one")
    path = write_collection(folder, entry("one", plate=str(plates / f"{name}.zarr"), **options.pop("entry", {})))
    return {"path": path, "patch": (1, 12, 16), "normalise": "none", "cache": folder / "cache", **options}


def far(rows: pd.DataFrame) -> pd.DataFrame:
    """Track 6 of the first position, 3 rows, is below its image; a centre on its rim is not."""
    one = (rows["track_id"] == 6) & (rows["position"] == "A/1/0")
    rim = (rows["track_id"] == 3) & (rows["t"] == HALF)
    return rows.assign(y=rows["y"].mask(one, SHAPE[3] + 3.0).mask(rim, SHAPE[3] - 0.51))


def early(rows: pd.DataFrame) -> pd.DataFrame:
    """Track 5 of both positions, a daughter of 2, begins two frames before its mother ends."""
    more = rows[(rows["track_id"] == 2) & (rows["t"] >= HALF - 2)].assign(track_id=5, parent_track_id=2)
    return pd.concat([rows, more])


@pytest.mark.parametrize(
    ("change", "said", "left_out"),
    [
        (far, "y in 3 of 42 rows, such as track 6 of A/1/0 with t=0, z=0.0, y=43", ["A/1/0", 6]),
        (early, "4 rows of 46 in 2 tracks, such as track 5 of A/1/0 at t=2, whose parent_track_id is 2", None),
    ],
)
def test_faulty_cells_are_left_out_and_named(
    plates: Path, tmp_path: Path, change: Callable[[pd.DataFrame], pd.DataFrame], said: str, left_out: list[Any] | None
) -> None:
    options = options_of(plates, tmp_path, change)
    for _ in range(2):  # built, and read again
        with pytest.warns(UserWarning, match=rf"{said}.*; they are left out\..*data\.faulty_cells=error refuses them"):
            data = load_timelapse(**options)
    found = data.every_cell().cells.frame
    wanted = change(tracks_of(POSITIONS)).sort_values(["position", "track_id", "t"])
    if left_out is None:
        wanted = wanted[(wanted["track_id"] != 5) | (wanted["t"] >= HALF)]
    else:
        wanted = wanted[(wanted["position"] != left_out[0]) | (wanted["track_id"] != left_out[1])]
    for column in ("track_id", "t", "y"):
        assert found[column].tolist() == wanted[column].tolist()
    assert not any(name.startswith("_") for name in found)
    with pytest.raises(ValueError, match=rf"{said}.*data\.faulty_cells=drop leaves them out"):
        load_timelapse(**options, faulty_cells="error")


@pytest.mark.filterwarnings("ignore:.*they are left out")
def test_a_daughter_seen_too_early_is_a_positive_of_its_mother_from_its_end_on(plates: Path, tmp_path: Path) -> None:
    data = load_timelapse(**options_of(plates, tmp_path, early, tau_hours=(0.5, 9.0), tau_decay_hours=100.0))
    frame = data.every_cell().cells.frame
    owner = {(row.fov, row.track_id): row.lineage for row in frame.itertuples()}
    assert owner["A/1/0", 5] == owner["A/1/0", 2] == "one/A/1/0/2"
    drawn = set()
    for epoch in range(40):
        rows = data._rows.numpy()
        later = data._lineages.draw(rows, (0, epoch))
        drawn |= {(frame["track_id"].iloc[a], frame["track_id"].iloc[b], frame["t"].iloc[b]) for a, b in
                  zip(rows, later, strict=True)}  # fmt: skip
    assert {(2, 5, HALF + 1)} <= drawn and not any(track == 5 and t < HALF for _, track, t in drawn)


def test_the_preview_reports_them(plates: Path, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="they are left out"):
        cells = load_cells(**options_of(plates, tmp_path, far))
    source = TrainingCells(cells.subset(range(len(cells.cells))), len(cells.cells), "track", {})  # type: ignore[arg-type]
    found = findings(survey(BatchSampler(source.cells, {}, 8), 10, source=source))
    (one,) = [finding for finding in found if "outside" in finding.problem]
    assert "y in 3 of 42 rows" in one.problem and one.problem.endswith("they are left out.")
    assert one.change == "Give z, y and x in pixels." and one.typed == "data.faulty_cells=error"


def test_where_most_are_faulty_the_coordinates_or_tracks_are_wrong(plates: Path, tmp_path: Path) -> None:
    def twice(rows: pd.DataFrame) -> pd.DataFrame:
        return rows.assign(y=rows["y"] + 30, x=rows["x"] + 30)

    with pytest.raises(ValueError, match=r"lie outside their image: y in \d+, x in \d+ of 42 rows.*in pixels\.$"):
        load_timelapse(**options_of(plates, tmp_path, twice))

    def all_of_one(rows: pd.DataFrame) -> pd.DataFrame:  # track 1, which lasts throughout, is everyone's mother
        first = rows[rows["track_id"] == 1].assign(t=lambda some: some["t"] + HALF)
        rows = pd.concat([rows[rows["track_id"] != 3], first])
        return rows.assign(parent_track_id=(rows["track_id"] != 1).astype(int))

    with pytest.raises(ValueError, match=r"while their mother still is: .* Is 0 meant for none\?"):
        load_timelapse(**options_of(plates, tmp_path, all_of_one))


def test_coordinates_that_were_read_in_the_wrong_unit_are_told(plates: Path, tmp_path: Path) -> None:
    micrometer = {"plate": "two", "entry": {"coordinates": "micrometer"}}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_timelapse(**options_of(plates, tmp_path, lambda rows: rows.assign(y=rows["y"] / 2, x=rows["x"] / 2),
                                    **micrometer))  # fmt: skip
    with pytest.raises(ValueError, match=r"They were read as micrometers, at a pixel size of 0\.5"):
        load_timelapse(**options_of(plates, tmp_path, lambda rows: rows.assign(y=rows["y"] + 20), **micrometer))
