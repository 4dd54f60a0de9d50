"""Splits keep tracks and lineages whole."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from typing import Any

import numpy as np
import pandas as pd
import pytest
from omegaconf import OmegaConf

from cellcohort.cells import CellTable
from cellcohort.datasets.features.windows import TrackWindows
from cellcohort.datasets.protocol import LabelledCells
from cellcohort.datasets.split import split


def dataset(whole: str = "track", experiments: tuple[Any, ...] = (1, 2, 3)) -> TrackWindows:
    """20 tracks of uneven length in each experiment, in families of two; the last experiment has one track."""
    rng = np.random.default_rng(0)
    parts = []
    for experiment in experiments:
        for k in range(20 if experiment != experiments[-1] else 1):
            t = np.arange(rng.integers(5, 40))
            parts.append(pd.DataFrame({"experiment": experiment, "condition": "x", "k": k, "hours": t * 0.5}))
    frame = pd.concat(parts, ignore_index=True)
    frame["track"] = frame["experiment"].astype(str) + "/" + frame["k"].astype(str).str.zfill(2)
    frame["lineage"] = frame["experiment"].astype(str) + "/" + (frame["k"] // 2).astype(str)
    cells = CellTable.from_frame(frame, hours="hours", track="track")
    return TrackWindows(cells, np.arange(len(frame), dtype=np.float32)[:, None], ["row"], whole=whole)


def rows(part: TrackWindows) -> np.ndarray:
    return part.recorded(np.arange(len(part)))[:, 0, -1].astype(int)


def present(part: TrackWindows, column: str) -> set[Any]:
    return set(part.cells.column(column).present())


@pytest.mark.parametrize("whole", ["track", "lineage"])
@pytest.mark.parametrize(
    "options", [{}, {"fraction": 0.5, "seed": 3}, {"by": "experiment"}, {"by": "experiment", "held_out": [2]}]
)
def test_every_cell_is_in_one_part_and_nothing_whole_is_cut(whole: str, options: dict[str, Any]) -> None:
    data = dataset(whole)
    train, validation = split(data, **options)
    assert sorted([*rows(train), *rows(validation)]) == list(range(len(data)))
    assert not present(train, whole) & present(validation, whole)
    assert train.cells.column("experiment").labels == validation.cells.column("experiment").labels == (1, 2, 3)


@pytest.mark.parametrize("fraction", [0.05, 0.2, 0.5, 0.95])
def test_by_track_every_experiment_keeps_tracks_in_both_parts(fraction: float) -> None:
    train, validation = split(dataset(), fraction=fraction)
    assert present(train, "experiment") == {1, 2, 3} and present(validation, "experiment") == {1, 2}
    for part, share in ((train, 1 - fraction), (validation, fraction)):
        counts = part.cells.column("experiment").counts()[:2] / dataset().cells.column("experiment").counts()[:2]
        assert (np.abs(counts - share) < 0.1).all()


@pytest.mark.parametrize("seed", range(5))
def test_by_track_a_rare_condition_has_tracks_in_both_parts(seed: int) -> None:
    track = np.repeat(np.arange(60), 10)
    frame = pd.DataFrame({"experiment": track % 2, "condition": np.where(track < 6, "rare", "common"), "track": track})
    cells = CellTable.from_frame(frame.assign(hours=np.tile(np.arange(10.0), 60)), track="track", hours="hours")
    for part, tracks in zip(split(TrackWindows(cells, np.ones((600, 1), np.float32), ["one"]), seed=seed),
                            (2, 1), strict=True):  # fmt: skip
        rare = part.cells.column("condition").codes == part.cells.column("condition").labels.index("rare")
        for experiment in range(2):
            of_it = rare & (part.cells.column("experiment").codes == experiment)
            assert len(np.unique(part.cells.column("track").codes[of_it])) == tracks


def test_by_experiment_the_named_or_a_share_of_them_are_held_out() -> None:
    assert present(split(dataset(), "experiment", held_out=[1, 3])[1], "experiment") == {1, 3}
    assert present(split(dataset(), "experiment", held_out=3)[1], "experiment") == {3}
    assert present(split(dataset(), "experiment", held_out=[1, 3])[0], "experiment") == {2}
    drawn = [present(split(dataset(), "experiment", fraction=0.4, seed=seed)[1], "experiment") for seed in range(8)]
    assert {len(names) for names in drawn} == {1} and set().union(*drawn) == {1, 2, 3}


def test_folds_hold_out_each_experiment_in_turn() -> None:
    for fold, experiment in enumerate((1, 2, 3)):
        for folds in (None, 3):
            train, validation = split(dataset(), "experiment", fold=fold, folds=folds, seed=fold)
            assert present(validation, "experiment") == {experiment}
            assert present(train, "experiment") == {1, 2, 3} - {experiment}


@pytest.mark.parametrize("folds", [2, 5])
def test_folds_of_a_column_are_even_and_hold_out_each_group_once(folds: int) -> None:
    well = np.repeat(np.arange(23), 4)
    frame = pd.DataFrame({"well": well, "track": np.arange(92)})
    frame.loc[frame["well"] == 7, "track"] = frame.loc[frame["well"] == 8, "track"].to_numpy()  # one group with it
    held = [split(labelled(frame), "well", fold=i, folds=folds)[1].cells.column("well").present() for i in range(folds)]
    assert sorted(one for groups in held for one in groups) == list(range(23))
    assert max(map(len, held)) - min(map(len, held)) <= 2
    assert any({7, 8} <= set(groups) for groups in held)
    other = split(labelled(frame), "well", fold=0, folds=folds, seed=1)[1].cells.column("well").present()
    assert other != held[0]


@pytest.mark.parametrize("fold", [0, 1])
def test_folds_of_one_group_are_refused(fold: int) -> None:
    frame = pd.DataFrame({"well": [1, 1, 2, 2], "track": [1, 2, 2, 1]})
    with pytest.raises(ValueError, match="all cells are one group, or groups that one track joins, so nothing would"):
        split(labelled(frame), "well", fold=fold)


def test_it_repeats_and_the_seed_decides() -> None:
    assert np.array_equal(rows(split(dataset(), seed=4)[1]), rows(split(dataset(), seed=4)[1]))
    assert not np.array_equal(rows(split(dataset(), seed=4)[1]), rows(split(dataset(), seed=5)[1]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "cell"}, "the table has no column 'cell'; it has"),
        ({"fraction": 0.0}, "fraction=0.0"),
        ({"fraction": 1.0}, "fraction=1.0"),
        ({"fraction": None}, "fraction=None must be a number above 0 and below 1"),
        ({"fraction": "half"}, "fraction='half' must be a number"),
        ({"by": None}, "by=None names no column to divide the cells by; use by='track'"),
        ({"by": []}, r"by=\[\] names no column"),
        ({"by": ["experiment", 3]}, "3 is no name of a column"),
        ({"seed": "a"}, "seed must be an integer >= 0, got 'a'"),
        ({"seed": -1, "by": "experiment"}, "seed must be an integer >= 0, got -1"),
        ({"by": "experiment", "held_out": ["1"]}, r"held_out=\['1'\]: no such experiment; the table has 1, 2, 3"),
        ({"by": "experiment", "held_out": [1, 2, 3]}, "no cell is left for training"),
        ({"by": "experiment", "held_out": []}, "no cell is left for validation"),
        ({"by": "track", "held_out": [1]}, "use by='experiment'"),
        ({"by": "track", "fold": 1}, "fold=1 holds out groups of a column; use by='experiment'"),
        ({"by": "experiment", "fold": 3}, "3 groups of experiment, so there are at most 3 folds; use folds=3 and fold"),
        ({"by": "experiment", "fold": 0, "folds": 9}, "fold=0 of folds=9: the table has 3 groups of experiment"),
        ({"by": "experiment", "fold": 2, "folds": 2}, "fold=2 is not one of folds=2; use 0 to 1"),
        ({"by": "experiment", "folds": 3}, "folds=3 needs fold, which of them to hold out: 0 to 2"),
        ({"by": "experiment", "folds": "x"}, "folds must be an integer >= 2, got 'x'"),
        ({"by": "experiment", "held_out": [[[1]]]}, r"no such experiment; the table has 1, 2, 3"),
        ({"by": "experiment", "fold": 0, "folds": 1}, "folds must be an integer >= 2, got 1"),
        ({"by": "experiment", "fold": 0, "held_out": [1]}, "fold=0 and held_out=\\[1\\] both say what is held out"),
    ],
)
def test_what_cannot_be_split_so_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        split(dataset(), **options)


@pytest.mark.parametrize("by", ["track", "experiment"])
def test_a_table_of_one_track_cannot_be_split(by: str) -> None:
    with pytest.raises(ValueError, match="no cell is left for validation"):
        split(dataset(experiments=(1,)), by)


def labelled(frame: pd.DataFrame, whole: str = "track") -> LabelledCells:
    return LabelledCells(CellTable.from_frame(frame, track="track" if "track" in frame else None), whole)


def test_nine_experiments_are_split_into_seven_and_two() -> None:
    frame = pd.DataFrame({"experiment": np.repeat(np.arange(9), 4), "track": np.arange(36)})
    train, validation = split(labelled(frame), "experiment", 0.2)
    assert len(train.cells.column("experiment").present()) == 7
    assert len(validation.cells.column("experiment").present()) == 2


def screen(n_conditions: int, sizes: tuple[int, ...]) -> pd.DataFrame:
    """One well, of a few cells that are tracks of their own, per row and column of 4 plates; conditions by well."""
    rng = np.random.default_rng(1)
    size = rng.choice(sizes, n_conditions)
    condition = np.repeat(np.arange(n_conditions), size)
    frame = pd.DataFrame({"condition": condition, "experiment": np.arange(len(condition)) % 2})
    return frame.sample(frac=1, random_state=2, ignore_index=True)


@pytest.mark.parametrize("by", ["well", ["experiment", "row"]])
def test_whole_groups_of_any_columns_are_held_out_of_every_stratum(by: Any) -> None:
    well = np.repeat(np.arange(80), 10)
    frame = pd.DataFrame({"experiment": well % 2, "condition": well // 2 % 4, "well": well, "row": well // 2})
    frame["track"] = np.arange(len(frame)) // 5
    train, validation = split(labelled(frame), by, 0.2)
    assert not set(train.cells.column(by).present()) & set(validation.cells.column(by).present())
    held = pd.crosstab(frame["experiment"], frame["condition"])
    held_out = validation.cells.frame.groupby(["experiment", "condition"]).size().unstack()
    assert (held_out / held == 0.2).all(axis=None)


def test_groups_that_share_a_track_are_held_out_together() -> None:
    frame = pd.DataFrame({"site": np.repeat(np.arange(40), 5), "track": np.arange(200)})
    frame.loc[frame["site"] == 7, "track"] = frame.loc[frame["site"] == 8, "track"].to_numpy()
    for seed in range(6):
        train, validation = split(labelled(frame), "site", 0.4, seed=seed)
        for column in ("site", "track"):
            assert not set(train.cells.column(column).present()) & set(validation.cells.column(column).present())


def test_groups_of_one_condition_each_are_held_out_of_every_condition() -> None:
    animal = np.repeat(np.arange(12), 10)
    frame = pd.DataFrame({"experiment": animal, "animal": animal, "condition": animal % 3, "track": np.arange(120)})
    train, validation = split(labelled(frame), "animal", 0.25)
    assert validation.cells.column("condition").counts().tolist() == [10, 10, 10]
    assert (train.cells.column("condition").counts() == 30).all()
    alone = frame.assign(condition=animal)  # no two animals alike: the share of all of them
    with pytest.warns(UserWarning, match=r"by='animal'\): 3 of 12 conditions are held out .* 25\.0% of the") as told:
        _, validation = split(labelled(alone), "animal", 0.25)
    assert len(validation.cells.column("animal").present()) == 3
    assert len(told) == 1, "one thing is told once"


def test_named_groups_are_held_out() -> None:
    frame = pd.DataFrame({"day": ["1", "1", "2", "3"], "well": list("abab"), "track": list("wxyz")})
    assert split(labelled(frame), "day", held_out=[1])[1].cells.column("track").present() == ["w", "x"]
    _, validation = split(labelled(frame), ["day", "well"], held_out=[["1", "b"], ["3", "b"]])
    assert validation.cells.column("track").present() == ["x", "z"]
    of_config = OmegaConf.create([["1", "b"], ["3", "b"]])
    assert split(labelled(frame), ["day", "well"], held_out=of_config)[1].cells.column("track").present() == ["x", "z"]
    dose = frame.assign(dose=[0.5, 0.5, 1.0, 1.0])
    assert split(labelled(dose), ["dose"], held_out=0.5)[1].cells.column("track").present() == ["w", "x"]
    numbers = frame.assign(day=[1, 1, 2, 3])
    for day in (np.int64(1), np.array([1]), pd.Series([1]), (1,), 1.0):
        assert split(labelled(numbers), "day", held_out=day)[1].cells.column("track").present() == ["w", "x"]
    wells = np.array([["1", "b"], ["3", "b"]])
    assert split(labelled(frame), ["day", "well"], held_out=wells)[1].cells.column("track").present() == ["x", "z"]
    with pytest.raises(ValueError, match=r"held_out=\[4\]: no such day; the table has '1', '2', '3'\.$"):
        split(labelled(frame), "day", held_out=[4])
    with pytest.raises(ValueError, match=r"Write each group as a list, in a list: split\.held_out=\[\[a,b\]\]"):
        split(labelled(frame), ["day", "well"], held_out=["1", "b"])
    with pytest.raises(ValueError, match=r"a CellTable is no dataset of cells; make one, such as LabelledCells\("):
        split(labelled(frame).cells, "day")  # type: ignore[type-var]
    with pytest.raises(ValueError, match="3 is no name of a column"):
        split(labelled(frame), 3)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:.* conditions ha(s|ve) no cell for validation")
@pytest.mark.parametrize("whole", ["stored_chunk", "table_row"])
@pytest.mark.parametrize(("n", "sizes"), [(3000, (1, 2, 3, 8)), (4, (500, 2000)), (40, (30, 60))])
@pytest.mark.parametrize("fraction", [0.1, 0.2, 0.7])
def test_cells_without_tracks_are_a_fair_sample_of_every_stratum(
    whole: str, n: int, sizes: tuple[int, ...], fraction: float
) -> None:
    frame = screen(n, sizes).sort_values(["experiment", "condition"], kind="stable", ignore_index=True)
    frame[whole] = np.arange(len(frame)) // (64 if whole == "stored_chunk" else 1)
    counts = frame.groupby(["experiment", "condition"]).size()
    share, seeds = pd.Series(0.0, counts.index), 5
    for seed in range(seeds):
        train, validation = split(labelled(frame, whole), fraction=fraction, seed=seed)
        held = validation.cells.frame.groupby(["experiment", "condition"]).size().reindex(counts.index, fill_value=0)
        several = counts[counts > 1]
        assert fraction > 0.5 or abs(held.sum() - fraction * counts.sum()) <= 0.06 * counts.sum()
        assert (held < counts)[counts > 1].all(), "each stratum of several cells has one for training"
        assert set(train.cells.column("condition").present()) == set(range(n))
        off = abs(held - fraction * counts)[counts > 1]
        assert (off <= np.maximum(1, 0.3 * several)).all()
        assert len(train) + len(validation) == len(frame)
        share += held / counts / seeds
    assert fraction > 0.5 or abs(share[counts > 1].mean() - fraction) < 0.05


def test_a_share_that_is_far_from_the_one_asked_for_is_told() -> None:
    track = np.arange(400) // 5
    frame = pd.DataFrame({"condition": np.where(track < 8, 0, track), "track": track})
    with pytest.warns(UserWarning, match=r"10 cells of 400 .* 2\.5% where split\.fraction=0\.2 .* 72 of 73 conditions"):
        split(labelled(frame))


@pytest.mark.parametrize("per_stratum", [1, 2, 3])
@pytest.mark.parametrize("sizes", [(3,), (1, 5)])
@pytest.mark.parametrize("fraction", [0.1, 0.2, 0.4])
@pytest.mark.parametrize("by", ["track", "well"])
def test_few_wells_of_each_stratum_are_held_out_in_the_share_that_is_asked(
    per_stratum: int, sizes: tuple[int, ...], fraction: float, by: str
) -> None:
    rng = np.random.default_rng(0)
    n = 24 * 12 * per_stratum
    well = np.repeat(np.arange(n), rng.choice(sizes, n))
    frame = pd.DataFrame({"condition": well % 24, "experiment": well // 24 % 12, "well": well})
    by_condition, seeds = pd.Series(0.0, range(24)), 6
    if by == "well":
        frame["table_row"] = np.arange(len(frame))
    for seed in range(seeds):
        with warnings.catch_warnings():
            warnings.simplefilter("error" if fraction > 0.1 and len(sizes) == 1 else "ignore")
            if per_stratum == 1:  # so that no condition of an experiment has two
                warnings.filterwarnings("ignore", "In .* cells for validation have other conditions")
            train, validation = split(
                labelled(frame, "well" if by == "track" else "table_row"), by, fraction, seed=seed
            )
        assert not set(train.cells.column("well").present()) & set(validation.cells.column("well").present())
        assert abs(len(validation) / len(frame) - fraction) < 0.06
        held = validation.cells.frame["condition"].value_counts().reindex(range(24), fill_value=0)
        by_condition += held / frame["condition"].value_counts() / seeds
        assert len(train.cells.column("condition").present()) == 24
    assert abs(by_condition - fraction).max() < (0.15 if len(sizes) == 1 else 0.2)


def test_conditions_without_cells_for_validation_are_counted() -> None:
    track = np.repeat(np.arange(210), 4)
    frame = pd.DataFrame({"condition": np.where(track < 200, "many", track), "track": track})
    said = r"10 of 11 conditions have no cell for validation \('200', '201', '202' and 7 more\)"
    with pytest.warns(UserWarning, match=said):
        split(labelled(frame))


@pytest.mark.parametrize("family", [False, True])
def test_conditions_without_cells_for_validation_leave_out_missing_labels_and_name_the_families(family: bool) -> None:
    """Eight wells of a condition, two each of two others, and one whose cells have no condition."""
    well = np.repeat(np.arange(13), 4)
    condition = np.where(well < 8, "many", np.where(well < 10, "b", "c")).astype(object)
    condition[well == 12] = None
    lineage = np.arange(len(well))
    if family:
        lineage[(well == 8) | (well == 9)], lineage[[40, 44]] = 0, 1  # both of b, with the first of "many"; both of c
        lineage[0] = 0
    frame = pd.DataFrame({"condition": condition, "well": well, "lineage": lineage})
    data = LabelledCells(CellTable.from_frame(frame, missing="label"), "lineage")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        split(data, "well", 0.2)
    said = [str(one.message) for one in told if "no cell for validation" in str(one.message)]
    assert not any("missing" in one or " of 4 " in one for one in said)
    joined = "too few wells for split.fraction=0.2 (2 lineages with cells in several of them join these)"
    assert not family or any("of 3 conditions" in one and joined in one for one in said), said
    assert family or not any("lineage" in one for one in said)


@pytest.mark.parametrize("wells", [1, 2])
def test_an_experiment_whose_two_parts_have_other_conditions_is_told(wells: int) -> None:
    """One well of each condition on a plate: whichever is held out, training has that condition on other plates."""
    well = np.repeat(np.arange(4 * 3 * wells), 10)
    frame = pd.DataFrame({"experiment": well // (3 * wells), "condition": well % 3, "well": well, "track": well})
    told = pytest.warns(UserWarning, match="In 3 of 4 experiments .*, cells for validation have")
    with told if wells == 1 else nullcontext():
        split(labelled(frame), "well", 0.25)
    with pytest.warns(UserWarning, match=r"In 1 of 4 experiments \(0\), cells for validation have other conditions"):
        split(labelled(frame), "well", held_out=[w for w in range(3 * wells) if w % 3 == 0])
    split(labelled(frame), "experiment", 0.25)  # nothing to tell: no experiment is in both parts
    every = [w for w in range(12 * wells) if w % 3 == 1]
    with pytest.warns(UserWarning, match=r"1 of 3 conditions is held out \(1\), with 33\.3% .*No probe can") as told:
        split(labelled(frame), "well", held_out=every)
    assert len(told) == 1


def test_a_share_far_above_the_one_asked_for_is_told() -> None:
    frame = pd.DataFrame({"condition": "a", "track": np.repeat([0, 1], 10)})
    with pytest.warns(
        UserWarning, match=r"10 cells of 20 .*50\.0% where split\.fraction=0\.2 asks for 20%: each track is"
    ):
        split(labelled(frame))
