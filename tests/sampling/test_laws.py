"""The laws of the sampler, over every set of axes."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracle
from cellcohort.cells import CellTable
from cellcohort.sampling import (
    BatchSampler,
    ConditionBalanced,
    ExperimentAware,
    ShortfallWarning,
    TemporallyEnriched,
    TrackCapped,
)
from cellcohort.sampling.axes.base import Axis
from tables import SUBSETS, Case, cases, table

every_subset = pytest.mark.parametrize("subset", SUBSETS, ids=lambda s: "+".join(s) or "random")
EPS = 1e-6


def sampler(case: Case, **options: Any) -> BatchSampler:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ShortfallWarning)
        return BatchSampler(case.cells, case.axes, **{"batch_size": case.batch_size, "seed": case.seed, **options})


def every_axis(window_hours: float, most: int = 1) -> dict[str, Axis]:
    return {
        "experiment": ExperimentAware(0.1),
        "condition": ConditionBalanced(),
        "temporal": TemporallyEnriched(window_hours),
        "track": TrackCapped(most),
    }


def within_one(found: float, asked: float) -> bool:
    return np.floor(asked - EPS) <= found <= np.ceil(asked + EPS)


def batches(s: BatchSampler, n: int, epoch: int = 0) -> list[np.ndarray]:
    return [s.batch(epoch, step) for step in range(n)]


@every_subset
@given(st.data())
def test_pure(subset: tuple[str, ...], data: st.DataObject) -> None:
    case = data.draw(cases(subset))
    first, second = sampler(case), sampler(case)
    state = np.random.get_state()[1].copy()
    wanted = [first.batch(epoch, step) for epoch in (0, 3) for step in range(3)]
    again = [second.batch(epoch, step) for epoch in (3, 0) for step in (2, 1, 0)][::-1]
    for a, b in zip(wanted, again, strict=True):
        np.testing.assert_array_equal(a, b)
    assert (np.random.get_state()[1] == state).all()
    case.axes = dict(reversed(case.axes.items()))
    np.testing.assert_array_equal(sampler(case).batch(3, 1), wanted[4])
    case.frame.index = np.random.default_rng(0).permutation(len(case.frame)) + 7
    case.cells = CellTable.from_frame(case.frame, track="track")
    np.testing.assert_array_equal(sampler(case).batch(3, 1), wanted[4])
    np.testing.assert_array_equal(next(iter(sampler(case, num_batches=1))), wanted[0])


@every_subset
@given(st.data())
def test_size_and_fewest_repeats(subset: tuple[str, ...], data: st.DataObject) -> None:
    case = data.draw(cases(subset))
    s = sampler(case)
    experiment = case.cells.column("experiment").codes
    for step in range(4):
        batch, asked = s.batch(1, step), s.asked(1, step)
        assert batch.shape == (case.batch_size,) and batch.dtype == np.int64
        assert batch.min() >= 0 and batch.max() < len(case.cells)
        if not asked.experiments:
            assert len(set(batch)) == case.batch_size
            continue
        for primary in asked.experiments:
            own = batch[experiment[batch] == primary]
            pool = int((experiment == primary).sum())
            assert len(set(own)) == min(len(own), pool)
            assert max(Counter(own.tolist()).values(), default=0) <= -(-len(own) // pool)
        leaked = batch[~np.isin(experiment[batch], asked.experiments)]
        assert len(set(leaked)) == len(leaked)


@every_subset
@given(st.data())
def test_experiment_quota(subset: tuple[str, ...], data: st.DataObject) -> None:
    case = data.draw(cases(subset))
    s = sampler(case)
    experiment = case.cells.column("experiment").codes
    for step in range(6):
        batch, asked = s.batch(0, step), s.asked(0, step)
        if not asked.experiments:
            continue
        others = int((~np.isin(experiment, asked.experiments)).sum())
        leak = asked.leaky * case.batch_size
        leaked = int((~np.isin(experiment[batch], asked.experiments)).sum())
        assert within_one(leaked, min(leak, others))
        blocks = np.bincount(experiment[batch], minlength=experiment.max() + 1)[list(asked.experiments)]
        assert len(set(asked.experiments)) == case.axes["experiment"].n_primary == len(blocks)
        assert np.ptp(blocks) <= 1, "equal blocks"


@every_subset
@given(st.data())
def test_exact_where_cells_suffice(subset: tuple[str, ...], data: st.DataObject) -> None:
    case = data.draw(cases(subset, even=True))
    s = sampler(case)
    n = 24
    condition, experiment = case.cells.column("condition"), case.cells.column("experiment").codes
    total = np.zeros(len(condition.labels))
    for step in range(n):
        batch, asked = s.batch(0, step), s.asked(0, step)
        counts = np.bincount(condition.codes[batch], minlength=len(condition.labels))
        total += counts
        if "condition" in subset:
            wanted = asked.shares["condition"] * case.batch_size
            assert all(map(within_one, counts, wanted))
            leaked = batch[~np.isin(experiment[batch], asked.experiments)]
            blocks = [batch[experiment[batch] == primary] for primary in asked.experiments]
            for part in [leaked, *blocks] if blocks else []:
                found = np.bincount(condition.codes[part], minlength=len(condition.labels))
                assert (np.abs(found - len(part) * asked.shares["condition"]) < 2).all()
        if "temporal" in subset:
            hours = case.cells.hours
            assert hours is not None
            pool = np.isin(experiment, asked.experiments) if asked.experiments else experiment >= 0
            assert asked.focal_hours in hours[pool]
    if "condition" in subset:
        per_experiment = 3 * (len(np.unique(experiment)) if "experiment" in subset else 1)
        assert (np.abs(total - n * asked.shares["condition"] * case.batch_size) < per_experiment).all()


@every_subset
@given(st.data())
def test_focal_count(subset: tuple[str, ...], data: st.DataObject) -> None:
    """As many cells inside the window as asked, unless the strata of the batch run out of them."""
    if "temporal" not in subset:
        return
    case = data.draw(cases(subset))
    s = sampler(case)
    hours = case.cells.hours
    assert hours is not None
    columns = [name for name in ("experiment", "condition") if name in subset]
    stratum = case.cells.column(columns).codes if columns else np.zeros(len(hours), int)
    for step in range(5):
        batch, asked = s.batch(0, step), s.asked(0, step)
        inside = np.abs(hours - asked.focal_hours) <= asked.window_hours + EPS
        low = high = 0
        for code, count in Counter(stratum[batch].tolist()).items():
            here = inside[stratum == code]
            times, outside = -(-count // len(here)), int((~here).sum())
            low += max((times - 1) * int(here.sum()), count - times * outside)
            high += min(times * int(here.sum()), count - (times - 1) * outside)
        wanted = asked.inside * case.batch_size
        found = int(inside[batch].sum())
        assert np.clip(np.floor(wanted + EPS), low, high) <= found <= np.clip(np.ceil(wanted - EPS), low, high)


@every_subset
@given(st.data())
def test_ranks_interleave_to_one_sequence(subset: tuple[str, ...], data: st.DataObject) -> None:
    case = data.draw(cases(subset))
    single = sampler(case, num_batches=24)
    sequence = np.stack(batches(single, 24, epoch=2))
    for world_size in (2, 3, 4, 8):
        ranks = [sampler(case, rank=r, world_size=world_size, num_batches=24 // world_size) for r in range(world_size)]
        union = np.stack([r.batch(2, step) for step in range(24 // world_size) for r in ranks])
        np.testing.assert_array_equal(union, sequence)
        twin = single.for_rank(world_size - 1, world_size)
        np.testing.assert_array_equal(twin.batch(2, 0), sequence[world_size - 1])


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
def test_equal_number_of_batches(world_size: int) -> None:
    cells = CellTable.from_frame(table({("e0", "c0"): 75}))
    for n in (7, 8, 11):
        ranks = (
            [BatchSampler(cells, None, 75 // n, rank=r, world_size=world_size) for r in range(world_size)]
            if (75 // (75 // n) >= world_size)
            else []
        )
        seen = [list(r) for r in ranks]
        assert {len(s) for s in seen} <= {75 // (75 // n) // world_size}
        assert [len(s) for s in seen] == [len(r) for r in ranks]


@pytest.mark.parametrize("world_size", [2, 3, 4])
@every_subset
def test_ranks_of_a_step_are_disjoint(subset: tuple[str, ...], world_size: int) -> None:
    frame = table({(f"e{e}", f"c{c}"): 4000 for e in range(2) for c in range(2)})
    axes = every_axis(window_hours=1.0)
    cells = CellTable.from_frame(frame, track="track")
    ranks = [
        BatchSampler(cells, {n: axes[n] for n in subset}, 64, rank=r, world_size=world_size) for r in range(world_size)
    ]
    for step in range(40):
        union = np.concatenate([r.batch(0, step) for r in ranks])
        assert len(set(union)) == len(union)


@given(st.data())
def test_epoch_without_axes_covers_the_table(data: st.DataObject) -> None:
    case = data.draw(cases(()))
    world_size = data.draw(st.integers(1, 3))
    if len(case.cells) // case.batch_size < world_size:
        return
    ranks = [sampler(case, rank=r, world_size=world_size) for r in range(world_size)]
    drawn = np.concatenate([batch for r in ranks for batch in r])
    assert len(set(drawn)) == len(drawn)
    assert len(case.cells) - len(drawn) < case.batch_size * world_size


@pytest.mark.parametrize("subset", [("experiment",), ("condition",), ("experiment", "condition")], ids="+".join)
@given(st.data())
def test_strata_are_covered_evenly(subset: tuple[str, ...], data: st.DataObject) -> None:
    """At any moment of an epoch, the cells of a stratum were drawn k or k + 1 times."""
    case = data.draw(cases(subset))
    s = sampler(case, num_batches=60)
    stratum = case.cells.column(list(subset)).codes
    drawn = np.zeros(len(stratum), int)
    epoch = data.draw(st.integers(0, 50))
    for step in range(60):
        np.add.at(drawn, s.batch(epoch, step), 1)
        if step % 7 == 0 or step == 59:
            for code in np.unique(stratum):
                here = drawn[stratum == code]
                assert here.max() - here.min() <= 1


@every_subset
@given(st.data())
def test_resume_goes_on_where_it_stopped(subset: tuple[str, ...], data: st.DataObject) -> None:
    case = data.draw(cases(subset))
    whole = sampler(case, num_batches=6)
    passes = [list(whole) for _ in range(2)]
    other = sampler(case, num_batches=6)
    other.load_state_dict({"epoch": 0, "step": data.draw(st.integers(0, 6))})
    step = other.state_dict()["step"]
    assert [list(other), list(other)] == [passes[0][step:], passes[1]]


@every_subset
def test_global_scope_shares_experiment_and_focal_time(subset: tuple[str, ...]) -> None:
    frame = table({(f"e{e}", f"c{c}"): 300 for e in range(4) for c in range(3)})
    axes = every_axis(window_hours=3.0)
    cells = CellTable.from_frame(frame, track="track")
    ranks = [
        BatchSampler(cells, {n: axes[n] for n in subset}, 50, scope="global", rank=r, world_size=4) for r in range(4)
    ]
    experiment, condition = cells.column("experiment").codes, cells.column("condition").codes
    led = set()
    for step in range(12):
        held = [r.batch(0, step) for r in ranks]
        union = np.concatenate(held)
        assert all(len(h) == 50 for h in held) and len(set(union)) == 200
        asked = [r.asked(0, step) for r in ranks]
        assert len({(a.experiment, None if np.isnan(a.focal_hours) else a.focal_hours) for a in asked}) == 1
        if "condition" in subset:
            assert all(map(within_one, np.bincount(condition[union]), np.full(3, 200 / 3)))
            for h in held:
                assert (np.abs(np.bincount(condition[h], minlength=3) - 50 / 3) < 2).all()
        if "experiment" in subset:
            led.add(asked[0].experiment)
            assert (experiment[union] == asked[0].experiment).sum() == 180
            for h in held:
                assert abs((experiment[h] == asked[0].experiment).sum() - 45) <= 3
        if "temporal" in subset:
            assert cells.hours is not None
            inside = np.abs(cells.hours - asked[0].focal_hours) <= 3.0 + EPS
            assert inside[union].sum() == 140
    assert led == ({0, 1, 2, 3} if "experiment" in subset else set())


def test_every_rank_reaches_every_experiment() -> None:
    frame = table({(f"e{e}", "c0"): 400 for e in range(4)})
    cells = CellTable.from_frame(frame)
    for world_size in (2, 4):
        for rank in range(world_size):
            s = BatchSampler(cells, {"e": ExperimentAware()}, 8, rank=rank, world_size=world_size)
            assert {s.asked(0, step).experiment for step in range(len(s))} == {0, 1, 2, 3}


def test_spare_places_rotate_evenly() -> None:
    cells = CellTable.from_frame(table({("e0", f"c{c}"): 200 for c in range(7)}))
    for batch_size in (10, 16, 20):
        s = BatchSampler(cells, {"c": ConditionBalanced()}, batch_size)
        total = np.zeros(7)
        for step in range(70):
            total += np.bincount(cells.column("condition").codes[s.batch(0, step)], minlength=7)
            assert total.max() - total.min() <= 2
        assert total.max() == total.min()


def test_weights_decide_how_often_an_experiment_leads() -> None:
    cells = CellTable.from_frame(table({("a", "c"): 900, ("b", "c"): 90, ("d", "c"): 10}))
    for weights, shares in (
        (None, [0.9, 0.09, 0.01]),
        ("uniform", [1 / 3] * 3),
        ({"a": 1, "b": 3, "d": 0}, [0.25, 0.75, 0]),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ShortfallWarning)
            s = BatchSampler(cells, {"e": ExperimentAware(weights=weights)}, 4, num_batches=1000)
        led = np.bincount([s.asked(0, step).experiment for step in range(1000)], minlength=3)
        assert np.abs(led - 1000 * np.array(shares)).max() <= 4


def test_experiments_of_a_batch_are_drawn_without_replacement_by_their_weights() -> None:
    cells = CellTable.from_frame(table({(f"e{e}", "c"): 60 for e in range(6)} | {("big", "c"): 900}))
    given = {"e0": 3, "e1": 1, "e2": 1, "e3": 1, "e4": 2, "e5": 0, "big": 2}
    for weights, k, shares in (
        ("uniform", 3, [3 / 7] * 7),
        (given, 2, [0.4, 0.6, 0.2, 0.2, 0.2, 0.4, 0.0]),  # in order of the labels, of which big is the first
        (given, 4, [6 / 7, 1.0, 3 / 7, 3 / 7, 3 / 7, 6 / 7, 0.0]),  # what e0 has too much of, the others have
        (None, 2, [1.0] + [1 / 6] * 6),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ShortfallWarning)
            s = BatchSampler(cells, {"e": ExperimentAware(0.1, weights, experiments=k)}, 12, num_batches=700)
        led = np.array([s.asked(epoch, step).experiments for epoch in (0, 1) for step in range(700)])
        assert all(len(set(each)) == k for each in led.tolist())
        counts = np.bincount(led[:700].ravel(), minlength=7)
        assert np.abs(counts - 700 * np.array(shares)).max() <= 4, (weights, k)
        pairs = {frozenset((a, b)) for each in led.tolist() for a in each for b in each if a < b}
        there = np.count_nonzero(shares)
        assert len(pairs) == there * (there - 1) // 2 or weights is None, "all come together"


def test_what_blocks_cannot_hold_is_refused_or_said() -> None:
    cells = CellTable.from_frame(table({("a", "c"): 900, ("b", "c"): 90, ("d", "c"): 10}))
    with pytest.raises(
        ValueError, match=r"experiments=4\) asks for 4 blocks in each batch, and there are 3 labels.*most 3"
    ):
        BatchSampler(cells, {"e": ExperimentAware(experiments=4)}, 40)
    with pytest.raises(
        ValueError, match=r"asks for 12 leaked cells .* beside the 2 largest have 10 cells; use leaky=0"
    ):
        BatchSampler(cells, {"e": ExperimentAware(0.3, experiments=2)}, 40)
    with pytest.raises(ValueError, match=r"experiments must be an integer >= 1, got 0"):
        ExperimentAware(experiments=0)
    with pytest.warns(
        ShortfallWarning, match=r"'a' of experiment is primary in every batch, and no more: .* 1\.80 of the 2"
    ):
        BatchSampler(cells, {"e": ExperimentAware(experiments=2)}, 20)
    assert "experiments" not in repr(ExperimentAware()) and "experiments=2" in repr(ExperimentAware(experiments=2))


def test_tempered_weights_lie_between_size_and_uniform() -> None:
    cells = CellTable.from_frame(table({("a", "c"): 900, ("b", "c"): 100, ("d", "c"): 25}))
    column = cells.column("experiment")
    for temper, weights in ((1.0, [900, 100, 25]), (0.5, [30, 10, 5]), (0.0, [1, 1, 1])):
        axis = ExperimentAware(temper=temper)
        np.testing.assert_allclose(axis.weights(column), weights)
        s = BatchSampler(cells, {"e": axis}, 4, num_batches=900)
        led = np.bincount([s.asked(0, step).experiment for step in range(900)], minlength=3)
        assert np.abs(led - 900 * np.array(weights) / sum(weights)).max() <= 4
    assert "temper=0.5" in repr(ExperimentAware(temper=0.5)) and "temper" not in repr(ExperimentAware())
    with pytest.raises(ValueError, match=r"temper must be a number in \[0, 1\], a power .*; got 2"):
        ExperimentAware(temper=2)
    with pytest.raises(ValueError, match=r"temper=0\.5 has no effect with weights='uniform'"):
        ExperimentAware(weights="uniform", temper=0.5)


def test_nested_shares() -> None:
    """Balance condition, then cell type within condition."""
    rng = np.random.default_rng(0)
    frame = table({("e0", "c0"): 900, ("e0", "c1"): 100})
    frame["cell_type"] = rng.choice(["T", "B", "NK"], len(frame), p=[0.8, 0.15, 0.05])
    cells = CellTable.from_frame(frame)
    axes = {"1": ConditionBalanced(), "2": ConditionBalanced(column="cell_type")}
    s = BatchSampler(cells, axes, 15)
    for step in range(20):
        held = frame.iloc[s.batch(0, step)]
        assert held.condition.value_counts().isin([7, 8]).all()
        assert held.groupby(["condition", "cell_type"]).size().isin([2, 3]).all()


@pytest.mark.parametrize("leaky", [0.0, 0.2])
def test_group_by_one_column_and_share_out_that_and_another(leaky: float) -> None:
    """Batches of one marker each, in which perturbations have equal shares: nothing is short."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"marker": rng.choice(["G3BP1", "SEC61B", "TOMM20"], 3000)})
    frame["perturbation"] = rng.choice(["mock", "ZIKV", "DENV"], 3000, p=[0.6, 0.3, 0.1])
    cells = CellTable.from_frame(frame, None, None, None)
    both = ["perturbation", "marker"]
    axes = {"marker": ExperimentAware(leaky, column="marker"), "both": ConditionBalanced(column=both)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        s = BatchSampler(cells, axes, 40)
    joint = cells.column(both)
    for step in range(20):
        batch, asked = frame.iloc[s.batch(0, step)], s.asked(0, step)
        primary = cells.column("marker").labels[asked.experiment or 0]
        share = dict(zip(joint.labels, asked.shares["perturbation", "marker"], strict=True))
        assert sum(share.values()) == pytest.approx(1)
        assert [share[label] for label in joint.labels if label[1] == primary] == pytest.approx([(1 - leaky) / 3] * 3)
        own = batch[batch.marker == primary]
        assert len(own) == 40 * (1 - leaky) and own.perturbation.value_counts().between(10, 14).all()
        assert (own.perturbation.value_counts() - len(own) / 3).abs().max() < 1


def test_labels_that_a_group_lacks_are_said_of_labels_that_it_can_have() -> None:
    frame = pd.DataFrame({"marker": ["a"] * 90 + ["b"] * 90, "dose": [0, 1, 2] * 30 + [0] * 88 + [1] * 2})
    cells = CellTable.from_frame(frame, None, None, None)
    axes = {"marker": ExperimentAware(column="marker"), "both": ConditionBalanced(column=["marker", "dose"])}
    with pytest.warns(ShortfallWarning) as told:
        BatchSampler(cells, axes, 30)
    assert [str(one.message) for one in told] == [
        "few cells of marker x dose in marker 'b': 2 of ('b', 1) for 15.0 places; other labels take these places."
    ]


def test_window_is_inclusive_at_both_ends() -> None:
    hours = np.round(np.arange(100) % 20 * 0.1, 10)
    cells = CellTable.from_frame(table({("e", "c"): 100}, hours=hours))
    s = BatchSampler(cells, {"t": TemporallyEnriched(0.3, 0.0)}, 35, num_batches=60)
    assert cells.hours is not None
    full = 0
    for step in range(60):
        focal, held = s.asked(0, step).focal_hours, cells.hours[s.batch(0, step)]
        if 0.3 <= focal <= 1.6:
            full += 1
            assert (np.abs(held - focal) <= 0.3 + EPS).all()
            assert len(np.unique(held)) == 7
    assert full


def test_missing_hours_are_never_focal_nor_inside() -> None:
    frame = table({("e0", "c0"): 60, ("e1", "c0"): 60})
    frame.loc[frame.index % 3 == 0, "hours_post_infection"] = np.nan
    frame.loc[frame.experiment == "e1", "hours_post_infection"] = np.nan
    cells = CellTable.from_frame(frame, missing="label")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ShortfallWarning)
        s = BatchSampler(cells, {"e": ExperimentAware(), "t": TemporallyEnriched(100.0, 0.5)}, 20, num_batches=30)
    assert cells.hours is not None
    seen = set()
    for step in range(30):
        held, asked = cells.hours[s.batch(0, step)], s.asked(0, step)
        seen.add(asked.experiment)
        if asked.experiment == 1:
            assert np.isnan(asked.focal_hours) and np.isnan(held).all()
        else:
            assert np.isfinite(asked.focal_hours) and np.isnan(held).sum() == 10
    assert seen == {0, 1}


