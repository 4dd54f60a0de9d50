from __future__ import annotations

import pickle
import re
import warnings
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import annbatch
import anndata
import numpy as np
import pandas as pd
import pytest
import zarr
from annbatch.samplers import DistributedSampler
from scipy import sparse
from torch.utils.data import DataLoader

import oracle
from cellcohort.cells import CellTable
from cellcohort.composition.meter import StepMeter
from cellcohort.preview import cover, findings, report, survey
from cellcohort.sampling import (
    BatchSampler,
    ChunkedBatchSampler,
    ChunksInOrder,
    ChunksShuffled,
    ConditionBalanced,
    ExperimentAware,
    ShortfallWarning,
    TemporallyEnriched,
    TrackCapped,
)
from cellcohort.sampling.axes.base import Axis
from cellcohort.sampling.chunked.picker import ChunkPicker
from cellcohort.sampling.chunked.planner import ChunkWindow, WindowPlanner
from cellcohort.sampling.chunked.read_cost import reading
from cellcohort.sampling.chunked.sampler import ChunkSampler
from cellcohort.sampling.coverage import coverage
from launches import processes

pytestmark = [
    pytest.mark.filterwarnings("ignore:The '.*' option is deprecated"),  # anndata asks pandas for it
    pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part"),
]
BATCH, CHUNK, PRELOAD = 32, 16, 16
AXES: dict[str, dict[str, Any]] = {
    "random": {},
    "experiment": {"experiment": ExperimentAware()},
    "leaky": {"experiment": ExperimentAware(0.1)},
    "condition": {"condition": ConditionBalanced()},
    "two": {"experiment": ExperimentAware(0.1), "condition": ConditionBalanced()},
    "three": {
        "experiment": ExperimentAware(0.1),
        "condition": ConditionBalanced(),
        "temporal": TemporallyEnriched(window_hours=2.0),
    },
    "three unmixed": {
        "experiment": ExperimentAware(),
        "condition": ConditionBalanced(),
        "temporal": TemporallyEnriched(window_hours=2.0),
    },
}


