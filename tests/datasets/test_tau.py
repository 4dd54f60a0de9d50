"""The time from anchor to positive is drawn by one rule, for tables, for stores and for images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cellcohort.augment.features import Augment
from cellcohort.cells import CellTable
from cellcohort.data.patches import StoredPatches
from cellcohort.data.timelapse import Timelapse
from cellcohort.data.tracks import Tracks
from cellcohort.datasets.features.windows import TrackWindows
from cellcohort.datasets.images.positives import Lineages
from cellcohort.datasets.positives import TauDraw
from cellcohort.datasets.stored.pairs import Pairs
from cellcohort.sampling.batch import Batch

HOURS = np.array([0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 6.0])  # of one track; from 0.5 to 2 hours after the first: rows 2 to 5
TAU = (0.5, 2.0)
DRAWS = 4000
RULES: list[tuple[TauDraw, np.ndarray]] = [
    (TauDraw("uniform"), np.ones(4)),
    (TauDraw("exponential", 0.7), np.exp(-np.array([0.5, 1.0, 1.5, 2.0]) / 0.7)),
    (TauDraw("exponential"), np.exp(-np.array([0.5, 1.0, 1.5, 2.0]) / 2.0)),
    (TauDraw("fixed"), np.array([1.0, 0, 0, 0])),
]


def of_table(how: TauDraw) -> np.ndarray:
    cells = CellTable.from_frame(pd.DataFrame({"hours": HOURS, "track": "a"}), experiment=None, condition=None,
                                 hours="hours", track="track")  # fmt: skip
    rows = np.arange(len(HOURS), dtype=np.float32)[:, None]
    data = TrackWindows(cells, rows, ["row"], 1, TAU, "track_or_view", Augment(0, 0, 0.1), how=how)
    return np.array([data.__getitems__(Batch([0], epoch))["meta"]["tau_hours"][0] for epoch in range(DRAWS)])


def of_store(how: TauDraw) -> np.ndarray:
    pairs, among = Pairs(np.zeros(len(HOURS), int), HOURS, TAU, 0, how), np.arange(len(HOURS))
    later = np.concatenate([pairs.draw(np.array([0]), among, epoch) for epoch in range(DRAWS)])
    return HOURS[later]


def of_images(how: TauDraw) -> np.ndarray:
    track, mother = np.zeros(len(HOURS), int), np.array([-1])
    lineages = Lineages(track, HOURS, mother, TAU, how)
    return HOURS[np.concatenate([lineages.draw(np.array([0]), (0, epoch)) for epoch in range(DRAWS)])]


@pytest.mark.parametrize("draws", [of_table, of_store, of_images])
@pytest.mark.parametrize(("how", "weight"), RULES)
def test_times_are_drawn_in_the_shares_that_are_asked(
    how: TauDraw, weight: np.ndarray, draws: Callable[[TauDraw], np.ndarray]
) -> None:
    drawn = draws(how)
    share = np.array([np.isclose(drawn, hours).mean() for hours in HOURS[2:6]])
    assert share.sum() == pytest.approx(1)
    assert share == pytest.approx(weight / weight.sum(), abs=0.03)


def test_all_three_draw_the_same_positives() -> None:
    how = TauDraw("exponential", 1.0)
    np.testing.assert_allclose(of_table(how), of_store(how))
    np.testing.assert_allclose(of_store(how)[:50], [
        HOURS[Lineages(np.zeros(7, int), HOURS, np.array([-1]), TAU, how).draw(np.array([0]), (0, epoch, 0))[0]]
        for epoch in range(50)
    ])  # fmt: skip


@pytest.mark.parametrize("tau", ["uniform", "exponential", "fixed"])
def test_two_cells_at_one_time_do_not_make_it_twice_as_likely_and_are_drawn_evenly(tau: Any) -> None:
    """Two sisters at 1 hour and one cell at 2 hours, in a store that is paired by lineage."""
    pairs = Pairs(np.zeros(4, int), np.array([0.0, 1.0, 1.0, 2.0]), (1.0, 2.0), 0, TauDraw(tau))
    later = np.concatenate([pairs.draw(np.array([0]), np.arange(4), epoch) for epoch in range(DRAWS)])
    early = {"uniform": 0.5, "exponential": 1 / (1 + np.exp(-0.5)), "fixed": 1.0}[tau]
    share = np.bincount(later, minlength=4) / DRAWS
    assert share == pytest.approx([0, early / 2, early / 2, 1 - early], abs=0.03)


def test_a_steep_decay_draws_the_first_time_there_is_however_late() -> None:
    how = TauDraw("exponential", 1e-3)
    ticks = np.array([10**9, 2 * 10**9, 5, 6])
    rows = how.draw(np.array([0, 1]), np.array([0, 0, 1, 1]), np.array([2, 3, 4, 5]), ticks, (0,))
    assert rows.tolist() == [2, 4]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tau": "normal"}, "tau='normal' is not a choice; use one of uniform, exponential, fixed"),
        ({"tau": "uniform", "tau_decay_hours": 1.0}, "tau='uniform' takes no tau_decay_hours, which is 1.0"),
        ({"tau": "fixed", "tau_decay_hours": 1.0}, "tau='fixed' takes no tau_decay_hours"),
        ({"tau": "exponential", "tau_decay_hours": 0.0}, "tau_decay_hours=0.0 must be a number of hours above 0"),
        ({"tau": "exponential", "tau_decay_hours": float("nan")}, "tau_decay_hours=nan must be"),
    ],
)
def test_options_that_mean_nothing_are_refused_before_anything_is_read(options: dict[str, Any], said: str) -> None:
    entry = {"name": "a", "plate": "a.zarr", "tracks": "a.csv", "conditions": {"b": ["A/1"]}, "channels": ["c"]}
    for source in (
        Tracks("no.csv", columns={"features": ["a"]}, **options),
        StoredPatches("no.zarr", **options),
        Timelapse(experiments=[entry], **options),
    ):
        with pytest.raises(ValueError, match=said):
            source.dataset()


ENTRY = {"name": "a", "tracks": "a.csv", "conditions": {"b": ["A/1"]}, "channels": ["c"]}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (Tracks("no.csv", positive="lineage"), "positive='lineage' is not a choice"),  # type: ignore[arg-type]
        (Tracks("no.csv", tau_hours=(2.0, 1.0)), r"tau_hours=\[2.0, 1.0\] must be two times"),
        (Tracks("no.csv", tau="normal"), "tau='normal' is not a choice"),  # type: ignore[arg-type]
        (Timelapse("no.zarr", [ENTRY], normalise="well"), "normalise='well' is not a choice"),  # type: ignore[arg-type]
        (Timelapse("no.zarr", [ENTRY], normalise="none", normalise_by="median"), "normalise='none' leaves pixels"),
        (Timelapse("no.zarr", [ENTRY], positive="columns"), "list columns with positive='columns'"),
    ],
)
def test_options_are_refused_before_labels_are_read_too(source: Tracks | Timelapse, said: str) -> None:
    for read in (source.cells, source.dataset):
        with pytest.raises(ValueError, match=said):
            read()


def test_windows_of_no_frame_are_refused_before_the_table_is_read() -> None:
    with pytest.raises(ValueError, match="frames=0 leaves no frame in a window"):
        Tracks("no.csv", frames=0).dataset()
