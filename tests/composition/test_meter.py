from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pandas as pd
import pytest

from cellcohort.cells import CellTable
from cellcohort.composition.meter import MOST_LABELS, Meter, StepMeter, describe
from cellcohort.sampling import Asked, BatchSampler, ConditionBalanced, ExperimentAware, TemporallyEnriched

pytestmark = pytest.mark.filterwarnings("ignore::cellcohort.sampling.ShortfallWarning")


def make_cells(n: int = 600, seed: int = 0, **changes: object) -> CellTable:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "experiment": rng.choice(["A", "B", "C"], n, p=[0.6, 0.3, 0.1]),
            "condition": rng.choice(["mock", "drug"], n, p=[0.9, 0.1]),
            "hours": rng.integers(0, 49, n) / 2,
            "track": rng.integers(0, n // 5, n),
            "dose": rng.choice([1, 10], n),
        }
    )
    for name, values in changes.items():
        frame[name] = values
    return CellTable.from_frame(frame, hours="hours", track="track", missing="label")


def all_axes(leaky: float = 0.2) -> dict:
    return {
        "experiment": ExperimentAware(leaky=leaky),
        "condition": ConditionBalanced(),
        "temporal": TemporallyEnriched(window_hours=3.0, global_fraction=0.25),
    }


def by_hand(cells: CellTable, positions: list[int], asked: Asked) -> dict[str, float]:
    """The numbers of one batch, counted one cell at a time."""
    n, numbers = len(positions), {}
    lacks = {}
    for title in ("experiment", "condition"):
        column = cells.column(title)
        held = Counter(column.labels[column.codes[p]] for p in positions)
        table = Counter(column.labels[code] for code in column.codes)
        for label in table:
            numbers[f"{title}/share/{label}"] = held[label] / n
        numbers[f"{title}/present"] = len(held)
        numbers[f"{title}/distance_to_table"] = sum(abs(held[x] / n - table[x] / len(cells)) for x in table) / 2
        if title in asked.shares:
            share = dict(zip(column.labels, asked.shares[title], strict=True))
            for label in table:
                numbers[f"{title}/asked/{label}"] = share[label]
            numbers[f"{title}/distance"] = sum(abs(held[x] / n - share[x]) for x in share) / 2
            lacks[title] = [share[x] * n - held[x] for x in share]
    if asked.experiment is not None:
        codes = cells.column("experiment").codes
        others = sum(codes[p] != asked.experiment for p in positions)
        numbers |= {"leak/asked": asked.leaky, "leak/held": others / n}
        lacks["leak"] = [abs(asked.leaky * n - others)]
        del lacks["experiment"]
    if not np.isnan(asked.inside):
        inside = sum(abs(cells.hours[p] - asked.focal_hours) <= asked.window_hours + 1e-6 for p in positions)
        numbers |= {"window/asked": asked.inside, "window/held": inside / n, "window/focal_hours": asked.focal_hours}
        lacks["window"] = [abs(asked.inside * n - inside)]
    short = {f"{what}/shortfall": sum(int(x + 1e-6) for x in lack if x > 1 + 1e-6) for what, lack in lacks.items()}
    tracks = cells.column("track").codes
    return {
        **numbers,
        **short,
        "shortfall": sum(short.values()),
        "duplicates": n - len(set(positions)),
        "same_track_pairs": sum(tracks[a] == tracks[b] for a, b in combinations(positions, 2)),
    }


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "names", [[], ["experiment"], ["condition", "temporal"], ["experiment", "condition", "temporal"]]
)
def test_a_batch_is_described_as_counted_by_hand(names: list[str], seed: int) -> None:
    cells = make_cells(seed=seed, hours=np.where(np.arange(600) % 7 == 0, np.nan, np.arange(600) % 48))
    axes = {name: all_axes()[name] for name in names}
    sampler = BatchSampler(cells, axes, batch_size=40, seed=seed)
    rng = np.random.default_rng(seed)
    for step in range(3):
        asked = sampler.asked(0, step)
        for positions in (sampler.batch(0, step), rng.integers(0, 30, 40), rng.integers(0, len(cells), 40)):
            told = describe(cells, positions, asked, axes)
            assert told == pytest.approx(by_hand(cells, positions.tolist(), asked), nan_ok=True)


