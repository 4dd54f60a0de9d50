"""Tracks that descend from one track are one lineage, however many divisions lie between."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from cellcohort.datasets.images.descent import descent, mothers_among


def test_all_generations_are_one_lineage() -> None:
    n = 9  # track 0, its daughter 1, and so on; track 20 is another line
    rows = pd.DataFrame({"track_id": [*range(n), 20], "parent_track_id": [-1, *range(n - 1), -1], "t": [*range(n), 0]})
    found = descent(rows.assign(_field=0, position="A/1/0"))
    assert found["mother"].tolist() == [-1, *range(n - 1), -1]
    assert found["lineage"].tolist() == [0] * n + [n]
    assert np.array_equal(found["first"], np.arange(n + 1)) and (found["n"] == 1).all()


@pytest.mark.parametrize("there", [[0, 4], [0, 2, 4], [0, 1, 2, 3, 4], [3, 4], [4]])
def test_the_nearest_ancestor_is_found_over_any_number_of_tracks_that_are_gone(there: list[int]) -> None:
    """One cell whose track is broken in five; 5 and 6 are another one."""
    mother = np.array([-1, 0, 1, 2, 3, -1, 5])
    found = mothers_among(mother, np.array([*there, 6]))
    assert [found[track] for track in there] == [-1, *there[:-1]] and found[6] == -1


def test_frames_in_which_the_mother_is_still_there_are_told_and_no_track_is_its_own_ancestor() -> None:
    """Track 1 divides at frame 4 into 2, seen from frame 2, and 3; 4 and 5 are each other's mothers, and 6 is of 7."""
    lives = {1: (range(4), -1), 2: (range(2, 6), 1), 3: (range(4, 6), 1), 4: (range(3), 5), 5: (range(1, 3), 4)}
    lives |= {6: (range(2), 7), 7: (range(3), -1)}
    rows = pd.DataFrame(
        [(track, t, mother) for track, (frames, mother) in lives.items() for t in frames],
        columns=["track_id", "t", "parent_track_id"],
    )
    found = descent(rows.assign(_field=0, position="A/1/0"))
    assert found["overlap"].tolist() == [-1, 3, -1, 2, 2, 1, -1]
    assert found["mother"].tolist() == [-1, 0, 0, -1, 3, -1, -1]
    assert found["lineage"].tolist() == [0, 0, 0, 3, 3, 5, 6]
