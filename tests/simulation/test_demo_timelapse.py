"""The simulated screen is read as any collection is, and its truth holds for what batches are made of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cellcohort.augment.image import ImageViews
from cellcohort.data import demo_timelapse
from cellcohort.data.demo_timelapse import load_cells, load_demo_timelapse
from cellcohort.datasets.images.patches import Patches
from cellcohort.runtime import distributed as launch
from cellcohort.sampling import BatchSampler, ExperimentAware, TemporallyEnriched
from cellcohort.sampling.axes.base import Axis
from cellcohort.simulation import plates
from cellcohort.simulation.plates import screen
from launches import torchrun

SMALL: dict[str, Any] = {"founders": 6, "image_size": 96, "frames": 9}
TINY: dict[str, Any] = {"founders": 2, "image_size": 64, "frames": 5}
OVERRIDES = ("data=demo_timelapse", *(f"data.{key}={value}" for key, value in SMALL.items()), "data.tau_hours=[6,12]")
Track = tuple[str, str, int]  # experiment, position and number


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("screens")
    screen(directory, **SMALL)
    return directory


@pytest.fixture(scope="module")
def data(home: Path) -> Patches:
    return load_demo_timelapse(home, **SMALL, tau_hours=(6.0, 12.0), augment=ImageViews())


def truth(home: Path, dataset: Patches) -> pd.DataFrame:
    """What was planted in the cells of a dataset, in their order."""
    columns = {"experiment": "experiment", "fov": "position", "track_id": "track_id", "t": "t"}
    coded = {name: dataset.cells.column(name) for name in columns}
    cells = {columns[name]: np.array(of.labels, object)[of.codes] for name, of in coded.items()}
    planted = pd.read_parquet(screen(home, **SMALL).parent / "truth.parquet")
    found = pd.DataFrame(cells).astype({"track_id": int, "t": int})
    found = found.merge(planted, how="left", on=list(columns.values()))
    assert len(found) == len(dataset) and found["family"].notna().all()
    return found


def test_every_row_of_the_truth_is_a_cell_with_its_condition_and_time(home: Path, data: Patches) -> None:
    every = data.every_cell()
    planted = truth(home, every)
    assert len(planted) == len(pd.read_parquet(screen(home, **SMALL).parent / "truth.parquet"))
    condition = every.cells.column("condition")
    assert np.array_equal(np.array(condition.labels)[condition.codes], planted["condition"])
    assert np.allclose(every.cells.hours, planted["t"] * 6.0)
    assert every.cells.column("experiment").present() == ["plate_1", "plate_2", "plate_3", "plate_4"]
    assert data.shape == (2, 1, 48, 48)


def test_the_preview_has_the_cells_of_the_training(home: Path, data: Patches) -> None:
    cells = load_cells(home, **SMALL, tau_hours=(6.0, 12.0)).cells
    assert len(cells) == len(data) and np.array_equal(cells.column("track").codes, data.cells.column("track").codes)
    assert np.array_equal(cells.hours, data.cells.hours)


def lines(home: Path) -> dict[Track, set[Track]]:
    """Every track of the files, with itself and those it descends from."""
    mother: dict[Track, int] = {}
    for plate in plates.PLATES:
        tracks = pd.read_parquet(screen(home, **SMALL).parent / f"{plate.name}_tracks.parquet")
        for position, track, parent in set(
            tracks[["position", "track_id", "parent_track_id"]].itertuples(index=False, name=None)
        ):
            mother[plate.name, position, track] = parent
    found = {}
    for experiment, position, track in mother:
        line, at = set(), track
        while at >= 0:
            line.add((experiment, position, at))
            at = mother.get((experiment, position, at), -1)
        found[experiment, position, track] = line
    return found


@pytest.mark.parametrize("axes", [{}, {"experiment": ExperimentAware(leaky=0.1), "temporal": TemporallyEnriched(6.0)}])
def test_positives_of_a_whole_epoch_are_the_planted_cell_or_descend_from_it_within_tau(
    home: Path, data: Patches, axes: dict[str, Axis]
) -> None:
    planted, line = truth(home, data.every_cell()), lines(home)
    track = list(zip(planted["experiment"], planted["position"], planted["track_id"], strict=True))
    sampler, n, daughters = BatchSampler(data.cells, axes, batch_size=32), 0, 0
    for positions in sampler:
        meta = data.__getitems__(positions)["meta"]
        rows, others = meta["row"].tolist(), meta["positive_row"].tolist()
        row, later = planted.iloc[rows], planted.iloc[others]
        assert np.array_equal(row["family"], later["family"])
        hours = 6.0 * (later["t"].to_numpy() - row["t"].to_numpy())
        assert ((hours >= 6) & (hours <= 12)).all() and np.allclose(hours, meta["tau_hours"])
        for one, other in zip(rows, others, strict=True):
            assert one != other and track[one] in line[track[other]]
            daughters += track[one] != track[other]
        n += len(rows)
    assert n == len(sampler) * 32 > 500 and daughters > 20


def test_patches_show_the_cell_whose_truth_they_have(home: Path, data: Patches) -> None:
    every = data.every_cell()
    planted = truth(home, every)
    healthy = np.flatnonzero((planted["response"] == 0) & (planted["phase"] < 0.8))
    marker = every.recorded(healthy)[:, 1, 0]
    alone = marker[:, 20:28, 20:28].mean(axis=(1, 2)) - np.median(marker, axis=(1, 2))
    expression = planted["expression"].to_numpy()[healthy]
    inside = planted.iloc[healthy][["y", "x"]].to_numpy()
    central = (np.abs(inside - 48) < 20).all(axis=1)  # others were moved inside the image
    assert np.corrcoef(np.log(alone[central].clip(0.01)), np.log(expression[central]))[0, 1] > 0.3


def test_a_run_on_it_learns_and_repeats(train: Callable[..., Path], home: Path) -> None:
    options = (*OVERRIDES, f"data.path={home}", "model=conv2d", "model.channels=8", "evaluation=none")
    runs = [train(*options, "trainer.max_epochs=1", *more) for more in ([], ["loader.num_workers=1"])]
    first, again = (pd.read_csv(run / "metrics.csv")["train/loss"].dropna().tolist() for run in runs)
    assert first == again and len(first) == 5 and np.isfinite(first).all()


def test_a_process_that_is_not_the_first_waits_for_it_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Store:
        def get(self, key: str) -> bytes:
            return str(screen(tmp_path, **TINY)).encode()  # what the first process does meanwhile

    for name, value in {"TORCHELASTIC_RUN_ID": "x", "RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(launch, "launch_store", Store)
    written: list[Path] = []
    write = plates.write_screen
    monkeypatch.setattr(plates, "write_screen", lambda at, *options: (written.append(at), write(at, *options)))
    monkeypatch.setattr(
        demo_timelapse, "screen", lambda *options: screen(*options) if written else pytest.fail("wrote")
    )
    assert len(load_cells(tmp_path, **TINY, tau_hours=(6.0, 12.0)).cells) > 50
    assert len(written) == 1


def test_a_line_says_that_plates_are_simulated_before_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plates, "write_screen", lambda at, *options: (at.mkdir(), print("written")))
    place = screen(tmp_path, **TINY).parent
    said = capsys.readouterr()
    assert said.err.startswith(f"simulating 4 time-lapse plates in {place}, ") and said.err.count("\n") == 1
    screen(tmp_path, **TINY)
    assert capsys.readouterr().err == ""


@pytest.mark.processes
def test_two_processes_train_together_on_one_screen(tmp_path: Path) -> None:
    options = ["model=conv2d", "model.channels=8", "batch_sampler.batch_size=8", "trainer.max_epochs=1"]
    options += ["trainer.limit_train_batches=2", "trainer.limit_val_batches=1", "logger=none", "evaluation=none"]
    smaller = [f"data.{key}={value}" for key, value in TINY.items()]
    done = torchrun(tmp_path, "train.py", *OVERRIDES, *smaller, *options)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("run: ") == 1 and done.stderr.count("simulating") == 1
    (written,) = (tmp_path / "outputs" / "demo_timelapse").iterdir()
    assert (written / "collection.yaml").exists()
