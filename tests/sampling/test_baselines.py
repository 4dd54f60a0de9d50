"""Samplers of other libraries draw what these say, and stand where a BatchSampler does."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pytorch_metric_learning.samplers import MPerClassSampler
from pytorch_metric_learning.utils import common_functions
from torch.utils.data import WeightedRandomSampler

from cellcohort.cells import CellTable
from cellcohort.composition.meter import StepMeter
from cellcohort.data.anndata import load_anndata
from cellcohort.datasets.split import split
from cellcohort.loading.chunks import make_chunked_loader
from cellcohort.preview import cover, findings, report, survey
from cellcohort.sampling.baselines.annbatch_class import ClassSampler
from cellcohort.sampling.baselines.annbatch_weighted_class import WeightedClassSampler
from cellcohort.sampling.baselines.base import Baseline, module_of
from cellcohort.sampling.baselines.concord import Concord
from cellcohort.sampling.baselines.m_per_class import MPerClass
from cellcohort.sampling.baselines.viscy import VisCyFlexible
from cellcohort.sampling.baselines.weighted_random import WeightedRandom
from cellcohort.sampling.rng import key_of
from stores import QUIET, prepared
from tables import table

pytestmark = QUIET
SIZES = {
    ("e0", "c0"): 900,
    ("e0", "c1"): 100,
    ("e1", "c0"): 400,
    ("e1", "c1"): 300,
    ("e2", "c0"): 200,
    ("e2", "c2"): 90,
}
CELLS = CellTable.from_frame(table(SIZES), track="track")
SORTED = CellTable.from_frame(table(SIZES).sort_values(["experiment", "condition"]), track="track")
NEEDS = {VisCyFlexible: "viscy_data", Concord: "concord"}
KINDS = [WeightedRandom, MPerClass, VisCyFlexible, Concord, ClassSampler, WeightedClassSampler]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
EXPERIMENT, CONDITION = CELLS.column("experiment").codes, CELLS.column("condition").codes


def make(kind: Callable[..., Baseline], cells: CellTable | None = None, **options: Any) -> Baseline:
    if kind in NEEDS:
        pytest.importorskip(NEEDS[kind])
    if kind in (ClassSampler, WeightedClassSampler):
        options = {"chunk_size": 16, "preload_nchunks": 8} | options
        return kind(cells or SORTED, **({"batch_size": 32, "seed": 3} | options))
    return kind(cells or CELLS, **({"batch_size": 32, "seed": 3} | options))


def epoch_of(sampler: Baseline, epoch: int = 0) -> np.ndarray:
    return np.stack([sampler.batch(epoch, step) for step in range(len(sampler))])


@every_kind
def test_batches_are_pure_full_and_of_each_rank_and_epoch_their_own(kind: Callable[..., Baseline]) -> None:
    states = np.random.get_state()[1].copy(), torch.get_rng_state()
    one, other = make(kind, world_size=2), make(kind, world_size=2)
    assert len(one) == len(CELLS) // 32 // 2
    last, first = other.batch(1, len(other) - 1), other.batch(0, 0)
    np.testing.assert_array_equal(epoch_of(one)[0], first)
    np.testing.assert_array_equal(epoch_of(one, 1)[-1], last)
    assert first.shape == (32,) and first.dtype == np.int64
    twin = one.for_rank(1, 2)
    for different in (epoch_of(one, 1), epoch_of(twin), epoch_of(make(kind, world_size=2, seed=4))):
        assert (different != epoch_of(one)).any(axis=1).all()
    np.testing.assert_array_equal(epoch_of(make(kind, rank=1, world_size=2)), epoch_of(twin))
    assert (np.random.get_state()[1] == states[0]).all() and torch.equal(torch.get_rng_state(), states[1])
    assert common_functions.NUMPY_RANDOM is np.random


@every_kind
def test_a_pass_that_was_stopped_goes_on_with_the_batches_that_come_next(kind: Callable[..., Baseline]) -> None:
    whole, stopped = make(kind, num_batches=7), make(kind, num_batches=7)
    passes = [list(whole) for _ in range(2)]
    batches = iter(stopped)
    assert [next(batches) for _ in range(3)] == passes[0][:3]
    resumed = make(kind, num_batches=7)
    resumed.load_state_dict(stopped.state_dict())
    assert [list(resumed), list(resumed)] == [passes[0][3:], passes[1]]
    assert resumed.signature == whole.signature != make(kind, num_batches=7, seed=9).signature
    with pytest.raises(ValueError, match=r"step=7 is not drawn: an epoch has 7 batches"):
        whole.batch(0, 7)


@every_kind
def test_axes_and_what_cannot_be_promised_are_refused(kind: Callable[..., Baseline]) -> None:
    with pytest.raises(ValueError, match=r"does not follow axes, but was given condition: leave them out .*=default"):
        make(kind, axes={"condition": object()})
    with pytest.raises(ValueError, match=r"num_batches='cover' cannot be promised where another library"):
        make(kind, num_batches="cover")
    with pytest.raises(ValueError, match=r"no column|has no|nothing_of_the_kind"):
        name = "batch_group_by" if kind is VisCyFlexible else "column"
        make(kind, **{name: "nothing_of_the_kind"})


@every_kind
def test_composition_and_preview_measure_them_against_what_is_asked(kind: Callable[..., Baseline]) -> None:
    sampler = make(kind, world_size=2, num_batches=20)
    meter = StepMeter(sampler)
    numbers, _ = meter.measure(0, 0, meter.positions(0, 0, 20))
    of_rank = dict(zip(meter.names, numbers[:, 0].T, strict=True))
    asked = [name for name in meter.names if "/asked" in name]
    assert asked and all(np.isfinite(of_rank[name]).all() for name in asked)
    of = survey(sampler, batches=40)
    text = " ".join(report(of, findings(of), cover(sampler)).split())
    assert sampler.about in text and "cover is not available with a sampler of another library" in text
    assert "The table has too few cells" not in text and "Too few cells inside" not in text


def test_weighted_random_draws_cells_by_weight_with_replacement() -> None:
    shares = {"c0": 0.5, "c1": 0.25, "c2": 0.25}
    sampler = make(WeightedRandom, ratio=shares, num_batches=200)
    generator = torch.Generator().manual_seed(int(key_of(3, 0, 0)))
    counts = np.bincount(CONDITION)
    weights = torch.from_numpy((np.array([0.5, 0.25, 0.25]) / counts)[CONDITION])
    drawn = epoch_of(sampler)
    assert drawn.ravel().tolist() == list(WeightedRandomSampler(weights, 6400, generator=generator))
    held = np.bincount(CONDITION[drawn.ravel()]) / 6400
    assert np.abs(held - [0.5, 0.25, 0.25]).max() < 0.03
    per_batch = np.array([np.bincount(CONDITION[batch], minlength=3) for batch in drawn])
    assert per_batch[:, 0].std() > 1.5, "shares hold on average only"
    assert sampler.asked(0, 0).shares["condition"].tolist() == [0.5, 0.25, 0.25]
    both = make(WeightedRandom, column=["experiment", "condition"], num_batches=200)
    joint = CELLS.column(["experiment", "condition"])
    held = np.bincount(joint.codes[epoch_of(both).ravel()])[joint.counts() > 0] / 6400
    assert len(held) == 6 and np.abs(held - 1 / 6).max() < 0.03


def test_m_per_class_draws_m_of_each_of_some_classes() -> None:
    sampler = make(MPerClass, column=["experiment", "condition"], m=8)
    codes = CELLS.column(["experiment", "condition"]).codes
    for batch in epoch_of(sampler):
        counts = np.bincount(codes[batch])
        assert counts[counts > 0].tolist() == [8] * 4
    whole = make(MPerClass, m=None)
    assert whole.m == 16 and {len(np.unique(CONDITION[batch])) for batch in epoch_of(whole)} == {2}
    theirs = MPerClassSampler(CONDITION, 16, 32, len(whole) * 32)
    theirs.labels.sort()
    before = common_functions.NUMPY_RANDOM
    common_functions.NUMPY_RANDOM = np.random.RandomState(np.random.MT19937(int(key_of(3, 0, 0))))
    try:
        assert list(theirs) == epoch_of(whole).ravel().tolist()
    finally:
        common_functions.NUMPY_RANDOM = before
    with pytest.raises(
        ValueError, match=r"m=5 does not fit batch_size=32 with the 3 classes of condition: .*Use m=16 or"
    ):
        make(MPerClass, m=5)


def test_viscy_draws_as_its_own_class_does() -> None:
    options = {"leaky": 0.25, "group_weights": {"e0": 1.0, "e1": 3.0}}
    sampler = make(VisCyFlexible, num_batches=100, **options)
    frame = pd.DataFrame({"experiment": CELLS.column("experiment").labels[0], "condition": ""}, index=range(len(CELLS)))
    for name in frame:
        column = CELLS.column(name)
        frame[name] = pd.Categorical.from_codes(column.codes, list(column.labels))
    theirs = module_of("viscy_data", "sampler.py").FlexibleBatchSampler(
        frame, 32, batch_group_by="experiment", stratify_by="condition", seed=int(key_of(3, 0, 0)), **options
    )
    wanted = [*theirs, *theirs][:100]  # a second pass is its next epoch
    assert epoch_of(sampler).tolist() == wanted
    led = []
    for step, batch in enumerate(epoch_of(sampler)):
        asked = sampler.asked(0, step)
        led.append(asked.experiment)
        assert (EXPERIMENT[batch] == asked.experiment).sum() == 24 and asked.leaky == 0.25
    assert 0.6 < np.mean(np.array(led) == 1) < 0.9 and set(led) == {0, 1}
    hours = CELLS.hours
    assert hours is not None
    timed = make(VisCyFlexible, temporal_enrichment=True, temporal_window_hours=0.5, num_batches=30)
    for step, batch in enumerate(epoch_of(timed)):
        asked = timed.asked(0, step)
        assert (np.abs(hours[batch] - asked.focal_hours) <= 0.5).sum() == 32 - 9 and asked.inside == 0.7
    with pytest.raises(ValueError, match=r"leaky=0\.2 asks for 198 cells .* 990 cells|leaky=0\.9 .* would be short"):
        make(VisCyFlexible, leaky=0.9, batch_size=1400)
    with pytest.raises(ValueError, match=r"no effect with batch_group_by=None"):
        make(VisCyFlexible, batch_group_by=None, leaky=0.1)


def test_concord_draws_batches_of_one_domain_and_fills_short_ones() -> None:
    sampler = make(Concord, num_batches=80)
    for step, batch in enumerate(epoch_of(sampler)):
        assert set(EXPERIMENT[batch]) == {sampler.asked(0, step).experiment} and len(set(batch)) == 32
    mixed = make(Concord, p_intra_domain=0.75)
    for step, batch in enumerate(epoch_of(mixed)):
        assert (EXPERIMENT[batch] == mixed.asked(0, step).experiment).sum() == 24
        assert mixed.asked(0, step).leaky == 0.25
    few = make(Concord, batch_size=500, num_batches=6)  # the domains have 1000, 700 and 290 cells
    distinct = sorted({len(set(batch)) for batch in epoch_of(few)})
    assert distinct == [290, 500]
    equal = make(Concord, num_batches=90, domain_minibatch_strategy="equal")
    led = np.bincount([equal.asked(0, step).experiment for step in range(90)])
    assert led.min() > 15, "equally many of each domain"
    with pytest.raises(ValueError, match=r"p_intra_domain=0 leaves no cells"):
        make(Concord, p_intra_domain=0)


def test_annbatch_draws_runs_of_neighbours_of_one_class_or_of_several() -> None:
    experiment, condition = SORTED.column("experiment").codes, SORTED.column("condition").codes
    one = make(ClassSampler, num_batches=60)
    led = []
    for step, batch in enumerate(epoch_of(one)):
        led.append(one.asked(0, step).experiment)
        assert set(experiment[batch]) == {led[-1]}
        cells = np.sort(batch)
        assert sum(np.isin(range(first, first + 16), cells).all() for first in cells) >= 2, "runs of 16 neighbours"
    assert np.bincount(led).min() > 10
    mixed = make(WeightedClassSampler, num_batches=200, ratio={"c0": 0.5, "c1": 0.25, "c2": 0.25})
    drawn = epoch_of(mixed)
    assert np.abs(np.bincount(condition[drawn.ravel()]) / drawn.size - [0.5, 0.25, 0.25]).max() < 0.05
    assert np.mean([len(np.unique(condition[batch])) for batch in drawn]) > 2.2
    with pytest.raises(
        ValueError, match=r"annbatch's ClassSampler refuses the classes of condition: .*prepare.group_by"
    ):
        make(ClassSampler, CELLS, column="condition")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return prepared(tmp_path_factory.mktemp("store"), group_by=["experiment", "condition"]).path


@pytest.mark.parametrize("kind", [ClassSampler, WeightedClassSampler])
def test_chunks_of_a_store_hold_what_annbatch_draws(kind: Callable[..., Baseline], store: Path) -> None:
    training, _ = split(load_anndata(store), fraction=0.3)
    sampler = make(kind, training.cells, num_batches=11, chunk_size=16)
    loader = make_chunked_loader(training, sampler)
    loader.load_state_dict({"epoch": 1, "step": 5, "sampler": sampler.signature})
    n = 0
    for step, batch in enumerate(loader, start=5):
        chosen = sampler.batch(1, step)
        assert batch["meta"]["position"].tolist() == chosen.tolist()
        assert torch.equal(batch["anchor"], training.__getitems__(chosen)["anchor"])
        n += 1
    assert n == 6
    of = survey(sampler, batches=10)
    assert of.reading is not None and of.reading.amplification >= 1
