"""Batches read in chunks hold the inputs of the cells that the sampler chose, whatever goes wrong or is stopped."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas as pd
import pytest
import torch

from cellcohort.augment.expression import ExpressionViews
from cellcohort.data.anndata import FEWEST_CHUNKS, load_anndata
from cellcohort.data.patches import load_patches
from cellcohort.datasets.split import split
from cellcohort.datasets.stored.cells import StoredCells
from cellcohort.datasets.stored.pairs import Pairs
from cellcohort.datasets.stored.store import Store
from cellcohort.loading.chunks import AHEAD, make_chunked_loader, read_ahead
from cellcohort.loading.rows import make_loader
from cellcohort.sampling import BatchSampler, ChunkedBatchSampler, ChunksInOrder, ConditionBalanced, ExperimentAware
from stores import QUIET, cells, prepared, write

pytestmark = [*QUIET, pytest.mark.filterwarnings("ignore:in . of 4 epochs")]  # of few batches each


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """Stores of the same cells, dense and sparse."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folders = {kind: tmp_path_factory.mktemp("store") for kind in (False, True)}
        return {kind: prepared(folder, 2000, kind, dataset_rows=768).path for kind, folder in folders.items()}


def sampler_of(dataset: StoredCells, **options: Any) -> ChunkedBatchSampler:
    axes = {"experiment": ExperimentAware(leaky=0.1), "condition": ConditionBalanced()}
    sizes = {"batch_size": 32, "chunk_size": 16, "preload_nchunks": 16, "num_batches": 11}
    return ChunkedBatchSampler(dataset.cells, axes, **{**sizes, **options})


def places(batches: Any) -> list[tuple[int, int, tuple[int, ...]]]:
    return [(b["meta"]["epoch"], b["meta"]["step"], tuple(b["meta"]["position"].tolist())) for b in batches]


@pytest.mark.parametrize("kind", [False, True])
@pytest.mark.parametrize("part", ["all", "training", "validation"])
def test_batches_hold_the_inputs_of_the_cells_that_were_chosen(paths: dict[bool, Path], kind: bool, part: str) -> None:
    whole = load_anndata(paths[kind])
    training, validation = split(whole, fraction=0.4)
    dataset = {"all": whole, "training": training, "validation": validation}[part]
    sampler = sampler_of(dataset)
    loader = make_chunked_loader(dataset, sampler)
    source = pd.Series(whole.store.read(0, 2000)[:, 0])
    told = dataset.cells.column("source_row")
    numbers = np.array(told.labels)[told.codes] + 1  # the first feature of a cell is its number in the source
    for epoch in (0, 1):
        batches = list(loader)
        assert len(batches) == 11
        for step, batch in enumerate(batches):
            position = batch["meta"]["position"].numpy()
            assert np.array_equal(position, sampler.batch(epoch, step))
            assert np.array_equal(batch["anchor"][:, 0].numpy(), numbers[position])
            assert np.array_equal(batch["anchor"].numpy(), dataset.recorded(position))
            assert batch["anchor"].dtype == torch.float32 and torch.equal(batch["anchor"], batch["positive"])
    assert len(source) == 2000


def test_epochs_differ_and_repeat(paths: dict[bool, Path]) -> None:
    dataset = load_anndata(paths[False])
    sampler = sampler_of(dataset)
    loader = make_chunked_loader(dataset, sampler)
    first, second = places(loader), places(loader)
    assert first != second and {epoch for epoch, _, _ in second} == {1}
    loader.batch_sampler.sampler.set_epoch(0)  # as Lightning does it
    assert places(loader) == first


@pytest.mark.parametrize("consumed", [1, 8, 10, 11])
def test_a_pass_goes_on_where_it_was_stopped_whatever_was_read_ahead(paths: dict[bool, Path], consumed: int) -> None:
    dataset = load_anndata(paths[False])
    whole = places(make_chunked_loader(dataset, sampler_of(dataset)))
    loader = make_chunked_loader(dataset, sampler_of(dataset))
    for _, _ in zip(range(consumed), loader, strict=False):
        pass
    state = json.loads(json.dumps(loader.state_dict()))
    again = make_chunked_loader(dataset, sampler_of(dataset))
    again.load_state_dict(state)
    rest = places(again)
    assert rest == whole[consumed:] if consumed < 11 else rest[0][:2] == (1, 0)
    with pytest.raises(ValueError, match="they would not go on"):
        make_chunked_loader(dataset, sampler_of(dataset, seed=1)).load_state_dict(state)


