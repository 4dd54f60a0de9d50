from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
import wandb
from lightning.pytorch.loggers import CSVLogger, WandbLogger
from torch.utils.data import Dataset

import wandb_file
from cellcohort.cells import CellTable
from cellcohort.composition.callback import CompositionLogger
from cellcohort.composition.log import read_composition
from cellcohort.composition.meter import describe
from cellcohort.datasets.partners import PairRule, Partners
from cellcohort.loading.rows import make_loader
from cellcohort.sampling import BatchSampler, ConditionBalanced, ExperimentAware, TemporallyEnriched

pytestmark = [
    pytest.mark.filterwarnings("ignore::cellcohort.sampling.ShortfallWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*have no `val_dataloader`"),
    pytest.mark.filterwarnings("ignore:.*smaller than the logging interval"),
    pytest.mark.filterwarnings("ignore:.*log_every_n_steps"),
    pytest.mark.filterwarnings("ignore:.*exists and is not empty"),
]


class Windows(Dataset):
    """Cells as the loader delivers them; `swap` says what reaches the model instead of a batch."""

    def __init__(self, n: int = 400, swap: Any = None) -> None:
        rng = np.random.default_rng(0)
        frame = pd.DataFrame(
            {
                "experiment": rng.choice(["A", "B", "C"], n, p=[0.5, 0.3, 0.2]),
                "condition": rng.choice(["mock", "drug"], n, p=[0.8, 0.2]),
                "hours": rng.integers(0, 25, n) / 1.0,
                "track": rng.integers(0, n // 10, n),
            }
        )
        self.cells = CellTable.from_frame(frame, hours="hours", track="track")
        self.swap = swap

    def __len__(self) -> int:
        return len(self.cells)

    def __getitems__(self, positions: Any) -> dict[str, Any]:
        meta = {"position": torch.tensor(list(positions)), "epoch": positions.epoch, "step": positions.step}
        if self.swap is not None:
            meta = self.swap(meta)
        return {"anchor": torch.ones(len(positions), 3), "meta": meta}


class Model(lightning.LightningModule):
    def __init__(self, fails_at: int = -1) -> None:
        super().__init__()
        self.layer, self.fails_at = torch.nn.Linear(3, 1), fails_at

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        if self.global_step == self.fails_at:
            raise ArithmeticError("the step failed")
        loss = self.layer(batch["anchor"]).mean()
        self.log("train/loss", loss)
        return loss

    def on_train_batch_end(self, *_: Any) -> None:
        if self.global_step == self.fails_at:
            self.trainer.save_checkpoint(Path(self.trainer.default_root_dir, "stopped.ckpt"))

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val/loss", self.layer(batch["anchor"]).mean(), batch_size=16)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def make_sampler(data: Windows, **options: Any) -> BatchSampler:
    axes = {"experiment": ExperimentAware(0.25), "condition": ConditionBalanced(), "temporal": TemporallyEnriched(4.0)}
    return BatchSampler(data.cells, **{"axes": axes, "batch_size": 16, "seed": 5, **options})


def fit(
    run_dir: Path, sampler: BatchSampler, data: Windows, loggers: Any = (), every: int = 1, fails_at: int = -1,
    resume: Path | None = None, validate: bool = False, **options: Any,
) -> lightning.Trainer:  # fmt: skip
    trainer = lightning.Trainer(
        **{"max_epochs": 2, "limit_train_batches": 5, "log_every_n_steps": 2, **options},
        logger=list(loggers), default_root_dir=run_dir, callbacks=[CompositionLogger(sampler, run_dir, every)],
        accelerator="cpu", devices=1, use_distributed_sampler=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=1,
    )  # fmt: skip
    validation = make_loader(data, BatchSampler(data.cells, batch_size=16, num_batches=2)) if validate else None
    trainer.fit(Model(fails_at), make_loader(data, sampler), validation, ckpt_path=resume)
    return trainer


def expected(sampler: BatchSampler, epoch: int, step: int) -> dict[str, float]:
    return describe(sampler.cells, sampler.batch(epoch, step), sampler.asked(epoch, step), sampler.axes)


def test_every_step_is_logged_at_the_same_keys_and_kept_whole(tmp_path: Path) -> None:
    data = Windows()
    sampler = make_sampler(data)
    loggers = [CSVLogger(tmp_path, name=None, version=""), WandbLogger(save_dir=tmp_path, mode="offline")]
    fit(tmp_path, sampler, data, loggers, validate=True)
    wandb.finish()

    kept = read_composition(tmp_path)
    steps = [(epoch, step) for epoch in range(2) for step in range(5)]
    assert list(zip(kept["epoch"], kept["step"], kept["rank"], strict=True)) == [
        (*x, r) for x in steps for r in (-1, 0)
    ]
    for (epoch, step), (_, row) in zip(steps, kept[kept["rank"] == 0].iterrows(), strict=True):
        told = expected(sampler, epoch, step)
        assert row[list(told)].to_dict() == pytest.approx(told)
        assert row["global_step"] == 5 * epoch + step
        assert row["group"] == data.cells.column("experiment").labels[sampler.asked(epoch, step).experiment]

    table = pd.read_csv(tmp_path / "metrics.csv")
    own = [name for name in table.columns if name.startswith("composition/")]
    assert not [name for name in own if not name.startswith("composition/global/")]  # one rank: it is the global batch
    rows = table[table[own].notna().any(axis=1)]
    assert rows["step"].tolist() == list(range(10)) and rows[own].notna().all(axis=None)
    assert {"experiment/share/A", "experiment/distance", "condition/share/drug", "leak/held", "window/held",
            "duplicates", "same_track_pairs", "shortfall", "coverage"} <= {name[19:] for name in own}  # fmt: skip
    for name in own:
        whole = kept[kept["rank"] == -1][name.removeprefix("composition/global/")]
        np.testing.assert_allclose(rows[name], whole)

    (file,) = tmp_path.rglob("*.wandb")
    history = wandb_file.history(wandb_file.records(file))
    steps_logged = [row["trainer/global_step"] for row in history]
    assert steps_logged == sorted(steps_logged) and [row["_step"] for row in history] == list(range(len(history)))
    batches = [row for row in history if own[0] in row]
    assert [row["trainer/global_step"] for row in batches] == list(range(10))
    for row, (_, line) in zip(batches, rows.iterrows(), strict=True):
        assert {name: row[name] for name in row if name.startswith("composition/")} == pytest.approx(
            line[own].to_dict()
        )
    assert any("val/loss" in row for row in history) and any("train/loss" in row for row in history)


class Pairs(Windows):
    """Cells with a partner each by a rule, the first cell of a batch with none."""

    pair_rule = PairRule(same="condition", different="experiment")

    def __getitems__(self, positions: Any) -> dict[str, Any]:
        batch = super().__getitems__(positions)
        at = batch["meta"]["position"].numpy()
        partner = Partners(self.cells, self.pair_rule).draw(at, at, positions.epoch)
        batch["meta"]["partner"] = torch.from_numpy(np.where(np.arange(len(at)) == 0, at, partner))
        return batch


def test_what_pairs_cross_is_logged_where_a_rule_makes_them(tmp_path: Path) -> None:
    data = Pairs()
    sampler = make_sampler(data)
    fit(tmp_path, sampler, data, [CSVLogger(tmp_path, name=None, version="")])
    kept = read_composition(tmp_path)
    names = ["pairs/second_views", "pairs/across_experiment", "pairs/across_condition", "pairs/hours"]
    assert (kept["pairs/second_views"] == 1 / 16).all()
    assert (kept["pairs/across_experiment"] == 1).all() and (kept["pairs/across_condition"] == 0).all()
    at = sampler.batch(1, 2)
    partner = Partners(data.cells, data.pair_rule).draw(at, at, 1)
    hours = data.cells.hours
    row = kept[(kept["epoch"] == 1) & (kept["step"] == 2)]
    assert np.allclose(row["pairs/hours"], np.abs(hours[at] - hours[partner])[1:].mean())
    table = pd.read_csv(tmp_path / "metrics.csv")
    assert {f"composition/global/{name}" for name in names} <= set(table)
    assert not [name for name in read_composition_of_no_rule(tmp_path / "bare") if name.startswith("pairs/")]


def read_composition_of_no_rule(folder: Path) -> list[str]:
    folder.mkdir()
    fit(folder, make_sampler(Windows()), Windows())
    return list(map(str, read_composition(folder)))


def test_pairs_of_another_rank_are_not_known(tmp_path: Path) -> None:
    data = Pairs()
    sampler = make_sampler(data, world_size=2)
    fit(tmp_path, sampler, data, [CSVLogger(tmp_path, name=None, version="")])
    kept = read_composition(tmp_path).set_index("rank")["pairs/second_views"]
    assert (kept[0] == 1 / 16).all() and kept[1].isna().all() and kept[-1].isna().all()
    logged = [name for name in pd.read_csv(tmp_path / "metrics.csv") if "pairs/" in name]
    assert logged and all(name.startswith("composition/rank0/pairs/") for name in logged)


def test_the_file_says_how_the_batches_were_made(tmp_path: Path) -> None:
    data = Windows()
    fit(tmp_path, make_sampler(data, axes={"condition": ConditionBalanced()}), data)
    about = json.loads(pq.read_schema(tmp_path / "composition.parquet").metadata[b"cellcohort"])
    assert about["axes"] == {"condition": "ConditionBalanced(ratio=None, column='condition')"}
    assert (about["batch_size"], about["seed"], about["world_size"], about["scope"]) == (16, 5, 1, "rank")
    assert about["labels"] == {"condition": ["drug", "mock"], "experiment": ["A", "B", "C"]}
    assert read_composition(tmp_path)["group"].isna().all()


@pytest.mark.parametrize("interval", [0, 1, 3, 50])
def test_every_n_steps_thins_the_log_and_not_the_file(tmp_path: Path, interval: int) -> None:
    data = Windows()
    logger = CSVLogger(tmp_path, name=None, version="")
    fit(tmp_path, make_sampler(data), data, [logger], every=4, log_every_n_steps=interval)
    table = pd.read_csv(tmp_path / "metrics.csv")
    assert table.loc[table["composition/global/coverage"].notna(), "step"].tolist() == [0, 4, 8]
    assert len(read_composition(tmp_path)) == 20
    with pytest.raises(ValueError, match="every_n_steps must be an integer >= 1, got 0"):
        CompositionLogger(make_sampler(data), tmp_path, every_n_steps=0)


def test_accumulated_batches_are_all_there(tmp_path: Path) -> None:
    data = Windows()
    fit(tmp_path, make_sampler(data), data, accumulate_grad_batches=2)
    kept = read_composition(tmp_path)
    assert kept.loc[kept["rank"] == 0, "global_step"].tolist() == [0, 0, 1, 1, 2, 3, 3, 4, 4, 5]


def test_a_run_that_fails_leaves_everything_until_then(tmp_path: Path) -> None:
    data = Windows()
    with pytest.raises(ArithmeticError):
        fit(tmp_path, make_sampler(data), data, [CSVLogger(tmp_path, name=None, version="")], fails_at=7,
            log_every_n_steps=50)  # fmt: skip
    kept = pd.read_parquet(tmp_path / "composition.parquet")
    assert kept.loc[kept["rank"] == 0, "global_step"].tolist() == list(range(8))
    assert pd.read_csv(tmp_path / "metrics.csv")["composition/global/coverage"].notna().sum() == 8


def test_a_logger_that_fails_on_its_thread_stops_the_run(tmp_path: Path) -> None:
    class Full(WandbLogger):
        def log_metrics(self, metrics: Any, step: int | None = None) -> None:
            raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space left"):
        fit(tmp_path, make_sampler(data := Windows()), data, [Full(save_dir=tmp_path, mode="offline")])
    wandb.finish()
    assert len(read_composition(tmp_path)) > 0 and not (tmp_path / "composition.parts").exists()


@pytest.mark.parametrize("fails_at", [5, 7])
def test_a_resumed_run_adds_to_what_is_there(tmp_path: Path, fails_at: int) -> None:
    data = Windows()
    with pytest.raises(ArithmeticError):
        fit(tmp_path, make_sampler(data, num_batches=5), data, fails_at=fails_at, max_epochs=3)
    assert read_composition(tmp_path)["global_step"].max() == fails_at  # the step that failed held a batch, too
    fit(tmp_path, make_sampler(data, num_batches=5), data, resume=tmp_path / "stopped.ckpt", max_epochs=3)
    fit(tmp_path / "once", make_sampler(data, num_batches=5), data, max_epochs=3)
    pd.testing.assert_frame_equal(read_composition(tmp_path), read_composition(tmp_path / "once"))


def other_order(meta: dict[str, Any]) -> dict[str, Any]:
    return {**meta, "position": meta["position"].flip(0)}


def other_cell(meta: dict[str, Any]) -> dict[str, Any]:
    return {**meta, "position": torch.cat([meta["position"][:-1], torch.tensor([399])])}


def same_batch_again(meta: dict[str, Any]) -> dict[str, Any]:
    first = {"position": torch.tensor(make_sampler(Windows()).batch(0, 0)), "epoch": 0, "step": 0}
    return first


def step_left_out(meta: dict[str, Any]) -> dict[str, Any]:
    step = 2 * meta["step"]
    return {"position": torch.tensor(make_sampler(Windows()).batch(meta["epoch"], step)), "epoch": 0, "step": step}


def no_positions(meta: dict[str, Any]) -> dict[str, Any]:
    return {"epoch": meta["epoch"], "step": meta["step"]}


@pytest.mark.parametrize(
    ("swap", "message"),
    [
        (other_order, "16 for 16, in another order"),
        (other_cell, "1 that were not chosen, such as 399"),
        (same_batch_again, "epoch 0, step 0 after epoch 0, step 0"),
        (step_left_out, "epoch 0, step 2 after epoch 0, step 0"),
        (no_positions, "needs 'position', 'epoch' and 'step'"),
    ],
)
def test_a_loader_that_delivers_something_else_stops_the_run(tmp_path: Path, swap: Any, message: str) -> None:
    data = Windows(swap=swap)
    with pytest.raises(RuntimeError, match=message):
        fit(tmp_path, make_sampler(data), data)


@pytest.mark.parametrize("scope", ["rank", "global"])
def test_rank_0_logs_its_own_batch_beside_the_global_one(tmp_path: Path, scope: str) -> None:
    data = Windows()
    sampler = make_sampler(data, rank=0, world_size=2, scope=scope)
    fit(tmp_path, sampler, data, [CSVLogger(tmp_path, name=None, version="")])
    table = pd.read_csv(tmp_path / "metrics.csv").dropna(subset="composition/global/coverage")
    own = {name.split("/", 2)[2] for name in table.columns if name.startswith("composition/rank0/")}
    whole = {name.split("/", 2)[2] for name in table.columns if name.startswith("composition/global/")}
    assert whole - own == ({"coverage"} if scope == "rank" else {"coverage", "shortfall"}) and own <= whole
    for (_, row), (epoch, step) in zip(table.iterrows(), [(e, s) for e in range(2) for s in range(5)], strict=True):
        told = expected(sampler, epoch, step)
        assert {name: row[f"composition/rank0/{name}"] for name in own} == pytest.approx(
            {name: told[name] for name in own}
        )
    assert table.notna().filter(like="composition/").all(axis=None)


def test_other_ranks_check_their_batch_and_write_nothing(tmp_path: Path) -> None:
    data = Windows()
    sampler = make_sampler(data, rank=1, world_size=2)
    trainer: Any = SimpleNamespace(global_rank=1, global_step=0, loggers=[], log_every_n_steps=1)
    callback = CompositionLogger(sampler, tmp_path / "run")
    callback.on_train_start(trainer, Model())
    batches = list(make_loader(data, sampler))
    callback.on_train_batch_start(trainer, Model(), batches[0], 0)
    callback.on_train_batch_start(trainer, Model(), batches[1], 1)
    of_rank_0 = list(make_loader(data, make_sampler(data, rank=0, world_size=2)))
    callback.on_train_batch_start(trainer, Model(), of_rank_0[2], 2)
    with pytest.raises(RuntimeError, match="rank 1: the loader delivered other cells"):
        callback.on_train_batch_end(trainer, Model(), None, of_rank_0[2], 2)
    callback.on_train_end(trainer, Model())
    assert not (tmp_path / "run").exists()