def make_frame(n: int = 12_000, seed: int = 0) -> pd.DataFrame:
    """Cells in random order: 3 experiments, conditions at 50/30/20 %, hours 0 to 12."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "experiment": [f"e{i}" for i in rng.choice(3, n, p=[0.4, 0.35, 0.25])],
            "condition": np.array(list("abc"))[np.searchsorted([0.5, 0.8], rng.random(n))],
            "hours_post_infection": rng.integers(0, 25, n) / 2,
        }
    )
    frame["track"] = [f"{e}-{i}" for e, i in zip(frame.experiment, rng.integers(0, n // 8, n), strict=True)]
    return frame


def prepared(frame: pd.DataFrame) -> pd.DataFrame:
    by = ["experiment", "condition", "hours_post_infection"]
    return frame.sort_values(by, kind="stable").reset_index(drop=True)


RANDOM = make_frame()
PREPARED = prepared(RANDOM)
CELLS = CellTable.from_frame(PREPARED, track="track")
MIXED = CellTable.from_frame(RANDOM, track="track")


def make(axes: str, cells: CellTable = CELLS, **options: Any) -> ChunkedBatchSampler:
    given: dict[str, Any] = {"batch_size": BATCH, "chunk_size": CHUNK, "preload_nchunks": PRELOAD, **options}
    return ChunkedBatchSampler(cells, AXES[axes], **given)


def epoch_of(sampler: BatchSampler, epoch: int = 0) -> np.ndarray:
    return np.stack([sampler.batch(epoch, step) for step in range(len(sampler))])


# what batches hold


@pytest.mark.parametrize("axes", AXES)
def test_batches_have_the_asked_size_and_no_cell_twice(axes: str) -> None:
    batches = epoch_of(make(axes))
    assert batches.shape == (len(PREPARED) // BATCH, BATCH)
    assert all(len(set(batch)) == BATCH for batch in batches.tolist())


@pytest.mark.parametrize("epoch", [0, 3])
@pytest.mark.parametrize("axes", AXES)
def test_every_batch_holds_what_the_axes_ask(axes: str, epoch: int) -> None:
    sampler = make(axes)
    leaky = next((axis.leaky for axis in sampler.axes.values() if isinstance(axis, ExperimentAware)), 0.0)
    for step, batch in enumerate(epoch_of(sampler, epoch)):
        asked, cells = sampler.asked(epoch, step), PREPARED.iloc[batch]
        if asked.experiment is not None:
            leader = CELLS.column("experiment").labels[asked.experiment]
            assert abs((cells.experiment == leader).sum() - BATCH * (1 - leaky)) < 1
        if "condition" in sampler.axes:
            counts = cells.condition.value_counts().reindex(list("abc"), fill_value=0)
            assert (np.abs(counts - BATCH / 3) < 1).all()
        if "temporal" in sampler.axes:
            near = (cells.hours_post_infection - asked.focal_hours).abs() <= asked.window_hours
            assert abs(near.sum() - BATCH * asked.inside) < 1
            assert asked.focal_hours in PREPARED.hours_post_infection[PREPARED.experiment == leader].unique()


@pytest.mark.parametrize("axes", ["experiment", "condition"])
def test_in_random_order_too_every_batch_holds_what_one_axis_asks(axes: str) -> None:
    sampler = make(axes, MIXED)
    for step, batch in enumerate(epoch_of(sampler)):
        asked, cells = sampler.asked(0, step), RANDOM.iloc[batch]
        if axes == "experiment":
            assert set(cells.experiment) == {MIXED.column("experiment").labels[asked.experiment or 0]}
        else:
            assert (np.abs(cells.condition.value_counts() - BATCH / 3) < 1).all()


def test_spare_places_and_focal_times_go_round() -> None:
    sampler = make("three unmixed")
    cells = PREPARED.iloc[epoch_of(sampler).ravel()]
    totals = cells.condition.value_counts() / len(cells)
    assert np.allclose(totals, 1 / 3, atol=0.002)
    focal = [sampler.asked(epoch, step).focal_hours for epoch in range(3) for step in range(len(sampler))]
    assert set(focal) == set(PREPARED.hours_post_infection)


def test_cells_leak_from_all_other_experiments() -> None:
    sampler = make("leaky")
    leaks = np.zeros((3, 3))
    for step, batch in enumerate(epoch_of(sampler)):
        leader = sampler.asked(0, step).experiment or 0
        leaks[leader] += np.bincount(CELLS.column("experiment").codes[batch], minlength=3)
        leaks[leader, leader] = 0
    assert (leaks + np.eye(3) > 0).all()


def test_cells_leak_from_wherever_there_are_some_of_their_condition() -> None:
    """Of condition c, the others of e0 have three cells: two in e1 and one in e2."""
    sizes = {("e0", "a"): 960, ("e0", "c"): 960, ("e1", "a"): 960, ("e1", "c"): 2, ("e2", "a"): 957, ("e2", "c"): 1}
    frame = pd.DataFrame([label for label, n in sizes.items() for _ in range(n)], columns=["experiment", "condition"])
    axes: dict[str, Any] = {"experiment": ExperimentAware(0.25), "condition": ConditionBalanced()}
    with pytest.warns(ShortfallWarning):
        sampler = ChunkedBatchSampler(CellTable.from_frame(frame, hours=None), axes, BATCH, CHUNK, PRELOAD)
    led_by_first = 0
    for step, batch in enumerate(epoch_of(sampler)):
        leader = sampler.cells.column("experiment").labels[sampler.asked(0, step).experiment or 0]
        held = frame.iloc[batch].value_counts().to_dict()
        leaked = {label: n for label, n in held.items() if label[0] != leader}
        assert len(set(batch)) == BATCH and sum(leaked.values()) == BATCH * 0.25
        if leader == "e0":
            led_by_first += 1
            assert held["e0", "a"] == held["e0", "c"] == BATCH * 0.75 / 2
            assert sum(n for (_, condition), n in leaked.items() if condition == "c") == 3
    assert led_by_first > 20


def test_experiments_lead_in_proportion_to_their_cells() -> None:
    sampler = make("two")
    led = [sampler.asked(epoch, step).experiment for epoch in range(4) for step in range(len(sampler))]
    assert np.allclose(np.bincount(led) / len(led), [0.4, 0.35, 0.25], atol=0.03)  # type: ignore[arg-type]


def test_tracks_are_capped_where_there_are_enough() -> None:
    axes: dict[str, Axis] = {"condition": ConditionBalanced(), "track": TrackCapped(1)}

    def repeats(axes: dict[str, Axis]) -> int:
        samplers = [ChunkedBatchSampler(CELLS, axes, BATCH, CHUNK, PRELOAD, seed=seed) for seed in range(4)]
        return sum(BATCH - PREPARED.track.iloc[batch].nunique() for each in samplers for batch in epoch_of(each))

    assert repeats(axes) < 0.25 * repeats({"condition": axes["condition"]})


def test_cells_of_weight_0_are_never_drawn() -> None:
    axes = {"experiment": ExperimentAware(0.2, {"e0": 1, "e1": 1, "e2": 0})}
    sampler = ChunkedBatchSampler(CELLS, axes, BATCH, CHUNK, PRELOAD)
    assert set(PREPARED.experiment.iloc[epoch_of(sampler).ravel()]) == {"e0", "e1"}


# windows


@pytest.mark.parametrize("axes", AXES)
def test_batches_of_one_window_share_cells_only_where_the_store_has_no_more(axes: str) -> None:
    sampler = make(axes)
    experiment, condition = PREPARED.experiment.to_numpy(), PREPARED.condition.to_numpy()
    for step, batches in sampler.requests(0):
        positions = np.concatenate(batches)
        cells, times = np.unique(positions, return_counts=True)
        for cell in cells[times > 1]:
            stratum = np.ones(len(PREPARED), bool)
            if "experiment" in sampler.axes:
                stratum &= experiment == experiment[cell]
            if "condition" in sampler.axes:
                stratum &= condition == condition[cell]
            assert "temporal" in sampler.axes or stratum.sum() < stratum[positions].sum(), (step, cell)
        assert (times > 1).mean() < 0.1


@pytest.mark.parametrize(("axes", "most"), [("random", 1.01), ("leaky", 1.1), ("two", 1.25), ("three unmixed", 1.25)])
def test_a_prepared_store_is_read_with_little_waste(axes: str, most: float) -> None:
    cost = reading(make(axes))
    assert cost.amplification < most and cost.most_rows <= CHUNK * PRELOAD and cost.batches > 1


def test_a_store_in_random_order_is_read_near_the_least_that_its_census_allows() -> None:
    cost = reading(make("condition", MIXED))
    assert cost.least > 1.2 and cost.amplification < 1.3 * cost.least
    assert reading(make("experiment", MIXED, preload_nchunks=64)).amplification < 1.25


@pytest.mark.parametrize("seed", [2, 7, 14, 27])
def test_windows_of_later_epochs_too_load_no_more_chunks_than_they_may(seed: int) -> None:
    labels = np.random.default_rng(seed).choice(list("abcd"), 600, p=[0.3, 0.3, 0.1, 0.3])
    cells = CellTable.from_frame(pd.DataFrame({"condition": labels}), experiment=None, hours=None)
    sampler = ChunkedBatchSampler(cells, {"condition": ConditionBalanced()}, 16, CHUNK, 8, seed=seed)
    loads = [load for epoch in range(20) for load in loads_of(sampler, 600, epoch)]
    assert max(loads) <= 8 and sampler.per_window > 1


def loads_of(sampler: ChunkSampler, n: int, epoch: int = 0) -> list[int]:
    """Chunks that each window of an epoch loads."""
    return [len(sampler.load_request(positions, n)["requests"]) for _, positions in sampler.requests(epoch)]


@pytest.mark.parametrize("kind", [ChunkedBatchSampler, ChunksShuffled, ChunksInOrder])
def test_windows_without_axes_load_no_more_chunks_where_not_all_rows_are_cells(kind: type[ChunkSampler]) -> None:
    kept = np.flatnonzero(np.random.default_rng(0).random(len(PREPARED)) < 0.5)
    part = CELLS.take(kept[kept > 40 * CHUNK])
    sampler = kind(part, None, BATCH, CHUNK, PRELOAD)
    loads = [load for epoch in range(4) for load in loads_of(sampler, len(PREPARED), epoch)]
    assert PRELOAD / 2 < max(loads) <= PRELOAD
    drawn = epoch_of(sampler).ravel()
    assert len(np.unique(drawn)) == len(drawn) == len(part) // BATCH * BATCH
    with pytest.warns(ShortfallWarning, match=r"256 cells lies in up to 3\d chunks of 16.*Use preload_nchunks=3\d"):
        kind(part, None, 256, CHUNK, PRELOAD)


def test_an_epoch_without_axes_that_goes_round_more_than_once_loads_no_more_chunks() -> None:
    sampler = make("random", num_batches=1000)
    one_round, loads = len(PREPARED) // BATCH, loads_of(sampler, len(PREPARED))
    assert one_round % sampler.per_window and max(loads) <= PRELOAD + 2  # windows that end one round and begin another
    drawn = epoch_of(sampler)
    for batches in (drawn[:one_round], drawn[one_round : 2 * one_round]):
        assert len(np.unique(batches)) == one_round * BATCH
    assert not np.array_equal(drawn[:one_round], drawn[one_round : 2 * one_round])


@pytest.mark.parametrize("axes", ["condition", "two"])
def test_cells_of_a_store_in_random_order_come_as_evenly_as_drawn_at_random(axes: str) -> None:
    frame = make_frame(4000).sample(frac=1, random_state=0).reset_index(drop=True)
    sampler = ChunkedBatchSampler(CellTable.from_frame(frame), AXES[axes], BATCH, CHUNK, 128)
    times = np.zeros(len(frame))
    for epoch in range(30):
        np.add.at(times, epoch_of(sampler, epoch).ravel(), 1)
    for _, stratum in frame.groupby("condition", observed=True):
        drawn = times[stratum.index]
        assert drawn.var() < 2 * drawn.mean(), "the variance of draws at random is their mean"
        assert (drawn == 0).mean() < 2 * np.exp(-drawn.mean()) + 0.01


def rare(layout: str) -> tuple[pd.Series, dict[str, int]]:
    """Conditions of cells of which those of a common one lie beside those of a rare one, and the sizes of batches."""
    rng, n = np.random.default_rng(0), 6000
    if layout == "in few chunks":
        drug = rng.random(n) < 0.02
        return pd.Series(np.where(drug, "drug", "mock")), {"batch_size": 32, "chunk_size": 8, "preload_nchunks": 256}
    if layout == "on one plate":
        drug = (np.arange(n) < n // 4) & (rng.random(n) < 0.2)
        return pd.Series(np.where(drug, "drug", "mock")), {"batch_size": 64, "chunk_size": 16, "preload_nchunks": 64}
    tiny = pd.Series(["a"] * 10 + ["mock"] * 8000 + ["z"] * 300)
    if layout == "a few cells":
        return tiny, {"batch_size": 16, "chunk_size": 32, "preload_nchunks": 4}
    shuffled = tiny.sample(frac=1, random_state=0).reset_index(drop=True)
    return shuffled, {"batch_size": 16, "chunk_size": 64, "preload_nchunks": 32}


@pytest.mark.parametrize("layout", ["in few chunks", "on one plate", "a few cells", "a few cells in random order"])
def test_cells_come_as_often_whether_rare_ones_lie_beside_them_or_not(layout: str) -> None:
    condition, sizes = rare(layout)
    cells = CellTable.from_frame(condition.to_frame("condition"), experiment=None, hours=None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ShortfallWarning)  # some conditions have too few cells
        sampler = ChunkedBatchSampler(cells, {"condition": ConditionBalanced()}, **sizes)
    times = np.zeros(len(cells))
    for epoch in range(30):
        np.add.at(times, epoch_of(sampler, epoch).ravel(), 1)
    drawn = times[condition == "mock"]
    assert drawn.mean() > 8 and drawn.var() < 3 * drawn.mean() and (drawn == 0).mean() < 0.001


@pytest.mark.parametrize("num_batches", [1, 3, 25])
def test_experiments_lead_in_proportion_however_few_batches_an_epoch_has(num_batches: int) -> None:
    frame = pd.DataFrame({"experiment": np.repeat(list("abcd"), (3600, 1200, 600, 600))})
    cells = CellTable.from_frame(frame, condition=None, hours=None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ShortfallWarning)  # an epoch has too few batches for all
        sampler = ChunkedBatchSampler(cells, {"e": ExperimentAware(0.1)}, 64, 32, 32, num_batches=num_batches)
    assert sampler.per_window > 1
    led = [sampler.asked(epoch, step).experiment for epoch in range(300) for step in range(num_batches)]
    assert np.allclose(np.bincount(led, minlength=4) / len(led), [0.6, 0.2, 0.1, 0.1], atol=0.06)  # type: ignore[arg-type]


def test_windows_beyond_their_chunks_are_told_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = make("two")
    monkeypatch.setattr(sampler._picker, "_limit", 3)
    with pytest.warns(ShortfallWarning, match=r"loads \d+ chunks, since its .* be cut from preload_nchunks=3;") as told:
        loads = [len(np.unique(np.concatenate(load) // CHUNK)) for _, load in sampler.requests(5)]
    assert min(loads) > 3 and len(loads) > 1 and len(told) == 1


def test_a_store_that_is_laid_out_is_not_to_be_laid_out() -> None:
    frame = pd.DataFrame({"condition": np.repeat(list("abcde"), 320)})
    cells = CellTable.from_frame(frame, experiment=None, hours=None)
    with pytest.raises(ValueError, match=r"within preload_nchunks=2; use batch_sampler.preload_nchunks=\d or more"):
        ChunkedBatchSampler(cells, {"condition": ConditionBalanced()}, BATCH, CHUNK, 2)
    with pytest.raises(ValueError, match=r"lay the store out by condition \(scripts"):
        mixed = CellTable.from_frame(frame.sample(frac=1, random_state=0), experiment=None, hours=None)
        ChunkedBatchSampler(mixed, {"condition": ConditionBalanced()}, 64, CHUNK, 4)


@pytest.mark.parametrize("axes", ["leaky", "two", "three", "three unmixed"])
def test_every_cell_of_a_prepared_store_comes_some_time(axes: str) -> None:
    frame = prepared(make_frame(2000))
    cells = CellTable.from_frame(frame)
    sampler = ChunkedBatchSampler(cells, AXES[axes], BATCH, CHUNK, 32)
    drawn = np.concatenate([epoch_of(sampler, epoch) for epoch in range(40)])
    assert len(np.unique(drawn)) == len(frame)


@pytest.mark.parametrize("axes", AXES)
def test_an_epoch_covers_nearly_as_many_cells_as_row_by_row(axes: str) -> None:
    by_row = coverage(BatchSampler(CELLS, AXES[axes], BATCH)).share
    assert coverage(make(axes)).share > 0.9 * by_row


def test_without_axes_an_epoch_repeats_no_cell() -> None:
    for sampler in (make("random"), make("random", MIXED)):
        assert len(np.unique(epoch_of(sampler))) == len(sampler) * BATCH


# one pure sequence, dealt out


@pytest.mark.parametrize("axes", ["random", "two", "three"])
def test_any_batch_of_any_process_is_the_same_at_once(axes: str) -> None:
    one, other = make(axes), make(axes)
    steps = np.random.default_rng(0).permutation(len(one))[:40]
    at_random = {step: other.batch(2, int(step)) for step in steps}
    in_order = epoch_of(one, 2)
    assert all((in_order[step] == batch).all() for step, batch in at_random.items())
    unpickled = pickle.loads(pickle.dumps(one))
    assert (unpickled.batch(5, 7) == other.batch(5, 7)).all()


@pytest.mark.parametrize("axes", ["random", "two", "three"])
def test_epochs_and_seeds_differ(axes: str) -> None:
    sampler, other = make(axes), make(axes, seed=1)
    first = {frozenset(batch) for batch in epoch_of(sampler).tolist()}
    for batches in (epoch_of(sampler, 1), epoch_of(other)):
        assert not first & {frozenset(batch) for batch in batches.tolist()}


def test_planning_a_window_takes_no_room_for_the_rest_of_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = make("three")
    room, window = [], WindowPlanner.window

    def noted(self: Any, rotation: Any, epoch: int, number: int, attempt: int, most_chunks: int) -> ChunkWindow:
        room.append(most_chunks)
        return window(self, rotation, epoch, number, attempt, most_chunks)

    monkeypatch.setattr(WindowPlanner, "window", noted)
    epoch_of(sampler, epoch=7)
    assert room and max(room) <= sampler.preload_nchunks + 1 < sampler._picker.planner.n_chunks


@pytest.mark.parametrize("axes", ["condition", "three unmixed"])
def test_a_window_keeps_its_quotas_where_its_chunks_are_sought_elsewhere(axes: str) -> None:
    picker = make(axes)._picker
    assert isinstance(picker, ChunkPicker)
    condition = PREPARED.condition.to_numpy()

    def held(window: int, attempt: int) -> list[list[int]]:
        planned = picker.planner.window(picker.rotation, 0, window, attempt, picker.planner.n_chunks)
        return [[int((condition[batch] == label).sum()) for label in "abc"] for batch in planned.positions]

    windows = [held(window, 0) for window in range(4)]
    assert len({tuple(batch) for window in windows for batch in window}) > 1  # the odd cells go round
    assert [held(window, 20) for window in range(4)] == windows


def test_a_batch_belongs_to_who_asked_for_it() -> None:
    sampler = make("two")
    first = sampler.batch(0, 0).copy()
    sampler.batch(0, 0).sort()
    next(sampler.requests(0))[1][0][:] = 0
    assert (sampler.batch(0, 0) == first).all()


def test_cells_may_come_twice_in_a_table() -> None:
    rng = np.random.default_rng(0)
    some = np.sort(np.concatenate([np.repeat(np.arange(400), 10), rng.integers(0, len(PREPARED), 6000)]))
    sampler = make("two", CELLS.take(some))
    assert sampler._picker.planner.table.largest > CHUNK  # type: ignore[union-attr]
    for step, batch in enumerate(epoch_of(sampler)):
        counts = PREPARED.condition.iloc[some[batch]].value_counts()
        assert len(set(batch.tolist())) == BATCH and len(counts) == 3 and abs(counts - BATCH / 3).max() < 1
        requests = sampler.load_request(batch[None], len(PREPARED))
        rows = np.concatenate([np.arange(run.start, run.stop) for run in requests["requests"]])
        assert (rows[requests["splits"][0]] == some[batch]).all(), step


def test_nothing_comes_from_a_global_generator() -> None:
    before = np.random.get_state()[1].copy()  # type: ignore[index,union-attr]
    list(make("three").sample(len(PREPARED)))
    assert (np.random.get_state()[1] == before).all()  # type: ignore[index]


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("axes", ["random", "two", "three"])
def test_ranks_have_equally_many_batches_of_one_sequence_and_meet_every_experiment(axes: str, world_size: int) -> None:
    alone = make(axes)
    ranks = [alone.for_rank(rank, world_size) for rank in range(world_size)]
    assert {len(rank) for rank in ranks} == {len(alone) // world_size}
    size = alone.per_window
    for rank, sampler in enumerate(ranks):
        for step in range(0, min(len(sampler), 40), 7):
            window, place = divmod(step, size)
            assert (sampler.batch(1, step) == alone.batch(1, (window * world_size + rank) * size + place)).all()
        if axes != "random":
            assert {sampler.asked(0, step).experiment for step in range(len(sampler))} == {0, 1, 2}


def small(n: int = 1036, experiments: str = "abcd", **options: Any) -> ChunkedBatchSampler:
    """Experiments in some 65 chunks."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"experiment": rng.choice(list(experiments), n), "condition": rng.choice(list("xy"), n)})
    frame = frame.sort_values(["experiment", "condition"]).reset_index(drop=True)
    axes = {"experiment": ExperimentAware(), "condition": ConditionBalanced()}
    given: dict[str, Any] = {"batch_size": 16, "chunk_size": CHUNK, "preload_nchunks": 8, "world_size": 2, **options}
    return ChunkedBatchSampler(CellTable.from_frame(frame, hours=None), axes, **given)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"preload_nchunks": 16},
        {"preload_nchunks": 16, "batch_size": 64},
        {"n": 3000},
        {"n": 2000, "experiments": "abcdefghijkl", "preload_nchunks": 16},  # fewer cells each than a window holds
    ],
)
def test_ranks_meet_every_experiment_in_every_epoch_of_a_small_store(options: dict[str, Any]) -> None:
    sampler = small(**options)
    counts = sampler.cells.column("experiment").counts()
    led = np.zeros(len(counts))
    for world_size in (1, 2):
        for rank in range(world_size):
            twin = sampler.for_rank(rank, world_size)
            for epoch in range(4):
                met = [twin.asked(epoch, step).experiment for step in range(len(twin))]
                assert set(met) == set(range(len(counts)))
                led += np.bincount(met, minlength=len(counts))  # type: ignore[arg-type]
    assert np.allclose(led / led.sum(), counts / len(sampler.cells), atol=0.03)
    assert reading(sampler).amplification < 1.35