def test_the_next_window_is_read_while_this_one_is_used(
    paths: dict[bool, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = load_anndata(paths[False])
    sampler = sampler_of(dataset)
    second, read = threading.Event(), []
    requests = type(sampler).load_request

    def noted(self: Any, positions: np.ndarray, n_obs: int) -> Any:
        read.append(len(positions))
        if len(read) == 2:
            second.set()
        return requests(self, positions, n_obs)

    monkeypatch.setattr(type(sampler), "load_request", noted)
    batches = iter(make_chunked_loader(dataset, sampler))
    next(batches)
    assert sampler.per_window > 1 and second.wait(10), "the second window waits for the first to be used up"
    batches.close()


def test_a_window_is_read_once(paths: dict[bool, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = load_anndata(paths[False])
    sampler = sampler_of(dataset)
    rows = 0
    requests = type(sampler).load_request

    def counted(self: Any, positions: np.ndarray, n_obs: int) -> Any:
        nonlocal rows
        request = requests(self, positions, n_obs)
        rows += sum(run.stop - run.start for run in request["requests"])
        assert all(run.start % 16 == 0 for run in request["requests"])
        return request

    monkeypatch.setattr(type(sampler), "load_request", counted)
    list(make_chunked_loader(dataset, sampler))
    assert rows <= 16 * 16 * -(-11 // sampler.per_window)


@pytest.mark.parametrize("kind", [False, True])
def test_a_corrupted_file_stops_the_run_and_is_named(tmp_path: Path, kind: bool) -> None:
    store = prepared(tmp_path, stored_sparse=kind)
    pattern = "dataset_1/X/data/c/*" if kind else "dataset_1/X/c/*/0"
    file = sorted(store.path.glob(pattern))[0]
    whole = file.read_bytes()
    dataset = load_anndata(store.path)
    loader = make_chunked_loader(dataset, sampler_of(dataset, num_batches=60))
    for place in np.linspace(3, len(whole) - 1, 5).astype(int):  # in headers, in what they head, and in the index
        damaged = bytearray(whole)
        damaged[place] ^= 1
        file.write_bytes(damaged)
        with pytest.raises(RuntimeError, match=rf"{file.relative_to(store.path)} is corrupted.*Delete .* prepare"):
            list(loader)
    file.unlink()
    with pytest.raises(ValueError, match=rf"{file.relative_to(store.path)} is missing"):
        list(loader)


def test_a_file_that_is_deleted_while_it_is_looked_at_is_missing(
    paths: dict[bool, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, look = Store(shutil.copytree(paths[False], tmp_path / "cells.zarr")), Path.stat
    (file, *_) = store.path.glob("dataset_1/X/c/*/0")

    def then_deleted(path: Path, **options: Any) -> Any:
        found = look(path, **options)
        if path == file:
            path.unlink()
        return found

    monkeypatch.setattr(Path, "stat", then_deleted)
    with pytest.raises(ValueError, match=rf"{file.relative_to(store.path)} is missing"):
        for _ in range(2):
            store.check_files()


@pytest.mark.parametrize("kind", [False, True])
def test_a_file_that_is_deleted_during_a_pass_stops_it_and_is_not_read_as_zeros(
    paths: dict[bool, Path], tmp_path: Path, kind: bool
) -> None:
    store = Store(shutil.copytree(paths[kind], tmp_path / "cells.zarr"))
    dataset = load_anndata(store.path)
    batches = iter(make_chunked_loader(dataset, sampler_of(dataset, num_batches=60)))
    next(batches)
    for file in store.path.glob("dataset_1/X/data/c/*" if kind else "dataset_1/X/c/*/0"):
        file.unlink()
    with pytest.raises(ValueError, match=r"dataset_1/X/.*c/\d+.* is missing: the store is damaged"):
        for batch in batches:
            assert (batch["anchor"][:, 0] > 0).all()  # the number of the cell, from 1


def test_an_error_of_the_sampler_is_raised_and_no_short_epoch(
    paths: dict[bool, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = load_anndata(paths[False])
    sampler = sampler_of(dataset)
    loader = make_chunked_loader(dataset, sampler)
    run = sampler._picker.pick_run

    def failing(epoch: int, number: int, n: int) -> list[np.ndarray]:
        if number > 0:
            raise KeyError("planted")
        return run(epoch, number, n)

    monkeypatch.setattr(sampler._picker, "pick_run", failing)
    with pytest.raises(KeyError, match="planted"):
        list(loader)


def test_other_samplers_and_data_are_refused(paths: dict[bool, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = load_anndata(paths[False])
    sampler = sampler_of(dataset)
    part = dataset.subset(np.arange(1999, 0, -2))
    for wrong, said in (
        ((list(range(5)), sampler), "list is not read in chunks; use reading=rows"),
        ((dataset, BatchSampler(dataset.cells)), "BatchSampler does not say which chunks to read"),
    ):
        with pytest.raises(TypeError, match=said):
            make_chunked_loader(*wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="made for 2000 cells and the dataset has 1000"):
        make_chunked_loader(part, sampler)
    with pytest.raises(ValueError, match="another order than in their store"):
        make_chunked_loader(part, sampler_of(part))
    with pytest.raises(ValueError, match=r"chunk_size=8 is no multiple of the 16 rows.*chunk_size=16"):
        make_chunked_loader(dataset, sampler_of(dataset, chunk_size=8, preload_nchunks=32))
    with pytest.raises(ValueError, match="buffer_size=0"):
        make_chunked_loader(dataset, sampler, buffer_size=0)
    monkeypatch.setattr("cellcohort.loading.chunks.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="preload_to_gpu=true needs cupy"):
        make_chunked_loader(dataset, sampler, preload_to_gpu=True)


def test_preload_to_gpu_reaches_annbatch(paths: dict[bool, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU all that can be seen is that annbatch is asked for it."""
    asked: list[dict[str, Any]] = []

    class Noted(Exception):
        pass

    def noting(**options: Any) -> None:
        asked.append(options)
        raise Noted

    dataset = load_anndata(paths[False])
    monkeypatch.setattr("cellcohort.loading.chunks.find_spec", lambda name: "cupy")
    monkeypatch.setattr("cellcohort.loading.chunks.annbatch.Loader", noting)
    with pytest.raises(Noted):
        list(make_chunked_loader(dataset, sampler_of(dataset), preload_to_gpu=True))
    assert asked[0]["preload_to_gpu"] is True and asked[0]["to"] == "torch"


def test_validation_holds_whole_chunks_of_every_experiment(paths: dict[bool, Path]) -> None:
    whole = load_anndata(paths[False])
    stratum = whole.cells.column(["experiment", "condition"])
    large = (stratum.counts() >= FEWEST_CHUNKS * 16)[stratum.codes]  # the cells of others are held out one by one
    assert large.any() and not large.all()
    training, validation = split(whole, fraction=0.2)
    assert validation.cells.column("experiment").present() == ["a", "b", "c"]
    chunks = [set(part.rows[large[part.rows]] // 16) for part in (training, validation)]
    assert chunks[0] and chunks[1] and not chunks[0] & chunks[1]
    assert 0.15 < len(validation) / 2000 < 0.25
    tracked, held = split(load_anndata(paths[False], columns={"track": "track"}))
    assert not set(tracked.cells.column("track").codes) & set(held.cells.column("track").codes)


def test_rows_can_be_read_one_by_one_and_are_the_same(paths: dict[bool, Path]) -> None:
    dataset = load_anndata(paths[True])
    batch = next(iter(make_loader(dataset, BatchSampler(dataset.cells, batch_size=32))))
    position = batch["meta"]["position"].numpy()
    assert np.array_equal(batch["anchor"].numpy(), dataset.store.read(0, 2000)[position])
    with pytest.raises(IndexError, match="use 0 to 1999"):
        dataset.recorded([2000])
    with pytest.raises(TypeError, match="use integers"):
        dataset.recorded(np.ones(3, bool))


def test_statistics_are_those_of_the_cells(paths: dict[bool, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    _, dataset = split(load_anndata(paths[True]))
    inputs = dataset.recorded(np.arange(len(dataset)))
    mean, std = dataset.statistics()
    assert np.allclose(mean, inputs.mean(0), rtol=1e-4) and np.allclose(std, inputs.std(0), rtol=1e-4)
    monkeypatch.setattr("cellcohort.datasets.stored.cells.STATISTICS_CELLS", 160)
    mean, std = dataset.statistics()
    assert np.allclose(mean[1:], inputs[:, 1:].mean(0), atol=0.1) and not np.allclose(mean, inputs.mean(0), rtol=1e-4)
    monkeypatch.setattr(dataset.store, "chunk_rows", 2000)  # a chunk of more than these
    assert np.allclose(dataset.statistics()[0][1:], inputs[:, 1:].mean(0), atol=0.15)


def test_inputs_that_no_preparation_looked_at_are_looked_at_as_they_are_read(tmp_path: Path) -> None:
    adata = cells(200)
    adata.X[3, 1] = np.nan
    dataset = load_anndata(write(adata, tmp_path / "cells.zarr"))
    batches = iter(make_loader(dataset, BatchSampler(dataset.cells, batch_size=200)))
    with pytest.raises(ValueError, match=r"cells\.zarr: a batch has inputs that are missing or infinite"):
        next(batches)


def test_cells_without_a_label_are_refused_or_labelled(tmp_path: Path) -> None:
    adata = cells(200)
    adata.obs["condition"] = adata.obs["condition"].astype(object)
    adata.obs.iloc[::5, adata.obs.columns.get_loc("condition")] = None
    adata.obs.iloc[3, adata.obs.columns.get_loc("hours")] = np.nan
    path = write(adata, tmp_path / "cells.zarr")
    with pytest.raises(ValueError, match=r"'condition' in 40 of 200 rows.* use data\.missing=label, which makes"):
        load_anndata(path)
    column = load_anndata(path, missing="label").cells.column("condition")
    assert column.labels == ("drug", "missing", "mock") and (np.flatnonzero(column.codes == 1) % 5 == 0).all()
    with pytest.raises(ValueError, match=r"missing values: 'hours' in 1 of 200 rows\. Fill or drop these rows\.$"):
        load_anndata(path, {"hours": "hours"}, missing="label")
    patches = prepared_patches(tmp_path)
    with pytest.raises(ValueError, match=r"'lineage' in 4 of 60 rows\. Fill or drop these rows\.$"):
        load_patches(patches, missing="label")
    assert load_patches(patches, missing="label", pair_by="track").cells.column("condition").labels == ("a", "missing")
    with pytest.raises(ValueError, match=r"'condition' in 7 of 60 rows.*data\.missing=label"):
        load_patches(patches, pair_by="track")


@pytest.mark.parametrize("key", ["condition", "drug"])
@pytest.mark.parametrize("kind", ["profiles", "patches"])
def test_labels_are_merged_by_role_or_column(tmp_path: Path, kind: str, key: str) -> None:
    obs = pd.DataFrame({"plate": ["a", "b", "c"] * 20, "drug": ["Gem", "GEM", "mock", None] * 15, "hours": 1.0})
    obs = obs.assign(track="t").astype({"drug": "category"}).set_index(obs.index.astype(str))
    inputs = np.zeros((60, 3), np.float32)
    adata = anndata.AnnData(inputs, obs) if kind == "profiles" else anndata.AnnData(
        obs=obs, obsm={"patches": inputs[:, :, None, None]}
    )  # fmt: skip
    path = write(adata, tmp_path / "cells.zarr")

    def load(merge: Any, **more: Any) -> StoredCells:
        options: dict[str, Any] = {"columns": {"experiment": "plate", "condition": "drug", "hours": "hours"}, **more}
        read = load_anndata if kind == "profiles" else partial(load_patches, pair_by="track")
        return read(path, merge_labels=merge, **options)

    cells = load({key: {"GEM": "Gem"}, "plate": {"c": "a"}}, missing="label").cells
    assert cells.column("condition").labels == ("Gem", "missing", "mock") and cells.column("drug").labels[0] == "Gem"
    assert cells.column("condition").counts().tolist() == [30, 15, 15]
    assert cells.column("experiment").counts().tolist() == [40, 20]
    for merge, said in (
        ({"dose": {1: 0}}, "merge_labels has 'dose', which is no column of labels. It may have experiment, condition"),
        ({"hours": {1.0: 2.0}}, "merge_labels has 'hours', which is no column of labels"),
        ({key: {"Gim": "Gem"}}, rf"merge_labels\.{key} renames 'Gim', which no row has.* The labels are 'Gem', 'GEM'"),
        (
            {"condition": "Gem"},
            "must be a mapping of columns to mappings of old labels to new ones; write {condition: {GEM: Gem",
        ),
    ):
        with pytest.raises(ValueError, match=said):
            load(merge, missing="label")
    with pytest.raises(ValueError, match="'drug' in 15 of 60 rows"):
        load({key: {"GEM": "Gem"}})


def prepared_patches(folder: Path) -> Path:
    """Patches without a condition in 7 rows and without a lineage in 4, as an AnnData in zarr."""
    obs = pd.DataFrame({"experiment": "e", "condition": "a", "hours": np.arange(60.0), "track": "t", "lineage": "l"})
    obs.loc[:6, "condition"], obs.loc[:3, "lineage"] = None, None
    patches = {"patches": np.zeros((60, 1, 1, 4, 4), np.float32)}
    return write(anndata.AnnData(obs=obs.set_index(obs.index.astype(str)), obsm=patches), folder / "patches.zarr")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"columns": {"condition": "drug"}}, "condition='drug' is not a column; the table has experiment"),
        ({"columns": {"plate": "experiment"}}, "data.columns has 'plate', which means nothing"),
        ({"augment": ExpressionViews(0.0, 0.0)}, "paired with themselves"),
        ({"layer": "counts"}, "has no layers/counts; its layers are: none"),
        ({"path": None}, "data.path is empty"),
    ],
)
def test_what_data_cannot_be_is_said(paths: dict[bool, Path], options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        load_anndata(**{"path": paths[False], **options})


def test_profiles_are_no_patches(paths: dict[bool, Path]) -> None:
    with pytest.raises(ValueError, match="no patches; read it with data=anndata"):
        load_patches(paths[False])


def pairs_by_hand(track: np.ndarray, hours: np.ndarray, row: int, among: np.ndarray) -> set[int]:
    tau = hours[among] - hours[row]
    return set(among[(track[among] == track[row]) & (tau >= 0.5) & (tau <= 2.0)].tolist())


def test_a_positive_is_a_later_cell_of_the_lineage_in_memory() -> None:
    rng = np.random.default_rng(0)
    track, hours = rng.integers(0, 30, 500), rng.integers(0, 20, 500) / 4
    pairs = Pairs(track, hours, (0.5, 2.0), seed=0)
    among = np.sort(rng.choice(500, 200, replace=False))
    rows, seen = np.repeat(among, 2), set()
    for epoch in range(30):
        later = pairs.draw(rows, among, epoch)
        for row, positive in zip(rows, later, strict=True):
            wanted = pairs_by_hand(track, hours, row, among) or {row}
            assert positive in wanted
            seen.add((row, positive))
    possible = {(row, one) for row in among for one in pairs_by_hand(track, hours, row, among) or {row}}
    assert len(seen) > 0.95 * len(possible)
    assert np.array_equal(pairs.draw(rows, among, 3), pairs.draw(rows[::-1], among, 3)[::-1])
    assert not np.array_equal(pairs.draw(rows, among, 3), Pairs(track, hours, (0.5, 2.0), seed=1).draw(rows, among, 3))
    for tau in ((2.0, 0.5), (0.0, 0.0), (np.nan, 1.0)):
        with pytest.raises(ValueError, match="must be two times in hours"):
            Pairs(track, hours, tau, seed=0)


@pytest.mark.parametrize("paired", [False, True])
def test_the_short_last_batch_of_a_pass_holds_the_last_cells(paths: dict[bool, Path], paired: bool) -> None:
    dataset = load_anndata(paths[False], columns={"hours": "hours", "track": "track"})
    if paired:
        pairs = Pairs(dataset.cells.column("track").codes, dataset.cells.hours, (0.5, 3.0), seed=0)
        dataset = StoredCells(dataset.store, dataset.cells, "track", ExpressionViews(), pairs)
    sampler = ChunksInOrder(dataset.cells, None, 64, 16, 16, drop_last=False)
    batches = list(make_chunked_loader(dataset, sampler))
    positions = [batch["meta"]["position"].numpy() for batch in batches]
    assert [len(rows) for rows in positions] == [64] * 31 + [16]
    assert np.array_equal(np.concatenate(positions), np.arange(2000))
    assert all(
        np.array_equal(batch["anchor"].numpy(), dataset.recorded(rows))
        and batch["positive"].shape == batch["anchor"].shape
        for batch, rows in zip(batches, positions, strict=True)
    )


def test_positives_come_with_their_anchors_and_those_without_are_counted(paths: dict[bool, Path]) -> None:
    store = Store(paths[False])
    base = load_anndata(paths[False], columns={"hours": "hours", "track": "track"})
    pairs = Pairs(base.cells.column("track").codes, base.cells.hours, (0.5, 3.0), seed=0)
    dataset = StoredCells(store, base.cells, "track", ExpressionViews(), pairs)
    track, inputs = base.cells.column("track").codes, store.read(0, 2000)
    row_of = {number: row for row, number in enumerate(inputs[:, 0].tolist())}
    sampler = ChunkedBatchSampler(dataset.cells, {}, 32, 16, 120, num_batches=40)
    alone = 0
    for batch in make_chunked_loader(dataset, sampler):
        anchor, later = (np.array([row_of[n] for n in batch[key][:, 0].tolist()]) for key in ("anchor", "positive"))
        tau = batch["meta"]["tau_hours"].numpy()
        assert np.array_equal(inputs[anchor], batch["anchor"].numpy())
        assert np.array_equal(inputs[later], batch["positive"].numpy())
        assert np.array_equal(track[anchor], track[later]) and np.array_equal(np.isnan(tau), anchor == later)
        assert np.allclose(tau[anchor != later], (base.cells.hours[later] - base.cells.hours[anchor])[anchor != later])
        assert batch["meta"]["second_views"] == (anchor == later).sum()
        alone += batch["meta"]["second_views"]
    assert 0 < alone < 0.9 * 40 * 32
    again = next(iter(make_loader(dataset, BatchSampler(dataset.cells, batch_size=64))))
    assert 0 < again["meta"]["second_views"] < 64


def test_positives_read_in_chunks_are_those_of_the_epoch(paths: dict[bool, Path]) -> None:
    drawn: list[tuple[np.ndarray, np.ndarray, int, np.ndarray]] = []

    class Noted(Pairs):
        def draw(self, rows: np.ndarray, among: np.ndarray, epoch: int) -> np.ndarray:
            drawn.append((rows, among, epoch, super().draw(rows, among, epoch)))
            return drawn[-1][-1]

    base = load_anndata(paths[False], columns={"hours": "hours", "track": "track"})
    pairs = Noted(base.cells.column("track").codes, base.cells.hours, (0.5, 3.0), seed=0)
    dataset = StoredCells(base.store, base.cells, "track", ExpressionViews(), pairs)
    loader = make_chunked_loader(dataset, ChunkedBatchSampler(dataset.cells, {}, 32, 16, 120, num_batches=4))
    for epoch in range(3):
        drawn.clear()
        places = [(batch["meta"]["epoch"], batch["meta"]["position"].numpy()) for batch in loader]
        rows, anchors = np.concatenate([rows for _, rows in places]), np.concatenate([row[0] for row in drawn])
        assert {at for at, _ in places} == {row[2] for row in drawn} == {epoch}
        assert np.array_equal(rows, anchors[: len(rows)])  # drawn for a whole chunk window at once
    rows, among, _, later = drawn[0]
    assert not np.array_equal(pairs.draw(rows, among, 0), later)


def test_expression_views_are_a_function_of_inputs_and_key() -> None:
    inputs = torch.from_numpy(np.random.default_rng(0).normal(5, 2, (256, 40)).astype(np.float32))
    kept, views = inputs.clone(), ExpressionViews(dropout=0.3, noise=0.1)
    torch.manual_seed(0)
    state = torch.get_rng_state()
    one = views(inputs, (0, 1, 2))
    assert torch.equal(one, views(inputs, (0, 1, 2))) and not torch.equal(one, views(inputs, (0, 1, 3)))
    assert torch.equal(inputs, kept) and torch.equal(torch.get_rng_state(), state)
    dropped = one == 0
    assert abs(float(dropped.float().mean()) - 0.3) < 0.02
    noise = ((one - inputs) / inputs.std(0, correction=0))[~dropped]
    assert abs(float(noise.std()) - 0.1) < 0.005 and abs(float(noise.mean())) < 0.005
    assert torch.equal(ExpressionViews(0.0, 0.0)(inputs, (0,)), inputs)


@pytest.mark.parametrize(
    ("options", "said"), [((1.0, 0.1), "dropout=1.0"), ((0.1, -1), "noise=-1"), ((0.1, np.nan), "noise")]
)
def test_expression_views_out_of_range_are_refused(options: tuple[float, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ExpressionViews(*options)
    with pytest.raises(ValueError, match=r"take \(batch, n_features\)"):
        ExpressionViews()(torch.zeros(2, 3, 4), (0,))


def test_windows_are_read_ahead_in_their_order_and_no_further() -> None:
    asked: list[int] = []

    def requests() -> Iterator[Any]:
        for number in range(6):
            asked.append(number)
            yield number

    windows = read_ahead(lambda number: iter([number]), requests())
    for number, batches in enumerate(windows):
        assert asked == list(range(min(number + 1 + AHEAD, 6)))
        assert list(batches) == [number]
    assert asked == list(range(6))
