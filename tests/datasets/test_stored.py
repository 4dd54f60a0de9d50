"""Stores that are small, and what is said of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cellcohort.data.anndata import load_anndata
from cellcohort.datasets.split import split
from cellcohort.datasets.stored.cells import StoredCells
from cellcohort.loading.chunks import make_chunked_loader
from cellcohort.preparation import prepare
from cellcohort.sampling import ChunkedBatchSampler, ChunksShuffled, ConditionBalanced, ExperimentAware
from cellcohort.sources.anndata import AnnDataFiles
from stores import QUIET, cells, write

pytestmark = QUIET
NEW_TRACKS = {"track": None}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> StoredCells:
    """A store of 250 cells in chunks of 64, of 3 experiments and 2 conditions."""
    folder = tmp_path_factory.mktemp("small")
    source = AnnDataFiles(write(cells(250), folder / "cells.h5ad"))
    return load_anndata(prepare(source, folder / "out.zarr").path, NEW_TRACKS)


def test_every_stratum_of_a_small_store_is_held_out_in_part(small: StoredCells) -> None:
    training, validation = split(small, fraction=0.2)
    strata = ["experiment", "condition"]
    all_of, out = (part.cells.column(strata) for part in (small, validation))
    n = dict(zip(all_of.labels, all_of.counts(), strict=True))
    held_out = dict(zip(out.labels, out.counts(), strict=True))
    assert len(training) + len(validation) == 250 and len(n) == 6
    assert all(abs(held_out.get(label, 0) - 0.2 * size) <= 0.5 for label, size in n.items() if size > 2)


@pytest.mark.filterwarnings("ignore::cellcohort.sampling.ShortfallWarning")
@pytest.mark.parametrize("axes", [{}, {"e": ExperimentAware(leaky=0.1), "c": ConditionBalanced()}])
@pytest.mark.parametrize("batch_size", [32, 50])
def test_small_stores_are_read_in_chunks_without_an_option(
    small: StoredCells, axes: dict[str, Any], batch_size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    training, validation = split(small)
    sampler = ChunkedBatchSampler(training.cells, axes, batch_size)
    fixed = ChunksShuffled(validation.cells, None, batch_size * 4, fixed=True)
    assert sampler.chunk_size == fixed.chunk_size == 64 and sampler.preload_nchunks == 4
    assert "preload_nchunks=64 gives way to 4, as the cells lie in 4 chunks of 64 rows." in sampler.notes
    assert fixed.batch_size == len(validation)
    for part, one in ((training, sampler), (validation, fixed)):
        batches = list(make_chunked_loader(part, one))
        assert len(batches) == len(one) > 0
        for batch in batches:
            position = batch["meta"]["position"].numpy()
            assert np.array_equal(batch["anchor"].numpy(), part.recorded(position))
            assert len(position) == one.batch_size
    assert capsys.readouterr().out.count("gives way") == 1 + 1


def test_the_size_of_chunks_is_that_of_the_store(tmp_path: Path) -> None:
    source = AnnDataFiles(write(cells(250), tmp_path / "cells.h5ad"))
    store = prepare(source, tmp_path / "out.zarr", chunk_rows=16, shard_rows=64)
    training, _ = split(load_anndata(store.path, NEW_TRACKS))
    assert ChunkedBatchSampler(training.cells, batch_size=20).chunk_size == 16


def test_a_split_without_tracks_does_not_speak_of_tracks(tmp_path: Path) -> None:
    made = cells(6)
    made.obs["condition"] = list("abcdef")
    store = prepare(AnnDataFiles(write(made, tmp_path / "cells.h5ad")), tmp_path / "out.zarr")
    with pytest.raises(ValueError, match=r"no cell is left for validation .* two cells of one condition"):
        split(load_anndata(store.path, NEW_TRACKS))