def test_it_is_said_if_ranks_do_not_meet_every_experiment_in_an_epoch() -> None:
    with pytest.warns(
        ShortfallWarning, match=r"of 20 epochs \(the first 4 of 5 ranks\) .*4 labels of experiment .*12 bat"
    ):
        sampler = small(world_size=5)
    counted = int(sampler.warnings[0].split()[1])
    ranks = [sampler.for_rank(rank, 5) for rank in range(5)]
    met = [{rank.asked(epoch, step).experiment for step in range(12)} for rank in ranks for epoch in range(4)]
    assert counted == sum(len(one) < 4 for one in met) > 0
    with pytest.warns(ShortfallWarning, match="of 20 epochs"):
        assert small(world_size=5, num_batches=12).warnings == sampler.warnings


@pytest.mark.parametrize("kind", [BatchSampler, ChunkedBatchSampler])
def test_an_experiment_whose_cells_have_ratio_0_never_leads(kind: type[BatchSampler]) -> None:
    frame = PREPARED[(PREPARED.experiment != "e0") | (PREPARED.condition == "a")].reset_index(drop=True)
    axes = {"experiment": ExperimentAware(0.1), "condition": ConditionBalanced({"a": 0, "b": 1, "c": 1})}
    options = {} if kind is BatchSampler else {"chunk_size": CHUNK, "preload_nchunks": PRELOAD}
    sampler = kind(CellTable.from_frame(frame), axes, BATCH, **options)
    asked = [sampler.asked(0, step) for step in range(40)]
    assert {one.experiment for one in asked} == {1, 2}
    assert all(one.shares["experiment"][0] == 0 for one in asked)
    assert set(frame.experiment.iloc[epoch_of(sampler)[:40].ravel()]) == {"e1", "e2"}


