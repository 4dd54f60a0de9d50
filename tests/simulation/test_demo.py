"""The simulated plates hold what they claim, and are written once and safely."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cellcohort.data import demo
from cellcohort.data.demo import FEATURES, load_demo, simulate


@pytest.fixture(scope="module")
def simulated() -> tuple[pd.DataFrame, pd.DataFrame]:
    return simulate()


def explained(features: pd.DataFrame, by: pd.Series) -> float:
    """Mean share of the variance of the features that lies between groups."""
    return float((features.groupby(by).transform("mean").var() / features.var()).mean())


def test_it_has_the_size_and_shares_it_claims(simulated: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    table, truth = simulated
    assert 50_000 < len(table) < 70_000 and table["experiment"].nunique() == 4
    assert (table["t"].min(), table["t"].max()) == (0, 96)
    for _, rows in table.groupby("experiment"):
        shares = rows["condition"].value_counts(normalize=True)
        assert set(shares.index) == {"mock", "infected", "rare_drug"} and abs(shares["rare_drug"] - 0.05) < 0.015
        assert abs(shares["mock"] - shares["infected"]) < 0.05
    frames = table.groupby(["experiment", "track_id"])["t"]
    assert frames.size().between(20, 100).all() and (frames.max() - frames.min() + 1 == frames.size()).all()
    assert table["track_id"].nunique() < frames.ngroups, "ids repeat between experiments"
    assert table[list(FEATURES)].dtypes.eq(np.float32).all() and np.isfinite(table[list(FEATURES)].to_numpy()).all()
    assert truth[["experiment", "track_id", "t"]].equals(table[["experiment", "track_id", "t"]])


def test_mothers_divide_in_two_and_pass_on_family_condition_and_time(
    simulated: tuple[pd.DataFrame, pd.DataFrame],
) -> None:
    table, _ = simulated
    tracks = table.groupby(["experiment", "track_id"]).agg(
        mother=("parent_track_id", "first"),
        family=("lineage_id", "first"),
        condition=("condition", "first"),
        first=("t", "min"),
        last=("t", "max"),
    )
    daughters = tracks[tracks["mother"] > 0].reset_index()
    mothers = tracks.loc[list(zip(daughters["experiment"], daughters["mother"], strict=True))].reset_index()
    assert len(daughters) > 500 and daughters.groupby(["experiment", "mother"]).size().eq(2).all()
    assert daughters[["family", "condition"]].equals(mothers[["family", "condition"]])
    assert (daughters["first"] == mothers["last"] + 1).all()


def test_the_condition_shows_only_after_the_planted_onset(simulated: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    table, truth = simulated
    hours, mock = truth["t"] / 2, table["condition"] == "mock"
    assert truth["onset_hours"].isna().equals(mock)
    assert (truth["response"] > 0).equals(hours > truth["onset_hours"]), "no response before its onset, or in mock"
    assert truth.loc[hours < 4, "response"].max() == 0 and truth.loc[(hours > 40) & ~mock, "response"].mean() > 0.9
    free = table[list(FEATURES)] - table.groupby("experiment")[list(FEATURES)].transform("mean")
    early, late = explained(free[hours < 4], table["condition"]), explained(free[hours > 36], table["condition"])
    assert late > 0.05 and late > 3 * early


def test_experiments_differ_more_than_conditions_in_offset_gain_and_noise(
    simulated: tuple[pd.DataFrame, pd.DataFrame],
) -> None:
    table, truth = simulated
    late = truth["t"] > 72
    features = table.loc[late, list(FEATURES)]
    by_experiment, by_condition = (explained(features, table[key]) for key in ("experiment", "condition"))
    assert by_experiment > by_condition > 0.02
    planted = np.column_stack([truth[list(demo.LATENTS)], np.ones(len(truth))])
    for feature in FEATURES:
        fits, blur = [], []
        for _, rows in table.groupby("experiment"):
            fit, residual, *_ = np.linalg.lstsq(planted[rows.index], rows[feature].to_numpy(np.float64), rcond=None)
            fits.append(fit)
            blur.append(residual[0] / len(rows))
        slopes, offsets = np.abs(np.array(fits)[:, :-1]).max(axis=1), np.array(fits)[:, -1]
        assert np.ptp(offsets) > 0.3 and slopes.max() / slopes.min() > 1.1 and max(blur) / min(blur) > 1.1, feature


def test_the_same_seed_gives_the_same_cells_and_another_seed_others() -> None:
    one, again, other = simulate(3, 40), simulate(3, 40), simulate(4, 40)
    assert one[0].equals(again[0]) and one[1].equals(again[1])
    assert not np.array_equal(one[0]["area"].to_numpy()[:100], other[0]["area"].to_numpy()[:100])
    with pytest.raises(ValueError, match="founders=39"):
        simulate(founders=39)
    with pytest.raises(ValueError, match="simulation_seed must be an integer >= 0, got 'a'"):
        simulate("a")  # type: ignore[arg-type]


def test_it_is_written_once_and_read_as_tracks(tmp_path: Path) -> None:
    data = load_demo(tmp_path / "demo", founders=40)
    table = simulate(founders=40)[0].sort_values(["experiment", "track_id", "t"])
    assert len(data) == len(table) and data.shape == (16, 6) and data.whole == "lineage"
    assert np.array_equal(data.cells.column("t").codes, table["t"])
    assert np.allclose(data.statistics()[0], table[list(FEATURES)].mean(), atol=1e-4)
    files = [tmp_path / "demo" / name for name in ("tracks.parquet", "truth.parquet")]
    assert sorted((tmp_path / "demo").iterdir()) == files, "nothing else is left there"
    written = [file.stat().st_mtime_ns for file in files]
    load_demo(tmp_path / "demo", founders=40, seed=5)
    assert [file.stat().st_mtime_ns for file in files] == written
    assert len(load_demo(tmp_path / "demo", founders=41)) != len(data), "other options write it anew"
    files[1].unlink()
    load_demo(tmp_path / "demo", founders=41)
    assert files[1].exists()


def test_a_changed_simulator_writes_it_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_demo(tmp_path, founders=40)
    before = (tmp_path / "tracks.parquet").stat().st_mtime_ns
    changed = tmp_path / "changed.py"
    changed.write_text("another simulator")
    monkeypatch.setattr(demo, "__file__", str(changed))
    load_demo(tmp_path, founders=40)
    assert (tmp_path / "tracks.parquet").stat().st_mtime_ns > before


def test_many_that_start_at_once_all_read_whole_files(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        read = list(pool.map(lambda _: load_demo(tmp_path, founders=40), range(4)))
    assert len({len(data) for data in read}) == 1
    assert len({data.recorded([7]).tobytes() for data in read}) == 1


def test_files_from_elsewhere_are_not_overwritten(tmp_path: Path) -> None:
    own = tmp_path / "tracks.parquet"
    pd.DataFrame({"mine": [1]}).to_parquet(own)
    with pytest.raises(ValueError, match=r"tracks\.parquet was not written by the demo"):
        load_demo(tmp_path)
    assert pd.read_parquet(own)["mine"].tolist() == [1]


def test_the_experiment_effect_the_rare_share_and_the_drift_are_as_large_as_asked() -> None:
    features = list(FEATURES)
    none, twice = simulate(founders=40, experiment_effect=0.0)[0], simulate(founders=40, experiment_effect=2.0)[0]
    assert explained(none[features], none["experiment"]) < 0.02 < 0.5 < explained(twice[features], twice["experiment"])
    rare = simulate(founders=120, rare_share=1 / 3)[0]
    assert np.allclose(rare["condition"].value_counts(normalize=True), 1 / 3, atol=0.03)
    still, drifting = simulate(founders=40)[0], simulate(founders=40, drift=3.0)[0]
    moved = (drifting[features] - still[features]).assign(experiment=still["experiment"])
    last = moved[still["t"] == 96].groupby("experiment").mean()
    assert np.allclose(moved[still["t"] == 0][features], 0) and 2.0 < last.to_numpy().std() < 4.0
    for wrong in ({"experiment_effect": -1.0}, {"drift": np.nan}, {"rare_share": 0.4}, {"rare_share": 0.0}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
            simulate(**wrong)  # type: ignore[arg-type]
