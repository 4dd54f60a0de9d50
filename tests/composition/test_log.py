from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from cellcohort.composition.log import CompositionLog, read_composition

NAMES = ["experiment/share/A", "duplicates"]


def fill(log: CompositionLog, epoch: int, steps: range, n_ranks: int = 2, value: float = 0.0) -> None:
    numbers = np.arange(2.0 * (n_ranks + 1)).reshape(-1, 2) + 100 * np.array(steps)[:, None, None] + value
    groups = [["A", "B", None][: n_ranks + 1]] * len(steps)
    log.add(epoch, steps[0], [epoch * 10 + step for step in steps], groups, numbers)


def places(frame: pd.DataFrame) -> list[tuple[int, int, int]]:
    return list(zip(frame["epoch"], frame["step"], frame["rank"], strict=True))


def test_one_row_per_epoch_step_and_rank(tmp_path: Path) -> None:
    log = CompositionLog(tmp_path, NAMES, {"batch_size": 32, "labels": {"experiment": ["A", 7]}})
    fill(log, 0, range(3))
    log.flush()
    fill(log, 1, range(2))
    log.close()
    frame = pd.read_parquet(tmp_path / "composition.parquet")
    assert places(frame) == [(e, s, r) for e, n in ((0, 3), (1, 2)) for s in range(n) for r in (-1, 0, 1)]
    assert list(frame.columns) == ["epoch", "step", "global_step", "rank", "group", *NAMES]
    row = frame.iloc[5]
    assert (row["global_step"], row["group"], row["duplicates"]) == (1, "B", 103.0)
    assert pd.isna(frame.iloc[3]["group"]) and frame.iloc[3]["duplicates"] == 105.0
    about = json.loads(pq.read_schema(tmp_path / "composition.parquet").metadata[b"cellcohort"])
    assert about == {"batch_size": 32, "labels": {"experiment": ["A", 7]}}
    assert [path.name for path in tmp_path.iterdir()] == ["composition.parquet"]
    pd.testing.assert_frame_equal(read_composition(tmp_path), frame)


def test_what_was_flushed_outlives_a_killed_process_and_the_next_run_takes_it_over(tmp_path: Path) -> None:
    killed = CompositionLog(tmp_path, NAMES, {})
    for epoch in range(30):  # some of them are not joined yet
        fill(killed, epoch, range(2))
        killed.flush()
    fill(killed, 30, range(2))  # in memory when the process dies
    del killed
    assert 30 * 3 <= len(pd.read_parquet(tmp_path / "composition.parquet")) < 60 * 3
    before = read_composition(tmp_path)
    assert places(before) == [(e, s, r) for e in range(30) for s in range(2) for r in (-1, 0, 1)]

    resumed = CompositionLog(tmp_path, NAMES, {})
    fill(resumed, 29, range(1, 2), value=5000)
    fill(resumed, 30, range(2))
    resumed.close()
    after = pd.read_parquet(tmp_path / "composition.parquet")
    assert places(after) == [(e, s, r) for e in range(31) for s in range(2) for r in (-1, 0, 1)]
    again = (after["epoch"] == 29) & (after["step"] == 1)
    assert (after.loc[again, "duplicates"] > 5000).all() and (after.loc[~again, "duplicates"] < 5000).all()
    assert not (tmp_path / "composition.parts").exists()


def test_what_was_half_written_when_a_process_was_killed_is_left_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = CompositionLog(tmp_path, NAMES, {})
    fill(log, 0, range(2))
    synced: list[str] = []
    monkeypatch.setattr("cellcohort.files._sync", lambda path: synced.append(path.suffix))
    log.flush()
    assert ".parquet" in synced
    (tmp_path / "composition.parts").mkdir(exist_ok=True)
    (tmp_path / "composition.parts" / ".0123abcd.parquet").write_bytes(b"PAR1")
    resumed = CompositionLog(tmp_path, NAMES, {})
    fill(resumed, 1, range(2))
    resumed.close()
    assert places(read_composition(tmp_path)) == [(e, s, r) for e in range(2) for s in range(2) for r in (-1, 0, 1)]


def test_a_step_done_again_by_fewer_ranks_leaves_no_row_of_the_others(tmp_path: Path) -> None:
    first = CompositionLog(tmp_path, NAMES, {})
    fill(first, 0, range(2), n_ranks=2)
    first.close()
    second = CompositionLog(tmp_path, [*NAMES, "coverage"], {})
    second.add(0, 1, [1], [["A", None]], np.zeros((1, 2, 3)))
    second.close()
    frame = read_composition(tmp_path)
    assert places(frame) == [(0, 0, -1), (0, 0, 0), (0, 0, 1), (0, 1, -1), (0, 1, 0)]
    assert frame["coverage"].isna().tolist() == [True, True, True, False, False]


def test_a_long_epoch_is_put_down_before_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cellcohort.composition.log.STEPS_IN_MEMORY", 4)
    log = CompositionLog(tmp_path, NAMES, {})
    for step in range(9):
        fill(log, 0, range(step, step + 1))
    assert read_composition(tmp_path)["step"].max() == 7
    log.close()
    assert read_composition(tmp_path)["step"].max() == 8


def test_a_directory_without_composition_is_told(tmp_path: Path) -> None:
    CompositionLog(tmp_path, NAMES, {}).close()
    with pytest.raises(FileNotFoundError, match=r"no composition\.parquet"):
        read_composition(tmp_path)
