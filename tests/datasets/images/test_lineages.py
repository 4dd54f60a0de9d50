"""Positives of cells are later cells of their track and of all tracks that descend from it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellcohort.datasets.images.positives import Lineages
from cellcohort.datasets.positives import TauDraw


def by_hand(
    track: np.ndarray, hours: np.ndarray, mother: np.ndarray, row: int, low: float, high: float
) -> tuple[int, ...]:
    """Rows `low` to `high` hours after a row that are of its track or descend from it."""

    def descends(one: int) -> bool:
        while one >= 0 and one != track[row]:
            one = mother[one]
        return bool(one >= 0)

    tau = hours - hours[row]
    later = (tau > 0) & (tau >= low - 1e-9) & (tau <= high + 1e-9)
    return tuple(other for other in np.flatnonzero(later) if descends(track[other]))


@st.composite
def families(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tracks of a few frames each, where later tracks may descend from earlier ones, with frames left out."""
    n = draw(st.integers(1, 12))
    mother = np.array([draw(st.integers(-1, track - 1)) for track in range(n)])
    begin, track, hours = np.zeros(n), [], []
    for one in range(n):
        frames = draw(st.integers(1, 4))
        begin[one] += draw(st.integers(0, 2))
        track += [one] * frames
        hours += [(begin[one] + frame) / 2 for frame in range(frames)]
        begin[[other for other in range(n) if mother[other] == one]] = begin[one] + frames
    return np.array(track), np.array(hours), mother


@settings(max_examples=60, deadline=None, derandomize=True)
@given(families(), st.sampled_from([(0.5, 2.0), (0.0, 0.5), (1.5, 1.5), (3.0, 50.0)]))
def test_positives_are_those_found_by_hand(
    family: tuple[np.ndarray, np.ndarray, np.ndarray], tau: tuple[float, float]
) -> None:
    track, hours, mother = family
    lineages, rows = Lineages(track, hours, mother, tau, TauDraw("exponential", 1e9)), np.arange(len(track))
    owner, start, stop = lineages.segments(rows)
    found = [tuple(sorted(r for o, a, b in zip(owner, start, stop, strict=True) if o == row for r in range(a, b)))
             for row in rows]  # fmt: skip
    wanted = [by_hand(track, hours, mother, row, *tau) for row in rows]
    assert found == wanted
    assert lineages.anchors().tolist() == [row for row in rows if wanted[row]]
    for epoch in range(3):
        drawn = lineages.draw(rows, (0, epoch))
        assert all(one in (wanted[row] or (row,)) for row, one in enumerate(drawn))


@pytest.mark.parametrize("pieces", [2, 3, 4])
def test_a_track_broken_in_pieces_has_the_positives_of_the_whole(pieces: int) -> None:
    hours, mother = np.arange(12.0), np.arange(pieces) - 1
    broken, whole = np.arange(12) * pieces // 12, np.zeros(12, np.int64)
    rows, tau = np.arange(12), (1.0, 9.0)
    one = Lineages(whole, hours, np.array([-1]), tau, TauDraw("exponential"))
    other = Lineages(broken, hours, mother, tau, TauDraw("exponential"))
    for epoch in range(20):
        np.testing.assert_array_equal(other.draw(rows, (0, epoch)), one.draw(rows, (0, epoch)))
