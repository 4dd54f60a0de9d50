"""Tables of cells in files: the same table, read once, and made again where the source is another."""

from __future__ import annotations

import gc
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import zarr

from cellcohort.cells import CellTable
from cellcohort.coded_columns import Column, joint_column
from cellcohort.data.anndata import AnnData
from cellcohort.data.profiles import Profiles
from cellcohort.data.tracks import Tracks
from cellcohort.datasets.protocol import LabelledCells
from cellcohort.datasets.split import split
from cellcohort.datasets.stored.cells import StoredCells
from cellcohort.datasets.stored.store import Store
from cellcohort.mapped_arrays import ArrayFiles
from cellcohort.mapped_cells import mapped_cells
from cellcohort.sampling import BatchSampler, ConditionBalanced, ExperimentAware, TemporallyEnriched
from stores import QUIET, cells

pytestmark = QUIET
COLUMNS = {"hours": "hours"}
AXES = {"e": ExperimentAware(0.1), "c": ConditionBalanced(), "t": TemporallyEnriched(2.0, column="hours")}


def stored(path: Path, **columns: Any) -> Path:
    adata = cells(400)
    adata.obs = adata.obs.assign(number=np.arange(400) % 5, flag=np.arange(400) % 2 == 0, **columns)
    adata.write_zarr(path)
    return path


def refuse(*_: object, **__: object) -> Any:
    raise AssertionError("the table is there")


def assert_same(one: CellTable, other: CellTable) -> None:
    assert repr(one) == repr(other) and one.keys == other.keys and one.chunk_rows == other.chunk_rows
    assert one.column_names == other.column_names and np.array_equal(one.hours, other.hours)
    assert np.array_equal(one.rows, other.rows) if one.rows is not None else other.rows is None
    for name in one.column_names:
        assert one.values(name).astype(str).tolist() == other.values(name).astype(str).tolist()
    for column in (*one.column_names, *one.roles, ["experiment", "condition"]):
        found, expected = other.column(column), one.column(column)
        assert found.labels == expected.labels and np.array_equal(found.codes, expected.codes), column


