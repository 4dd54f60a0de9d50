"""The batches of epochs: their primary groups, whole numbers from targets, leaks, and what comes over epochs."""

from __future__ import annotations

import itertools
import math
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracle
from cellcohort.cells import CellTable
from cellcohort.sampling import (
    BatchSampler,
    ConditionBalanced,
    ExperimentAware,
    ShortfallWarning,
    TemporallyEnriched,
)
from cellcohort.sampling.planning.jumps import count_cells
from cellcohort.sampling.planning.primary_groups import RUN, Groups, occurrences_before, primary_groups
from cellcohort.sampling.planning.primary_sets import _whole_lengths, primary_sets
from cellcohort.sampling.planning.split import fill
from cellcohort.sampling.rng import STEP, WHOLE, floor_sum, key_of
from tables import cases, table

laws = settings(max_examples=15, deadline=None, derandomize=True)


def sampler(cells: CellTable, axes: dict[str, Any], batch_size: int, **options: Any) -> BatchSampler:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ShortfallWarning)
        return BatchSampler(cells, axes, batch_size, **options)


def counts(s: BatchSampler, columns: Any, epochs: int) -> np.ndarray:
    """How many cells of each label, or combination of labels, some epochs draw."""
    column = s.cells.column(columns)
    drawn = np.zeros(len(column.labels), np.int64)
    for epoch in range(epochs):
        for step in range(len(s)):
            drawn += np.bincount(column.codes[s.batch(epoch, step)], minlength=len(drawn))
    return drawn


