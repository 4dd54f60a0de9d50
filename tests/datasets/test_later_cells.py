"""Which cells are as much later as a positive is: the same in tables, images and stores."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellcohort.cells import CellTable
from cellcohort.datasets.images.positives import Lineages
from cellcohort.datasets.positives import Clock, TauDraw, rising_clock
from cellcohort.datasets.stored.pairs import Pairs

TAU = [(0.5, 2.0), (0.0, 0.5), (1.5, 1.5), (0.0, 1e9), (5.0, 1e300), (1e9, 1e10)]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=6, unique=True), min_size=1, max_size=5),
    st.sampled_from(TAU),
)
def test_later_cells_are_those_found_by_hand(tracks: list[list[int]], tau: tuple[float, float]) -> None:
    track = np.repeat(np.arange(len(tracks)), [len(times) for times in tracks])
    hours = np.concatenate([sorted(times) for times in tracks]) / 2
    rows = np.arange(len(track))
    apart = hours[None] - hours[:, None]
    wanted = (track[None] == track[:, None]) & (apart > 0) & (apart >= tau[0]) & (apart <= tau[1])
    cells = CellTable.from_frame(pd.DataFrame({"hours": hours, "track": track}), None, None, "hours", "track")
    clock, first = rising_clock(cells, tau)
    for found in (clock.later(clock.time), Clock.of(track, hours, tau).later(clock.time)):
        np.testing.assert_array_equal((rows >= found[0][:, None]) & (rows < found[1][:, None]), wanted)
    assert first.tolist() == [int(np.flatnonzero(track == one)[0]) for one in track]
    alone = np.full(len(tracks), -1)
    assert (
        Lineages(track, hours, alone, tau, TauDraw()).anchors().tolist() == np.flatnonzero(wanted.any(axis=1)).tolist()
    )
    later = Pairs(track, hours, tau, 0).draw(rows, rows[::-1], 0)
    assert all(wanted[row, one] if wanted[row].any() else one == row for row, one in enumerate(later))


def test_hours_too_far_apart_to_be_told_are_refused() -> None:
    with pytest.raises(ValueError, match=r"from 0 to 1e\+15, which is too far apart"):
        Clock.of(np.array([0, 0]), np.array([0.0, 1e15]), (0.5, 2.0))


def test_missing_hours_are_refused() -> None:
    with pytest.raises(ValueError, match="hours are missing in 1 row; fill or drop"):
        Pairs(np.array([0, 0, 1]), np.array([0.0, np.nan, 1.0]), (0.5, 2.0), 0)