def test_it_is_what_the_composition_and_its_logger_take() -> None:
    sampler = make("three", world_size=2)
    meter = StepMeter(sampler)
    positions = meter.positions(0, 0, 8)
    numbers, _ = meter.measure(0, 0, positions)
    assert positions.shape == (8, 2, BATCH)
    shortfall = numbers[:, :2, meter.names.index("shortfall")]
    assert (shortfall == 0).all()
    assert sampler.signature != make("three", world_size=2, preload_nchunks=32).signature


def test_a_pass_goes_on_where_a_state_says() -> None:
    sampler = make("two")
    whole = [list(batch) for batch in sampler]
    sampler.set_epoch(0)
    sampler.load_state_dict({"epoch": 0, "step": 11})
    rest = [rows for request in sampler.sample(len(PREPARED)) for rows in rows_of(request)]
    assert [sorted(rows) for rows in rest] == [sorted(batch) for batch in whole[11:]]
    assert sampler.state_dict() == {"epoch": 1, "step": 0}


# load requests, and the loader of annbatch


def rows_of(request: Any) -> list[list[int]]:
    """The rows of every batch of a load request."""
    rows = np.concatenate([np.arange(run.start, run.stop) for run in request["requests"]])
    return [rows[split].tolist() for split in request["splits"]]