@laws
@given(st.integers(0, 300), st.integers(1, 2**32), st.integers(0, 2**32), st.integers(0, 2**33))
def test_floor_sum(n: int, m: int, a: int, b: int) -> None:
    assert floor_sum(n, m, a, b) == sum((a * i + b) // m for i in range(n))


@laws
@given(st.lists(st.integers(1, 100), min_size=1, max_size=6), st.integers(0, 400), st.integers(0, 2**32 - 1))
def test_primary_groups(weights: list[int], first: int, begin: int) -> None:
    end = np.rint(np.cumsum(weights) / sum(weights) * WHOLE).astype(np.int64)
    groups, key = Groups(end, begin), key_of(begin)
    n = 5 * RUN
    led = primary_groups(groups, 0, first + n, key)
    assert led.tolist() == oracle.primary_groups(end.tolist(), begin, first + n, int(key))
    np.testing.assert_array_equal(primary_groups(groups, first, n, key), led[first:])
    before = np.bincount(led[:first], minlength=len(weights))
    np.testing.assert_array_equal(occurrences_before(groups, first, key), before)
    assert before.tolist() == oracle.occurrences_before(end.tolist(), begin, first, int(key))
    assert np.abs(np.bincount(led, minlength=len(weights)) - len(led) * np.array(weights) / sum(weights)).max() < 5


@laws
@given(
    st.lists(st.integers(1, 100), min_size=1, max_size=6),
    st.sampled_from([2**30, 2**31, 2**32, 2**33, 10**10, 10**12]),
    st.integers(0, 40),
    st.integers(0, 2**32 - 1),
)
def test_batches_before_a_far_one_are_counted_exactly(weights: list[int], far: int, more: int, begin: int) -> None:
    end = np.rint(np.cumsum(weights) / sum(weights) * WHOLE).astype(np.int64)
    groups, key, first = Groups(end, begin), key_of(begin), far // RUN * RUN
    below = [oracle.floor_sum(first, WHOLE, STEP, begin + WHOLE - low) for low in [0, *end.tolist()]]  # of any size
    expected = [before - after for before, after in itertools.pairwise(below)]
    assert sum(expected) == first
    assert occurrences_before(groups, first, key).tolist() == expected
    begun = np.bincount(primary_groups(groups, first, more, key), minlength=len(end))
    assert occurrences_before(groups, first + more, key).tolist() == (expected + begun).tolist()


@laws
@given(
    st.lists(st.integers(1, 100), min_size=4, max_size=7), st.integers(2, 4), st.integers(0, 200), st.integers(0, 99)
)
def test_primary_sets(weights: list[int], k: int, first: int, seed: int) -> None:
    key = key_of(seed)
    often = fill(float(k), np.array(weights, float), np.ones(len(weights), np.int64))
    upto = np.cumsum(_whole_lengths(often, k))
    assert upto[-1] == k * WHOLE and np.diff(upto, prepend=0).max() <= WHOLE
    groups, n = np.arange(len(weights)) + 3, 10 * RUN
    sets = primary_sets(groups, upto, k, 0, first + n, key)
    plain = oracle.primary_sets(np.diff(upto, prepend=0).tolist(), k, first + n, int(key) >> 32, int(key))
    assert (sets - 3).tolist() == plain
    np.testing.assert_array_equal(primary_sets(groups, upto, k, first, n, key), sets[first:])
    assert (np.diff(np.sort(sets, axis=1), axis=1) > 0).all(), "no group twice in a batch"
    counts = np.bincount(sets[: (first + n) // RUN * RUN].ravel() - 3, minlength=len(weights))
    assert np.abs(counts - (first + n) // RUN * RUN * often).max() < 3


@laws
@given(
    st.lists(st.tuples(st.integers(1, 40), st.sampled_from([0.5, 1.0, 1.0, 2.0, 3.7])), min_size=1, max_size=8),
    st.floats(0.01, 1.0),
    st.integers(1, 3),
)
def test_fill(parts: list[tuple[int, float]], share: float, times: int) -> None:
    size, ratio = np.array([n for n, _ in parts]), np.array([r for _, r in parts])
    total = float(share * times * size.sum())
    found = fill(total, ratio, size)
    np.testing.assert_allclose(found, oracle.fill_by_ratio(total, size, ratio), atol=1e-9)
    assert found.sum() == pytest.approx(total)
    if (ratio == ratio[0]).all():
        np.testing.assert_allclose(found, oracle.fill(total, size), atol=1e-6)


@pytest.mark.parametrize("names", ["e", "c", "ec", "ecd"])
@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.data())
def test_batches_hold_what_the_plain_version_rounds(names: str, data: st.DataObject) -> None:
    """Which strata a batch takes and how many cells of each, whatever leaks, ratios and rare labels."""
    case = data.draw(cases(("experiment", "condition"), even=data.draw(st.booleans())))
    cells = CellTable.from_frame(case.frame.assign(dose=case.frame.index % data.draw(st.integers(1, 5))), track="track")
    axes = {"e": case.axes["experiment"], "c": case.axes["condition"], "d": ConditionBalanced(column="dose")}
    s = sampler(cells, {name: axes[name] for name in names}, case.batch_size, seed=case.seed)
    plan = s._picker.plan
    for number in (0, 1, 2, 7, 64, 1000):
        spec = plan.spec(1, number)
        if isinstance(spec.primary, int):
            rounded = oracle.round_batch(plan, spec.primary, spec.occurrence)
        else:
            rounded = oracle.round_set(plan, spec.primary.tolist(), spec.occurrence)
        assert list(zip(spec.stratum.tolist(), spec.n_cells.tolist(), strict=True)) == rounded
        taken = np.zeros(len(plan.strata.size), np.int64)
        for earlier in range(number if number < 8 else 0):
            np.add.at(taken, plan.spec(1, earlier).stratum, plan.spec(1, earlier).n_cells)
        assert number >= 8 or spec.before.tolist() == taken[spec.stratum].tolist()


def test_the_step_is_the_golden_section() -> None:
    assert abs(STEP / WHOLE - (math.sqrt(5) - 1) / 2) < 1e-9 and math.gcd(STEP, WHOLE) == 1


@pytest.mark.parametrize("experiment", [ExperimentAware(), ExperimentAware(0.1), ExperimentAware(0.1, experiments=2)])
@pytest.mark.parametrize("ratio", [None, {"c0": 0.4}])
def test_batches_are_the_same_in_any_order(experiment: ExperimentAware, ratio: dict[str, float] | None) -> None:
    cells = CellTable.from_frame(table({(f"e{e}", f"c{c}"): 300 for e in range(3) for c in range(4)}))
    axes = {"e": experiment, "c": ConditionBalanced(ratio)}
    s = sampler(cells, axes, 18, num_batches=600)
    steps = [(epoch, step) for epoch in (0, 1, 2) for step in (0, 63, 64, 599, 70, 2)]
    there = [s.batch(*place).tolist() for place in steps]
    other = sampler(cells, axes, 18)
    assert [other.batch(*place).tolist() for place in reversed(steps)] == there[::-1]
    plan, taken = sampler(cells, axes, 18)._picker.plan, np.zeros(12, np.int64)
    for number in range(599):
        spec = plan.spec(1, number)
        taken[spec.stratum] += spec.n_cells
    spec = sampler(cells, axes, 18)._picker.plan.spec(1, 599)
    assert spec.before.tolist() == taken[spec.stratum].tolist(), "counted by a jump, and batch by batch"


@pytest.mark.parametrize("experiment", [ExperimentAware(), ExperimentAware(0.1), ExperimentAware(experiments=2)])
@pytest.mark.parametrize(("first", "every"), [(0, 1), (0, 7), (5, 1), (999, 4)])
def test_a_batch_does_not_wait_for_those_that_follow(
    experiment: ExperimentAware, first: int, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the beginning of an epoch and after a jump; a process reads every batch, or one of so many."""
    cells = CellTable.from_frame(table({(f"e{e}", f"c{c}"): 300 for e in range(3) for c in range(4)}))
    plan = sampler(cells, {"e": experiment, "c": ConditionBalanced()}, 18, num_batches=2000)._picker.plan
    planned: list[int] = []
    whole = plan.batches._plan

    def record(number: int, n: int, *rest: Any) -> Any:
        planned.extend(range(number, number + n))
        return whole(number, n, *rest)

    plan.spec(0, 0)
    plan.batches._progress = plan.batches._before(1, first)
    monkeypatch.setattr(plan.batches, "_plan", record)
    begin, last = plan.n_batches + first, 0
    plan.spec(1, first)
    assert planned == [begin]
    for number in range(first, first + 300, every):
        plan.spec(1, number)
        last = max(last, len(planned))
    end = begin + 300
    assert planned == list(range(begin, planned[-1] + 1)), "each batch is planned once, in order"
    assert end - every < planned[-1] + 1 < end + 64


def test_readers_of_two_epochs_do_not_disturb_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = CellTable.from_frame(table({("e0", "c0"): 300, ("e1", "c0"): 200}))
    plan = sampler(cells, {"e": ExperimentAware()}, 10)._picker.plan
    calls: list[int] = []
    whole = plan.batches._plan

    def record(number: int, n: int, *rest: Any) -> Any:
        calls.append(n)
        return whole(number, n, *rest)

    monkeypatch.setattr(plan.batches, "_plan", record)
    for number in range(300):
        plan.spec(0, number)
        plan.spec(1, number + 20)
    assert sorted(calls) == sorted(2 * [1, 2, 4, 8, 16, 32, 64, 64, 64, 64])


@pytest.mark.parametrize("weights", [None, {"e0": 1.0, "e1": 2.5, "e2": 0.1}])
@pytest.mark.parametrize("ratio", [None, {"c0": 0.3, "c1": 0.1, "c2": 0.5, "c3": 0.01}])
@pytest.mark.parametrize("n_conditions", [4, 29])
def test_a_jump_knows_what_it_passes_over_without_planning_it(
    weights: dict[str, float] | None,
    ratio: dict[str, float] | None,
    n_conditions: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With equal targets, a turn of 29 strata takes up to 29 batches, and a period of turns as many."""
    sizes = {(f"e{e}", f"c{c}"): 3 + 40 * c + e for e in range(3) for c in range(n_conditions)}  # those of c0 are few
    axes = {"e": ExperimentAware(0.0, weights), "c": ConditionBalanced(ratio)}
    plan = sampler(CellTable.from_frame(table(sizes)), axes, 18)._picker.plan.batches
    each = [plan.spec(0, number) for number in range(3000)]
    monkeypatch.setattr(plan, "_plan", None)
    for first, last in ((0, 1), (0, 100), (41, 43), (41, 700), (700, 3000)):
        stepped = np.zeros(len(plan.targets.cells()), np.int64)
        for spec in each[first:last]:
            stepped[spec.stratum] += spec.n_cells
        assert counted(plan, first, last).tolist() == stepped.tolist()
    of_group = begun_before(plan, 10**6) - begun_before(plan, 5)
    found = counted(plan, 5, 10**6)
    np.testing.assert_allclose(found, plan.targets.cells() * of_group.repeat(n_conditions), atol=8)
    np.testing.assert_array_equal(found.reshape(3, -1).sum(axis=1), 18 * of_group)


def begun_before(plan: Any, first: int) -> np.ndarray:
    return occurrences_before(plan.groups, first, plan.key)


def counted(plan: Any, first: int, last: int) -> np.ndarray:
    """Cells of each stratum that a jump from one batch to another counts."""
    taken = np.zeros(plan.targets.first[-1], np.int64)
    count_cells(plan.targets, begun_before(plan, first), begun_before(plan, last), taken, plan.key)
    return taken


@st.composite
def rare_labels(draw: st.DrawFn) -> pd.DataFrame:
    """A few experiments that each have cells of many conditions, some of all and some of their own."""
    rng = np.random.default_rng(draw(st.integers(0, 2**20)))
    experiments, conditions = draw(st.integers(2, 5)), draw(st.integers(40, 120))
    own = draw(st.booleans())  # whether a condition is in one experiment only
    n = draw(st.integers(3, 6)) * conditions
    condition = rng.integers(0, conditions, n)
    experiment = condition % experiments if own else rng.integers(0, experiments, n)
    return pd.DataFrame({"experiment": experiment, "condition": condition})


@settings(max_examples=8, deadline=None, derandomize=True)
@given(rare_labels(), st.integers(3, 24), st.sampled_from([0.1, 0.3]), st.booleans())
def test_batches_of_rare_labels_hold_what_the_plain_version_rounds(
    frame: pd.DataFrame, batch_size: int, leaky: float, equal: bool
) -> None:
    ratio = None if equal else {c: 1.0 + c % 3 for c in frame.condition.unique().tolist()}
    axes = {"e": ExperimentAware(leaky), "c": ConditionBalanced(ratio)}
    plan = sampler(CellTable.from_frame(frame), axes, batch_size)._picker.plan
    for number in (0, 3, 40):
        spec = plan.spec(0, number)
        held = list(zip(spec.stratum.tolist(), spec.n_cells.tolist(), strict=True))
        assert held == oracle.round_batch(plan, spec.primary, spec.occurrence)


@laws
@given(rare_labels(), st.integers(3, 24), st.sampled_from([0.0, 0.1, 0.3]))
def test_over_epochs_every_stratum_comes_as_often_as_it_is_asked(
    frame: pd.DataFrame, batch_size: int, leaky: float
) -> None:
    cells = CellTable.from_frame(frame)
    s = sampler(cells, {"e": ExperimentAware(leaky), "c": ConditionBalanced()}, batch_size)
    epochs = 12
    drawn = counts(s, ["experiment", "condition"], epochs)
    labels = cells.column(["experiment", "condition"]).labels
    asked = {label: 0.0 for label in labels}
    plan = s._picker.plan
    led = np.bincount([plan.spec(epoch, step).primary for epoch in range(epochs) for step in range(len(s))])
    for primary, n_batches in enumerate(led):  # by the plain version
        if n_batches:
            for label, n_cells in oracle.asked_of_strata(frame, primary, leaky, batch_size):
                asked[label] += n_batches * n_cells
    off = np.abs(drawn - np.array([asked[label] for label in labels]))
    assert off.max() < (2 if leaky == 0 else 5 + 0.3 * max(asked.values()))
    assert drawn.min() > 0 or min(asked.values()) < 2


def test_no_condition_of_many_is_left_out_for_ever() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"experiment": rng.integers(0, 10, 9000), "condition": rng.integers(0, 3000, 9000)})
    cells = CellTable.from_frame(frame)
    for leaky in (0.0, 0.1):
        s = sampler(cells, {"e": ExperimentAware(leaky), "c": ConditionBalanced()}, 64)
        drawn = counts(s, ["experiment", "condition"], 40) / 40
        assert 1.1 < drawn.mean() < 1.2
        assert drawn.min() > 0.5 and np.quantile(drawn, 0.99) < 2


def test_what_an_epoch_cannot_hold_is_said() -> None:
    frame = pd.DataFrame({"experiment": 0, "condition": [*range(50)] * 3 + [0] * 50})
    cells = CellTable.from_frame(frame)
    s = sampler(cells, {"c": ConditionBalanced()}, 30)
    assert not any("less than one cell an epoch" in message for message in s.warnings)
    s = sampler(cells, {"c": ConditionBalanced({c: 10.0 if c else 0.1 for c in range(50)})}, 30)
    assert s.warnings[-1].startswith("1 of 50 strata are asked less than one cell an epoch")


@pytest.mark.parametrize(("num_batches", "said"), [(1, True), (2, False), ("cover", False)])
@pytest.mark.parametrize("options", [{"world_size": 2}, {"world_size": 2, "scope": "global"}])
def test_what_an_epoch_of_a_given_length_cannot_hold_is_said(
    num_batches: Any, said: bool, options: dict[str, Any]
) -> None:
    cells = CellTable.from_frame(pd.DataFrame({"experiment": 0, "condition": [*range(50)] * 4}))
    s = sampler(cells, {"c": ConditionBalanced()}, 15, num_batches=num_batches, **options)
    assert (
        any("50 of 50 strata are asked less than one cell an epoch, 0.6 at least" in one for one in s.warnings) == said
    )


@pytest.mark.parametrize(("leaky", "batch_size", "mean"), [(0.02, 16, 0.32), (0.02, 30, 0.6), (0.1, 25, 2.5)])
@pytest.mark.parametrize("shared", [True, False])
def test_a_fractional_leak_comes_true_on_average(leaky: float, batch_size: int, mean: float, shared: bool) -> None:
    sizes = {(f"e{e}", f"c{c}"): 100 for e in range(3) for c in range(3) if shared or c != e}
    cells = CellTable.from_frame(table(sizes))
    s = sampler(cells, {"e": ExperimentAware(leaky), "c": ConditionBalanced()}, batch_size, num_batches=400)
    experiment = cells.column("experiment").codes
    leaked = [int((experiment[s.batch(0, i)] != s.asked(0, i).experiment).sum()) for i in range(400)]
    assert set(leaked) == {math.floor(mean), math.ceil(mean)}
    assert abs(np.mean(leaked) - mean) < 0.02


@pytest.mark.parametrize("shared", [True, False])
def test_leaks_come_from_all_other_experiments_in_proportion_to_their_cells(shared: bool) -> None:
    size = {"e0": 100, "e1": 200, "e2": 300, "e3": 400}
    sizes = {(e, f"c{c}"): n for e, n in size.items() for c in range(3) if shared or (e, c) != ("e0", 2)}
    cells = CellTable.from_frame(table(sizes))
    s = sampler(cells, {"e": ExperimentAware(0.2, "uniform"), "c": ConditionBalanced()}, 21, num_batches=800)
    experiment, condition = cells.column("experiment").codes, cells.column("condition").codes
    from_other, of_label = np.zeros((4, 4)), np.zeros((4, 3))
    for step in range(800):
        batch, primary = s.batch(0, step), s.asked(0, step).experiment
        leaked = batch[experiment[batch] != primary]
        from_other[primary] += np.bincount(experiment[leaked], minlength=4)
        of_label[primary] += np.bincount(condition[leaked], minlength=3)
    for primary in range(1 if not shared else 0, 4):
        others = [e for e in range(4) if e != primary]
        weight = np.array([size[f"e{e}"] for e in others], float)
        if shared:
            np.testing.assert_allclose(
                from_other[primary, others] / from_other[primary].sum(), weight / weight.sum(), atol=0.02
            )
        np.testing.assert_allclose(of_label[primary] / of_label[primary].sum(), 1 / 3, atol=0.02)
        assert from_other[primary, others].min() > 0


@pytest.mark.parametrize("shared", [True, False])
def test_groups_do_not_all_leak_the_same_labels(shared: bool) -> None:
    """In an epoch that leaks fewer cells than there are labels, few labels are leaked often."""
    n_groups, n_labels = 40, 1000
    sizes = {(f"e{e}", f"c{c}"): 1 for e in range(n_groups) for c in range(n_labels) if shared or (e + c) % 8 == 0}
    cells = CellTable.from_frame(table(sizes))
    s = sampler(cells, {"e": ExperimentAware(0.1, "uniform"), "c": ConditionBalanced()}, 64, num_batches=3 * n_groups)
    experiment, condition = cells.column("experiment").codes, cells.column("condition").codes
    leaks = np.zeros(n_labels, int)
    for step in range(3 * n_groups):
        batch, primary = s.batch(0, step), s.asked(0, step).experiment
        leaks += np.bincount(condition[batch[experiment[batch] != primary]], minlength=n_labels)
    assert leaks.sum() == pytest.approx(768, abs=12)
    assert leaks.max() <= 6 and np.count_nonzero(leaks) > 400


def test_no_cell_leaks_of_a_condition_that_only_the_primary_experiment_has() -> None:
    sizes = {(f"e{e}", f"c{c}"): 100 for e in range(3) for c in range(3)}
    cells = CellTable.from_frame(table({**sizes, ("e0", "c0-alone"): 300, ("e0", "c9-alone"): 300}))
    s = sampler(cells, {"e": ExperimentAware(0.3, "uniform"), "c": ConditionBalanced()}, 20, num_batches=300)
    experiment, condition = cells.column("experiment").codes, cells.column("condition").codes
    leaked_into_e0 = np.zeros(5)
    for step in range(300):
        batch, primary = s.batch(0, step), s.asked(0, step).experiment
        leaked = batch[experiment[batch] != primary]
        assert len(leaked) == 6
        if primary == 0:
            leaked_into_e0 += np.bincount(condition[leaked], minlength=5)
    share = dict(zip(cells.column("condition").labels, leaked_into_e0 / leaked_into_e0.sum(), strict=True))
    assert share == pytest.approx({"c0": 1 / 3, "c1": 1 / 3, "c2": 1 / 3, "c0-alone": 0, "c9-alone": 0}, abs=0.02)


def test_what_a_dose_leaves_to_the_leak_is_shared_by_the_other_doses_of_its_condition() -> None:
    """Dose 0 of c0 is of the primary experiment only: the leak has as many cells of c0 as of c1, all of dose 1."""
    doses = {("e0", "c0"): (0,), ("e0", "c1"): (0,), ("e1", "c0"): (1,), ("e1", "c1"): (0, 1, 2)}
    frame = pd.concat(
        [table({stratum: 300}).assign(dose=dose) for stratum, several in doses.items() for dose in several],
        ignore_index=True,
    )
    axes = {"e": ExperimentAware(0.5), "c": ConditionBalanced(), "d": ConditionBalanced(column="dose")}
    s = sampler(CellTable.from_frame(frame), axes, 12, num_batches=100)
    e0 = s.cells.column("experiment").labels.index("e0")
    batches = [frame.iloc[s.batch(0, step)] for step in range(100) if s.asked(0, step).experiment == e0]
    leaked = pd.concat([batch[batch.experiment == "e1"] for batch in batches]).condition.value_counts()
    assert leaked.sum() == 6 * len(batches) and abs(leaked["c0"] - leaked["c1"]) <= 1


def test_a_leak_that_cannot_be_met_is_said() -> None:
    cells = CellTable.from_frame(table({("e0", "c"): 90}))
    with pytest.warns(ShortfallWarning, match=r"the others have 0 cells for the 0\.32 asked of them in each batch"):
        BatchSampler(cells, {"e": ExperimentAware(0.02)}, 16)


def test_many_shortfalls_are_one_sentence() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"experiment": rng.integers(0, 40, 4000), "condition": rng.integers(0, 500, 4000)})
    s = sampler(CellTable.from_frame(frame), {"e": ExperimentAware(), "c": ConditionBalanced()}, 16)
    lacking = [message for message in s.warnings if "lack cells of some condition" in message]
    assert len(lacking) == 1 and lacking[0].startswith("40 of 40 labels of experiment")
    assert sum(map(len, s.warnings)) < 1000