def test_ninety_ten_with_temporal_and_balance() -> None:
    rng = np.random.default_rng(3)
    frame = table({("e0", "c0"): 4500, ("e0", "c1"): 500, ("e1", "c0"): 4500, ("e1", "c1"): 500})
    frame["hours_post_infection"] = rng.integers(0, 49, len(frame))
    cells = CellTable.from_frame(frame)
    s = BatchSampler(cells, {"t": TemporallyEnriched(2.0, 0.3), "c": ConditionBalanced()}, 64)
    assert cells.hours is not None
    for step in range(len(s)):
        held, asked = s.batch(0, step), s.asked(0, step)
        assert (frame.condition.iloc[held] == "c1").sum() == 32
        assert (np.abs(cells.hours[held] - asked.focal_hours) <= 2.0).sum() in (44, 45)


@every_subset
@given(st.data())
def test_kernels_do_what_the_plain_version_does(subset: tuple[str, ...], data: st.DataObject) -> None:
    case = data.draw(cases(subset))
    scope = data.draw(st.sampled_from(["rank", "global"]))
    # batches of a step that are one need so many cells, in the groups from which cells leak too
    room = case.batch_size * 3 <= len(case.cells) and getattr(case.axes.get("experiment"), "n_primary", 1) == 1
    world_size = data.draw(st.integers(1, 3)) if scope == "rank" or room else 1
    s = sampler(case, scope=scope, world_size=world_size, rank=world_size - 1, num_batches=50)
    for epoch, step in ((0, 0), (2, 7), (3, 1031)):
        assert s.batch(epoch, step).tolist() == oracle.batch(s, epoch, step)


