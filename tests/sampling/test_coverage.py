from __future__ import annotations

import warnings

import numpy as np
import pytest

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
from cellcohort.sampling.coverage import DrawCounter, coverage
from tables import table

CELLS = CellTable.from_frame(table({("a", "x"): 300, ("a", "y"): 40, ("b", "x"): 150, ("b", "y"): 30}))
AXES: dict[str, Axis] = {"e": ExperimentAware(0.1), "c": ConditionBalanced()}


def test_counts_the_draws_of_every_stratum() -> None:
    s = BatchSampler(CELLS, AXES, 16, world_size=2)
    found = coverage(s, epoch=3)
    times = np.zeros(len(CELLS), int)
    for rank in range(2):
        for step in range(len(s)):
            np.add.at(times, s.for_rank(rank, 2).batch(3, step), 1)
    column = CELLS.column(["experiment", "condition"])
    assert found.labels == column.labels
    for code in range(4):
        want = np.bincount(times[column.codes == code], minlength=found.drawn.shape[1])
        assert found.drawn[code].tolist() == want.tolist()
    assert found.share == pytest.approx((times > 0).mean())
    assert found.table()["draws per cell"].iloc[1] == pytest.approx(times[column.codes == 1].mean())


def test_a_cell_that_a_batch_repeats_is_drawn_as_often_and_covered_once() -> None:
    counter = DrawCounter(8)
    assert counter.add(np.array([[0, 0, 1], [1, 2, 2]])).tolist() == [2, 3]
    assert counter.add(np.array([[[2, 3], [3, 3]]])).tolist() == [4]
    assert counter.draws.tolist() == [2, 2, 3, 3, 0, 0, 0, 0]
    assert (counter.n_drawn, counter.share) == (4, 0.5)


def test_an_epoch_with_batches_that_repeat_cells_is_counted_cell_by_cell() -> None:
    cells = CellTable.from_frame(table({("a", "x"): 5, ("b", "x"): 40}))
    with pytest.warns(ShortfallWarning, match="cells come repeatedly"):
        s = BatchSampler(cells, {"e": ExperimentAware(weights="uniform")}, 12, num_batches=4)
    times = np.bincount(np.concatenate([s.batch(0, step) for step in range(4)]), minlength=45)
    code = cells.column("experiment").codes
    found = coverage(s)
    assert found.drawn.sum(axis=1).tolist() == [5, 40] and (times[code == 0] > 1).all()
    draws = found.drawn @ np.arange(found.drawn.shape[1])
    assert draws.tolist() == [times[code == c].sum() for c in (0, 1)]
    assert found.share == pytest.approx((times > 0).mean())


def test_without_axes_everything_is_one_stratum() -> None:
    found = coverage(BatchSampler(CELLS, {}, 16))
    assert found.labels == ("all cells",) and found.drawn.tolist() == [[8, 512]]


@pytest.mark.parametrize("names", ["", "e", "c", "ec"])
@pytest.mark.parametrize("world_size", [1, 2])
def test_an_epoch_that_covers_every_cell(names: str, world_size: int) -> None:
    s = BatchSampler(CELLS, {name: AXES[name] for name in names}, 16, num_batches="cover", world_size=world_size)
    assert [coverage(s, epoch).share for epoch in range(4)] == [1.0] * 4
    assert str(len(s) * world_size) in s.notes[0] or world_size == 2


def test_cover_is_not_much_longer_than_the_longest_of_many_epochs_needs() -> None:
    s = BatchSampler(CELLS, AXES, 16, num_batches="cover")
    fewest = []
    for epoch in range(100):
        seen = np.zeros(len(CELLS), bool)
        for step in range(len(s)):
            seen[s.batch(epoch, step)] = True
            if seen.all():
                fewest.append(step + 1)
                break
    assert len(fewest) == 100 and len(s) <= 1.05 * max(fewest) + 1


def test_no_length_covers_with_a_window() -> None:
    for axis in (TemporallyEnriched(), TrackCapped(column="condition")):
        with pytest.raises(ValueError, match="num_batches='cover' cannot be promised"):
            BatchSampler(CELLS, {"t": axis}, 16, num_batches="cover")


def test_cells_left_out_are_counted_as_never_drawn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ShortfallWarning)
        s = BatchSampler(CELLS, {"c": ConditionBalanced({"x": 1, "y": 0})}, 16)
    assert coverage(s).drawn[1].tolist()[0] == 70