def longest_run(request: Any) -> int:
    """Rows that follow each other in a load request, at most."""
    rows = np.concatenate([np.arange(run.start, run.stop) for run in request["requests"]])
    return max(map(len, np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)))


@pytest.mark.parametrize("kind", [ChunkedBatchSampler, ChunksShuffled, ChunksInOrder])
@pytest.mark.parametrize("n", [12_000, 4_013])
def test_requests_are_aligned_runs_that_hold_the_batches(kind: type[ChunkSampler], n: int) -> None:
    frame = prepared(make_frame(n))
    sampler = kind(CellTable.from_frame(frame), None, BATCH, CHUNK, PRELOAD)
    seen, arrays = [], []
    for request in sampler.sample(n):
        runs: Any = request["requests"]
        assert len(runs) <= PRELOAD
        assert all(run.start % CHUNK == 0 and run.stop == min(run.start + CHUNK, n) for run in runs)
        assert len({run.start for run in runs}) == len(runs)
        assert longest_run(request) <= 2 * CHUNK, "one thread decodes a run, and the others wait"
        seen += rows_of(request)
        arrays += request["splits"]
    assert len(seen) == sampler.n_batches(n) == n // BATCH
    assert len({row for rows in seen for row in rows}) == len(seen) * BATCH
    assert len({id(array) for array in arrays}) == len(arrays)
    assert not any(np.shares_memory(a, b) for a, b in pairwise(arrays)) or len(arrays) == 1


def test_plain_samplers_read_every_chunk_once_in_order_or_at_random() -> None:
    cells = CellTable.from_frame(PREPARED)
    in_order = ChunksInOrder(cells, None, BATCH, CHUNK, PRELOAD)
    assert (epoch_of(in_order).ravel() == np.arange(len(PREPARED))).all()
    assert (epoch_of(in_order, 1) == epoch_of(in_order)).all()
    shuffled = ChunksShuffled(cells, None, BATCH, CHUNK, PRELOAD)
    assert sorted(epoch_of(shuffled).ravel()) == list(range(len(PREPARED)))
    assert not (epoch_of(shuffled) == epoch_of(shuffled, 1)).all()
    assert reading(shuffled).amplification < 1.05


@pytest.mark.parametrize("world_size", [2, 3, 4])
@pytest.mark.parametrize("kind", [ChunksShuffled, ChunksInOrder])
def test_plain_samplers_deal_every_cell_to_one_rank(kind: type[ChunkSampler], world_size: int) -> None:
    alone = kind(CellTable.from_frame(PREPARED), None, BATCH, CHUNK, PRELOAD)
    ranks = [alone.for_rank(rank, world_size) for rank in range(world_size)]
    drawn = np.concatenate([epoch_of(rank).ravel() for rank in ranks])
    assert len(np.unique(drawn)) == len(drawn) == len(PREPARED) // BATCH // world_size * world_size * BATCH


def test_cells_of_a_part_of_the_store_are_read_from_its_chunks() -> None:
    kept = np.flatnonzero(np.random.default_rng(0).random(len(PREPARED)) < 0.8)
    part = CELLS.take(kept).take(np.arange(5, len(kept)))
    sampler = make("two", part)
    rows = [row for request in sampler.sample(len(PREPARED)) for batch in rows_of(request) for row in batch]
    assert set(rows) <= set(kept[5:])
    positions = epoch_of(sampler)
    assert sorted(kept[5:][positions.ravel()]) == sorted(rows)


def arrays_of(path: Path, is_sparse: bool) -> tuple[list[Any], np.ndarray]:
    """Three datasets of one collection, whose X tells their rows, and all of X."""
    number = np.arange(len(PREPARED), dtype=np.float32)
    matrix = np.stack([number, number % 7 + 1, np.ones_like(number)], axis=1)
    found, begin = [], 0
    for i, size in enumerate((3_000, 5_008, len(PREPARED) - 8_008)):
        group, part = zarr.open_group(path / str(i), mode="w", zarr_format=3), matrix[begin : begin + size]
        if is_sparse:
            data = anndata.AnnData(sparse.csr_matrix(part))
            annbatch.write_sharded(group, data, n_obs_per_chunk=CHUNK, shard_size=64 * CHUNK)
            found.append(anndata.io.sparse_dataset(group["X"]))
        else:
            found.append(group.create_array("X", data=part, chunks=(CHUNK, 3)))
        begin += size
    return found, matrix