def test_ranks_are_described_as_each_alone_and_the_global_batch_as_their_union() -> None:
    cells, axes = make_cells(), all_axes()
    samplers = [BatchSampler(cells, axes, batch_size=32, rank=rank, world_size=3) for rank in range(3)]
    positions = np.stack([sampler.batch(1, 2) for sampler in samplers])
    positions[2, :5] = positions[0, :5]
    asked = [sampler.asked(1, 2) for sampler in samplers]
    meter = Meter(cells, axes)
    rows = [dict(zip(meter.names, row, strict=True)) for row in meter.measure(positions[None], [asked])[0]]
    alone = [describe(cells, p, a, axes) for p, a in zip(positions, asked, strict=True)]
    for row, expected in zip(rows, alone, strict=False):
        assert row == pytest.approx(expected)
    whole, union = rows[-1], by_hand(cells, positions.ravel().tolist(), Asked())
    for name in ("condition/share/mock", "experiment/share/B", "experiment/present", "experiment/distance_to_table"):
        assert whole[name] == pytest.approx(union[name])
    assert (whole["duplicates"], whole["same_track_pairs"]) == (union["duplicates"], union["same_track_pairs"])
    assert whole["duplicates"] >= 5
    for name in ("leak/held", "window/held", "leak/asked", "experiment/asked/A"):  # batch by batch
        assert whole[name] == pytest.approx(np.mean([row[name] for row in alone]))
    assert whole["shortfall"] == sum(row["shortfall"] for row in alone)
    held = np.mean([[row[f"experiment/share/{x}"] for x in "ABC"] for row in alone], axis=0)
    wanted = np.mean([[row[f"experiment/asked/{x}"] for x in "ABC"] for row in alone], axis=0)
    assert whole["experiment/distance"] == pytest.approx(np.abs(held - wanted).sum() / 2)


def test_what_the_sampler_gives_as_asked_has_no_shortfall() -> None:
    cells, axes = make_cells(20_000), all_axes(leaky=0.1)
    sampler = BatchSampler(cells, axes, batch_size=64)
    for step in range(20):
        told = describe(cells, sampler.batch(0, step), sampler.asked(0, step), axes)
        assert told["shortfall"] == 0
        assert told["window/held"] == pytest.approx(0.75, abs=1 / 64)
        assert told["condition/share/drug"] == pytest.approx(0.5, abs=1 / 64)
        assert told["leak/held"] == pytest.approx(0.1, abs=1 / 64)


def test_what_the_cells_cannot_give_is_short_cell_by_cell() -> None:
    condition = np.where(np.arange(600) < 5, "drug", "mock")
    cells = make_cells(condition=condition)
    axes = {"condition": ConditionBalanced()}
    sampler = BatchSampler(cells, axes, batch_size=40)
    told = describe(cells, sampler.batch(0, 0), sampler.asked(0, 0), axes)
    assert told["condition/share/drug"] == 5 / 40
    assert told["condition/shortfall"] == told["shortfall"] == 15
    assert told["condition/distance"] == pytest.approx(15 / 40)
    assert told["duplicates"] == 0


@pytest.mark.parametrize(("held", "short"), [(20, 0), (19, 0), (18, 2), (21, 0), (25, 5)])
def test_one_cell_off_is_rounding_and_two_are_short(held: int, short: int) -> None:
    cells = make_cells(condition=["drug"] * 300 + ["mock"] * 300)
    positions = np.concatenate([np.arange(held), 300 + np.arange(40 - held)])
    told = describe(cells, positions, Asked({"condition": np.array([0.5, 0.5])}), {"condition": ConditionBalanced()})
    assert told["condition/shortfall"] == short


