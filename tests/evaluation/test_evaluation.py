"""Scores against independent computations, and on planted cases whose answer is known."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.spatial.distance import cdist, squareform
from scipy.stats import kstest
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import balanced_accuracy_score, mean_absolute_error, r2_score
from sklearn.preprocessing import StandardScaler

from cellcohort.cells import CellTable
from cellcohort.evaluation import probes
from cellcohort.evaluation.embed import Features, flattened
from cellcohort.evaluation.geometry import alignment, effective_rank, geometry_scores, uniformity
from cellcohort.evaluation.mixing import Mmd, ilisi, ilisi_scores, mmd_scores
from cellcohort.evaluation.probes import condition_scores, experiment_scores, hours_scores, linear, nearest
from cellcohort.evaluation.score import Held, Score
from cellcohort.evaluation.selection import choose, training_part
from cellcohort.evaluation.tracks import next_frames, smoothness, smoothness_scores

EXPERIMENTS, CONDITIONS = ("a", "b", "c"), ("rare", "mock", "drug")


def frame_of(tracks: int = 30, frames: int = 6, experiments: int = 3) -> pd.DataFrame:
    """Tracks in experiments that have conditions in shares 1 : 2 : 2."""
    rows = [
        {"experiment": EXPERIMENTS[e], "track": f"{e}-{t:03d}", "condition": CONDITIONS[[0, 1, 1, 2, 2][t % 5]]}
        for e in range(experiments)
        for t in range(tracks)
    ]
    frame = pd.DataFrame(rows).loc[np.repeat(np.arange(len(rows)), frames)].reset_index(drop=True)
    return frame.assign(hours=np.tile(np.arange(frames) * 0.5, len(rows)))


def held_of(frame: pd.DataFrame, **roles: str | None) -> Held:
    """Every second group of each experiment and condition held out."""
    cells = CellTable.from_frame(frame, **{"hours": "hours", "track": "track", **roles})  # type: ignore[arg-type]
    by = [name for name in ("experiment", "condition") if name in frame]
    place = frame.drop_duplicates([*by, "track"]).groupby(by)["track"].cumcount()
    training = frame["track"].isin(frame.loc[place.index[place % 2 == 0], "track"]).to_numpy()
    return Held(cells, training, "track")


def value(scores: list[Score], name: str) -> float:
    (found,) = [score for score in scores if score.name == name]
    return found.value


def note(scores: list[Score], name: str) -> str:
    (found,) = [score for score in scores if score.name == name]
    return found.note


def noise(n: int, dim: int = 5, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, dim)).astype(np.float32)


# probes


def test_what_is_separated_is_told_and_what_is_shuffled_is_at_chance() -> None:
    frame = frame_of(60)
    held = held_of(frame)
    apart = noise(len(frame)) + 20 * pd.get_dummies(frame["condition"]).to_numpy() @ noise(3, seed=1)
    for score in condition_scores(apart, held):
        assert score.value == 1.0, score
    for score in condition_scores(noise(len(frame)), held):
        if score.name.startswith("condition"):
            assert score.value == pytest.approx(1 / 3, abs=0.07), score
            assert "chance 0.333" in score.note


def test_probes_agree_with_sklearn_used_directly() -> None:
    frame = frame_of()
    held = held_of(frame)
    inputs = noise(len(frame)) + 0.7 * pd.get_dummies(frame["condition"]).to_numpy() @ noise(3, seed=1)
    experiment, condition = frame["experiment"].to_numpy(), frame["condition"].to_numpy()
    hours = frame["hours"].to_numpy()
    found: dict[str, list[float]] = {}
    for e in EXPERIMENTS:
        rest = ~held.training & (experiment == e)
        for where, fit in (
            ("within", held.training & (experiment == e)),
            ("across", held.training & (experiment != e)),
        ):
            scaler = StandardScaler().fit(inputs[fit])
            x, y = scaler.transform(inputs[fit]), scaler.transform(inputs[rest])
            told = (
                LogisticRegression(class_weight="balanced", max_iter=2000, tol=1e-3).fit(x, condition[fit]).predict(y)
            )
            found.setdefault(f"condition_probe_{where}", []).append(balanced_accuracy_score(condition[rest], told))
            rare = condition[rest] == "rare"
            found.setdefault(f"rarest_probe_{where}", []).append(np.mean(told[rare] == "rare"))
            near = np.argsort(cdist(y, x), axis=1)[:, :15]
            names = np.unique(condition)
            shares = np.array([np.mean(condition[fit] == name) for name in names])
            votes = np.stack([(condition[fit][near] == name).mean(1) for name in names], axis=1) / shares
            told = names[votes.argmax(1)]
            found.setdefault(f"condition_knn_{where}", []).append(balanced_accuracy_score(condition[rest], told))
            if where == "across":
                clock = Ridge().fit(x, hours[fit]).predict(y)
                found.setdefault("hours_r2_across", []).append(r2_score(hours[rest], clock))
                found.setdefault("hours_mae_across", []).append(mean_absolute_error(hours[rest], clock))
    scores = condition_scores(inputs, held) + hours_scores(inputs, held)
    for name, values in found.items():
        assert value(scores, name) == pytest.approx(np.mean(values), abs=1e-6), name


def test_what_only_tells_tracks_apart_is_at_chance_because_splits_cut_no_track() -> None:
    """Every track is a tight cloud of its own: a split by cells would be told perfectly."""
    frame = frame_of(60, frames=40)
    held = held_of(frame)
    track = frame["track"].astype("category").cat.codes.to_numpy()
    clouds = 100 * noise(track.max() + 1)[track] + noise(len(frame), seed=1)
    by_cells = Held(held.cells, np.random.default_rng(0).random(len(frame)) < 0.5, "track")
    assert value(condition_scores(clouds, by_cells), "condition_knn_within") == 1.0
    assert value(condition_scores(clouds, held), "condition_knn_within") < 0.5


@pytest.mark.parametrize("where", ["within", "experiment"])
def test_where_experiments_were_held_out_folds_keep_tracks_whole(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = frame_of(30)
    held = Held(held_of(frame).cells, frame["experiment"].eq("a").to_numpy(), "track")
    track = frame["track"].astype("category").cat.codes.to_numpy()
    seen: list[tuple[set[float], set[float]]] = []

    def spy(inputs: np.ndarray, labels: np.ndarray, others: np.ndarray) -> np.ndarray:
        seen.append((set(inputs[:, 0]), set(others[:, 0])))
        return linear(inputs, labels, others)

    monkeypatch.setattr(probes, "linear", spy)
    inputs = np.column_stack([track, noise(len(frame))]).astype(float)
    scores = condition_scores(inputs, held) if where == "within" else experiment_scores(inputs, held)
    assert len(seen) >= 5 and all(fit.isdisjoint(rest) for fit, rest in seen)
    assert all(np.isfinite(score.value) for score in scores)
    if where == "within":
        assert "left out: a (no held-out or no training cells at all)" in note(scores, "condition_probe_within")


def test_an_experiment_without_a_condition_is_named_and_left_out_across() -> None:
    frame = frame_of()
    frame = frame[~((frame.experiment == "b") & (frame.condition == "rare"))].reset_index(drop=True)
    held = held_of(frame)
    inputs = noise(len(frame))
    scores = condition_scores(inputs, held)
    said = note(scores, "condition_probe_across")
    assert "left out: b (no held-out or no training cells of rare)" in said and "mean over 2 experiments" in said
    assert "left out: b" in note(scores, "rarest_knn_across")
    assert "mean over 3 experiments" in note(scores, "condition_probe_within")
    assert "rare of b" in note(scores, "condition_probe_within")
    without = np.flatnonzero(frame.experiment != "b")
    n = [score.n for score in scores if score.name == "condition_probe_across"]
    assert n == [int((~held.training[without]).sum())]


def test_a_condition_that_only_one_experiment_has_cannot_be_told_there_from_others() -> None:
    frame = frame_of()
    frame = frame[(frame.experiment == "a") | (frame.condition != "rare")].reset_index(drop=True)
    scores = condition_scores(noise(len(frame)), held_of(frame))
    assert np.isnan(value(scores, "condition_probe_across")) and np.isnan(value(scores, "rarest_probe_across"))
    assert np.isfinite(value(scores, "rarest_probe_within"))


def test_the_nearest_cells_find_a_rare_condition_where_it_is_dense() -> None:
    inputs = np.concatenate([noise(950), noise(50, seed=1) * 0.7 + 1.0])
    labels = np.repeat([0, 1], [950, 50])
    told = nearest(inputs, labels, noise(200, seed=2) * 0.7 + 1.0)
    assert np.mean(told == 1) > 0.8


def test_hours_are_told_where_they_are_planted() -> None:
    frame = frame_of()
    clock = frame["hours"].to_numpy()[:, None] * np.array([[1.0, -2.0]]) + 0.01 * noise(len(frame), 2)
    scores = hours_scores(clock, held_of(frame))
    assert value(scores, "hours_r2_across") > 0.99 and value(scores, "hours_mae_across") < 0.05
    lost = hours_scores(noise(len(frame)), held_of(frame))
    assert value(lost, "hours_r2_across") < 0.1


def test_an_experiment_is_told_where_it_shows() -> None:
    frame = frame_of()
    held = held_of(frame)
    shown = noise(len(frame)) + 30 * frame["experiment"].eq("b").to_numpy()[:, None]
    assert 0.5 < value(experiment_scores(shown, held), "experiment_probe") < 0.85  # b is told, a and c are not
    assert value(experiment_scores(noise(len(frame)), held), "experiment_probe") == pytest.approx(1 / 3, abs=0.1)


# mixing


def test_mixed_experiments_have_a_high_ilisi_and_separate_ones_a_low_one() -> None:
    experiment = np.arange(400) % 2
    assert ilisi(noise(400), experiment) > 0.8
    assert ilisi(noise(400) + 50 * experiment[:, None], experiment) < 0.01
    held = held_of(frame_of(60))
    scores = ilisi_scores(noise(len(held.cells)), held)
    assert scores[0].value > 0.8 and scores[0].note == "180 cells of each experiment"


def brute_mmd2(x: np.ndarray, y: np.ndarray, width: float) -> float:
    k = [[np.exp(-(np.linalg.norm(a - b) ** 2) / (2 * width**2)) for b in (*x, *y)] for a in (*x, *y)]
    n, m, kernel = len(x), len(y), np.array(k)
    own = (kernel[:n, :n].sum() - n) / (n * (n - 1)) + (kernel[n:, n:].sum() - m) / (m * (m - 1))
    return float(own - 2 * kernel[:n, n:].mean())


def test_mmd_is_the_unbiased_estimate_where_each_cell_is_a_group() -> None:
    x, y = noise(12).astype(float), noise(9, seed=1).astype(float) + 0.5
    estimate = Mmd(np.concatenate([x, y]), np.arange(21), 1.7)
    first = np.arange(21) < 12
    assert estimate(first, ~first) == pytest.approx(brute_mmd2(x, y, 1.7), rel=1e-6)


def test_mmd_leaves_out_pairs_of_one_group() -> None:
    inputs, group = noise(24), np.repeat(np.arange(8), 3)
    side = np.arange(8) < 4
    kernel = np.exp(-cdist(inputs, inputs, "sqeuclidean") / 2)
    pairs: dict[tuple[bool, bool], list[float]] = {}
    for i, j in itertools.product(range(24), repeat=2):
        if group[i] != group[j]:
            pairs.setdefault((bool(side[group[i]]), bool(side[group[j]])), []).append(kernel[i, j])
    expected = np.mean(pairs[True, True]) + np.mean(pairs[False, False]) - 2 * np.mean(pairs[True, False])
    assert Mmd(inputs, group, 1.0)(side, ~side) == pytest.approx(expected, rel=1e-6)


def test_the_mmd_between_alike_experiments_is_unbiased_and_its_p_uniform_though_tracks_are_clouds() -> None:
    found = []
    for seed in range(60):
        frame = frame_of(20, 3, experiments=2)
        track = frame["track"].astype("category").cat.codes.to_numpy()
        clouds = 3 * noise(track.max() + 1, 2, seed)[track] + noise(len(frame), 2, seed + 1000)
        held = Held(held_of(frame).cells, np.zeros(len(frame), bool), "track")
        found.append([score.value for score in mmd_scores(clouds, held, 49, seed)])
    mmd2, p = np.array(found).T
    assert abs(mmd2.mean()) < 4 * mmd2.std() / np.sqrt(60)
    assert kstest(p, "uniform").pvalue > 0.001
    shifted = clouds + 8 * frame["experiment"].eq("a").to_numpy()[:, None]
    far = mmd_scores(shifted, held, 99, 0)
    assert far[0].value > 0.2 and far[1].value == 0.01


def test_the_effect_of_a_condition_is_not_taken_for_one_of_the_experiment() -> None:
    """Experiments with other shares of conditions, and cells that only the condition moves."""
    frame = frame_of(40, 2, experiments=2)
    keep = (frame.experiment == "a") | (frame.condition != "mock") | (frame.track.str[-1].astype(int) % 4 == 1)
    frame = frame[keep].reset_index(drop=True)
    moved = noise(len(frame)) + 10 * frame["condition"].eq("mock").to_numpy()[:, None]
    held = Held(held_of(frame).cells, np.zeros(len(frame), bool), "track")
    assert mmd_scores(moved, held, 99, 0)[1].value > 0.05


# tracks


def test_next_frames_are_those_one_interval_later() -> None:
    frame = pd.DataFrame(
        {"track": list("aaaabb"), "hours": [0.0, 0.5, 1.5, 2.0, 3.0, 3.5], "experiment": "e", "condition": "c"}
    ).sample(frac=1, random_state=1)
    cells = CellTable.from_frame(frame, hours="hours", track="track")
    later = next_frames(cells, np.arange(6))
    at = list(zip(frame["track"], frame["hours"], strict=True))
    found = {at[i]: at[j] for i, j in enumerate(later) if j >= 0}
    assert found == {("a", 0.0): ("a", 0.5), ("a", 1.5): ("a", 2.0), ("b", 3.0): ("b", 3.5)}


def test_tracks_that_stand_still_are_smooth_and_those_that_jump_are_not() -> None:
    frame = frame_of(40)
    cells = held_of(frame).cells
    rows = np.flatnonzero(next_frames(cells, np.arange(len(frame))) >= 0)
    pairs = np.stack([rows, rows + 1], axis=1)
    track = frame["track"].astype("category").cat.codes.to_numpy()
    assert smoothness_scores(noise(track.max() + 1)[track], cells, pairs, 0)[0].value == 0.0
    assert smoothness_scores(noise(len(frame)), cells, pairs, 0)[0].value == pytest.approx(1, abs=0.05)
    plate = 1000 * frame["experiment"].eq("a").to_numpy()[:, None]  # what tells experiments apart makes nothing smooth
    assert smoothness_scores(noise(len(frame)) + plate, cells, pairs, 0)[0].value == pytest.approx(1, abs=0.05)


def test_smoothness_is_a_ratio_of_mean_distances() -> None:
    points = np.array([[0.0, 0], [3, 4], [0, 10]])
    assert smoothness(points, np.array([[0, 1]]), np.array([[0, 2]])) == pytest.approx(0.5)


# geometry


def test_alignment_and_uniformity_are_those_of_wang_and_isola() -> None:
    x, y = torch.tensor(noise(40)), torch.tensor(noise(40, seed=1))
    a, b = (torch.nn.functional.normalize(z, dim=1) for z in (x, y))
    assert alignment(x.numpy(), y.numpy()) == pytest.approx(float((a - b).norm(dim=1).pow(2).mean()), rel=1e-5)
    expected = torch.pdist(a).pow(2).mul(-2).exp().mean().log()
    assert uniformity(x.numpy()) == pytest.approx(float(expected), rel=1e-5)
    assert alignment(x.numpy(), 3 * x.numpy()) == pytest.approx(0, abs=1e-6)
    assert uniformity(np.ones((10, 3))) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("inputs", "rank"),
    [
        (np.full((50, 8), 3.3, np.float32), 1),
        (np.outer(np.linspace(-1, 1, 50), np.arange(1, 9)) + 100, 1),
        (np.concatenate([np.eye(8), -np.eye(8)]), 8),
        (np.concatenate([np.eye(8), -np.eye(8)])[:, :8] * [1, 1, 1, 0, 0, 0, 0, 0], 3),
    ],
)
def test_the_effective_rank_counts_directions(inputs: np.ndarray, rank: float) -> None:
    assert effective_rank(inputs) == pytest.approx(rank, abs=1e-5)


def test_a_collapsed_representation_gets_scores_and_no_crash() -> None:
    frame = frame_of()
    held, same = held_of(frame), np.ones((len(frame_of()), 4), np.float32)
    pairs = np.array([[0, 1], [12, 13], [24, 25]])
    scores = [
        *condition_scores(same, held),
        *hours_scores(same, held),
        *experiment_scores(same, held),
        *ilisi_scores(same, held),
        *mmd_scores(same, held, 19, 0),
        *smoothness_scores(same, held.cells, pairs, 0),
        *geometry_scores(same, same, same),
    ]
    assert value(scores, "effective_rank") == 1 and value(scores, "condition_probe_across") == pytest.approx(1 / 3)
    assert np.isnan(value(scores, "track_smoothness")) and np.isnan(value(scores, "experiment_mmd2"))
    assert squareform(cdist(same, same)).max() == 0


# data that lack something

WITHIN, ACROSS = (
    [f"{a}_{b}_{c}" for a in ("condition", "rarest") for b in ("probe", "knn")] for c in ("within", "across")
)
BETWEEN = ["experiment_probe", "experiment_ilisi", "experiment_mmd2", "experiment_mmd_p"]


@pytest.mark.parametrize(
    ("roles", "nan"),
    [
        ({"hours": None}, {"hours_r2_across", "hours_mae_across", "track_smoothness"}),
        ({"track": None}, {"track_smoothness"}),
        ({"condition": None}, {*WITHIN, *ACROSS}),
        ({"experiment": None}, {*ACROSS, *BETWEEN, "hours_r2_across", "hours_mae_across"}),
    ],
)
def test_what_the_data_do_not_allow_is_left_out_with_the_reason(roles: dict[str, None], nan: set[str]) -> None:
    frame = frame_of().assign(group=lambda f: f["track"])
    (lost,) = roles
    held = held_of(frame)
    cells = CellTable.from_frame(frame.drop(columns=lost), **{"hours": "hours", "track": "track", **roles})  # type: ignore[arg-type]
    held = Held(cells, held.training, "group")
    inputs, pairs = noise(len(frame)), np.array([[0, 1], [12, 13], [24, 25]])
    scores = [
        *condition_scores(inputs, held),
        *hours_scores(inputs, held),
        *experiment_scores(inputs, held),
        *ilisi_scores(inputs, held),
        *mmd_scores(inputs, held, 19, 0),
        *smoothness_scores(inputs, cells, pairs, 0),
    ]
    assert {score.name for score in scores if np.isnan(score.value)} == nan
    assert all(score.note and score.n == 0 for score in scores if np.isnan(score.value))


# which cells


def table(frame: pd.DataFrame, **options: Any) -> CellTable:
    return CellTable.from_frame(frame, hours="hours", track="track", **options)


def test_cells_that_are_no_anchors_follow_their_group() -> None:
    frame = frame_of(10)
    cells = table(frame)
    out = frame["track"].isin(["0-003", "1-007"]).to_numpy()
    anchors = np.flatnonzero(out & (frame["hours"] < 1).to_numpy())
    shuffled = frame.iloc[anchors].iloc[::-1]
    assert (training_part(cells, cells.take(anchors), "track") == ~out).all()
    assert (training_part(cells, table(shuffled), "track") == ~out).all()  # by label, whatever the codes


def test_a_name_that_repeats_in_another_experiment_is_another_group() -> None:
    frame = frame_of(10).assign(well=lambda f: f["track"].str[2:])
    cells = table(frame)
    out = np.flatnonzero((frame["experiment"] == "b") & (frame["well"] == "003"))
    assert (np.flatnonzero(~training_part(cells, cells.take(out), "well")) == out).all()


@pytest.mark.parametrize(("max_cells", "n_fit", "n_rest"), [(100, 60, 40), (10**6, 270, 270), (500, 300 - 30, 230)])
def test_the_budget_is_kept_and_the_choice_repeats(max_cells: int, n_fit: int, n_rest: int) -> None:
    frame = frame_of(30)
    held = held_of(frame)
    chosen = choose(held.cells, held.training, "track", max_cells, 0)
    assert chosen.held.training.sum() == n_fit and (~chosen.held.training).sum() == n_rest
    assert len(np.unique(chosen.rows)) == len(chosen.rows)
    assert (held.training[chosen.rows[: chosen.n_held]] == chosen.held.training).all()
    again, other = (choose(held.cells, held.training, "track", max_cells, seed) for seed in (0, 1))
    assert (again.rows == chosen.rows).all() and list(other.rows) != list(chosen.rows)
    one, next_one = chosen.rows[chosen.pairs[:, 0]], chosen.rows[chosen.pairs[:, 1]]
    assert len(one) and (next_one == one + 1).all()
    assert (frame["track"].to_numpy()[one] == frame["track"].to_numpy()[next_one]).all()
    assert not held.training[one].any() and not held.training[next_one].any()


def test_what_one_part_does_not_use_of_the_budget_the_other_has() -> None:
    frame = frame_of(30)
    few = ~frame["track"].isin(["0-003", "1-004"]).to_numpy()
    chosen = choose(held_of(frame).cells, few, "track", 100, 0)
    assert chosen.held.training.sum() == 88 and (~chosen.held.training).sum() == 12


# raw features


def test_images_are_averaged_over_a_grid() -> None:
    image = torch.arange(2 * 3 * 2 * 16 * 16, dtype=torch.float32).reshape(2, 3, 2, 16, 16)
    expected = image.reshape(2, 3, 2, 8, 2, 8, 2).mean((2, 4, 6)).flatten(1)
    assert torch.allclose(flattened(image), expected)
    assert flattened(image[:, :, 0]).shape == (2, 3 * 64) and flattened(image[:, 0, 0]).shape == (2, 256)


def test_features_are_standardised_on_the_training_cells_and_many_of_them_reduced() -> None:
    training = 5 + 3 * noise(200, 4)
    made = Features(training, (4,))
    assert np.allclose(made(training).mean(0), 0, atol=1e-4) and made.note == ""
    wide = noise(200, 300)
    alike = Features(wide * np.linspace(1, 1000, 300, dtype=np.float32), (300,))(wide[:5] * np.linspace(1, 1000, 300))
    assert np.allclose(np.abs(alike), np.abs(Features(wide, (300,))(wide[:5])), atol=0.05)  # whatever the units
    many = Features(wide, (300,))
    assert many(noise(7, 300)).shape == (7, 64) and many.note == "64 principal components of the training cells"