def loader_of(sampler: ChunkSampler, arrays: list[Any]) -> annbatch.Loader:
    return annbatch.Loader(batch_sampler=sampler, preload_to_gpu=False, return_index=True).add_datasets(arrays)


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("axes", ["random", "three"])
def test_the_loader_of_annbatch_delivers_the_rows_asked_for(tmp_path: Path, axes: str, is_sparse: bool) -> None:
    arrays, matrix = arrays_of(tmp_path, is_sparse)
    sampler = make(axes)
    loader = loader_of(sampler, arrays)
    assert len(loader) == len(sampler)
    for epoch in range(2):  # the second pass is the second epoch
        n = 0
        for step, batch in enumerate(loader):
            rows = sampler.batch(epoch, step)
            x = batch["X"].toarray() if is_sparse else batch["X"]
            assert (batch["index"] == rows).all() and (x == matrix[rows]).all()
            n += 1
        assert n == len(sampler)


@pytest.mark.processes
def test_worker_processes_take_windows_in_turn(tmp_path: Path) -> None:
    arrays, matrix = arrays_of(tmp_path, False)
    sampler = make("two", num_batches=45)
    batches = DataLoader(
        loader_of(sampler, arrays), batch_size=None, num_workers=2, multiprocessing_context=processes(),
        persistent_workers=True, collate_fn=_rows,
    )  # fmt: skip
    for epoch in range(2):  # workers that stay go on to the next epoch
        read = list(batches)
        assert all((x == matrix[rows]).all() for x, rows in read)
        expected = sorted(map(tuple, epoch_of(sampler, epoch).tolist()))
        assert sorted(tuple(rows.tolist()) for _, rows in read) == expected


def _rows(batch: Any) -> tuple[np.ndarray, np.ndarray]:
    return batch["X"], batch["index"]


# annbatch's own ways to share rows among ranks, and torch's to share them among workers


@pytest.mark.parametrize("kind", [ChunkedBatchSampler, ChunksShuffled, ChunksInOrder])
def test_the_distributed_sampler_of_annbatch_is_refused_with_the_way_out(kind: type[ChunkSampler]) -> None:
    sampler = kind(CELLS, None, BATCH, CHUNK, PRELOAD)
    with pytest.raises(TypeError, match=r"mask.*rank=.*world_size=.*for_rank\(rank, world_size\)"):
        DistributedSampler(sampler, dist_info=lambda: (1, 2))
    assert sampler.mask == slice(0, None)


def test_a_generator_is_refused_with_the_way_out() -> None:
    sampler = make("two")
    with pytest.raises(TypeError, match=r"rng.*seed="):
        sampler.rng = np.random.default_rng(0)
    assert sampler.rng is None


def as_worker(monkeypatch: pytest.MonkeyPatch, worker: int, num_workers: int) -> None:
    """Let samplers see what they would see in one of some worker processes of torch."""
    info = SimpleNamespace(id=worker, num_workers=num_workers)
    monkeypatch.setattr("cellcohort.sampling.chunked.load_requests.get_worker_info", lambda: info)


def test_reading_in_order_refuses_several_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = ChunksInOrder(CELLS, None, BATCH, CHUNK, PRELOAD)
    whole = [rows for request in sampler.sample(len(PREPARED)) for rows in rows_of(request)]
    as_worker(monkeypatch, 0, 1)
    sampler.set_epoch(0)
    assert [rows for request in sampler.sample(len(PREPARED)) for rows in rows_of(request)] == whole
    as_worker(monkeypatch, 0, 2)
    sampler.set_epoch(0)
    with pytest.raises(ValueError, match=r"2 worker processes.*order.*num_workers=0.*ChunksShuffled"):
        next(iter(sampler.sample(len(PREPARED))))


# passes that leave no cell out

TAIL = 4_013  # cells that do not fill their last batch


def read(sampler: ChunkSampler, n: int) -> list[list[int]]:
    return [rows for request in sampler.sample(n) for rows in rows_of(request)]


@pytest.mark.parametrize("kind", [ChunksShuffled, ChunksInOrder])
@pytest.mark.parametrize("part", [np.arange(TAIL), np.arange(5, TAIL, 3)])
def test_a_pass_that_drops_no_last_batch_reads_every_cell_once(kind: type[ChunkSampler], part: np.ndarray) -> None:
    cells = CellTable.from_frame(prepared(make_frame(TAIL))).take(part)
    sampler = kind(cells, None, BATCH, CHUNK, PRELOAD, drop_last=False)  # type: ignore[call-arg]
    dropping = kind(cells, None, BATCH, CHUNK, PRELOAD)
    n, left = divmod(len(part), BATCH)
    assert left and len(sampler) == n + 1 == sampler.n_batches(TAIL) and len(dropping) == n
    sizes = [BATCH] * n + [left]
    for epoch in range(2):
        batches = [sampler.batch(epoch, step) for step in range(len(sampler))]
        assert [len(batch) for batch in batches] == sizes
        assert sorted(np.concatenate(batches).tolist()) == list(range(len(part)))
        assert [sorted(part[batch]) for batch in batches] == [sorted(rows) for rows in read(sampler, TAIL)]
        assert [len(batch) for batch in sampler] == sizes
        sampler.set_epoch(epoch + 1)
    if kind is ChunksInOrder:
        assert (np.concatenate(batches) == np.arange(len(part))).all()
        assert all((dropping.batch(0, step) == batches[step]).all() for step in range(n))


def test_a_full_last_batch_is_no_other_with_drop_last() -> None:
    both = [ChunksShuffled(CELLS, None, BATCH, CHUNK, PRELOAD, drop_last=drop) for drop in (False, True)]
    assert (epoch_of(both[0]) == epoch_of(both[1])).all()


def test_fewer_cells_than_a_batch_are_one_short_batch() -> None:
    cells = CELLS.take(np.arange(9 * CHUNK, 9 * CHUNK + 20))
    sampler = ChunksInOrder(cells, None, BATCH, CHUNK, 2, drop_last=False)
    assert read(sampler, len(PREPARED)) == [list(range(9 * CHUNK, 9 * CHUNK + 20))]


