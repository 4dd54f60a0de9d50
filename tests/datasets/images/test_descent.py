"""Tracks that descend from one track are one lineage, however many divisions lie between."""

from __future__ import annotations

import numpy as np
import pandas as pd

from cellcohort.datasets.images.descent import descent


def test_all_generations_are_one_lineage() -> None:
    n = 9  # track 0, its daughter 1, and so on; track 20 is another line
    rows = pd.DataFrame({"track_id": [*range(n), 20], "parent_track_id": [-1, *range(n - 1), -1], "t": [*range(n), 0]})
    found = descent(rows.assign(_field=0, position="A/1/0"))
    assert found["mother"].tolist() == [-1, *range(n - 1), -1]
    assert found["lineage"].tolist() == [0] * n + [n]
    assert np.array_equal(found["first"], np.arange(n + 1)) and (found["n"] == 1).all()
