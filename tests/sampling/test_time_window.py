"""Cells around a focal time: classes of neighbours, and strata of few cells."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from cellcohort.cells import CellTable
from cellcohort.sampling import BatchSampler, ConditionBalanced, TemporallyEnriched
from cellcohort.sampling.axes.base import Axis
from cellcohort.sampling.drawing.time_window import CLASSES, FEW, _class_at, _offset


def test_every_class_of_a_block_has_one_cell_and_is_found_by_it() -> None:
    for key in np.random.default_rng(0).integers(0, 2**63, 50).astype(np.uint64):
        offsets = [_offset(c, key) for c in range(CLASSES)]
        assert sorted(offsets) == list(range(CLASSES))
        assert [_class_at(offset, key) for offset in offsets] == list(range(CLASSES))


@pytest.mark.parametrize("size", [2, 5, FEW, FEW + 1, 40, 200])
@pytest.mark.parametrize("global_fraction", [0.0, 0.5])
def test_cells_of_small_strata_come_equally_often(size: int, global_fraction: float) -> None:
    """Two conditions of `size` cells at each of 3 hours; a batch asks for one of each inside, and one outside."""
    frame = pd.DataFrame({"hours": np.tile(np.repeat([0.0, 10.0, 20.0], size), 2)})
    frame["condition"] = np.repeat(["a", "b"], 3 * size)
    cells = CellTable.from_frame(frame, experiment=None, hours="hours")
    axes: dict[str, Axis] = {"c": ConditionBalanced(), "t": TemporallyEnriched(1.0, global_fraction)}
    steps = 256 * size
    batches = BatchSampler(cells, axes, batch_size=4 if global_fraction else 2, num_batches=steps)
    times = np.bincount(np.concatenate([batches.batch(0, step) for step in range(steps)]), minlength=len(frame))
    assert times.min() > 0.6 * times.mean() and times.max() < 1.5 * times.mean()
