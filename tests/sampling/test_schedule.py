"""Options of axes that change from epoch to epoch: batches are functions of epoch and place, and hold what is asked."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from cellcohort.cells import CellTable
from cellcohort.preview import cover, findings, report, survey
from cellcohort.sampling import (
    BatchSampler,
    ChunkedBatchSampler,
    ConditionBalanced,
    ExperimentAware,
    ShortfallWarning,
    TemporallyEnriched,
    TrackCapped,
)
from cellcohort.sampling.axes.base import Axis
from cellcohort.sampling.schedule import Schedule
from tables import table

CELLS = CellTable.from_frame(table({(f"e{e}", f"c{c}"): 240 for e in range(4) for c in range(2)}), track="track")
EXPERIMENT = CELLS.column("experiment").codes
AXES: dict[str, Axis] = {"e": ExperimentAware(), "c": ConditionBalanced(), "t": TemporallyEnriched()}
LEAKS = {"sampler.e.leaky": [0.5, 0.25, 0.0]}


def make(schedule: dict[str, Any] | None = None, **options: Any) -> BatchSampler:
    return BatchSampler(CELLS, AXES, **{"batch_size": 40, "seed": 5, "schedule": schedule or LEAKS} | options)


def test_batches_of_an_epoch_are_those_of_a_sampler_with_its_options() -> None:
    s = make()
    for epoch, leaky in ((3, 0.0), (0, 0.5), (1, 0.25), (2, 0.0), (0, 0.5)):
        plain = BatchSampler(CELLS, {**AXES, "e": ExperimentAware(leaky)}, 40, seed=5)
        assert len(plain) == len(s)
        for step in (0, 7, len(s) - 1):
            np.testing.assert_array_equal(s.batch(epoch, step), plain.batch(epoch, step))
            asked = s.asked(epoch, step)
            assert asked.leaky == leaky
            assert (EXPERIMENT[s.batch(epoch, step)] != asked.experiment).sum() == 40 * leaky
    assert [axes["e"].leaky for axes in (s.in_epoch(epoch).axes for epoch in range(4))] == [0.5, 0.25, 0.0, 0.0]


def test_ranks_share_one_sequence_and_a_stopped_pass_goes_on() -> None:
    whole = make(num_batches=8)
    ranks = [make(rank=rank, world_size=2, num_batches=4) for rank in range(2)]
    for epoch in range(4):
        union = [ranks[step % 2].batch(epoch, step // 2).tolist() for step in range(8)]
        assert union == [whole.batch(epoch, step).tolist() for step in range(8)]
    passes = [list(whole) for _ in range(4)]
    resumed = make(num_batches=8)
    resumed.load_state_dict({"epoch": 1, "step": 5})
    assert [list(resumed) for _ in range(3)] == [passes[1][5:], passes[2], passes[3]]
    assert make().signature != make({"e.leaky": [0.5, 0.0]}).signature
    assert "schedule" not in BatchSampler(CELLS, AXES, 40).signature


def test_a_line_goes_evenly_from_one_number_to_another() -> None:
    s = make({"e.leaky": {"from": 0.4, "to": 0, "epochs": 5}, "t.window_hours": [1, 2]})
    assert [s.asked(epoch, 0).leaky for epoch in range(7)] == pytest.approx([0.4, 0.3, 0.2, 0.1, 0, 0, 0])
    assert [s.asked(epoch, 0).window_hours for epoch in range(3)] == [1, 2, 2]


def test_every_axis_can_be_changed_and_keeps_its_other_options() -> None:
    for axis, knobs in (
        (ExperimentAware(0.1, {"a": 1}, "plate", experiments=2), {"leaky": 0.2}),
        (ExperimentAware(temper=0.5), {"experiments": 3}),
        (ConditionBalanced({"x": 0.3}, ["a", "b"]), {"ratio": None}),
        (TemporallyEnriched(3.0, 0.1, "day"), {"window_hours": 1.0}),
        (TrackCapped(2, "lineage"), {"max_cells": 1}),
    ):
        changed = axis.changed(**knobs)
        assert repr(changed) != repr(axis) and repr(changed.changed()) == repr(changed)
        back = {name: getattr(axis, name, getattr(axis, f"_{name}", None)) for name in knobs}
        assert repr(changed.changed(**back)) == repr(axis)


def test_what_a_table_lacks_in_a_later_epoch_is_said_at_once() -> None:
    axes = {"e": ExperimentAware(0.5)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        BatchSampler(CELLS, axes, 600)
    with pytest.warns(ShortfallWarning, match=r"480 cells in experiment 'e0' for 600 places in each of its batches"):
        BatchSampler(CELLS, axes, 600, schedule=LEAKS)


def test_the_preview_shows_any_epoch() -> None:
    s = make(world_size=2)
    for epoch, share in ((0, "50.0 %"), (2, "0.0 %")):
        of = survey(s.in_epoch(epoch), batches=20, epochs=3, epoch=epoch)
        text = " ".join(report(of, findings(of), cover(of.sampler)).split())
        assert f"of epoch {epoch}; seed 5" in text and "e.leaky is 0.5, 0.25, 0 from epoch 0 on, and then stays" in text
        assert (f"{share} leak in" in text) == (epoch == 0) and "not available with a schedule" in text
        assert np.allclose(of.numbers["leak/held"], of.numbers["leak/asked"])


@pytest.mark.parametrize("options", [{}, {"axes": {"k": TrackCapped(1)}, "schedule": None}])
def test_the_preview_does_not_advise_to_cover_what_cannot_be_covered(options: dict[str, Any]) -> None:
    axes: dict[str, Axis] = {"e": ExperimentAware()}
    few = {"axes": axes, "batch_size": 8, "num_batches": 4, "schedule": LEAKS} | options
    of = survey(BatchSampler(CELLS, **few).in_epoch(0), batches=4, epochs=2)
    advice = " ".join(each.change for each in findings(of))
    assert "num_batches above 4" in advice and "num_batches=cover" not in advice


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        ({"x.leaky": [0.1]}, r"changes x\.leaky, but there is no axis 'x'\. There are: e, c, t"),
        (
            {"e.leaking": [0.1]},
            r"ExperimentAware has no option leaking\. Did you mean 'leaky'\? There are: leaky, weights",
        ),
        ({"e.experiments": {"from": 1.5, "to": 2, "epochs": 2}}, r"experiments must be an integer >= 1, got 1\.5"),
        ({"e.leaky": [0.1, 2]}, r"leaky must be a number in \[0, 1\).*got 2"),
        ({"e.leaky": 0.1}, r"schedule of e\.leaky must be a list of values, one per epoch, .*; got 0\.1"),
        ({"e.leaky": {"from": 0, "to": 1}}, r"schedule of e\.leaky must be a list"),
        (
            {"e.leaky": {"from": 0, "to": 0.1, "epochs": 1}},
            r"epochs of schedule e\.leaky must be an integer >= 2, got 1",
        ),
        ({"e.leaky": {"from": "a", "to": 0.1, "epochs": 3}}, r"from 'a' to 0\.1 in e\.leaky; both must be numbers"),
        ({"e.column": ["experiment"]}, r"an axis has one column in all epochs"),
        ({"e.leaky": [0.1], "sampler.e.leaky": [0.2]}, r"gives e\.leaky twice, as e\.leaky and sampler\.e\.leaky"),
        ({"e.experiments": [1, 5, 2]}, r"5 blocks in each batch, and there are 4 labels of experiment"),
        ({"e.weights": [None, {"e9": 1.0}, None]}, r"weights names 'e9', which no cell has"),
        ({"c.ratio": [None, {"c0": 0.0, "c1": 0.0}, None]}, r"ratio are all 0, so there is no cell to draw"),
    ],
)
def test_what_cannot_change_is_refused(schedule: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make(schedule)


def test_a_line_over_an_integer_option_is_rounded() -> None:
    for ends in ({"from": 1, "to": 4}, {"from": 1.0, "to": 4.0}):
        schedule = Schedule(
            {"e.experiments": {**ends, "epochs": 3}, "e.leaky": {"from": 0, "to": 0.5, "epochs": 2}}, AXES
        )
        assert schedule.values == {"e.experiments": (1, 2, 4), "e.leaky": (0.0, 0.5)}
        assert all(type(value) is int for value in schedule.values["e.experiments"])


def test_too_few_cells_in_an_epoch_between_are_refused_at_once() -> None:
    first = {"e0": 1.0, "e1": 0.0, "e2": 0.0, "e3": 0.0}
    with pytest.raises(ValueError, match=r"batch of 500 cells is larger .* 480 of 1920"):
        make({"e.weights": [None, first, None]}, batch_size=500)


def test_what_has_no_schedule_refuses_it() -> None:
    with pytest.raises(ValueError, match=r"num_batches='cover' cannot be promised with a schedule"):
        make(num_batches="cover")
    with pytest.raises(ValueError, match=r"not supported where cells are read in chunks.*reading=rows"):
        ChunkedBatchSampler(CELLS, AXES, 40, 16, 16, schedule=LEAKS)
