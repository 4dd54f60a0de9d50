"""Pairs by labels and time in every kind of data, checked by pandas."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cellcohort.augment.features import Augment
from cellcohort.augment.image import ImageViews
from cellcohort.data.anndata import AnnData
from cellcohort.data.patches import StoredPatches
from cellcohort.data.table import Table
from cellcohort.data.timelapse import Timelapse
from cellcohort.data.tracks import Tracks
from cellcohort.datasets.partners import PairRule
from cellcohort.datasets.split import split
from cellcohort.loading.chunks import make_chunked_loader
from cellcohort.loading.rows import make_loader
from cellcohort.preparation import prepare
from cellcohort.sampling import BatchSampler, ChunkedBatchSampler
from cellcohort.sampling.batch import Batch
from cellcohort.sources.timelapse import Patches as CollectionPatches
from plates import two_plates
from stores import QUIET, prepared

pytestmark = [*QUIET, pytest.mark.filterwarnings("ignore:1 of 3 conditions has no cell for validation")]
ACROSS = PairRule(same=["condition"], different=["experiment"], hours_at_most=3.0)
WITHIN = PairRule(same="experiment", different=["condition", "track"], hours_at_least=0.5)
RULES = [PairRule(same="condition"), PairRule(same=["condition"], different="experiment"), ACROSS, WITHIN]
COLUMNS = {"hours": "hours", "track": "track"}


def tracks() -> pd.DataFrame:
    """Three experiments with 6 tracks each, of two conditions; "odd" is one cell of a condition of its own."""
    rows = [(e, k, t) for e in "abc" for k in range(6) for t in range(10)]
    frame = pd.DataFrame(rows, columns=["experiment", "track", "time"])
    frame["condition"] = np.where(frame["track"] % 2, "drug", "mock")
    frame["area"] = np.arange(len(frame), dtype=float)
    frame.loc[17, "condition"] = "odd"
    return frame


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One source of every kind, with few cells."""
    folder = tmp_path_factory.mktemp("sources")
    frame = tracks()
    frame.to_parquet(folder / "cells.parquet")
    frame.assign(hours=frame["time"] / 2).to_csv(folder / "cells.csv", index=False)
    collection = two_plates(folder)
    shape = {"path": collection, "patch": (1, 8, 8), "normalise": "none", "cache": folder / "cache"}
    views = ImageViews(noise=0.1)
    store = prepare(
        CollectionPatches(Timelapse(**shape)), folder / "patches.zarr", chunk_rows=8, shard_rows=32, dataset_rows=64
    ).path
    return {
        "tracks": Tracks(folder / "cells.parquet", {"features": ["area"]}, 30, frames=1),
        "timelapse": Timelapse(**shape, augment=views),
        "anndata": AnnData(prepared(folder, 700).path, COLUMNS),
        "patches": StoredPatches(store, augment=views),
        "table": Table(folder / "cells.csv", COLUMNS),
    }


READ = ["tracks", "timelapse", "anndata", "patches"]


def frame_of(dataset: Any) -> pd.DataFrame:
    cells = dataset.cells
    named = {name: cells.column(name) for name in ("experiment", "condition", "track")}
    labels = {name: [column.labels[code] for code in column.codes] for name, column in named.items()}
    return pd.DataFrame(labels).assign(hours=cells.hours)


def check(frame: pd.DataFrame, positions: np.ndarray, partners: np.ndarray, rule: PairRule) -> np.ndarray:
    """Compare the labels of pairs, and that only cells without a partner have none; gives which have one."""
    one, other = frame.iloc[positions].reset_index(drop=True), frame.iloc[partners].reset_index(drop=True)
    paired = partners != positions
    for option, differs in ((rule.same, False), (rule.different, True)):
        for name in [option] if isinstance(option, str) else option or []:
            assert ((one[name] != other[name]) == differs)[paired].all(), name
    apart = (one["hours"] - other["hours"]).abs()[paired]
    assert (apart <= (rule.hours_at_most or 1e9) + 1e-6).all() and (apart >= (rule.hours_at_least or 0) - 1e-6).all()
    return paired


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("name", READ)
def test_no_pair_breaks_the_rule_or_crosses_the_split(sources: dict[str, Any], name: str, rule: PairRule) -> None:
    whole = sources[name].dataset(rule)
    for part in split(whole, fraction=0.4):
        frame, every = frame_of(part), np.arange(len(part))
        batch = part.__getitems__(Batch(every.tolist(), 3, 0))
        partner = batch["meta"]["partner"].numpy()
        paired = check(frame, every, partner, rule)
        assert np.array_equal(paired, part.partners.counts(every) > 0) and paired.any()
        recorded = part.recorded(partner)
        if name != "tracks":  # whose windows come augmented
            assert np.array_equal(batch["positive"].numpy(), recorded)
        hours = frame["hours"].to_numpy()
        assert np.allclose(batch["meta"]["tau_hours"].numpy()[paired], (hours[partner] - hours)[paired], atol=1e-4)
        assert np.isnan(batch["meta"]["tau_hours"].numpy()[~paired]).all()