@pytest.mark.parametrize("subset", [s for s in SUBSETS if "track" in s], ids="+".join)
@pytest.mark.parametrize("most", [1, 2])
def test_few_cells_of_a_track_where_there_are_tracks(subset: tuple[str, ...], most: int) -> None:
    frame = table({(f"e{e}", f"c{c}"): 900 for e in range(2) for c in range(2)})
    frame["track"] = [f"{e}-{i // 30}" for i, e in enumerate(frame.experiment)]
    cells = CellTable.from_frame(frame, track="track")
    axes = every_axis(window_hours=2.0, most=most)
    s = BatchSampler(cells, {n: axes[n] for n in subset}, 48)
    uncapped = BatchSampler(cells, {n: axes[n] for n in subset if n != "track"}, 48)
    largest = {
        name: max(
            Counter(cells.column("track").codes[x.batch(0, step)].tolist()).most_common(1)[0][1] for step in range(40)
        )
        for name, x in (("capped", s), ("uncapped", uncapped))
    }
    assert largest["capped"] <= most < largest["uncapped"]


def test_a_cap_gives_way_to_quotas_as_little_as_it_can() -> None:
    frame = table({("e0", "c0"): 60, ("e0", "c1"): 60})
    frame["track"] = [f"{c}{i % 5}" for i, c in enumerate(frame.condition)]
    cells = CellTable.from_frame(frame, track="track")
    for axes in ({"t": TrackCapped()}, {"t": TrackCapped(), "w": TemporallyEnriched(20.0)}):
        s = BatchSampler(cells, {"c": ConditionBalanced(), **axes}, 30)
        for step in range(4):
            held = frame.iloc[s.batch(0, step)]
            assert held.condition.value_counts().tolist() == [15, 15]
            assert held.track.value_counts().tolist() == [3] * 10


