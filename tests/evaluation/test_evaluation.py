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
from cellcohort.evaluation.probes import HOURS, condition_scores, experiment_scores, hours_scores, linear, nearest
from cellcohort.evaluation.replicates import Replicates, centred, replicate_scores
from cellcohort.evaluation.score import Held, Score, bootstrap_interval, noted
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
    track = frame["track"].to_numpy()
    names = np.unique(condition)
    frames = frame.groupby("track").cumcount().to_numpy()
    told: dict[str, np.ndarray] = {}
    hour_scores = []
    for e in EXPERIMENTS:
        rest = ~held.training & (experiment == e)
        for where in ("within", "across"):
            fit = held.training & ((experiment == e) == (where == "within"))
            scaler = StandardScaler().fit(inputs[fit])
            x, y = scaler.transform(inputs[fit]), scaler.transform(inputs[rest])
            probe = LogisticRegression(class_weight="balanced", max_iter=2000, tol=1e-3).fit(x, condition[fit])
            told.setdefault(f"probe_{where}", np.empty(len(frame), object))[rest] = probe.predict(y)
            votes = np.zeros((rest.sum(), 3))
            for draw in range(5):  # the frame of each track that may vote
                voters = frames[fit] == draw
                assert len(np.unique(track[fit][voters])) == voters.sum()
                near = np.argsort(cdist(y, x[voters]), axis=1)[:, :15]
                labels = condition[fit][voters]
                for i, name in enumerate(names):
                    votes[:, i] += np.mean(labels[near] == name, axis=1) / np.mean(labels == name)
            told.setdefault(f"knn_{where}", np.empty(len(frame), object))[rest] = names[votes.argmax(1)]
            if where == "across":
                clock = Ridge().fit(x, hours[fit]).predict(y)
                mae, of_mean = (
                    mean_absolute_error(hours[rest], t) for t in (clock, np.full(rest.sum(), hours[fit].mean()))
                )
                hour_scores.append((r2_score(hours[rest], clock), mae, 1 - mae / of_mean))
    scores = condition_scores(inputs, held) + hours_scores(inputs, held)
    out, rare = ~held.training, ~held.training & (condition == "rare")
    for name, answer in told.items():
        expected = balanced_accuracy_score(condition[out].astype(str), answer[out].astype(str))
        assert value(scores, f"condition_{name}") == pytest.approx(expected, abs=1e-9), name
        assert value(scores, f"rarest_{name}") == pytest.approx(np.mean(answer[rare] == "rare"), abs=1e-9), name
    for name, expected in zip(("r2", "mae", "explained"), np.mean(hour_scores, axis=0), strict=True):
        assert value(scores, f"hours_{name}_across") == pytest.approx(expected, abs=1e-6), name


def test_what_only_tells_tracks_apart_is_at_chance_because_splits_cut_no_track() -> None:
    """Every track is a tight cloud of its own: a split by cells would be told perfectly."""
    frame = frame_of(60, frames=40)
    held = held_of(frame)
    track = frame["track"].astype("category").cat.codes.to_numpy()
    clouds = 100 * noise(track.max() + 1)[track] + noise(len(frame), seed=1)
    codes, by_cells = held.condition.codes, np.random.default_rng(0).random(len(frame)) < 0.5  # type: ignore[union-attr]
    assert (nearest(clouds[by_cells], codes[by_cells], clouds[~by_cells]) == codes[~by_cells]).all()
    assert value(condition_scores(clouds, held), "condition_probe_within") < 0.45
    assert value(condition_scores(clouds, held), "condition_knn_within") < 0.5