def test_cover_with_rare_labels_or_a_refusal_with_numbers() -> None:
    frame = pd.DataFrame({"experiment": ["a"] * 300 + ["b"] * 100, "condition": [*range(300), *[0, 1] * 50]})
    cells = CellTable.from_frame(frame)
    s = sampler(cells, {"e": ExperimentAware(), "c": ConditionBalanced()}, 4, num_batches="cover")
    seen = np.zeros(400, bool)
    for epoch in (0, 70):
        seen[:] = False
        for step in range(len(s)):
            seen[s.batch(epoch, step)] = True
        assert seen.all()
    for rare in (1e-7, 1e-3):  # with 1e-3 about 300 times the batches that the cells fill
        ratio = {c: 1.0 if c else rare for c in range(300)}
        with pytest.raises(ValueError, match=r"num_batches='cover' takes about .* times as many as the cells fill"):
            sampler(cells, {"e": ExperimentAware(), "c": ConditionBalanced(ratio)}, 4, num_batches="cover")


def test_a_time_window_that_runs_short_is_said() -> None:
    sizes = {(f"e{e}", f"c{c}"): 400 for e in range(2) for c in range(2)}
    cells = CellTable.from_frame(table(sizes))  # 16 cells of each stratum at each of 25 times
    axes = {"e": ExperimentAware(), "c": ConditionBalanced()}
    with pytest.warns(ShortfallWarning, match=r"a time window of 0 hours on each side holds 50% of the cells"):
        BatchSampler(cells, {**axes, "t": TemporallyEnriched(0.0, 0.0)}, 64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        BatchSampler(cells, {**axes, "t": TemporallyEnriched(2.0, 0.3)}, 64)