@pytest.mark.parametrize("name", [*READ, "table"])
def test_labels_alone_have_the_same_cells_and_partners(sources: dict[str, Any], name: str) -> None:
    labelled, _ = split(sources[name].cells(["condition"], ACROSS), fraction=0.4)
    assert check(frame_of(labelled), *drawn(labelled, 1), ACROSS).any()
    if name != "table":
        dataset, _ = split(sources[name].dataset(ACROSS), fraction=0.4)
        pd.testing.assert_frame_equal(frame_of(labelled), frame_of(dataset))
        assert np.array_equal(drawn(dataset, 1)[1], drawn(labelled, 1)[1])


def drawn(part: Any, epoch: int) -> tuple[np.ndarray, np.ndarray]:
    every = np.arange(len(part))
    rows = every if part.cells.rows is None else part.cells.rows
    return every, part.partners.draw(every, rows, epoch)


@pytest.mark.parametrize("name", READ)
def test_every_cell_can_be_an_anchor_and_without_a_rule_nothing_changes(sources: dict[str, Any], name: str) -> None:
    source = sources[name]
    usual, empty = source.dataset(), source.dataset(PairRule(missing="leave_out"))
    assert len(usual) == len(empty) <= len(source.dataset(ACROSS)) == len(usual.every_cell())
    one, other = (data.__getitems__(Batch([0, 1, 2], 1, 0)) for data in (usual, empty))
    assert np.array_equal(one["positive"], other["positive"]) and "partner" not in other["meta"]
    assert source.dataset(ACROSS).every_cell().partners is None, "no part of a split, so no pairs"


@pytest.mark.parametrize("name", ["tracks", "timelapse"])
def test_a_draw_is_the_same_for_any_batch_worker_and_copy(sources: dict[str, Any], name: str) -> None:
    part, _ = split(sources[name].dataset(ACROSS), fraction=0.4)
    every = np.arange(len(part))
    whole = part.__getitems__(Batch(every.tolist(), 2, 0))["meta"]["partner"].numpy()
    some = np.random.default_rng(0).permutation(every)[:20]
    for copied in (part, pickle.loads(pickle.dumps(part))):
        assert np.array_equal(copied.__getitems__(Batch(some.tolist(), 2, 9))["meta"]["partner"], whole[some])
    sampler = BatchSampler(part.cells, batch_size=16, rank=1, world_size=2)
    sampler.set_epoch(2)
    for batch in make_loader(part, sampler):
        assert np.array_equal(batch["meta"]["partner"], whole[batch["meta"]["position"]])


@pytest.mark.parametrize("missing", ["view", "leave_out"])
def test_a_cell_without_a_partner_is_its_own_or_left_out(sources: dict[str, Any], missing: Any) -> None:
    rule = PairRule(same="condition", different="experiment", missing=missing)
    source = sources["tracks"]
    for data in (source.dataset(rule), source.cells((), rule)):
        training, validation = split(data, fraction=0.4)
        assert training.n_left_out + validation.n_left_out == (missing == "leave_out")
        assert len(training) + len(validation) == 180 - (missing == "leave_out")
        counts = training.partners.counts(np.arange(len(training)))
        frame = frame_of(training)
        assert np.array_equal(counts == 0, (frame["condition"] == "odd").to_numpy())
    with pytest.raises(ValueError, match=r"none of \d+ cells for training has a partner there with the same condition"):
        split(source.dataset(PairRule("condition", "experiment")), by="experiment", held_out=["a", "b"])


def test_validation_without_a_pair_is_a_warning_or_refused(sources: dict[str, Any]) -> None:
    held: dict[str, Any] = {"by": "experiment", "held_out": ["c"]}
    with pytest.warns(UserWarning, match="none of 60 cells for validation has a partner.*val/loss"):
        _, validation = split(sources["tracks"].cells((), PairRule(different="experiment")), **held)
    assert len(validation) == 60
    with pytest.raises(ValueError, match="none of 60 cells for validation"):
        split(sources["tracks"].cells((), PairRule(different="experiment", missing="leave_out")), **held)