@pytest.mark.parametrize("where", ["within", "experiment"])
def test_where_experiments_were_held_out_folds_keep_tracks_whole(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = frame_of(30)
    held = Held(held_of(frame).cells, frame["experiment"].eq("a").to_numpy(), "track")
    track = frame["track"].astype("category").cat.codes.to_numpy()
    seen: list[tuple[set[float], set[float]]] = []

    def spy(inputs: np.ndarray, labels: np.ndarray, others: np.ndarray, copies: np.ndarray) -> np.ndarray:
        seen.append((set(inputs[:, 0]), set(others[:, 0])))
        return linear(inputs, labels, others)

    monkeypatch.setattr(probes, "linear", spy)
    inputs = np.column_stack([track, noise(len(frame))]).astype(float)
    scores = condition_scores(inputs, held) if where == "within" else experiment_scores(inputs, held)
    assert len(seen) >= 5 and all(fit.isdisjoint(rest) for fit, rest in seen)
    assert all(np.isfinite(score.value) for score in scores)
    if where == "within":
        said = note(scores, "condition_probe_within")
        assert "left out: a (fewer than two conditions on both sides of the split)" in said and "over 2 experi" in said


def test_a_rarest_condition_of_one_experiment_is_said_to_be_in_that_only() -> None:
    frame = frame_of()
    frame = frame[~((frame.experiment != "b") & (frame.condition == "rare"))].reset_index(drop=True)
    said = note(condition_scores(noise(len(frame)), held_of(frame)), "rarest_probe_within")
    assert said.startswith("recall of rare;") and "in b only" in said


def test_an_experiment_without_a_condition_is_scored_on_those_it_has() -> None:
    frame = frame_of()
    frame = frame[~((frame.experiment == "b") & (frame.condition == "rare"))].reset_index(drop=True)
    held = held_of(frame)
    scores = condition_scores(noise(len(frame)), held)
    for name in ("condition_probe_across", "rarest_knn_across"):
        assert "left out" not in note(scores, name) and "chance 0.333" in note(scores, name)
    assert "pooled over 3 experiments" in note(scores, "condition_probe_across")
    assert "pooled over 3 experiments" in note(scores, "condition_probe_within")
    assert "pooled over 2 experiments" in note(scores, "rarest_probe_within")
    n = [score.n for score in scores if score.name == "condition_probe_across"]
    assert n == [int((~held.training).sum())]


def test_a_condition_that_only_one_experiment_has_is_left_out_across_by_its_own_reason() -> None:
    frame = frame_of()
    frame = frame[(frame.experiment == "a") | (frame.condition != "rare")].reset_index(drop=True)
    held = held_of(frame)
    scores = condition_scores(noise(len(frame)), held)
    said = note(scores, "condition_probe_across")
    assert "left out: rare (in a only)" in said and "chance 0.5;" in said
    assert "recall of drug" in note(scores, "rarest_probe_across") or "recall of mock" in note(
        scores, "rarest_probe_across"
    )
    assert "recall of rare" in note(scores, "rarest_probe_within")
    scored = ~held.training & (frame["condition"] != "rare").to_numpy()
    assert [score.n for score in scores if score.name == "condition_probe_across"] == [scored.sum()]


def test_cells_without_a_condition_are_no_condition() -> None:
    frame = frame_of(tracks=60)
    gone = (frame["condition"] == "rare") & frame["track"].str[-2].isin([*"024"])  # half of the rarest
    whole, bare = held_of(frame), frame.assign(condition=frame["condition"].mask(gone))
    held = Held(CellTable.from_frame(bare, hours="hours", track="track", missing="label"), whole.training, "track")
    kept = np.flatnonzero(~gone)
    less = Held(CellTable.from_frame(bare[~gone], hours="hours", track="track"), whole.training[kept], "track")
    inputs = planted(frame, 1.0)
    n = int((gone & ~held.training).sum())
    found = [*condition_scores(inputs, held), *mmd_scores(inputs, held, 19, 0)]
    for one, other in zip(
        found, [*condition_scores(inputs[kept], less), *mmd_scores(inputs[kept], less, 19, 0)], strict=True
    ):
        assert one.name == other.name and one.n == other.n
        assert one.value == pytest.approx(other.value, abs=0.02) and "missing" not in one.note
    assert f"left out: {int(gone.sum())} cells without a condition" in note(found, "rarest_probe_across")
    (replicates,) = replicate_scores(centred(inputs, held.training), held, Replicates())
    assert f"{n} cells without a label" in replicates.note and replicates.n == (~less.training).sum()
    derived = frame.assign(a="x", condition=np.where(gone, "missing/missing", "x/missing"))
    cells = CellTable.from_frame(derived.assign(b=bare["condition"]), hours=None, missing="label")
    assert (cells.unlabelled("condition") == gone).all() and (cells.unlabelled(["a", "b"]) == False).all()  # noqa: E712
    assert not whole.cells.unlabelled("condition").any()


@pytest.mark.parametrize("each", [1, 2])
def test_conditions_of_a_cell_or_two_are_left_out_with_a_reason(each: int) -> None:
    condition, experiment = np.arange(60) // each, np.arange(60) % 3
    cells = CellTable.from_frame(pd.DataFrame({"experiment": experiment, "condition": condition}), hours=None)
    held = Held(cells.with_column("well", np.arange(60)), experiment > 0, "well")
    scores = condition_scores(noise(60), held)
    assert np.isnan(value(scores, "condition_probe_within")) and "needs" in note(scores, "condition_probe_within")
    assert ("needs" in note(scores, "condition_probe_across")) == (each == 1)


def test_a_note_lists_three_of_many() -> None:
    assert noted("a", left_out=[*"bcdefg"]) == "a; left out: b, c, d, e, f, g"
    assert noted("a", left_out=[str(i) for i in range(120)]) == "a; left out: 0, 1, 2 and 117 more"


@pytest.mark.parametrize("part", ["training", "validation"])
def test_a_condition_of_one_cell_does_not_take_the_score_away(part: str) -> None:
    frame = frame_of()
    held = held_of(frame)
    of_part = held.training == (part == "training")
    condition = frame["condition"].to_numpy(object)
    condition[np.flatnonzero(of_part)[0]] = "single"
    cells = CellTable.from_frame(frame.assign(condition=condition), hours="hours", track="track")
    scores = condition_scores(noise(len(frame)), Held(cells, held.training, "track"))
    assert all(np.isfinite(score.value) for score in scores)
    for where in ("within", "across"):
        said = note(scores, f"condition_probe_{where}")
        assert "chance 0.333" in said and "single" in said
        assert ("no held-out cells" in said) == (part == "training")
        assert ("no training cells" in said) == (part == "validation")


def planted(frame: pd.DataFrame, effect: float) -> np.ndarray:
    """Cells that differ by condition, by a small offset of their experiment, and by chance."""
    rng = np.random.default_rng(5)
    codes = frame["condition"].astype("category").cat.codes.to_numpy()
    experiment = frame["experiment"].astype("category").cat.codes.to_numpy()
    offsets = 0.2 * rng.normal(size=(experiment.max() + 1, 6))
    return rng.normal(size=(len(frame), 6)) + effect * np.eye(6)[codes] + offsets[experiment]


def design(nested: bool, experiments: int = 12, tracks: int = 40) -> pd.DataFrame:
    """Experiments with one condition each, or with both."""
    rows = [
        (f"e{e:02d}", f"{e}-{t}", "AB"[e % 2 if nested else t % 2]) for e in range(experiments) for t in range(tracks)
    ]
    return pd.DataFrame(rows, columns=["experiment", "track", "condition"]).assign(hours=0.0)


@pytest.mark.parametrize("by", ["track", "experiment"])
@pytest.mark.parametrize("effect", [0.0, 1.5])
def test_a_nested_and_a_crossed_design_with_one_effect_have_scores_that_agree(by: str, effect: float) -> None:
    found = {}
    for nested in (True, False):
        frame = design(nested)
        cells = CellTable.from_frame(frame, hours="hours", track="track")
        training = frame["experiment"].isin([f"e{e:02d}" for e in range(8)]).to_numpy() if by == "experiment" else None
        held = held_of(frame) if training is None else Held(cells, training, "experiment")
        scores = condition_scores(planted(frame, effect), held)
        for name in ("condition_probe_across", "condition_knn_across", "rarest_probe_across"):
            assert np.isfinite(value(scores, name)), name
        found[nested] = next(score for score in scores if score.name == "condition_probe_across")
        said = note(scores, "condition_probe_across")
        assert ("confounded: no experiment holds two conditions" in said) == nested and "chance 0.5" in said
        if nested:
            assert np.isnan(value(scores, "condition_probe_within"))
            assert "confounded" in note(scores, "condition_probe_within")
        for score in (*experiment_scores(planted(frame, effect), held), *ilisi_scores(planted(frame, effect), held)):
            assert np.isfinite(score.value) or by == "experiment"  # whose experiments are held out whole
            said = "a difference between conditions looks like one between experiments" in score.note
            assert said == (nested and np.isfinite(score.value))
    assert found[True].value == pytest.approx(found[False].value, abs=0.08)
    expected = 0.5 if effect == 0 else 0.85
    assert found[True].value == pytest.approx(expected, abs=0.1)
    assert found[True].low <= found[True].value <= found[True].high
    assert (found[True].low > 0.6) == (effect > 0)


def test_experiments_with_one_condition_each_among_held_out_cells_are_noted() -> None:
    frame = design(nested=False)
    even = frame["experiment"].str[1:].astype(int) % 2 == 0
    cells = CellTable.from_frame(frame, hours="hours", track="track")
    held = Held(cells, (even == frame["condition"].eq("A")).to_numpy(), "track")
    inputs = planted(frame, 1.5)
    needs = "needs an experiment with two conditions that have cells on both sides of the split"
    assert needs in note(condition_scores(inputs, held), "condition_probe_within")
    said = "confounded: no experiment has held-out cells of two conditions, so that a difference between conditions"
    for score in (*experiment_scores(inputs, held), *ilisi_scores(inputs, held)):
        assert said in score.note
    assert not any("confounded" in score.note for score in ilisi_scores(inputs, held_of(frame)))


def test_the_interval_over_experiments_is_that_of_resampled_experiments() -> None:
    rng = np.random.default_rng(0)
    right, total = rng.integers(5, 15, (8, 3)).astype(float), np.full((8, 3), 20.0)
    low, high = bootstrap_interval(right, total)
    drawn = [
        (right[rows].sum(0) / total[rows].sum(0)).mean() for rows in np.random.default_rng(1).integers(0, 8, (4000, 8))
    ]
    assert (low, high) == pytest.approx(np.quantile(drawn, [0.025, 0.975]), abs=0.01)
    assert np.isnan(bootstrap_interval(right[:2], total[:2])).all()


@pytest.mark.parametrize("frames", [1, 5, 40])
def test_frames_of_a_track_do_not_vote_15_times(frames: int) -> None:
    """Tracks are clouds that know nothing but a weak effect of their condition: more frames tell no more."""
    tracks = pd.DataFrame(
        [("a", f"{t:03d}", "AB"[t % 2]) for t in range(160)], columns=["experiment", "track", "condition"]
    )
    frame = tracks.loc[np.repeat(np.arange(160), frames)].reset_index(drop=True)
    frame["hours"] = np.tile(np.arange(frames) * 0.5, 160)
    centre = noise(160, 2) + 2.0 * (np.arange(160) % 2)[:, None]
    inputs = np.repeat(centre, frames, axis=0) + 0.01 * noise(len(frame), 2)
    scores = condition_scores(inputs, held_of(frame))
    assert value(scores, "condition_knn_within") == pytest.approx(0.92, abs=0.05)


@pytest.mark.parametrize("straddles", [True, False])
def test_wells_on_both_sides_of_the_split_are_noted(straddles: bool) -> None:
    frame = frame_of(40)
    frame["well"] = frame["condition"] + (frame["track"].str[-1].astype(int) % 2).astype(str)
    cells = CellTable.from_frame(frame, hours="hours", track="track")
    wells = frame["experiment"] + frame["well"]
    training = held_of(frame).training if straddles else wells.str.endswith("0").to_numpy()
    scores = condition_scores(noise(len(frame)), Held(cells, training, "track"))
    said = note(scores, "condition_probe_within")
    assert ("condition and well cannot be told apart" in said and "'split.by=[experiment,well]'" in said) == straddles
    assert "cannot be told apart" not in note(scores, "condition_probe_across")


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
    assert value(scores, "hours_explained_across") > 0.95
    lost = hours_scores(noise(len(frame)), held_of(frame))
    assert value(lost, "hours_r2_across") < 0.1 and abs(value(lost, "hours_explained_across")) < 0.1
    hours = frame["hours"]
    assert f"predicting the mean time of the training cells gives {(hours - hours.mean()).abs().mean():.3g}" in note(
        lost, "hours_mae_across"
    )


def test_the_direction_of_every_score_is_that_of_a_better_representation() -> None:
    """Flipping a direction would make a comparison call the worse strategy better."""
    frame = frame_of(40)
    held = held_of(frame)
    rows = np.flatnonzero(next_frames(held.cells, np.arange(len(frame))) >= 0)
    pairs = np.stack([rows, rows + 1], axis=1)
    experiment = frame["experiment"].astype("category").cat.codes.to_numpy()
    condition = pd.get_dummies(frame["condition"]).to_numpy() @ noise(3, 5, 1)
    clock = frame["hours"].to_numpy()[:, None] * noise(1, 5, 2)
    good = 0.3 * noise(len(frame)) + 3 * condition + 3 * clock
    bad = noise(len(frame), seed=9) * [1, 0.01, 0.01, 0.01, 0.01] + 30 * (experiment[:, None] + 1)
    found = []
    for inputs in (good, bad):
        near = inputs + 0.01 * noise(len(frame), seed=3) * (1 if inputs is good else 1000)
        scores = [
            *condition_scores(inputs, held),
            *hours_scores(inputs, held),
            *experiment_scores(inputs, held),
            *ilisi_scores(inputs, held),
            *mmd_scores(inputs, held, 19, 0),
            *smoothness_scores(inputs, held.cells, pairs, 0),
            *geometry_scores(inputs[~held.training], inputs, near),
        ]
        found.append({score.name: score for score in scores})
    for name, score in found[0].items():
        gain = (score.value - found[1][name].value) * (1 if score.higher_is_better else -1)
        assert gain > 0, name


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
    assert scores[0].value > 0.7 and scores[0].note == "30 cells of each experiment; one of each track; mean of 5 draws"


@pytest.mark.parametrize("frames", [1, 5, 20, 100])
@pytest.mark.parametrize("whole", ["track", "experiment"])
def test_the_ilisi_does_not_count_the_frames_of_a_track(frames: int, whole: str) -> None:
    """Two experiments of 20 tracks that are mixed perfectly, but for each track being a cloud of its own."""
    tracks = pd.DataFrame(
        [("ab"[t % 2], f"{t:03d}", "x") for t in range(40)], columns=["experiment", "track", "condition"]
    )
    rows = np.random.default_rng(0).permutation(np.repeat(np.arange(40), frames))
    frame = tracks.loc[rows].reset_index(drop=True).assign(hours=0.0)
    held = Held(CellTable.from_frame(frame, hours="hours", track="track"), np.zeros(len(frame), bool), whole)
    mixed = noise(40)[rows] + 0.05 * noise(len(frame))
    assert ilisi_scores(mixed, held)[0].value == pytest.approx(0.85, abs=0.06)
    apart = mixed + 20 * (rows % 2)[:, None]
    assert ilisi_scores(apart, held)[0].value < 0.02


@pytest.mark.parametrize(("apart", "mixed"), [("c", True), ("a", False)])
def test_an_experiment_held_out_alone_is_mixed_with_the_training_cells_of_the_others(apart: str, mixed: bool) -> None:
    """Experiment a is held out; which of the others lies apart plays no part, only whether a lies among them."""
    frame = frame_of(60, 1).sample(frac=1, random_state=0, ignore_index=True)
    held = Held(table(frame), frame["experiment"].ne("a").to_numpy(), "track")
    score = ilisi_scores(noise(len(frame)) + 50 * frame["experiment"].eq(apart).to_numpy()[:, None], held)[0]
    assert score.value == pytest.approx(0.45 if mixed else 0, abs=0.08)  # in two of three experiments
    assert "neighbours of the held-out experiment among training cells of the others" in score.note
    few = Held(held.cells, frame["experiment"].eq("none").to_numpy(), "track")
    assert "neighbours of the held-out" not in ilisi_scores(noise(len(frame)), few)[0].note


def test_every_cell_stands_for_itself_where_there_are_no_copies() -> None:
    frame = frame_of(12).assign(well=lambda f: f["track"].str[-1].astype(int) % 3)
    cells = CellTable.from_frame(frame.drop(columns="track"), hours="hours", track=None)
    held = Held(cells, np.zeros(len(frame), bool), "well")
    assert held.copy_name == "cell" and len(np.unique(held.copies)) == len(frame)
    assert Held(table(frame), held.training, "well").copy_name == "track"
    assert Held(table(frame), held.training, "track").copy_name == "track"
    assert Held(CellTable.from_frame(frame, hours=None), held.training, "track").copy_name == "track"


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
        ({"hours": None}, {*HOURS, "track_smoothness"}),
        ({"track": None}, {"track_smoothness"}),
        ({"condition": None}, {*WITHIN, *ACROSS}),
        ({"experiment": None}, {*ACROSS, *BETWEEN, *HOURS}),
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
    assert {score.name for score in scores if not score.higher_is_better} == {
        *("experiment_probe", "experiment_mmd2", "hours_mae_across", "track_smoothness")
    }, "whether they have a value or not"


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


def in_channels(frame: pd.DataFrame) -> tuple[pd.DataFrame, np.ndarray]:
    """Every cell once in each channel of its experiment, one of which is in all; and the row that each was made of."""
    rows = []
    for number, channels in enumerate((("Phase", "GFP"), ("Phase", "Cy5"), ("Phase",))):
        own = np.flatnonzero(frame["experiment"] == EXPERIMENTS[number])
        rows += [(row, channel) for channel in channels for row in own]
    of, channel = (np.array(values) for values in zip(*rows, strict=True))
    made = frame.iloc[of].assign(channel=channel, marker=channel).reset_index(drop=True)
    order = np.random.default_rng(3).permutation(len(made))
    return made.iloc[order].reset_index(drop=True), of[order]


def test_a_cell_in_two_channels_is_compared_within_each_and_counts_as_one() -> None:
    """Channels lie far apart; experiments that share a channel are compared in that one alone."""
    frame = frame_of(60, frames=4)
    made, of = in_channels(frame)
    far = 1000.0 * (made["channel"].to_numpy()[:, None] == ["Phase", "GFP", "Cy5"]).astype(float)
    cells = np.column_stack([noise(len(frame))[of], far])
    phase = (made["channel"] == "Phase").to_numpy()
    held = held_of(made)
    alone = made[phase].drop(columns=["channel", "marker"]).reset_index(drop=True)
    alone = Held(table(alone), held.training[phase], "track")
    mixed, wanted = ilisi_scores(cells, held), ilisi_scores(cells[phase], alone)
    assert value(mixed, "experiment_ilisi") == pytest.approx(value(wanted, "experiment_ilisi"))
    said = note(mixed, "experiment_ilisi")
    assert "mean over 1 marker; Phase: 30 cells of each experiment" in said
    assert "Cy5 (needs two experiments), GFP (needs two experiments)" in said
    for one, other in zip(mmd_scores(cells, held, 99, 0), mmd_scores(cells[phase], alone, 99, 0), strict=True):
        assert one.value == pytest.approx(other.value) and one.n == other.n and "GFP of a" not in one.note
    assert len(np.unique(held.copies)) == frame["track"].nunique()


def test_the_next_frame_is_of_the_same_channel_and_so_are_the_pairs_that_it_is_compared_with() -> None:
    frame = frame_of(20, frames=5)
    made, of = in_channels(frame)
    held = held_of(made)
    following = next_frames(held.cells, np.arange(len(made)))
    there = following >= 0
    assert there.sum() == len(made) - made.groupby(["track", "channel"]).ngroups
    for name in ("channel", "track"):
        assert (made[name].to_numpy()[there] == made[name].to_numpy()[following[there]]).all()
    assert np.allclose(made["hours"].to_numpy()[following[there]] - made["hours"].to_numpy()[there], 0.5)
    steps = noise(len(frame))[of] + 1000.0 * (made["channel"].to_numpy()[:, None] == "Phase")
    pairs = np.stack([np.flatnonzero(there), following[there]], axis=1)
    (score,) = smoothness_scores(steps, held.cells, pairs, 0)
    assert score.value == pytest.approx(1, abs=0.1)


def test_probes_are_fitted_for_each_marker_by_itself() -> None:
    """What tells conditions in one channel tells others in another, and a channel alone can tell its experiment."""
    frame = frame_of(60, frames=2)
    made, of = in_channels(frame)
    channel = made["channel"].to_numpy()[:, None] == ["Phase", "GFP", "Cy5"]
    condition = frame["condition"].to_numpy()[of][:, None] == CONDITIONS
    turned = np.where(channel[:, :1], condition, np.roll(condition, 1, axis=1)) * 6.0
    inputs = np.column_stack([turned + noise(len(frame), 3)[of], 50.0 * channel])
    held = held_of(made)
    found = condition_scores(inputs, held)
    for where in ("probe_within", "knn_within", "probe_across", "knn_across"):
        assert value(found, f"condition_{where}") > 0.97, where
    assert "pooled over 3 experiments, each marker by itself" in note(found, "condition_probe_within")
    said = note(found, "condition_probe_across")
    assert "Cy5 mock (in b only)" in said and "Phase" not in said
    (score,) = experiment_scores(inputs, held)
    assert score.value == pytest.approx(1 / 3, abs=0.12) and score.n == int((~held.training & channel[:, 0]).sum())
    assert "each marker by itself" in score.note and "Cy5 (needs two experiments)" in score.note
    phase = channel[:, 0]
    alone = table(made[phase].drop(columns=["channel", "marker"]).reset_index(drop=True))
    of_phase = hours_scores(inputs[phase], Held(alone, held.training[phase], "track"))
    for one, other in zip(hours_scores(inputs, held), of_phase, strict=True):
        assert one.value == pytest.approx(other.value) and one.n == other.n
        assert "GFP a (no training cells in other experiments)" in one.note
