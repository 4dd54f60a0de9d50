from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import hydra
import numpy as np
import pandas as pd
import pytest
from hydra.utils import instantiate

from cellcohort.data.timelapse import Timelapse
from cellcohort.sampling import BatchSampler
from plates import three_plates, two_plates

ROOT = Path(__file__).parents[2]
REAL = ROOT.parent / "shared" / "data" / "cellphe_mda231" / "phase_every8th.zarr"
SMALL = (
    "model=conv2d",
    "model.channels=4",
    "batch_sampler.batch_size=8",
    "sampler=[experiment_aware,temporal]",
    "trainer.max_epochs=2",
    "trainer.limit_train_batches=3",
    "trainer.limit_val_batches=1",
    "trainer.log_every_n_steps=1",
    "trainer.enable_progress_bar=false",
    "evaluation=none",
    "logger=none",
)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Path]:
    """``run(script, *overrides)``: the run directory of a script of this project, run in this process."""

    def call(script: str, *overrides: str) -> Path:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [f"scripts/{script}.py", *overrides])
        runpy.run_path(str(ROOT / "scripts" / f"{script}.py"), run_name="__main__")
        return Path(capsys.readouterr().out.splitlines()[-1].removeprefix("run: "))

    return call


def losses(directory: Path) -> np.ndarray:
    metrics = pd.read_csv(directory / "metrics.csv")
    return metrics[["train/loss", "val/loss"]].to_numpy().ravel()


def test_a_collection_trains_repeats_and_feels_its_views(run: Callable[..., Path], tmp_path: Path) -> None:
    source = (*SMALL, "data=timelapse", f"data.path={two_plates(tmp_path)}", "data.patch=[1,16,16]")
    one, again = (losses(run("train", *source)) for _ in range(2))
    assert np.isfinite(one[~np.isnan(one)]).all() and (~np.isnan(one)).sum() == 8
    assert np.array_equal(one, again, equal_nan=True)
    turned_off = [f"data.augment.{name}=0" for name in ("shift", "zoom", "brightness", "contrast", "noise", "blur")]
    plain = losses(run("train", *source, *turned_off, "data.augment.flip=false", "data.augment.rotate=none"))
    assert not np.array_equal(one, plain, equal_nan=True)


def test_plates_of_different_channels_train_by_marker_from_a_collection_and_from_a_cell_index(
    run: Callable[..., Path], tmp_path: Path
) -> None:
    options = (
        *(option for option in SMALL if not option.startswith(("sampler", "evaluation"))),
        *("data=timelapse", "data.patch=[1,16,16]", "data.channels=each", "data.positive_channel=any"),
        "data.pixel_size=0.5",
        *("sampler=[experiment_aware,condition,temporal]", "sampler.experiment_aware.column=marker"),
        *("sampler.condition.column=[condition,marker]", "trainer.max_epochs=1"),
    )
    collection = three_plates(tmp_path)
    index = Timelapse(collection, patch=(1, 16, 16)).write_index(tmp_path / "cells.parquet")
    small = ("evaluation.max_cells=100", "evaluation.permutations=19")
    one = run("train", *options, *small, f"data.path={collection}")
    other = run("train", *options, "evaluation=none", f"data.index={index}")
    found = [values[~np.isnan(values)] for values in map(losses, (one, other))]
    assert len(found[0]) == len(found[1]) == 4
    key = [
        "experiment",
        "channel",
        "position",
        "track_id",
        "t",
    ]  # channels come in the order of their names in an index
    same = [*key, "condition", "marker", "hours", "y", "x"]
    place = {"patch": (1, 16, 16), "channels": "each", "positive_channel": "any", "pixel_size": 0.5}
    ways = (Timelapse(collection, **place), Timelapse(index=index, **place))
    frames = [way.dataset().cells.frame.sort_values(key)[same].reset_index(drop=True) for way in ways]
    pd.testing.assert_frame_equal(*frames, check_dtype=False, check_categorical=False, atol=1e-3)
    composition, again = (pd.read_parquet(directory / "composition.parquet") for directory in (one, other))
    pd.testing.assert_frame_equal(composition, again[composition.columns])
    share = composition.filter(regex="^marker/share/")
    assert len(share) and ((share == 1).sum(axis=1) == 1).all() and ((share == 0).sum(axis=1) == 3).all()
    jointly = composition.filter(regex="^condition x marker/share/")
    assert ((jointly == 0.5).sum(axis=1) == 2).all()
    cells = pd.read_parquet(one / "embeddings.parquet")
    assert set(cells["marker"]) == {"brightfield", "viral_sensor", "DAPI", "TOMM20"}
    assert not cells.duplicated(["track", "t", "channel"]).any() and cells.duplicated(["track", "t"]).any()
    assert (cells.groupby("track")["part"].nunique() == 1).all()
    scores = pd.read_csv(one / "scores.csv").query("representation == 'model'").set_index("score")
    assert "brightfield" in scores.loc["experiment_ilisi", "note"]
    assert np.isfinite(scores.loc["track_smoothness", "value"])


@pytest.mark.skipif(not REAL.exists(), reason="the CellPhe plate is not beside the repository")
def test_the_published_plate_is_read_as_its_recipe_says(tmp_path: Path) -> None:
    with hydra.initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = hydra.compose("train", ["recipe=cellphe", f"data.path={REAL}"])
    data = instantiate(config.data, cache=str(tmp_path)).dataset()
    frame = data.every_cell().cells.frame
    assert (len(frame), frame["track"].nunique(), data.shape) == (1000, 27, (1, 1, 48, 48))
    assert np.allclose(frame["hours"], (frame["FrameID"] - 1) * 13 / 60)
    track, hours = frame["track"].astype(str).to_numpy(), frame["hours"].to_numpy()
    for batch in BatchSampler(data.cells, batch_size=64):
        meta = data.__getitems__(batch)["meta"]
        rows, later = meta["row"].numpy(), meta["positive_row"].numpy()
        assert (track[rows] == track[later]).all()
        assert np.allclose(hours[later] - hours[rows], meta["tau_hours"].numpy(), atol=1e-4)
        assert (meta["tau_hours"] >= 1.0).all() and (meta["tau_hours"] <= 6.0).all()
    mean, std = data.statistics()
    assert abs(mean[0]) < 2 and 0.3 < std[0] < 3  # brought to one brightness, around cells