def test_a_short_last_batch_is_refused_with_ranks() -> None:
    cells = CELLS.take(np.arange(TAIL))
    with pytest.raises(ValueError, match=r"drop_last=False.*world_size=2.*cells\.take"):
        ChunksInOrder(cells, None, BATCH, CHUNK, PRELOAD, world_size=2, drop_last=False)
    with pytest.raises(ValueError, match=r"drop_last=False.*world_size=2"):
        ChunksInOrder(cells, None, BATCH, CHUNK, PRELOAD, drop_last=False).for_rank(0, 2)
    with pytest.raises(ValueError, match="drop_last='no'"):
        ChunksInOrder(cells, None, BATCH, CHUNK, PRELOAD, drop_last="no")  # type: ignore[arg-type]


@pytest.mark.parametrize("is_sparse", [False, True])
def test_the_loader_of_annbatch_delivers_a_short_last_batch(tmp_path: Path, is_sparse: bool) -> None:
    arrays, matrix = arrays_of(tmp_path, is_sparse)
    sampler = ChunksInOrder(CELLS, None, 256, CHUNK, PRELOAD, drop_last=False)
    found = [batch["index"] for batch in loader_of(sampler, arrays)]
    assert [len(rows) for rows in found] == [256] * 46 + [224]
    assert (np.concatenate(found) == np.arange(len(PREPARED))).all() and len(matrix) == len(PREPARED)


