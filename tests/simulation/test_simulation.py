"""The simulated screen holds what it claims, looks as planted, and is written once and safely."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from iohub import open_ome_zarr
from omegaconf import OmegaConf

from cellcohort.simulation import plates
from cellcohort.simulation.lives import live
from cellcohort.simulation.microscope import Microscope, dust
from cellcohort.simulation.plates import CHANNELS, PLATES, screen

SMALL: dict[str, Any] = {"founders": 6, "image_size": 96, "frames": 9}
TINY: dict[str, Any] = {"founders": 2, "image_size": 64, "frames": 2}
MICROSCOPE = Microscope(1800, 260, 120, 0.6, 6.0, 1.0, 0.0, 0.0, 0.0)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return screen(tmp_path_factory.mktemp("screens"), **SMALL).parent


def truth(directory: Path) -> pd.DataFrame:
    return pd.read_parquet(directory / "truth.parquet")


def images(directory: Path, plate: str, position: str) -> np.ndarray:
    with open_ome_zarr(directory / f"{plate}.zarr", mode="r") as store:
        order = [store.get_channel_index(name) for name in CHANNELS]
        return np.asarray(store[position].data[:])[:, order, 0]


def one_cell(**changes: Any) -> pd.DataFrame:
    cell = live(np.random.default_rng(0), "mock", 2, (64, 64), 5).iloc[:1].assign(y=32.0, x=32.0, phase=0.3)
    return cell.assign(**changes)


def look(condition: str, **changes: Any) -> np.ndarray:
    clean = np.ones((64, 64), np.float32)
    return MICROSCOPE.image(np.random.default_rng(1), one_cell(**changes), condition, clean).astype(float)


def test_plates_are_ome_zarr_of_both_versions_with_channels_in_own_order_and_size(written: Path) -> None:
    for plate, entry in zip(PLATES, OmegaConf.load(written / "collection.yaml").experiments, strict=True):
        with open_ome_zarr(written / entry.plate, mode="r") as store:
            assert (store.version, tuple(store.channel_names)) == (plate.version, plate.channels)
            assert set(entry.channels) == set(plate.channels)
            wells = [well for of in entry.conditions.values() for well in of]
            assert sorted(name for name, _ in store.positions()) == sorted(f"{well}/0" for well in wells)
            for _, position in store.positions():
                assert position.data.shape == (9, 2, 1, 96, 96 + plate.wider)
                assert position.data.chunks == (1, 1, 1, 96, 96 + plate.wider)
        assert (SMALL["frames"] - 1) * entry.interval_minutes == 48 * 60
    assert {plate.version for plate in PLATES} == {"0.4", "0.5"}
    assert len({plate.channels for plate in PLATES}) == 2


def test_tracks_lie_inside_the_image_and_daughters_follow_their_mother(written: Path) -> None:
    for plate in PLATES:
        tracks = pd.read_parquet(written / f"{plate.name}_tracks.parquet")
        assert not tracks.duplicated(["position", "track_id", "t"]).any()
        assert tracks["y"].between(0, 95).all() and tracks["x"].between(0, 95 + plate.wider).all()
        spans = tracks.groupby(["position", "track_id"]).agg(
            mother=("parent_track_id", "first"), first=("t", "min"), last=("t", "max")
        )
        daughters = spans[spans["mother"] > 0].reset_index()
        mothers = spans["last"].reindex(pd.MultiIndex.from_frame(daughters[["position", "mother"]])).to_numpy()
        seen = ~np.isnan(mothers)
        assert seen.mean() > 0.9 and (daughters["first"].to_numpy()[seen] > mothers[seen]).all()
        assert tracks["track_id"].nunique() < len(spans), "ids repeat between positions"


def test_the_truth_is_of_the_rows_of_the_tracks_and_plants_a_late_response_in_a_fraction(written: Path) -> None:
    table = truth(written)
    tracks = pd.concat([pd.read_parquet(written / f"{plate.name}_tracks.parquet") for plate in PLATES])
    shared = ["position", "track_id", "t", "y", "x"]
    assert table[shared].equals(tracks[shared].reset_index(drop=True))
    assert (table.loc[table["condition"] == "mock", "response"] == 0).all()
    hours = table["t"] * 6.0
    assert (table.loc[hours <= 3, "response"] == 0).all()
    assert ((table["response"] > 0) == (hours > table["onset_hours"])).all()
    late = table[(hours >= 36) & (table["condition"] != "mock")].groupby("condition")["response"]
    assert (late.apply(lambda response: (response > 0).mean())).between(0.2, 0.98).all()
    assert table.groupby(["experiment", "position", "family"])["condition"].nunique().eq(1).all()


def test_cells_are_where_the_tracks_say(written: Path) -> None:
    table = truth(written)
    for name, rows in table[table["phase"] < 0.8].groupby("experiment"):
        at, away = [], []
        for position, here in rows.groupby("position"):
            movie = images(written, str(name), str(position))[:, 1].astype(float)
            away.append(np.median(movie))
            at += [movie[t, round(y) - 3 : round(y) + 4, round(x) - 3 : round(x) + 4].mean()
                   for t, y, x in here[["t", "y", "x"]].itertuples(index=False)]  # fmt: skip
        assert np.mean(np.array(at) > 1.1 * np.mean(away)) > 0.95, name


@pytest.mark.parametrize("condition", ["infected", "rare_drug"])
def test_a_condition_shows_through_the_response_alone(condition: str) -> None:
    assert np.array_equal(look(condition), look("mock"))
    noise = np.abs(look("mock") - look("mock", look=one_cell()["look"])).mean()
    for channel in range(2):
        half, full = (np.abs(look(condition, response=r) - look("mock"))[channel].mean() for r in (0.5, 1.0))
        assert full > half > noise


def test_cells_are_dark_with_a_halo_in_phase_and_bright_when_they_divide() -> None:
    phase = look("mock")[0]
    distance = np.hypot(*(np.mgrid[:64, :64] - 32))
    radius = one_cell()["radius"].item()
    background = np.median(phase[distance > 3 * radius])
    assert phase[distance < 0.6 * radius].mean() < 0.8 * background
    halo = (distance > 1.2 * radius) & (distance < 1.6 * radius)
    assert phase[halo].mean() > 1.03 * background
    assert look("mock", phase=1.0)[0][distance < 3].mean() > 1.2 * phase[distance < 3].mean()


def test_cells_look_different_from_each_other_and_alike_over_time() -> None:
    cell = look("mock")
    later = np.abs(look("mock", t=1) - cell)[0].mean()
    assert np.abs(look("mock", look=5) - cell)[0].mean() > 1.5 * later > 0


def test_experiments_differ_in_illumination_gain_blur_background_and_density(written: Path) -> None:
    seen = []
    for plate in PLATES:
        phase, marker = images(written, plate.name, "A/1/0").astype(float).swapaxes(0, 1)
        corner = np.median(phase[:, :16, :16]) / np.median(phase[:, :16, -16:])
        seen.append([np.median(phase), np.median(marker), marker.max() - np.median(marker), corner])
    assert (np.ptp(seen, axis=0) / np.mean(seen, axis=0) > 0.1).all()
    sizes = truth(written).groupby("experiment").size()
    assert sizes.max() > 1.2 * sizes.min()


def test_the_same_seed_gives_the_same_screen_and_another_another(tmp_path: Path) -> None:
    one, again = (screen(tmp_path / name, **TINY).parent for name in ("one", "again"))
    other = screen(tmp_path / "other", seed=1, **TINY).parent
    assert truth(again).equals(truth(one)) and not truth(other).equals(truth(one))
    for plate in PLATES:
        movie = images(one, plate.name, "B/1/0")
        assert np.array_equal(images(again, plate.name, "B/1/0"), movie)
        assert not np.array_equal(images(other, plate.name, "B/1/0"), movie)


def test_specks_of_dust_dim_the_light_and_stay_few() -> None:
    passes = dust(np.random.default_rng(0), 96, 128)
    assert passes.shape == (96, 128) and 0.3 < passes.min() < 0.95 and (passes < 0.95).mean() < 0.05


def test_it_is_written_once_and_other_options_have_a_place_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Path] = []

    def write(directory: Path, *options: int) -> None:
        calls.append(directory)
        directory.mkdir(parents=True)
        (directory / "collection.yaml").touch()

    monkeypatch.setattr(plates, "write_screen", write)
    one, again, other = screen(tmp_path), screen(tmp_path), screen(tmp_path, seed=1)
    assert one == again != other and len(calls) == 2
    assert sorted(tmp_path.iterdir()) == sorted([one.parent, other.parent]), "nothing else is left there"
    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(lambda _: screen(tmp_path, seed=2), range(4)))) == 1
    assert len(list(tmp_path.iterdir())) == 3


def test_what_is_half_written_never_looks_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(plates, "_entry", fail)
    with pytest.raises(KeyboardInterrupt):
        screen(tmp_path, **TINY)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "wrong", [{"seed": -1}, {"seed": "a"}, {"founders": 1}, {"founders": 2.5}, {"image_size": 63}, {"frames": 1}]
)
def test_options_out_of_range_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="{} must be an integer .*got {!r}".format(*next(iter(wrong.items())))):
        screen(tmp_path, **wrong)