@pytest.mark.filterwarnings("ignore::cellcohort.sampling.ShortfallWarning")
@pytest.mark.parametrize("track", ["track", None])
def test_a_store_is_read_once_and_gives_the_same_cells_parts_and_batches(
    track: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, columns = stored(tmp_path / "cells.zarr"), {**COLUMNS, "track": track}

    def parts(cache: Path | None) -> list[StoredCells]:
        dataset: Any = AnnData(path, columns, index_cache=cache).dataset()
        return [dataset, *split(dataset)]

    def batches(of: StoredCells, cache: Path | None) -> list[list[int]]:
        sampler = BatchSampler(of.cells, AXES, 32, index_cache=cache)
        return [sampler.batch(0, step).tolist() for step in range(5)]

    plain, cache = parts(None), tmp_path / "cache"
    for run in range(2):
        for one, other in zip(plain, parts(cache), strict=True):
            assert_same(one.cells, other.cells)
            assert np.array_equal(one.rows, other.rows)
            assert batches(one, None) == batches(other, cache)
        if not run:
            files = sorted(cache.glob("*.index"))
            monkeypatch.setattr(Store, "obs", refuse)
            monkeypatch.setattr("cellcohort.datasets.split._divided", refuse)
    assert sorted(cache.glob("*.index")) == files


def test_arrays_of_the_table_and_of_its_parts_are_the_mapped_files(tmp_path: Path) -> None:
    dataset: Any = AnnData(stored(tmp_path / "cells.zarr"), COLUMNS, index_cache=tmp_path / "cache").dataset()
    training, _ = split(dataset)
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    spans = [[int(end, 16) for end in line[0].split("-")] for line in maps if line[-1].startswith(f"{tmp_path}/cache")]
    for table in (dataset.cells, training.cells):
        arrays = [table.hours, table.column("experiment").codes, table.column("condition").codes]
        for array in arrays if table.rows is None else [*arrays, table.rows]:
            place = array.__array_interface__["data"][0]
            assert any(begin <= place < end for begin, end in spans)
            assert array.flags.writeable  # as in memory: compiled functions are not compiled anew


def test_another_source_or_another_option_is_another_table(tmp_path: Path) -> None:
    path, cache = stored(tmp_path / "cells.zarr"), tmp_path / "cache"

    def labels(**options: Any) -> list[str]:
        return (
            AnnData(path, **{"columns": COLUMNS, "index_cache": cache} | options)
            .dataset()
            .cells.column("condition")
            .labels
        )

    assert labels() == ("drug", "mock")
    assert labels(merge_labels={"condition": {"mock": "none"}}) == ("drug", "none")
    assert labels(columns={**COLUMNS, "condition": "experiment"}) == ("a", "b", "c")
    codes = next(path.glob("obs/condition/codes/c/0"))
    before = codes.stat()
    stored(tmp_path / "other.zarr", condition=["x", "y"] * 200)
    os.rename(tmp_path / "cells.zarr", tmp_path / "away.zarr")
    os.rename(tmp_path / "other.zarr", path)
    assert labels() == ("x", "y")
    os.utime(codes, ns=(before.st_atime_ns, before.st_mtime_ns + 1))  # an edit of the same size, a nanosecond later
    n = len(list(cache.glob("*.index")))
    labels()
    assert len(list(cache.glob("*.index"))) > n


def test_labels_that_were_changed_under_the_time_and_size_of_the_old_ones_are_read(tmp_path: Path) -> None:
    path, options = stored(tmp_path / "cells.zarr"), {"columns": COLUMNS, "index_cache": tmp_path / "cache"}
    folder = path / "obs" / "condition" / "codes"
    folder.rename(tmp_path / "codes")
    folder.symlink_to(tmp_path / "codes")  # as in a store of which some columns lie elsewhere
    codes: Any = zarr.open_array(folder, mode="r+")
    counts = []
    for _ in range(2):
        found: Any = AnnData(path, **options).dataset()
        counts.append(found.cells.column("condition").counts().tolist())
        (file,) = (tmp_path / "codes" / "c").iterdir()
        before = file.stat()
        codes[:] = 1 - codes[:]
        assert file.stat().st_size == before.st_size
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert counts[0] == counts[1][::-1] != counts[1]


def test_where_a_cell_is_from_is_said_as_the_store_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(tmp_path / "cells.zarr")
    monkeypatch.chdir(tmp_path)
    for path in ("cells.zarr", tmp_path / "cells.zarr"):
        cells = AnnData(path, COLUMNS, index_cache="cache").dataset().cells
        assert cells.column("source_file").labels == (str(path),)


def test_a_later_start_reads_no_labels(tmp_path: Path) -> None:
    n = 2**20
    cells = CellTable.from_frame(
        pd.DataFrame(
            {
                "experiment": pd.Categorical.from_codes(np.arange(n) % 4, list("abcd")),
                "condition": pd.Categorical.from_codes(np.arange(n) // 4 % 2, list("xy")),
                "other": np.arange(n) // 8 % 2,
                "hours": np.arange(n) // 16 % 32 / 2,
                "track": np.arange(n) // 64,
            }
        ),
        hours="hours",
        track="track",
    )

    def start() -> BatchSampler:
        (found,) = mapped_cells(ArrayFiles(tmp_path).of("source"), lambda: (cells,))
        training, _ = split(LabelledCells(found))
        return BatchSampler(training.cells, {**AXES, "o": ConditionBalanced(column="other")}, 32, index_cache=tmp_path)

    def resident() -> tuple[int, int]:
        """Bytes of the files that this process has mapped, and of them those that it has looked at."""
        gc.collect()
        sizes = [0, 0]
        for line in Path("/proc/self/smaps").read_text().splitlines():
            if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                here = str(tmp_path) in line
            elif here and (said := re.match(r"(Size|Rss): +(\d+) kB", line)):
                sizes[said[1] == "Rss"] += int(said[2]) * 1024
        return sizes[0], sizes[1]

    first = start()
    asked = first.batch(0, 0).tolist()
    del first
    again = start()
    mapped, looked_at = resident()
    assert mapped > 20 * n and looked_at < 0.1 * mapped
    assert again.batch(0, 0).tolist() == asked


FRAME = pd.DataFrame(
    {
        "experiment": np.repeat(["a", "b"], 60),
        "condition": np.tile(["x", "y"], 60),
        "time": np.tile(np.arange(6), 20),
        "track": np.repeat(np.arange(20) % 10, 6),  # the same ids in both experiments
        "f": np.arange(120.0),
        "g": np.arange(120.0)[::-1] ** 2,
    }
)
TABLES: dict[str, tuple[Any, dict[str, Any]]] = {
    "tracks": (Tracks, {"columns": {"features": ["f", "g"]}, "interval_minutes": 30.0, "frames": 2}),
    "profiles": (Profiles, {"columns": {"experiment": "experiment", "condition": "condition", "well": "track"}}),
}


@pytest.mark.filterwarnings("ignore:'time' is a feature that the model sees")
@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_a_table_is_read_once_and_gives_the_same_cells_and_inputs(
    kind: str, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, options = TABLES[kind]
    path = tmp_path / f"cells{suffix}"
    FRAME.to_csv(path, index=False) if suffix == ".csv" else FRAME.to_parquet(path)

    def parts(cache: Path | None) -> list[Any]:
        dataset = source(path=path, index_cache=cache, **options).dataset()
        return [dataset, *split(dataset)]

    plain = parts(None)
    for run in range(2):
        for one, other in zip(plain, parts(tmp_path / "cache"), strict=True):
            assert_same(one.cells, other.cells)
            some = np.arange(len(one))
            assert np.array_equal(one.recorded(some), other.recorded(some))
            batch, expected = other.__getitems__(some), one.__getitems__(some)
            assert all((batch[name] == expected[name]).all() for name in ("anchor", "positive"))
        if not run:
            monkeypatch.setattr(source, "_read", refuse)
    monkeypatch.undo()
    changed = FRAME.assign(condition="z")
    changed.to_csv(path, index=False) if suffix == ".csv" else changed.to_parquet(path)
    assert parts(tmp_path / "cache")[0].cells.column("condition").labels == ("z",)


def test_warnings_of_the_source_are_given_again(tmp_path: Path) -> None:
    FRAME.assign(track=FRAME.track.where(FRAME.index > 3)).to_parquet(tmp_path / "cells.parquet")
    source, options = TABLES["tracks"]
    for _ in range(2):
        with pytest.warns(UserWarning, match="4 of 120 rows are of no track"):
            source(path=tmp_path / "cells.parquet", index_cache=tmp_path / "cache", **options).dataset()


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied", "cells.csv"), ValueError("no cells")])
def test_an_error_of_the_source_is_not_taken_for_one_of_the_cache(error: Exception, tmp_path: Path) -> None:
    def make() -> Any:
        raise error

    with pytest.raises(type(error)) as raised:
        mapped_cells(ArrayFiles(tmp_path).of("source"), make)
    assert raised.value is error
    assert os.listdir(tmp_path) == [".lock"]


def test_labels_that_no_file_can_hold_leave_every_process_its_own_table(tmp_path: Path) -> None:
    made = CellTable.from_frame(pd.DataFrame({"experiment": ["a", 1, "a"], "other": [1, 2, 3]}))
    with pytest.warns(UserWarning, match="cannot hold the table.*one of its own"):
        (found,) = mapped_cells(ArrayFiles(tmp_path).of("source"), lambda: (made,))
    assert found is made


@pytest.mark.parametrize(
    "values",
    [
        pd.date_range("2020-01-01", periods=3, tz="Europe/Berlin"),
        pd.period_range("2020-01", periods=3, freq="M"),
        [[1], [2], [3]],
    ],
)
def test_a_column_that_no_file_can_hold_leaves_the_table_as_it_is(tmp_path: Path, values: Any) -> None:
    made = CellTable.from_frame(pd.DataFrame({"experiment": list("aba"), "condition": list("xyx"), "other": values}))
    with pytest.warns(UserWarning, match="cannot hold the table.*'other'"):
        (found,) = mapped_cells(ArrayFiles(tmp_path).of("source"), lambda: (made,))
    assert found is made


def test_joint_columns_whose_parts_share_their_names_are_told_apart(tmp_path: Path) -> None:
    files = ArrayFiles(tmp_path).of("source")
    condition = Column("condition", np.array([0, 1, 0, 1]), ("x", "y"))
    raw = Column("track", np.array([0, 0, 0, 0]), (7,))
    own = Column("track", np.array([0, 0, 1, 1]), (("a", 7), ("b", 7)))
    for track in (raw, own):
        found, expected = (joint_column([track, condition], of) for of in (files, ArrayFiles()))
        assert found.labels == expected.labels and found.codes.tolist() == expected.codes.tolist()


def test_columns_of_one_name_and_missing_values_are_kept(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {"experiment": ["b", None, "a"], "hours": [1.0, np.nan, 2.0], "when": pd.to_datetime(["2020-01-02"] * 3)}
    )
    frame = pd.concat([frame, pd.DataFrame({"twice": [1, 2, 3]}), pd.DataFrame({"twice": list("xyz")})], axis=1)
    made = CellTable.from_frame(frame, condition=None, hours="hours", missing="label")
    (found,) = mapped_cells(ArrayFiles(tmp_path).of("source"), lambda: (made,))
    assert found.column("experiment").labels == ("a", "b", "missing")
    assert found.unlabelled("experiment").tolist() == [False, True, False]
    assert np.array_equal(found.hours, made.hours, equal_nan=True)
    assert found.values("when").tolist() == made.values("when").tolist()
    with pytest.raises(ValueError, match="'twice' names 2 columns"):
        found.column("twice")