# bad input


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch_size": 300}, ["300 cells", "preload_nchunks=16 ", "16 rows", "batch_sampler.preload_nchunks=19"]),
        ({"chunk_size": 0}, ["chunk_size must be an integer >= 1, got 0"]),
        ({"num_batches": "cover"}, ["num_batches='cover'"]),
        ({"num_batches": "covr"}, ["num_batches='covr'", "null"]),
        ({"scope": "global"}, ["scope='global'", "rank"]),
        ({"rank": 2, "world_size": 2}, ["rank=2"]),
    ],
)
def test_options_that_cannot_be_are_refused_with_numbers(options: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(ValueError) as error:
        make("two", **options)
    assert all(word in str(error.value) for word in said)


def test_batches_of_several_blocks_are_refused_with_how_to_read_them() -> None:
    with pytest.raises(ValueError, match=r"experiments=2\) asks for batches of several blocks.*reading=rows"):
        ChunkedBatchSampler(CELLS, {"e": ExperimentAware(experiments=2)}, BATCH, CHUNK, PRELOAD)


def test_windows_give_way_to_the_chunks_that_there_are() -> None:
    few = CELLS.take(np.arange(5 * CHUNK))
    sampler = ChunksShuffled(few, None, CHUNK, CHUNK, 6)
    assert sampler.preload_nchunks == 5 and sampler.per_window == 5
    assert sampler.notes == ("preload_nchunks=6 gives way to 5, as the cells lie in 5 chunks of 16 rows.",)
    assert not ChunksShuffled(few, None, CHUNK, CHUNK, 5).notes


def test_windows_need_not_hold_a_whole_number_of_batches() -> None:
    sampler = make("two", batch_size=30)
    for batch in epoch_of(sampler)[:40]:
        assert len(set(batch)) == 30


def test_batches_of_held_out_cells_are_no_larger_than_these() -> None:
    held_out = CELLS.take(np.arange(50))
    for rank in range(2):
        sampler = ChunksShuffled(held_out, None, 64, rank=rank, world_size=2, fixed=True)
        assert sampler.batch_size == 25 and len(sampler) == 1


def test_batches_that_no_window_holds_are_refused_with_what_would_do() -> None:
    frame = pd.DataFrame({"experiment": "e", "condition": ["rare" if i % 50 == 0 else "common" for i in range(8000)]})
    cells = CellTable.from_frame(frame, hours=None)
    with pytest.raises(
        ValueError, match=r"takes \d+ to \d+ chunks of 16 rows, which is not always within preload_nchunks=8"
    ):
        ChunkedBatchSampler(cells, {"condition": ConditionBalanced()}, BATCH, CHUNK, 8)
    ChunkedBatchSampler(cells, {"condition": ConditionBalanced()}, BATCH, CHUNK, 24)


def test_all_chunks_of_the_store_are_always_enough() -> None:
    rng, n = np.random.default_rng(0), 1080
    labels = {"experiment": rng.choice(list("ab"), n), "condition": rng.choice(["mock", "drug"], n, p=[0.9, 0.1])}
    cells = CellTable.from_frame(pd.DataFrame(labels), hours=None)
    axes = {"experiment": ExperimentAware(), "condition": ConditionBalanced()}
    with pytest.raises(ValueError, match=r"use batch_sampler.preload_nchunks=17, or a smaller batch_size\.$"):
        ChunkedBatchSampler(cells, axes, 128, 64, 16)
    with pytest.warns(ShortfallWarning, match="few cells of condition"):
        assert ChunkedBatchSampler(cells, axes, 128, 64, 17).per_window
    assert ChunkedBatchSampler(cells, axes, 64, 64, 16).per_window


@pytest.mark.parametrize(("batch", "preload"), [(80, 10), (112, 14), (176, 22)])
def test_the_advice_can_be_followed(batch: int, preload: int) -> None:
    frame = pd.DataFrame({"condition": ["rare" if i % 23 == 0 else "common" for i in range(8000)]})
    cells = CellTable.from_frame(frame, experiment=None, hours=None)
    axes = {"condition": ConditionBalanced({"rare": 9, "common": 7})}
    with pytest.raises(ValueError, match=r"use batch_sampler.preload_nchunks=") as refused:
        ChunkedBatchSampler(cells, axes, batch, CHUNK, preload)
    advised = int(re.findall(r"use batch_sampler.preload_nchunks=(\d+)", str(refused.value))[0])
    assert ChunkedBatchSampler(cells, axes, batch, CHUNK, advised).per_window


def test_the_advice_can_be_followed_where_strata_walk_together() -> None:
    rng, n, shares = np.random.default_rng(0), 60_000, [0.7, 0.2, 0.08, 0.02]
    labels = {"experiment": rng.choice(list("uvwxy"), n), "condition": rng.choice(list("abcd"), n, p=shares)}
    cells = CellTable.from_frame(pd.DataFrame(labels), hours=None)
    axes = {"experiment": ExperimentAware(), "condition": ConditionBalanced()}
    with pytest.raises(ValueError, match=r"use batch_sampler.preload_nchunks=") as refused:
        ChunkedBatchSampler(cells, axes, 256, 64, 64)
    advised = int(re.findall(r"use batch_sampler.preload_nchunks=(\d+)", str(refused.value))[0])
    assert ChunkedBatchSampler(cells, axes, 256, 64, advised).per_window


def test_no_more_chunks_are_advised_than_the_store_has() -> None:
    frame = pd.DataFrame({"condition": ["rare" if i % CHUNK == 0 else "common" for i in range(20 * CHUNK)]})
    cells = CellTable.from_frame(frame, experiment=None, hours=None)
    axes = {"condition": ConditionBalanced({"rare": 9, "common": 7})}
    with pytest.raises(ValueError, match=r"takes 18 to 18 chunks.*preload_nchunks=20, or"):
        ChunkedBatchSampler(cells, axes, BATCH, CHUNK, 8)
    ChunkedBatchSampler(cells, axes, BATCH, CHUNK, 20)


def test_a_stratum_rarer_than_a_batch_asks_is_said_and_its_places_are_filled() -> None:
    labels = ["rare"] * 3 + ["common"] * 2000
    cells = CellTable.from_frame(pd.DataFrame({"experiment": "e", "condition": labels}), hours=None)
    with pytest.warns(ShortfallWarning, match="3 of 'rare'"):
        sampler = ChunkedBatchSampler(cells, {"condition": ConditionBalanced()}, BATCH, CHUNK, PRELOAD)
    for batch in epoch_of(sampler):
        assert len(set(batch)) == BATCH and (batch < 3).sum() == 3


@pytest.mark.parametrize("n_obs", [len(PREPARED) - 1, len(PREPARED) + 1])
def test_a_store_of_another_length_is_refused_before_the_first_read(n_obs: int) -> None:
    with pytest.raises(ValueError, match=f"{n_obs} rows.*{len(PREPARED)} rows"):
        next(iter(make("two").sample(n_obs)))


@pytest.mark.parametrize("kind", [ChunksShuffled, ChunksInOrder])
def test_plain_samplers_refuse_axes_and_more_than_one_pass(kind: type[ChunkSampler]) -> None:
    with pytest.raises(ValueError, match="experiment; use ChunkedBatchSampler"):
        kind(CELLS, AXES["leaky"], BATCH, CHUNK, PRELOAD)
    with pytest.raises(ValueError, match="375 batches"):
        kind(CELLS, None, BATCH, CHUNK, PRELOAD, num_batches=376)


# the preview


@pytest.mark.parametrize(("axes", "cells", "said"), [("two", CELLS, False), ("condition", MIXED, True)])
def test_the_preview_says_what_is_read_and_when_to_prepare_the_store(axes: str, cells: CellTable, said: bool) -> None:
    measured = survey(make(axes, cells, world_size=2), batches=100)
    text = report(measured, findings(measured), cover(measured.sampler))
    cost = reading(measured.sampler)  # type: ignore[arg-type]
    assert f"{cost.amplification:.2f} rows are read" in " ".join(text.split())
    assert f"{cost.most_rows:,} rows in memory" in " ".join(text.split())
    assert ("scripts/prepare.py" in text) == said and "num_batches=cover is not available" in " ".join(text.split())


def test_the_preview_does_not_call_least_what_sharing_cells_undercuts() -> None:
    labels = ["rare"] * 40 + ["common"] * 4000
    cells = CellTable.from_frame(pd.DataFrame({"condition": labels}), experiment=None, hours=None)
    measured = survey(ChunkedBatchSampler(cells, {"condition": ConditionBalanced()}, BATCH, CHUNK, PRELOAD), batches=60)
    text = " ".join(report(measured, findings(measured), cover(measured.sampler)).split())
    cost = measured.reading
    assert cost is not None and cost.amplification < cost.least and cost.shared > 0
    assert f"all cells of a stratum come equally often from this store is {cost.least:.2f}, " in text
    assert (
        "unless batches of one chunk window share cells." in text
        and f"{cost.shared:.2%} of the places hold a cell" in text
    )


@pytest.mark.parametrize("weights", [None, {0: 100.0, **dict.fromkeys(range(1, 10), 1.0)}])
def test_over_epochs_every_stratum_of_many_comes_as_often_as_it_is_asked(weights: dict[int, float] | None) -> None:
    rng, n, epochs = np.random.default_rng(0), 6000, 20
    frame = pd.DataFrame({"experiment": rng.integers(0, 10, n), "condition": rng.integers(0, 1200, n)})
    cells = CellTable.from_frame(frame.sort_values(["experiment", "condition"]), hours=None)
    axes = {"experiment": ExperimentAware(weights=weights), "condition": ConditionBalanced()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ShortfallWarning)
        sampler = ChunkedBatchSampler(cells, axes, BATCH, CHUNK, 128)
        drawn = np.concatenate([epoch_of(sampler, epoch).ravel() for epoch in range(epochs)])
        led = [sampler.asked(epoch, step).experiment or 0 for epoch in range(epochs) for step in range(len(sampler))]
    strata = cells.column(["experiment", "condition"])
    asked = dict.fromkeys(strata.labels, 0.0)
    for experiment, n_batches in enumerate(np.bincount(led, minlength=10)):  # by the plain version
        for label, n_cells in oracle.asked_of_strata(frame, experiment, 0.0, BATCH):
            asked[label] += n_batches * n_cells
    expected = np.array([asked[label] for label in strata.labels])
    counted = np.bincount(strata.codes[drawn], minlength=len(strata.labels))
    assert len(expected) > 4000 and (np.abs(counted - expected) < 4 + 0.02 * expected).all()
    said = [text for text in sampler.warnings if "less than one cell an epoch" in text]
    assert len(said) == (weights is not None)
    if said:
        assert int(said[0].split(" of ")[0].replace(",", "")) == (expected < epochs).sum() > 3000
        assert counted[expected > 3].min() > 0 and expected.min() < 5


@pytest.mark.parametrize("make", [BatchSampler, ChunkedBatchSampler])
@pytest.mark.parametrize("axes", ["random", "two"])
@pytest.mark.parametrize("world_size", [1, 2])
def test_small_tables_need_one_option_less(make: Any, axes: str, world_size: int) -> None:
    """A default batch is larger than the table: the message names the size that fits, and it does."""
    frame = pd.DataFrame({"experiment": ["a", "b"] * 100, "condition": ["m", "m", "d", "d"] * 50})
    cells = CellTable.from_frame(frame)
    size = 256 // world_size
    with pytest.raises(ValueError, match=r"batch_sampler\.batch_size=\d+ or less") as refused:
        make(cells, AXES[axes], size, world_size=world_size)
    (fits,) = re.findall(r"batch_size=(\d+) or less", str(refused.value))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ShortfallWarning)
        assert len(make(cells, AXES[axes], int(fits), world_size=world_size)) == 1
        assert make(cells, AXES[axes], 256, world_size=world_size, fixed=True).batch_size == 200 // world_size