def test_the_window_holds_both_its_ends_and_never_a_missing_time() -> None:
    hours = np.full(600, 100.0)
    hours[:8] = [10 - 0.3, 10 + 0.3, 10 - 0.3 - 1e-9, 10.0, 10 + 0.31, 10 - 0.31, np.nan, np.nan]
    cells, axes = make_cells(hours=hours), {"temporal": TemporallyEnriched(window_hours=0.3, global_fraction=0.5)}
    asked = Asked(focal_hours=10.0, window_hours=0.3, inside=0.5)
    assert describe(cells, np.arange(8), asked, axes)["window/held"] == 4 / 8
    nowhere = Asked(focal_hours=np.nan, window_hours=0.3, inside=0.5)  # no time was there to be focal
    told = describe(cells, np.arange(8), nowhere, axes)
    assert (told["window/held"], told["window/shortfall"]) == (0, 4)


def test_without_axes_batches_are_compared_with_the_table() -> None:
    cells = make_cells()
    told = describe(cells, np.arange(len(cells)))
    assert told["experiment/distance_to_table"] == told["condition/distance_to_table"] == pytest.approx(0)
    assert not any("asked" in name or name.endswith("/distance") for name in told)
    assert not any(name.startswith(("leak", "window")) for name in told)
    bare = CellTable.from_frame(pd.DataFrame({"x": range(5)}), experiment=None, condition=None, hours=None)
    assert describe(bare, [1, 1, 2]) == {"duplicates": 1, "shortfall": 0}


def test_axes_need_what_they_asked() -> None:
    with pytest.raises(ValueError, match="pass asked="):
        describe(make_cells(), np.arange(4), axes=all_axes())


def test_names_come_from_the_cells_not_from_the_batch() -> None:
    cells = make_cells()
    none_of_c = cells.take(np.flatnonzero(cells.column("experiment").codes != 2))
    names = Meter(none_of_c, all_axes()).names
    assert "experiment/share/B" in names and "experiment/share/C" not in names
    assert set(names) == set(
        describe(none_of_c, np.zeros(4, int), BatchSampler(none_of_c, all_axes(), 4).asked(0, 0), all_axes())
    )
    one = make_cells(experiment="only")
    assert describe(one, np.arange(5))["experiment/share/only"] == 1


def test_a_column_of_many_labels_is_summed_up() -> None:
    labels = [f"well{i:03d}" for i in range(MOST_LABELS + 1)]
    cells = make_cells(630, experiment=labels * 30)
    axes = {"experiment": ExperimentAware()}
    asked = BatchSampler(cells, axes, 16).asked(0, 0)
    told = describe(cells, np.array([0, 0, 1, 2]), asked, axes)
    assert not any("well" in name for name in told)
    assert told["experiment/share_min"] == 0 and told["experiment/share_max"] == 0.5
    assert told["experiment/effective_labels"] == pytest.approx(np.exp(-(0.5 * np.log(0.5) + 2 * 0.25 * np.log(0.25))))
    assert told["experiment/present"] == 3
    fewer = cells.take(np.flatnonzero(cells.column("experiment").codes < MOST_LABELS))
    assert "experiment/share/well000" in describe(fewer, np.arange(4))


def test_labels_that_read_the_same_stay_apart() -> None:
    cells = make_cells(12, experiment=pd.Series([1, "1", 2, 2] * 3, dtype=object))
    told = describe(cells, np.array([0, 2, 3]))
    assert told["experiment/share/1"] == pytest.approx(1 / 3)
    assert told["experiment/share/'1'"] == 0


