"""Mean average precision of replicates against rankings written out, and what its note warns of."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import pytest
from copairs.map import average_precision as by_copairs
from sklearn.metrics import average_precision_score

from cellcohort.cells import CellTable
from cellcohort.evaluation.replicates import Precision, Replicates, Rule, average_precision, centred, replicate_scores
from cellcohort.evaluation.score import Held, Score


def plain(vectors: np.ndarray, positive: np.ndarray, negative: np.ndarray) -> list[float]:
    """The mean, over positives, of the share of positives among all that rank as high: one vector after the other."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    found = []
    for i, point in enumerate(unit):
        ranked = sorted(np.flatnonzero(positive[i] | negative[i]), key=lambda j: -(point @ unit[j]))
        places = [place for place, j in enumerate(ranked, start=1) if positive[i, j]]
        enough = 0 < len(places) < len(ranked)
        found.append(np.mean([(k + 1) / place for k, place in enumerate(places)]) if enough else np.nan)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_the_average_precision_is_that_of_a_ranking_written_out_and_of_scikit_learn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    label, plate, row = rng.integers(0, 4, 40), rng.integers(0, 3, 40), rng.integers(0, 2, 40)
    vectors = rng.normal(size=(40, 5)) + np.eye(5)[label]
    found = average_precision(vectors, Rule([label], [plate], [row], [label]))
    same = label[:, None] == label
    positive, negative = same & (plate[:, None] != plate), ~same & (row[:, None] == row)
    np.testing.assert_allclose(found.value, plain(vectors, positive, negative))
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    for i in np.flatnonzero(np.isfinite(found.value)):
        ranked = positive[i] | negative[i]
        by_sklearn = average_precision_score(positive[i, ranked], (unit @ unit[i])[ranked])
        assert found.value[i] == pytest.approx(by_sklearn)
        assert (found.n_positive[i], found.n_ranked[i]) == (positive[i].sum(), ranked.sum())


def test_the_average_precision_is_that_of_copairs_on_a_table() -> None:
    rng = np.random.default_rng(5)
    meta = pd.DataFrame({name: rng.integers(0, n, 700) for name, n in (("label", 6), ("plate", 4), ("well", 90))})
    vectors = rng.normal(size=(700, 5)) + np.eye(6)[meta["label"], :5]
    label, plate, well = (meta[name].to_numpy() for name in meta)
    found = average_precision(vectors, Rule([label], [plate, well], [plate], [label]))
    told = by_copairs(meta, vectors, ["label"], ["plate", "well"], ["plate"], ["label"], progress_bar=False)
    np.testing.assert_allclose(found.value, told["average_precision"], atol=1e-3)  # noise for ties swaps a few
    np.testing.assert_array_equal(found.n_positive, told["n_pos_pairs"])
    np.testing.assert_array_equal(found.n_ranked, told["n_total_pairs"])
    first = average_precision(vectors, Rule([label], [plate, well], [plate], [label]), n_queries=600)
    np.testing.assert_array_equal(first.value, found.value[:600])


def test_a_ranking_of_three_by_hand() -> None:
    angle = np.deg2rad([0, 5, 10, 15])  # of the first: a positive, a negative, a positive
    vectors = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    label = np.array([0, 0, 1, 0])
    found = average_precision(vectors, Rule([label], [], [], [label]))
    assert found.value[0] == pytest.approx((1 + 2 / 3) / 2)
    assert np.isnan(found.value[2]) and found.n_positive[2] == 0


@pytest.mark.parametrize(("n_positive", "n"), [(1, 2), (1, 5), (2, 5), (4, 6)])
def test_chance_is_the_mean_over_all_rankings(n_positive: int, n: int) -> None:
    every = [np.mean([(k + 1) / (place + 1) for k, place in enumerate(where)])
             for where in combinations(range(n), n_positive)]  # fmt: skip
    found = Precision(np.zeros(1), np.array([n_positive]), np.array([n])).chance
    assert found[0] == pytest.approx(np.mean(every))


def test_equal_similarities_are_no_advantage() -> None:
    """Copairs ranks positives before negatives that are as similar, so that one vector for all would be perfect."""
    label = np.repeat(np.arange(20), 10)
    for vectors in (np.ones((200, 3)), np.eye(5)[np.random.default_rng(0).integers(0, 5, 200)]):
        found = average_precision(vectors, Rule([label], [], [], [label]))
        assert np.mean(found.value) == pytest.approx(found.chance[0], abs=0.02)


