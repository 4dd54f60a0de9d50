"""Splits keep tracks and lineages whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from cellcohort.cells import CellTable
from cellcohort.datasets.features.windows import TrackWindows
from cellcohort.datasets.split import split


def dataset(whole: str = "track", experiments: tuple[Any, ...] = (1, 2, 3)) -> TrackWindows:
    """20 tracks of uneven length in each experiment, in families of two; the last experiment has one track."""
    rng = np.random.default_rng(0)
    parts = []
    for experiment in experiments:
        for k in range(20 if experiment != experiments[-1] else 1):
            t = np.arange(rng.integers(5, 40))
            parts.append(pd.DataFrame({"experiment": experiment, "condition": "x", "k": k, "hours": t * 0.5}))
    frame = pd.concat(parts, ignore_index=True)
    frame["track"] = frame["experiment"].astype(str) + "/" + frame["k"].astype(str).str.zfill(2)
    frame["lineage"] = frame["experiment"].astype(str) + "/" + (frame["k"] // 2).astype(str)
    cells = CellTable.from_frame(frame, hours="hours", track="track")
    return TrackWindows(cells, np.arange(len(frame), dtype=np.float32)[:, None], ["row"], whole=whole)


def rows(part: TrackWindows) -> np.ndarray:
    return part.recorded(np.arange(len(part)))[:, 0, -1].astype(int)


def present(part: TrackWindows, column: str) -> set[Any]:
    return set(part.cells.column(column).present())


@pytest.mark.parametrize("whole", ["track", "lineage"])
@pytest.mark.parametrize(
    "options", [{}, {"fraction": 0.5, "seed": 3}, {"by": "experiment"}, {"by": "experiment", "held_out": [2]}]
)
def test_every_cell_is_in_one_part_and_nothing_whole_is_cut(whole: str, options: dict[str, Any]) -> None:
    data = dataset(whole)
    train, validation = split(data, **options)
    assert sorted([*rows(train), *rows(validation)]) == list(range(len(data)))
    assert not present(train, whole) & present(validation, whole)
    assert train.cells.column("experiment").labels == validation.cells.column("experiment").labels == (1, 2, 3)


@pytest.mark.parametrize("fraction", [0.01, 0.2, 0.5, 0.99])
def test_by_track_every_experiment_keeps_tracks_in_both_parts(fraction: float) -> None:
    train, validation = split(dataset(), fraction=fraction)
    assert present(train, "experiment") == {1, 2, 3} and present(validation, "experiment") == {1, 2}
    for part, share in ((train, 1 - fraction), (validation, fraction)):
        counts = part.cells.column("experiment").counts()[:2] / dataset().cells.column("experiment").counts()[:2]
        assert (np.abs(counts - share) < 0.1).all()


@pytest.mark.parametrize("seed", range(5))
def test_by_track_a_rare_condition_has_tracks_in_both_parts(seed: int) -> None:
    track = np.repeat(np.arange(60), 10)
    frame = pd.DataFrame({"experiment": track % 2, "condition": np.where(track < 6, "rare", "common"), "track": track})
    cells = CellTable.from_frame(frame.assign(hours=np.tile(np.arange(10.0), 60)), track="track", hours="hours")
    for part, tracks in zip(split(TrackWindows(cells, np.ones((600, 1), np.float32), ["one"]), seed=seed),
                            (2, 1), strict=True):  # fmt: skip
        rare = part.cells.column("condition").codes == part.cells.column("condition").labels.index("rare")
        for experiment in range(2):
            of_it = rare & (part.cells.column("experiment").codes == experiment)
            assert len(np.unique(part.cells.column("track").codes[of_it])) == tracks


def test_by_experiment_the_named_or_a_share_of_them_are_held_out() -> None:
    assert present(split(dataset(), "experiment", held_out=[1, 3])[1], "experiment") == {1, 3}
    assert present(split(dataset(), "experiment", held_out=[1, 3])[0], "experiment") == {2}
    drawn = [present(split(dataset(), "experiment", fraction=0.4, seed=seed)[1], "experiment") for seed in range(8)]
    assert {len(names) for names in drawn} == {1} and set().union(*drawn) == {1, 2, 3}


def test_it_repeats_and_the_seed_decides() -> None:
    assert np.array_equal(rows(split(dataset(), seed=4)[1]), rows(split(dataset(), seed=4)[1]))
    assert not np.array_equal(rows(split(dataset(), seed=4)[1]), rows(split(dataset(), seed=5)[1]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "cell"}, "use 'track' or 'experiment'"),
        ({"fraction": 0.0}, "fraction=0.0"),
        ({"fraction": 1.0}, "fraction=1.0"),
        ({"seed": "a"}, "seed='a' is out of range; it is a whole number >= 0"),
        ({"seed": -1, "by": "experiment"}, "seed=-1 is out of range"),
        ({"by": "experiment", "held_out": ["1"]}, r"held_out=\['1'\]: no such experiment; the table has \[1, 2, 3\]"),
        ({"by": "experiment", "held_out": [1, 2, 3]}, "no cell is left for training"),
        ({"by": "experiment", "held_out": []}, "no cell is left for validation"),
        ({"by": "track", "held_out": [1]}, "use by='experiment'"),
    ],
)
def test_what_cannot_be_split_so_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        split(dataset(), **options)


@pytest.mark.parametrize("by", ["track", "experiment"])
def test_a_table_of_one_track_cannot_be_split(by: str) -> None:
    with pytest.raises(ValueError, match="no cell is left for validation"):
        split(dataset(experiments=(1,)), by)