def pair_counts(s: BatchSampler, code: np.ndarray, n_labels: int, epochs: int) -> np.ndarray:
    """In how many batches each pair of labels is held."""
    pairs = np.zeros((n_labels, n_labels))
    for epoch in range(epochs):
        for step in range(len(s)):
            held = np.unique(code[s.batch(epoch, step)])
            pairs[np.ix_(held, held)] += 1
    return pairs[np.triu_indices(n_labels, 1)]


@pytest.mark.parametrize(("n_labels", "batch_size"), [(10, 4), (20, 16), (30, 7)])
def test_all_conditions_meet(n_labels: int, batch_size: int) -> None:
    cells = CellTable.from_frame(table({("e", f"c{c}"): 30 for c in range(n_labels)}))
    s = BatchSampler(cells, {"c": ConditionBalanced()}, batch_size)
    pairs = pair_counts(s, cells.column("condition").codes, n_labels, epochs=30)
    assert pairs.min() > 0.1 * pairs.mean() and pairs.max() < 3 * pairs.mean()


def test_cells_of_a_window_meet_each_other_about_equally_often() -> None:
    hours = np.repeat(np.arange(10), 33).astype(float)
    cells = CellTable.from_frame(table({("e", "c"): 330}, hours=hours))
    s = BatchSampler(cells, {"t": TemporallyEnriched(0.0, 0.0)}, 6, num_batches=100)
    assert cells.hours is not None
    pairs = np.zeros((330, 330))
    for epoch in range(120):
        for step in range(100):
            held = s.batch(epoch, step)
            pairs[np.ix_(held, held)] += 1
    alone, together = np.diag(pairs), pairs[np.triu_indices(330, 1)]
    together = together[(cells.hours[:, None] == cells.hours)[np.triu_indices(330, 1)]]
    assert alone.std() < 1.3 * np.sqrt(alone.mean())  # as even as chance, or more so
    assert together.std() < 1.7 * np.sqrt(together.mean()) and together.min() > 0


def test_short_epochs_reach_every_experiment() -> None:
    cells = CellTable.from_frame(table({(f"e{e:02}", "c"): 256 for e in range(32)}))
    s = BatchSampler(cells, {"e": ExperimentAware()}, 4, num_batches=10)
    led = [[s.asked(epoch, step).experiment for step in range(10)] for epoch in range(60)]
    assert {e for epoch in led for e in epoch} == set(range(32))
    assert len({tuple(epoch) for epoch in led[:10]}) == 10