def frame_of(n: int = 360) -> pd.DataFrame:
    """Three experiments of two conditions each, in wells of one condition and tracks of three frames."""
    row = np.random.default_rng(0).permutation(n)
    track = row // 3
    frame = pd.DataFrame({"track": track, "experiment": np.array(list("abc"))[track % 3], "hours": row % 3 * 1.0})
    frame["condition"] = np.array(["mock", "drug"])[track // 3 % 2]
    return frame.assign(well=frame["condition"].str[0] + (track // 6 % 4).astype(str), dose=track // 6 % 2)


def held_of(frame: pd.DataFrame, whole: str = "track", training: np.ndarray | None = None) -> Held:
    cells = CellTable.from_frame(frame, hours="hours", track="track")
    _, group = np.unique(cells.column(["experiment", whole]).codes, return_inverse=True)
    return Held(cells, group % 2 == 0 if training is None else training, whole)


def only(scores: list[Score]) -> Score:
    (score,) = scores
    assert (score.name, score.higher_is_better) == ("replicate_map", True)
    return score


def noise(frame: pd.DataFrame, by: str | list[str] | None = None, dim: int = 6, seed: int = 1) -> np.ndarray:
    """Noise, of which all cells of a group have the same."""
    group = np.arange(len(frame)) if by is None else frame.groupby(by).ngroup().to_numpy()
    return np.random.default_rng(seed).normal(size=(group.max() + 1, dim))[group]


def test_replicates_of_held_out_cells_come_first_where_conditions_are_apart_and_at_chance_where_they_are_not() -> None:
    frame = frame_of()
    held = held_of(frame)
    apart = only(replicate_scores(0.01 * noise(frame) + noise(frame, "condition"), held, Replicates()))
    assert apart.value == pytest.approx(1.0) and apart.n == (~held.training).sum() and apart.low == apart.high == 1
    for inputs in (noise(frame), noise(frame, "track") + 0.01 * noise(frame)):  # frames of a track are no replicates
        score = only(replicate_scores(inputs, held, Replicates()))
        chance = float(score.note.split("chance ")[1].split(";")[0])
        assert score.value == pytest.approx(chance, abs=0.03)
    assert "replicates have the same condition and another track, negatives another condition" in score.note
    named = only(replicate_scores(inputs, held, Replicates(pos_diffby="track")))
    assert score.value == named.value  # though frames of one track are the nearest


def test_it_is_the_mean_over_labels_of_held_out_cells_that_rank_cells_of_both_parts() -> None:
    frame = frame_of(90)
    held = held_of(frame)
    inputs = noise(frame) + 0.5 * noise(frame, "condition")
    rule = Replicates(["condition", "dose"], "experiment", ["dose"], "condition")
    kind = frame.groupby(["condition", "dose"]).ngroup().to_numpy()
    same, apart = kind[:, None] == kind, frame["experiment"].to_numpy()[:, None] != frame["experiment"].to_numpy()
    one_dose = frame["dose"].to_numpy()[:, None] == frame["dose"].to_numpy()
    precision = np.array(plain(inputs, same & apart, one_dose & ~same))
    out = ~held.training
    expected = np.mean([precision[out & (kind == one)].mean() for one in np.unique(kind[out])])
    score = only(replicate_scores(inputs, held, rule))
    assert score.value == pytest.approx(expected) and "mean over 2 labels of condition and dose" in score.note


def test_a_limited_number_of_cells_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = frame_of()
    score = only(replicate_scores(noise(frame), held_of(frame), Replicates(), most=60))
    assert score.n == 30


@pytest.mark.parametrize(
    ("whole", "rule", "said"),
    [
        ("track", {}, "condition and well cannot be told apart"),
        ("track", {"pos_diffby": "well"}, ""),
        ("well", {}, ""),
        ("well", {"pos_sameby": ["condition", "experiment"]}, "confounded: replicates are all of one experiment"),
        ("well", {"pos_sameby": ["condition", "experiment"], "neg_sameby": ["experiment"]}, ""),
    ],
)
def test_what_cannot_be_told_apart_is_noted(whole: str, rule: dict[str, Any], said: str) -> None:
    frame = frame_of()
    note = only(replicate_scores(noise(frame), held_of(frame, whole), Replicates(**rule))).note
    warned = "cannot be told apart" in note or "confounded" in note
    assert said in note if said else not warned


def test_labels_of_which_other_experiments_alone_have_negatives_are_noted() -> None:
    """Two experiments hold one condition each, and one of the conditions is in a third experiment too."""
    frame = frame_of()
    experiment = np.arange(len(frame)) % 3
    frame = frame.assign(experiment=experiment.astype(str), condition=np.where(experiment == 1, "b", "a"))
    note = only(replicate_scores(noise(frame), held_of(frame), Replicates())).note
    assert "confounded for a, b: cells have replicates in their own experiment and negatives in others only" in note
    note = only(replicate_scores(noise(frame), held_of(frame), Replicates(pos_diffby=["experiment"]))).note
    assert "confounded" not in note


def test_directions_are_those_from_the_mean_training_cell() -> None:
    inputs, training = noise(frame_of(30)) + 7, np.arange(30) < 20
    np.testing.assert_allclose(centred(inputs, training), inputs - inputs[:20].mean(0))
    np.testing.assert_allclose(centred(inputs, np.zeros(30, bool)), inputs - inputs.mean(0))


def test_a_representation_that_is_the_same_for_all_cells_has_no_score() -> None:
    frame = frame_of()
    for same in (np.ones((len(frame), 4), np.float32), np.zeros((len(frame), 4))):
        score = only(replicate_scores(same, held_of(frame), Replicates()))
        assert np.isnan(score.value) and "the same for all cells" in score.note


def test_without_replicates_or_conditions_there_is_a_reason() -> None:
    frame = frame_of()
    alone = only(replicate_scores(noise(frame), held_of(frame.assign(condition="x")), Replicates()))
    assert np.isnan(alone.value) and "no held-out cell has a replicate and a negative" in alone.note
    none = only(replicate_scores(noise(frame), held_of(frame.drop(columns="condition")), Replicates()))
    assert np.isnan(none.value) and none.note == "the table has no condition" and none.n == 0


def test_rules_that_no_pair_can_meet_are_refused() -> None:
    with pytest.raises(ValueError, match="pos_sameby and pos_diffby both name condition"):
        Replicates(pos_diffby=["experiment", "condition"])
    with pytest.raises(ValueError, match="neg_diffby names no column"):
        Replicates(neg_diffby=[])