@pytest.mark.parametrize("name", [*READ, "table"])
def test_columns_that_are_not_there_are_named(sources: dict[str, Any], name: str) -> None:
    read: Callable[..., Any] = sources[name].cells if name == "table" else sources[name].dataset
    rule = PairRule(same="dose")
    with pytest.raises(ValueError, match=r"pairs.same='dose': the table has no column 'dose'; it has .*condition"):
        split(read(**({"pairs": rule})), fraction=0.4)


def test_cells_must_not_be_paired_with_themselves_unchanged(sources: dict[str, Any], tmp_path: Path) -> None:
    tracks().to_parquet(tmp_path / "cells.parquet")
    still = Tracks(tmp_path / "cells.parquet", {"features": ["area"]}, 30, augment=Augment(0, 0, 0), frames=1)
    with pytest.raises(ValueError, match="pair cells with themselves"):
        still.dataset(PairRule(same="condition"))
    assert len(still.dataset(PairRule(same="condition", missing="leave_out"))) == 180
    plates = sources["timelapse"]
    bare = Timelapse(path=plates.path, patch=plates.patch, normalise="none", cache=plates.cache)
    with pytest.raises(ValueError, match=r"pairs\.missing=.view. without augment"):
        bare.dataset(PairRule(same="condition"))


def test_the_columns_that_pairs_have_in_common_are_known(sources: dict[str, Any]) -> None:
    by_columns = replace(sources["timelapse"], positive="columns", positive_columns=["condition"])
    for data in (by_columns.dataset(), by_columns.cells()):
        assert data.together == ["condition"]
    assert by_columns.dataset(ACROSS).together == ["condition"]
    assert by_columns.cells((), WITHIN).together == ["experiment"]
    assert all(sources[name].dataset().together == [] for name in READ)


@pytest.mark.filterwarnings("ignore:in . of 4 epochs")
@pytest.mark.parametrize("name", ["anndata", "patches"])
def test_chunks_pair_among_what_is_in_memory_and_count_who_has_none(sources: dict[str, Any], name: str) -> None:
    rule = PairRule(same="condition", different="track", hours_at_most=0.5)
    part, held_out = split(sources[name].dataset(rule), fraction=0.4)
    sizes = {"anndata": (16, 16, 6), "patches": (8, 8, 3)}
    batch_size, chunk_size, preload = sizes[name]
    sampler = ChunkedBatchSampler(part.cells, {}, batch_size, chunk_size, preload, num_batches=20)
    frame, store = frame_of(part), part.store
    alone = anywhere = n = 0
    windows = {step: read for begin, read in sampler.requests(0) for step in range(begin, begin + len(read))}
    for batch in make_chunked_loader(part, sampler):
        meta = batch["meta"]
        position, partner = meta["position"].numpy(), meta["partner"].numpy()
        paired = check(frame, position, partner, rule)
        chunks = {int(row) // chunk_size for read in windows[meta["step"]] for row in part.rows[read]}
        assert {int(row) // chunk_size for row in part.rows[partner]} <= chunks
        assert np.array_equal(batch["positive"].numpy(), store.take(part.rows[partner]))
        assert not np.isin(part.rows[partner], held_out.rows).any()
        assert meta["second_views"] == (~paired).sum()
        alone += int((~paired).sum())
        anywhere += int((part.partners.counts(position) == 0).sum())
        n += len(position)
    assert anywhere <= alone < n


@pytest.mark.filterwarnings("ignore:in . of 4 epochs")
@pytest.mark.parametrize("step", [1, 3, 8])
def test_a_resumed_pass_draws_the_same_partners_inside_a_chunk_window(sources: dict[str, Any], step: int) -> None:
    part, _ = split(sources["anndata"].dataset(PairRule(same="condition", different="track")), fraction=0.4)

    def loader() -> Any:
        return make_chunked_loader(part, ChunkedBatchSampler(part.cells, {}, 16, 16, 8, num_batches=12))

    whole = [batch["meta"]["partner"] for batch in loader()]
    resumed = loader()
    assert resumed.batch_sampler.per_window > 2
    resumed.load_state_dict({"epoch": 0, "step": step, "sampler": resumed.batch_sampler.signature})
    rest = [batch["meta"]["partner"] for batch in resumed]
    assert len(rest) == 12 - step
    assert all(np.array_equal(one, other) for one, other in zip(rest, whole[step:], strict=True))
