"""What the preview reports of the tracks of a table."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from cellcohort.data.tracks import Tracks
from cellcohort.preview import findings, survey
from cellcohort.preview.cells import TrainingCells
from cellcohort.sampling import BatchSampler

COLUMNS = {"time": "t", "track": "id"}


def rows() -> pd.DataFrame:
    """Two experiments with 10 tracks of 12 frames each; ids repeat."""
    every = [(e, c, i, t) for e in "ab" for i in range(10) for c in ("xy"[i % 2],) for t in range(12)]
    return pd.DataFrame(every, columns=["experiment", "condition", "id", "t"])


def problems(tmp_path: Path, frame: pd.DataFrame, word: str, **options: object) -> list[str]:
    frame.to_parquet(tmp_path / "t.parquet")
    source = Tracks(tmp_path / "t.parquet", COLUMNS, 30, **options)  # type: ignore[arg-type]
    labelled = source.cells()
    known = TrainingCells(labelled, len(labelled), "track", COLUMNS)
    found = findings(survey(BatchSampler(labelled.cells, {}, 16), source=known))
    return [one.problem for one in found if word in one.problem]


def test_tracks_of_two_conditions_are_counted_with_an_example(tmp_path: Path) -> None:
    frame = rows()
    assert not problems(tmp_path, frame, "two conditions or more")
    frame.loc[(frame["id"] == 3) & (frame["t"] > 6), "condition"] = "x"
    (said,) = problems(tmp_path, frame, "two conditions or more")
    assert said.startswith("2 of 20 tracks have cells of two conditions or more, such as track a/3 (x and y): their")


def test_a_track_with_cells_without_a_condition_has_no_second_one(tmp_path: Path) -> None:
    frame = rows()
    frame.loc[(frame["id"] == 3) & (frame["t"] > 6), "condition"] = None
    assert not problems(tmp_path, frame, "two conditions or more", missing="label")


def test_gaps_are_reported_where_they_cost_positives(tmp_path: Path) -> None:
    frame = rows()
    gone = frame[~((frame["id"] == 4) & frame["t"].isin([5, 6]) | (frame["experiment"] == "b") & (frame["t"] == 11))]
    assert not problems(tmp_path, frame, "gaps") and not problems(tmp_path, gone, "gaps", tau_hours=(0.5, 2.0))
    (said,) = problems(tmp_path, gone, "gaps", tau_hours=(0.5, 0.5))
    assert said.startswith(
        "2 of 20 tracks have gaps, 4 frames in all: 2 cells (0.88 %) have no frame of their track 0.5"
    )
    (said,) = problems(tmp_path, gone, "gaps", tau_hours=(1.0, 1.0))
    assert "4 frames in all: 4 cells" in said, "frames 3 and 4 of both tracks"
    assert len(problems(tmp_path, gone, "gaps", tau_hours=(0.5, 0.5), positive="track")) == 1
    assert not problems(tmp_path, gone, "gaps", positive="view")
