"""What the sampler refuses, warns of, and how it passes through epochs."""

from __future__ import annotations

import itertools
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest

from cellcohort.cells import CellTable, Column
from cellcohort.sampling import (
    Batch,
    BatchSampler,
    ChunkedBatchSampler,
    ConditionBalanced,
    ExperimentAware,
    FlexibleBatchSampler,
    ShortfallWarning,
    TemporallyEnriched,
)
from cellcohort.sampling.axes.base import ShareAxis
from tables import table

FRAME = table({("a", "mock"): 40, ("a", "drug"): 20, ("b", "mock"): 30, ("b", "drug"): 10})
CELLS = CellTable.from_frame(FRAME)
HELD_OUT = "^validation batches, drawn from 100 held-out cells: "


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ExperimentAware(leaky=1.0), r"leaky must be a number in .*; got 1.0"),
        (lambda: ExperimentAware(leaky=-0.1), r"leaky must be a number in .*; got -0.1"),
        (lambda: ExperimentAware(leaky=float("nan")), r"leaky must be a number in .*; got nan"),
        (lambda: ExperimentAware(leaky="0.1"), r"leaky must be a number in .*; got '0.1'"),  # type: ignore[arg-type]
        (lambda: ExperimentAware(weights="even"), r"weights='even' is not a choice"),  # type: ignore[arg-type]
        (lambda: ConditionBalanced(ratio=[1, 2]), r"ratio=\[1, 2\] is not a choice"),  # type: ignore[arg-type]
        (lambda: TemporallyEnriched(window_hours=-1), r"window_hours must be .* >= 0, got -1"),
        (lambda: TemporallyEnriched(window_hours=float("inf")), r"window_hours must be .* >= 0, got inf"),
        (lambda: TemporallyEnriched(window_hours="2"), r"window_hours must be a number of hours, got '2'"),  # type: ignore[arg-type]
        (lambda: TemporallyEnriched(global_fraction=1.2), r"global_fraction must be a number in .*; got 1.2"),
    ],
)
def test_axes_refuse_bad_values(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("axis", "message"),
    [
        (ExperimentAware(weights={"a": 1, "c": 1}), r"names 'c', which no cell has\. The labels .* are 'a', 'b'"),
        (ExperimentAware(weights={"a": 1}), r"weights does not name 'b'"),
        (ExperimentAware(weights={"a": 1, "b": -1}), r"found \{'b': -1\}"),
        (ExperimentAware(weights={"a": 1, "b": float("nan")}), r"found \{'b': nan\}"),
        (ExperimentAware(weights={"a": 1, "b": True}), r"found \{'b': True\}"),
        (ExperimentAware(weights={"a": 0, "b": 0}), r"weights are all 0"),
        (ConditionBalanced(ratio={"mock": 1, "drug": 1, "virus": 1}), r"ratio names 'virus'.*'drug', 'mock'"),
        (ConditionBalanced(ratio={"mock": 0, "drug": 0}), r"ratio are all 0"),
        (
            ConditionBalanced(ratio={"mock": 1}),
            r"ratio gives 1 to 'mock' and does not name 'drug'\. Give shares that sum",
        ),
        (ConditionBalanced(column="stain"), r"no column 'stain'"),
        (TemporallyEnriched(column="condition"), r"has no numbers"),
        ("temporal", r"is no axis"),
    ],
)
def test_axes_that_do_not_fit_the_table(axis: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BatchSampler(CELLS, {"x": axis}, 10)  # type: ignore[dict-item]


def test_axes_in_a_list_are_refused_with_the_way_to_write_them() -> None:
    with pytest.raises(ValueError, match=r"axes=\[ExperimentAware\(.* must map names to axes, such as \{'experiment':"):
        BatchSampler(CELLS, [ExperimentAware()], 10)  # type: ignore[arg-type]


def test_conditions_that_are_not_named_share_the_rest_equally() -> None:
    frame = pd.DataFrame({"condition": ["DMSO"] * 500 + [f"compound{i % 7}" for i in range(700)]})
    cells = CellTable.from_frame(frame, experiment=None, hours=None)
    sampler = BatchSampler(cells, {"c": ConditionBalanced(ratio={"DMSO": 0.3})}, 100)
    held = np.array([np.bincount(cells.column("condition").codes[sampler.batch(0, t)], minlength=8) for t in range(12)])
    control = cells.column("condition").labels.index("DMSO")
    assert (held[:, control] == 30).all()
    assert np.isin(np.delete(held, control, axis=1), (10,)).all()


def test_number_and_text_are_different_labels() -> None:
    cells = CellTable.from_frame(FRAME.assign(experiment=(FRAME.experiment == "b").astype(int)))
    with pytest.raises(ValueError, match=r"names '0', '1', which .*\. Did you mean 0, 1 \(a number and .* are 0, 1"):
        BatchSampler(cells, {"x": ExperimentAware(weights={"0": 1, "1": 1})}, 10)


def test_two_axes_of_one_kind() -> None:
    with pytest.raises(ValueError, match="both a GroupAxis"):
        BatchSampler(CELLS, {"x": ExperimentAware(), "y": ExperimentAware(column="condition")}, 10)
    with pytest.raises(ValueError, match="both a WindowAxis"):
        BatchSampler(CELLS, {"x": TemporallyEnriched(), "y": TemporallyEnriched(1.0)}, 10)
    with pytest.raises(ValueError, match="two axes rule one column"):
        BatchSampler(CELLS, {"x": ConditionBalanced(), "y": ConditionBalanced()}, 10)
    alike = CellTable.from_frame(FRAME, condition="experiment")  # two roles of one column
    with pytest.raises(ValueError, match=r"two axes rule one column, 'experiment': .*ExperimentAware.*ConditionBal"):
        BatchSampler(alike, {"x": ExperimentAware(), "y": ConditionBalanced()}, 10)


def test_no_hours() -> None:
    cells = CellTable.from_frame(FRAME, hours=None)
    with pytest.raises(ValueError, match=r"the table has no hours.*data\.columns\.hours, in code CellTable"):
        BatchSampler(cells, {"x": TemporallyEnriched()}, 10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 101}, r"a batch of 101 cells is larger than .* 100 of 100"),
        ({"batch_size": 0}, r"batch_size must be an integer >= \d, got 0"),
        ({"batch_size": 2.5}, r"batch_size must be an integer >= \d, got 2.5"),
        ({"batch_size": 60, "world_size": 2, "scope": "global"}, r"a batch of 120 cells is larger"),
        (
            {"batch_size": 60, "world_size": 2},
            r"fewer than world_size=2 ranks; .*batch_size=\d+ or less",
        ),
        ({"batch_size": 10, "rank": 2, "world_size": 2}, r"rank=2 does not exist"),
        ({"batch_size": 10, "world_size": 0}, r"world_size must be an integer >= \d, got 0"),
        ({"batch_size": 10, "seed": -1}, r"seed must be an integer >= \d, got -1"),
        ({"batch_size": 10, "seed": 2**64}, r"seed must be an integer below 2\*\*64, got 18446744073709551616"),
        ({"batch_size": 10, "num_batches": 0}, r"num_batches must be an integer >= \d, got 0"),
        (
            {"batch_size": 10, "num_batches": "covr"},
            r"num_batches must be an integer >= 1, 'cover', or null .*; got 'covr'",
        ),
        ({"batch_size": 10, "scope": "node"}, r"scope='node' is not a choice"),
        ({"schedule": [1]}, r"schedule=\[1\] must map options to values"),
        ({"schedule": {1: 2}}, r"schedule changes 1, but there is no axis ''"),
        ({"cells": FRAME}, r"cells must be a CellTable, got a DataFrame\. Make one of a DataFrame: CellTable\.from_fr"),
        ({"cells": None}, r"cells must be a CellTable, got a NoneType"),
        ({"index_cache": ""}, r"index_cache='' must be the path of a directory, or null"),
        ({"index_cache": 3}, r"index_cache=3 must be the path of a directory, or null"),
    ],
)
def test_sampler_refuses_bad_values(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BatchSampler(**{"cells": CELLS, "axes": {}, "batch_size": 10, **options})  # type: ignore[arg-type]


def test_an_axis_of_time_and_a_batch_refuse_values_of_other_kinds() -> None:
    with pytest.raises(ValueError, match=r"column=\['hours'\] must be the name of one column"):
        TemporallyEnriched(column=["hours"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"step must be an integer below 2\*\*64, got 1000"):
        BatchSampler(CELLS, {}, 10).batch(0, 10**30)
    with pytest.raises(ValueError, match="cells must be a CellTable, got a DataFrame"):
        ChunkedBatchSampler(FRAME, {}, 10)  # type: ignore[arg-type]


@pytest.mark.parametrize("world_size", [1, 2])
def test_batches_of_held_out_cells_are_no_larger_than_these(world_size: int) -> None:
    sampler = BatchSampler(CELLS, {}, 101, world_size=world_size, fixed=True)
    assert sampler.batch_size == 100 // world_size and len(sampler) == 1


def test_labels_that_held_out_cells_lack_are_told_as_theirs() -> None:
    axes = {"c": ConditionBalanced({"mock": 1, "drug": 1, "rare": 1})}
    with pytest.raises(ValueError, match=HELD_OUT + r".*'rare', which no cell has.*validation_sampler"):
        BatchSampler(CELLS, axes, 10, fixed=True)
    with pytest.raises(ValueError, match=r"^ratio names 'rare'"):
        BatchSampler(CELLS, axes, 10)


def test_what_held_out_cells_cannot_give_is_told_as_theirs() -> None:
    few = {"c": ConditionBalanced({"mock": 1, "drug": 3})}
    with pytest.warns(ShortfallWarning, match="^validation batches: few cells of condition"):
        BatchSampler(CELLS, few, 60, fixed=True)


def test_cells_left_out_do_not_count() -> None:
    with pytest.raises(ValueError, match=r"larger than .* 70 of 100"):
        BatchSampler(CELLS, {"c": ConditionBalanced({"mock": 1, "drug": 0})}, 71)
    s = BatchSampler(CELLS, {"c": ConditionBalanced({"mock": 1, "drug": 0})}, 10)
    assert set(FRAME.condition.iloc[np.concatenate(list(s))]) == {"mock"} and len(s) == 7


@pytest.mark.parametrize(
    ("sizes", "axes", "message"),
    [
        ({("a", "x"): 50, ("a", "y"): 50, ("b", "x"): 50}, {"e": ExperimentAware(), "c": ConditionBalanced()},
         r"no cells of condition 'y' in experiment 'b', only 'x'; it cannot be balanced there"),
        ({("a", "x"): 96, ("a", "y"): 4}, {"c": ConditionBalanced()}, r"4 of 'y' for 10.0 places"),
        ({("a", "x"): 90, ("b", "x"): 10}, {"e": ExperimentAware()}, r"10 cells in experiment 'b' for 20 places"),
        ({("a", "x"): 90}, {"e": ExperimentAware(0.2)}, r"the others have 0 cells .* in experiment 'a'"),
    ],
)  # fmt: skip
def test_what_cannot_be_met_is_said(sizes: dict[tuple[str, str], int], axes: dict[str, object], message: str) -> None:
    cells = CellTable.from_frame(table(sizes))
    with pytest.warns(ShortfallWarning, match=message):
        s = BatchSampler(cells, axes, 20)  # type: ignore[arg-type]
    assert len(s.warnings) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert BatchSampler(cells, axes, 20, rank=1, world_size=2).warnings == s.warnings  # type: ignore[arg-type]


def test_a_condition_missing_from_an_experiment_leaves_the_rest_exact() -> None:
    cells = CellTable.from_frame(table({("a", "x"): 50, ("a", "y"): 50, ("b", "x"): 50}))
    with pytest.warns(ShortfallWarning):
        s = BatchSampler(cells, {"e": ExperimentAware(0.2), "c": ConditionBalanced()}, 20)
    experiment, condition = cells.column("experiment").codes, cells.column("condition").codes
    for step in range(7):
        held, leader = s.batch(0, step), s.asked(0, step).experiment
        assert (experiment[held] == leader).sum() == 16
        own, leaked = condition[held[experiment[held] == leader]], condition[held[experiment[held] != leader]]
        assert (np.bincount(own, minlength=2) == ([8, 8] if leader == 0 else [16, 0])).all()
        assert (np.bincount(leaked, minlength=2) == ([4, 0] if leader == 0 else [2, 2])).all()


def test_passes_move_on_only_by_themselves() -> None:
    s = BatchSampler(CELLS, {}, 10)
    first, second = list(s), list(s)
    assert first != second and (first[0].epoch, second[0].epoch) == (0, 1)
    s.set_epoch(0)
    assert list(s) == first
    s.set_epoch(1)
    s.set_epoch(1)
    assert list(s) == second
    assert [b.epoch for b in s] == [2] * 10
    assert s.sampler is s


def test_a_pass_given_up_half_way_still_counts() -> None:
    s = BatchSampler(CELLS, {}, 10)
    assert [b.epoch for b in itertools.islice(s, 3)] == [0] * 3
    assert next(iter(s)).epoch == 1


def test_an_iterator_that_is_never_used_does_not_count() -> None:
    s = BatchSampler(CELLS, {}, 10)
    iter(s)
    assert next(iter(s)).epoch == 0


def test_a_fixed_sampler_repeats_epoch_0() -> None:
    s, moving = BatchSampler(CELLS, {}, 10, fixed=True), BatchSampler(CELLS, {}, 10)
    first = list(s)
    s.set_epoch(5)
    assert list(s) == first == list(moving)


def test_batches_are_lists_of_int_that_pickle() -> None:
    batch = next(iter(BatchSampler(CELLS, {}, 10)))
    assert isinstance(batch, list) and {type(p) for p in batch} == {int}
    again = pickle.loads(pickle.dumps(Batch(batch, 3, 4)))
    assert again == batch and (again.epoch, again.step) == (3, 4)


def test_the_sampler_pickles() -> None:
    s = BatchSampler(CELLS, {"e": ExperimentAware(0.1), "t": TemporallyEnriched(3.0)}, 10)
    assert list(pickle.loads(pickle.dumps(s))) == list(s)
    assert "leaky=0.1" in repr(s)


def test_state_says_where_the_next_pass_begins() -> None:
    s, restored = BatchSampler(CELLS, {}, 10), BatchSampler(CELLS, {}, 10)
    assert s.state_dict() == {"epoch": 0, "step": 0}
    list(s)
    restored.load_state_dict(s.state_dict())
    assert list(restored) == list(s)


def test_state_of_another_sampler_is_refused() -> None:
    s = BatchSampler(CELLS, {}, 10)
    with pytest.raises(ValueError, match="has 10 batches"):
        s.load_state_dict({"epoch": 0, "step": 11})
    with pytest.raises(ValueError, match="'epoch' and 'step'"):
        s.load_state_dict({"epoch": 0})


def test_epochs_and_seeds_that_add_up_alike_differ() -> None:
    def drawn(seed: int, epoch: int) -> list[int]:
        return BatchSampler(CELLS, {}, 10, seed=seed).batch(epoch, 0).tolist()

    assert len({tuple(drawn(seed, epoch)) for seed, epoch in ((0, 2), (1, 1), (2, 0))}) == 3


@pytest.mark.parametrize("last", [0.0, 1.0])
def test_nothing_leaks_from_groups_that_no_batch_may_hold(last: float) -> None:
    """The groups without a weight come last, or first, among those of the table."""
    cells = CellTable.from_frame(table({(e, c): 60 for e in "ab" for c in ("mock", "drug", "other")}))
    axes = {"experiment": ExperimentAware(0.1, {"a": 1 - last, "b": last}), "condition": ConditionBalanced()}
    with pytest.warns(ShortfallWarning, match="the others have 0 cells for the 10 asked of them"):
        sampler = BatchSampler(cells, axes, 100)
    held = np.stack([sampler.batch(0, number) for number in range(len(sampler))])
    column = cells.column("experiment")
    assert held.min() >= 0 and held.max() < len(cells)
    assert set(column.codes[held].ravel()) == {column.labels.index("b" if last else "a")}


def test_flexible_is_the_same_sampler() -> None:
    axes = {
        "experiment": ExperimentAware(0.2, "uniform"), "condition": ConditionBalanced({"mock": 3, "drug": 1}),
        "temporal": TemporallyEnriched(3.0, 0.4),
    }  # fmt: skip
    options = dict(
        experiment_aware=True, leaky=0.2, experiment_weights="uniform", condition_ratio={"mock": 3, "drug": 1},
        temporal_enrichment=True, temporal_window_hours=3.0, temporal_global_fraction=0.4,
    )  # fmt: skip
    flat = FlexibleBatchSampler(FRAME, 10, num_replicas=2, rank=1, seed=5, **options)  # type: ignore[arg-type]
    assert list(flat) == list(BatchSampler(CELLS, axes, 10, seed=5, rank=1, world_size=2))


def test_flexible_looks_only_at_columns_it_needs() -> None:
    bare = pd.DataFrame({"hours_post_perturbation": [0.0, 1.0, 2.0, 3.0]}, index=list("wxyz"))
    s = FlexibleBatchSampler(bare, 2, experiment_aware=False, condition_balanced=False, temporal_enrichment=True)
    assert sorted(itertools.chain(*s)) and len(s) == 2
    with pytest.raises(ValueError, match="experiment='experiment' is not a column"):
        FlexibleBatchSampler(bare, 2)


def test_flexible_takes_columns_and_weights_by_the_names_of_viscy() -> None:
    marker = np.where(np.arange(100) % 2, "GFP", "RFP")
    frame = FRAME.assign(marker=marker, line="x")
    flat = FlexibleBatchSampler(
        frame, 5, batch_group_by=["experiment", "marker"], stratify_by=["condition", "line"], leaky=0.2,
        group_weights={"a|GFP": 2, "b|RFP": 1},
    )  # fmt: skip
    weights = {("a", "GFP"): 2, ("b", "RFP"): 1, ("a", "RFP"): 0, ("b", "GFP"): 0}
    axes = {
        "experiment": ExperimentAware(0.2, weights, ["experiment", "marker"]),
        "condition": ConditionBalanced(column=["condition", "line"]),
    }
    assert list(flat) == list(BatchSampler(CellTable.from_frame(frame), axes, 5))
    groups = {(frame.experiment[i], frame.marker[i]) for batch in flat for i in batch}
    assert groups == {("a", "GFP"), ("b", "RFP")}


def test_flexible_without_groups_or_strata_draws_at_random() -> None:
    bare = pd.DataFrame({"marker": ["GFP"] * 6})
    assert sorted(itertools.chain(*FlexibleBatchSampler(bare, 2, batch_group_by=None, stratify_by=None))) == [*range(6)]
    grouped = FlexibleBatchSampler(FRAME, 10, batch_group_by=None)
    assert list(grouped) == list(FlexibleBatchSampler(FRAME, 10, experiment_aware=False))


def test_flexible_names_groups_that_no_cell_has() -> None:
    weighted = FlexibleBatchSampler(FRAME, 10, group_weights=pd.Series({"a": 1.0, "b": 3.0}))
    same = FlexibleBatchSampler(FRAME, 10, group_weights={"a": 1.0, "b": 3.0})
    assert (weighted.batch(0, 0) == same.batch(0, 0)).all()
    with pytest.raises(ValueError, match=r"group_weights names 'c', which no cell has; the groups are 'a', 'b'\. Corr"):
        FlexibleBatchSampler(FRAME, 10, group_weights={"a": 1, "c": 1})


def test_flexible_drop_last() -> None:
    plain = dict(experiment_aware=False, condition_balanced=False)
    s = FlexibleBatchSampler(FRAME, 30, drop_last=False, **plain)  # type: ignore[arg-type]
    drawn = [p for batch in s for p in batch]
    assert [len(b) for b in s] == [30] * 4 and set(drawn) == set(range(100))
    assert len(FlexibleBatchSampler(FRAME, 30, **plain)) == 3  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "idle",
    [
        {"experiment_aware": False, "leaky": 0.1},
        {"experiment_aware": False, "experiment_weights": "uniform"},
        {"condition_balanced": False, "condition_ratio": {"mock": 1}},
        {"temporal_window_hours": 3.0},
        {"batch_group_by": None, "leaky": 0.1},
        {"batch_group_by": None, "group_weights": {"a": 1}},
        {"experiment_aware": False, "batch_group_by": "marker"},
        {"condition_balanced": False, "stratify_by": ["condition"]},
        {"stratify_by": None, "condition_ratio": {"mock": 1}},
    ],
)
def test_flexible_refuses_options_of_an_axis_that_is_off(idle: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="has no effect"):
        FlexibleBatchSampler(FRAME, 10, **idle)  # type: ignore[arg-type]


class Counted(ShareAxis):
    """Shares on the scale of numbers of cells."""

    column = "condition"

    def shares(self, column: Column) -> np.ndarray:
        return column.counts().astype(float)


@pytest.mark.filterwarnings("error")
def test_shares_of_an_axis_may_have_any_scale() -> None:
    cells = CellTable.from_frame(table({("a", "mock"): 90, ("a", "drug"): 30}))
    sampler = BatchSampler(cells, axes={"counted": Counted()}, batch_size=12)
    assert sampler.asked(0, 0).shares["condition"].tolist() == [0.25, 0.75]
    codes = cells.column("condition").codes
    assert [np.bincount(codes[batch]).tolist() for batch in sampler] == [[3, 9]] * 10
