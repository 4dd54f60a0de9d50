"""A batch that a run trained on is drawn again and shown."""

from __future__ import annotations

import re
import runpy
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cellcohort.composition.log import read_composition
from cellcohort.data.profiles import Profiles
from cellcohort.datasets.partners import PairRule
from cellcohort.evaluation.batches import StoredBatch, StoredBatches, outstanding
from cellcohort.evaluation.scores_file import read_scores
from cellcohort.sampling import BatchSampler

SCRIPT = str(Path(__file__).parents[2] / "scripts" / "show.py")
STRATEGY = (
    "sampler=[experiment_aware,condition,temporal]",
    "pairs.same=[condition]",
    "pairs.different=[experiment]",
    "objective.exclude=[condition]",
)


@pytest.fixture
def run(train: Callable[..., Path], tmp_path: Path) -> Path:
    run = train(*STRATEGY, f"batch_sampler.index_cache={tmp_path / 'index'}").absolute()
    assert list((tmp_path / "index").glob("*.index"))
    shutil.rmtree(tmp_path / "index")
    return run


def test_a_batch_is_shown_as_the_run_had_it(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [SCRIPT, f"run={run}", "step=7", "cells=4"])
    runpy.run_path(SCRIPT, run_name="__main__")
    assert not (tmp_path / "index").exists()  # a stored run names no place to write to
    text = capsys.readouterr().out
    rows = read_composition(run)
    held = rows[(rows["global_step"] == 7) & (rows["rank"] == 0)].iloc[0]
    table = pd.read_csv(run / "batches" / "step7-rank0.csv")
    assert "step 7: epoch 1, batch 2 of" in text and f"primary: {held['group']}" in text and "and 28 more cells" in text
    loss = pd.read_csv(run / "metrics.csv").dropna(subset="train/loss").set_index("step")["train/loss"][7]
    assert f"loss: {loss:.4g}" in text
    without = replace(StoredBatches(run).batch(7), loss=np.nan).text()
    assert "loss: not recorded (rank 0 records every trainer.log_every_n_steps-th; the nearest is step 7)" in without
    assert (table["experiment"] == held["group"]).all() and (table["partner_experiment"] != held["group"]).all()
    assert table["condition"].equals(table["partner_condition"].rename("condition"))
    shares = table["condition"].value_counts(normalize=True)
    assert all(np.isclose(held[f"condition/share/{name}"], share) for name, share in shares.items())
    assert '(all count from 0; the progress bar of the training has "Epoch 2")' in text
    assert f"focal time: {held['window/focal_hours']:g} h" in text
    assert text.endswith(f"batch: {run / 'batches' / 'step7-rank0.csv'}\n")
    within = (table["hours"] - held["window/focal_hours"]).abs() <= 2
    assert np.isclose(within.mean(), held["window/held"])
    row = next(line for line in text.splitlines() if "within 2 h of the focal time" in line)
    assert row.split()[-2:] == [str(within.sum()), f"{0.7 * len(table):.1f}"]

    loud = outstanding(run)
    losses = pd.read_csv(run / "metrics.csv").dropna(subset="train/loss").set_index("step")["train/loss"]
    assert loud.splitlines()[2].split()[0] == str(losses.idxmax())
    short = rows[(rows["rank"] == -1)].set_index("global_step")["shortfall"]
    after = loud.split("Steps with the worst shortfall\n")[1].splitlines()
    assert after[1].split()[0] == str(short.idxmax()) and after[1].split()[-1] == f"{short.max():.4g}"
    with pytest.raises(ValueError, match="step=15 is not of this run, which has steps 0 to 14"):
        StoredBatches(run).batch(15)
    with pytest.raises(ValueError, match="rank=1 does not exist: the run had 1 ranks"):
        StoredBatches(run).batch(0, 1)
    for of_no_run in (StoredBatches, outstanding):
        with pytest.raises(FileNotFoundError, match=r"nope holds no run: .*Give what train.py printed as `run:`"):
            of_no_run(tmp_path / "nope")

    file = run / "composition.parquet"
    kept = pq.read_table(file)
    share = np.zeros(len(kept))
    name = "condition/share/mock"
    changed = kept.set_column(kept.column_names.index(name), name, pa.array(share))
    pq.write_table(changed, file)
    with pytest.raises(ValueError, match=r"of condition mock, but the run .* logged 0: its data have changed"):
        StoredBatches(run).batch(7)


def test_a_batch_without_a_primary_experiment_says_so_and_ranks_are_named_together(train: Callable[..., Path]) -> None:
    run = train("sampler=random").absolute()
    assert "primary" not in StoredBatches(run).batch(2).text()
    assert outstanding(run).splitlines()[2].split()[-2] == "none"
    file = run / "composition.parquet"
    rows = read_composition(run)
    other = rows[rows["rank"] == 0].assign(rank=1, group="plate_2")
    rows.loc[rows["rank"] == 0, "group"] = "plate_1"
    kept = pq.read_table(file)
    both = pa.Table.from_pandas(pd.concat([rows, other]), schema=kept.schema, preserve_index=False)
    pq.write_table(both, file)
    assert "plate_1, plate_2" in outstanding(run).splitlines()[2]
    moved = run.rename(run.with_name("my run"))
    assert f"show.py 'run={moved}' step=" in outstanding(moved)
    with pytest.raises(FileNotFoundError, match=re.escape(f"evaluate.py 'run={moved}'")):
        read_scores(moved)


def test_a_cell_of_a_batch_is_found_in_its_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"plate": ["p"] * 60, "drug": ["a", "b"] * 30, "well": [f"w{i}" for i in range(60)]})
    frame = frame.assign(size=rng.random(60), glow=rng.random(60))
    frame.to_csv(tmp_path / "wells.csv", index=False)
    columns = {"experiment": "plate", "condition": "drug", "well": "well"}
    whole = Profiles(tmp_path / "wells.csv", columns).dataset(PairRule(same=["condition"]))
    part = whole.subset(np.arange(20, 60)[::-1])
    sampler = BatchSampler(part.cells, batch_size=8, num_batches=2)
    batch = StoredBatch(part, sampler, 1, (0, 1), {"group": None}, np.nan, 0)
    table = batch.table()
    assert list(table["source_row"]) == list(59 - table["position"])
    assert list(table["partner_source_row"]) == list(59 - table["partner"])
    assert set(table["source_file"]) == set(table["partner_source_file"]) == {str(tmp_path / "wells.csv")}
    assert list(table["well"]) == list("p/" + frame["well"][table["source_row"]])
    *_, said, header, first = batch.text(1).splitlines()[:-1]
    assert said == f"row: counts from 0 in {tmp_path / 'wells.csv'}"
    shown = ["row", "experiment", "condition"]
    assert header.split()[:6] == [*shown, *(f"partner_{name}" for name in shown)]
    assert [first.split()[i] for i in (0, 3)] == [str(table[name][0]) for name in ("source_row", "partner_source_row")]
