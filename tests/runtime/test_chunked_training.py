"""The commands of a training on stored cells, from prepare.py to the last batch, on real cells."""

from __future__ import annotations

import runpy
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cellcohort.composition.log import read_composition
from cellcohort.evaluation import load_run
from cellcohort.preparation import prepare
from cellcohort.sources.planted import Planted
from launches import torchrun
from stores import QUIET

pytestmark = [*QUIET, pytest.mark.processes]  # all, since they share a store
ROOT = Path(__file__).parents[2]
REAL = ROOT.parent / "shared" / "data" / "bodenmiller_cytof" / "bodenmiller.h5ad"
QUICK = (
    "recipe=bodenmiller",
    "trainer.max_epochs=2",
    "trainer.limit_train_batches=5",
    "trainer.limit_val_batches=2",
    "trainer.log_every_n_steps=1",
    "trainer.enable_progress_bar=false",
    "logger=none",
    "evaluation=none",
)


OFTEN = ("++trainer.val_check_interval=3", "callbacks.last.every_n_train_steps=3")


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> str:
    if not REAL.exists():
        pytest.skip("the bodenmiller cells are not beside the repository")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = tmp_path_factory.mktemp("real") / "bodenmiller.zarr"
        return f"data.path={prepare(Planted(REAL), out, ['experiment', 'Treatment']).path}"


def losses(directory: Path, name: str = "train/loss") -> list[float]:
    return pd.read_csv(directory / "metrics.csv")[name].dropna().tolist()


def test_two_processes_train_on_stored_real_cells(stored: str, tmp_path: Path) -> None:
    done = torchrun(tmp_path, "train.py", *QUICK, stored)
    assert done.returncode == 0, done.stderr
    directory = Path(done.stdout.splitlines()[-1].removeprefix("run: "))
    held = read_composition(directory)
    assert set(held["rank"]) == {-1, 0, 1} and (held.groupby("rank").size() == 10).all()
    own = held[held["rank"] >= 0]
    assert (own["shortfall"] == 0).all() and (own["duplicates"] == 0).all()
    for treatment in ("reference", "BCR/FcR-XL", "PMA/Ionomycin", "vanadate"):
        assert (own[f"condition/share/{treatment}"] == 0.25).all()
    leading = own[[f"experiment/share/planted_{e}" for e in range(1, 5)]].max(axis=1)
    assert leading.between(0.9 - 1 / 256, 0.9 + 1 / 256).all()
    assert np.isfinite(losses(directory)).all() and len(losses(directory, "val/loss")) == 2


@pytest.mark.filterwarnings("ignore:The dirpath has changed")
def test_a_resumed_run_repeats_the_losses_of_one_that_was_not_stopped(
    stored: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(*overrides: str) -> Path:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["scripts/train.py", *QUICK, stored, *OFTEN, *overrides])
        runpy.run_path(str(ROOT / "scripts" / "train.py"), run_name="__main__")
        return Path(capsys.readouterr().out.splitlines()[-1].removeprefix("run: "))

    whole, stopped = train(), train("++trainer.max_steps=3")  # in the middle of an epoch, and of a window
    rest = train(f"resume={stopped / 'checkpoints' / 'last.ckpt'}")
    assert len(losses(stopped)) == 3 and len(losses(rest)) == 7
    assert losses(stopped) + losses(rest) == pytest.approx(losses(whole), rel=1e-6)


def test_labels_that_are_merged_are_so_in_preview_training_and_evaluation(
    stored: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    merge = "data.merge_labels={Treatment:{vanadate:reference}}"
    monkeypatch.chdir(tmp_path)
    for script, options in (("preview.py", [*QUICK[:1], "batches=20"]), ("train.py", QUICK)):
        monkeypatch.setattr(sys, "argv", [f"scripts/{script}", *options, stored, merge])
        runpy.run_path(str(ROOT / "scripts" / script), run_name="__main__")
    said = capsys.readouterr().out
    assert "Each condition has the same share of the batch, 33.3 %" in said
    run = Path(said.splitlines()[-1].removeprefix("run: "))
    left = ("BCR/FcR-XL", "PMA/Ionomycin", "reference")
    shares = [name for name in read_composition(run) if name.startswith("condition/share/")]
    assert shares == [f"condition/share/{label}" for label in left]
    loaded = load_run(run)
    assert all(part.cells.column("condition").labels == left for part in (loaded.training, loaded.validation))
