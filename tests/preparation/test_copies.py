"""Cells with the same values are counted, and kept on one side of a split."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from cellcohort.cells import CellTable
from cellcohort.data.anndata import load_anndata
from cellcohort.datasets.split import split
from cellcohort.evaluation.selection import training_part
from cellcohort.preparation import prepare
from cellcohort.preparation.copies import copy_groups, described, digests
from cellcohort.preview import TrainingCells
from cellcohort.preview.checks.copies import copies
from cellcohort.sources.anndata import AnnDataFiles
from stores import QUIET, cells, write

pytestmark = QUIET
SMALL = {"chunk_rows": 16, "shard_rows": 64, "dataset_rows": 256}


def test_equal_rows_share_a_digest_and_no_others() -> None:
    rows = np.random.default_rng(0).integers(0, 3, (500, 4)).astype(np.float32)
    rows[::7, 1] = -0.0
    _, expected = np.unique(rows, axis=0, return_inverse=True)
    for given in (rows, sparse.csr_matrix(rows), rows.reshape(500, 2, 2)):
        found = digests(given)
        assert found.dtype == np.uint64 and ((found == 0) == ~rows.any(1)).all()
        assert ((found[:, None] == found) == (expected[:, None] == expected)).all()


def test_rows_that_differ_in_place_only_are_no_copies() -> None:
    rows = np.array([[1, 0, 2], [1, 2, 0], [0, 1, 2]], np.float32)
    for given in (rows, sparse.csr_matrix(rows)):
        assert len(set(digests(given))) == 3


def test_groups_are_numbered_and_rows_of_zeros_are_in_none() -> None:
    groups = copy_groups(np.array([5, 0, 9, 5, 0, 3, 9, 9], np.uint64))
    assert groups.tolist() == [1, 0, 2, 1, 0, 0, 2, 2]
    assert described(groups, {"a x u": 2, "b x u": 3, "b x v": 3}).startswith(
        "5 cells in 2 groups of the same values: 2 in b x u, 2 in b x v, 1 in a x u."
    )
    assert described(np.zeros(3, np.int32), {"a": 3}) == ""


@pytest.fixture(scope="module")
def doubled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 300 cells, 120 of which are there again as another plate, and of 8 cells that are all zero."""
    folder = tmp_path_factory.mktemp("doubled")
    one = cells(300)
    one.X[-8:] = 0
    again = one[:120].copy()
    again.obs["experiment"] = "again"
    again.obs_names = [f"again {i}" for i in range(120)]
    again.obs["track"] = [f"again {i // 7}" for i in range(120)]
    files = [write(one, folder / "one.h5ad"), write(again, folder / "two.h5ad")]
    return prepare(AnnDataFiles(files), folder / "out.zarr", **SMALL).path


@pytest.mark.parametrize(
    "options", [{"by": "track"}, {"by": "experiment", "held_out": ["again"]}, {"by": "experiment", "held_out": ["a"]}]
)
@pytest.mark.parametrize("track", [None, "track"])
def test_training_and_validation_share_no_values(doubled: Path, options: dict[str, object], track: str | None) -> None:
    whole = load_anndata(doubled, {"track": track})
    if options.get("held_out") == ["again"]:
        with pytest.raises(ValueError, match="each cell for validation has the same values as one for training"):
            split(whole, **options)  # type: ignore[arg-type]
        return
    training, validation = split(whole, **options)  # type: ignore[arg-type]
    seen, held_out = (part.store.take(part.rows) for part in (training, validation))
    values = set(map(bytes, seen)) - {bytes(np.zeros(7, np.float32))}
    assert not values & set(map(bytes, held_out)) and len(held_out) > 10
    left_out = len(whole) - len(seen) - len(held_out)
    missing = np.setdiff1d(whole.rows, [*training.rows, *validation.rows])
    scored = ~training_part(whole.cells, validation.cells, whole.whole)
    assert sorted(whole.rows[scored]) == sorted(validation.rows)
    assert left_out == len(missing) > 0 and all(bytes(row) in values for row in whole.store.take(missing))


def test_without_copies_no_cell_is_left_out() -> None:
    frame = cells(60).obs.assign(copy_group=0)
    table = CellTable.from_frame(frame, hours="hours", track="track")

    class Rows:
        whole = "track"

        def __init__(self, table: CellTable) -> None:
            self.cells = table

        def subset(self, positions: np.ndarray) -> Rows:
            return Rows(self.cells.take(positions))

    parts = split(Rows(table))  # type: ignore[type-var]
    assert sum(len(part.cells) for part in parts) == 60


def test_copies_are_counted_in_preparation_and_preview(doubled: Path) -> None:
    store = load_anndata(doubled).store
    groups = store.obs()["copy_group"]
    assert (groups > 0).sum() == 240 and groups.max() == 120
    assert store.manifest["copies"].startswith("240 cells in 120 groups of the same values: ")
    survey: Any = SimpleNamespace(source=SimpleNamespace(store=store))
    assert [found.problem for found in copies(survey)] == [f"The store holds {store.manifest['copies']}"]
    training, validation = split(load_anndata(doubled))
    line = TrainingCells(training, 420, "track", {}, 420 - len(training) - len(validation)).held_out_line()
    assert f"{len(validation)} of 420 cells are held out" in line and "more are left out: training holds" in line