def test_columns_taken_jointly_and_columns_of_another_name() -> None:
    cells = make_cells()
    axes = {"joint": ConditionBalanced(column=["condition", "dose"]), "group": ExperimentAware(column="dose")}
    sampler = BatchSampler(cells, axes, batch_size=40)
    told = describe(cells, sampler.batch(0, 0), sampler.asked(0, 0), axes)
    assert told["dose/share/1"] in (0, 1) and told["dose/distance"] == 0
    for dose in (1, 10):  # a batch is built around one dose, and asked the two conditions of it
        asked = told[f"condition x dose/asked/drug x {dose}"]
        assert asked == pytest.approx(0.5 * told[f"dose/share/{dose}"])
    assert "condition/distance_to_table" in told and "experiment/share/A" in told


def test_a_table_without_tracks_has_no_pairs() -> None:
    cells = CellTable.from_frame(pd.DataFrame({"experiment": list("aab"), "condition": list("xyx")}), hours=None)
    assert "same_track_pairs" not in describe(cells, [0, 1])


@pytest.mark.parametrize("scope", ["rank", "global"])
def test_steps_are_measured_from_the_sampler_of_any_rank(scope: str) -> None:
    cells, axes = make_cells(3000), all_axes()
    ranks = [BatchSampler(cells, axes, 32, seed=3, rank=rank, world_size=2, scope=scope) for rank in range(2)]
    meters = [StepMeter(sampler) for sampler in ranks]
    whole, groups = meters[0].measure(4, 0, meters[0].positions(4, 0, 10))
    seen: set[int] = set()
    for step in range(10):
        positions = np.stack([sampler.batch(4, step) for sampler in ranks])
        np.testing.assert_array_equal(meters[0].positions(4, step), positions[None])
        numbers, group = meters[1].measure(4, step, positions[None])
        np.testing.assert_array_equal(numbers[0], whole[step])
        assert group[0] == groups[step]
        seen.update(positions.ravel().tolist())
        row = dict(zip(meters[0].names, whole[step, -1], strict=True))
        assert row["coverage"] == len(seen) / len(cells)
        asked = [sampler.asked(4, step) for sampler in ranks]
        labels = [cells.column("experiment").labels[one.experiment] for one in asked]
        assert group[0] == [*labels, labels[0] if labels[0] == labels[1] else None]
        if scope == "global":
            union = by_hand(cells, positions.ravel().tolist(), asked[0])
            assert {name: row[name] for name in union} == pytest.approx(union)
            assert group[0][2] is not None
            assert np.isnan(whole[step, :2, meters[0].names.index("shortfall")]).all()
    resumed, _ = StepMeter(ranks[1]).measure(4, 8, meters[0].positions(4, 8, 2))
    np.testing.assert_array_equal(resumed, whole[8:])
    fresh, _ = meters[0].measure(5, 0, meters[0].positions(5, 0))
    assert fresh[0, -1, -1] == len(set(meters[0].positions(5, 0).ravel().tolist())) / len(cells)


def test_cells_of_all_primary_experiments_of_a_batch_are_no_leak() -> None:
    cells = make_cells(experiment=np.arange(600) % 5)
    s = BatchSampler(cells, {"e": ExperimentAware(0.25, experiments=3)}, 48)
    meter = StepMeter(s)
    numbers, groups = meter.measure(0, 0, meter.positions(0, 0, 4))
    for step in range(4):
        asked, held = s.asked(0, step), dict(zip(meter.names, numbers[step, 0], strict=True))
        assert held["leak/asked"] == held["leak/held"] == 0.25 and held["shortfall"] == 0
        labels = cells.column("experiment").labels
        for code, label in enumerate(labels):
            assert held[f"experiment/asked/{label}"] == (0.25 if code in asked.experiments else 0.125)
            assert held[f"experiment/share/{label}"] == pytest.approx(held[f"experiment/asked/{label}"], abs=1.01 / 48)
        assert groups[step] == [" + ".join(str(labels[code]) for code in sorted(asked.experiments))] * 2
