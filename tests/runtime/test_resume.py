"""A run stopped at any step and resumed sees exactly the batches that it would have seen."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import pandas as pd
import pytest
import torch

from cellcohort.cells import CellTable
from cellcohort.datasets.features.windows import TrackWindows
from cellcohort.loading.rows import BatchLoader, make_loader
from cellcohort.sampling import BatchSampler, ConditionBalanced, TemporallyEnriched
from cellcohort.sampling.axes.base import Axis

EPOCHS = 3


def dataset() -> TrackWindows:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"track": np.repeat(np.arange(12), 10), "hours": np.tile(np.arange(10) * 0.5, 12)})
    frame["experiment"] = np.where(frame.track < 6, "e0", "e1")
    frame["condition"] = np.where(frame.track % 3 == 0, "c0", "c1")
    cells = CellTable.from_frame(frame, hours="hours", track="track")
    return TrackWindows(cells, rng.normal(size=(len(frame), 2)).astype(np.float32), ["a", "b"], frames=3)


def loader(data: TrackWindows, workers: int, persistent: bool = True) -> BatchLoader:
    axes: dict[str, Axis] = {"c": ConditionBalanced(), "t": TemporallyEnriched(1.0)}
    return make_loader(data, BatchSampler(data.cells, axes, 16, seed=3), workers, persistent)


class Recorder(lightning.LightningModule):
    """Notes the batches it is trained on; interrupted after `stop` of them."""

    def __init__(self, stop: int | None = None) -> None:
        super().__init__()
        self.layer, self.seen, self.stop = torch.nn.Linear(6, 1), [], stop

    def training_step(self, batch: dict[str, Any], index: int) -> torch.Tensor:
        meta = batch["meta"]
        self.seen.append((meta["epoch"], meta["step"], *meta["position"].tolist(), float(batch["positive"].sum())))
        return self.layer(batch["anchor"].flatten(1)).mean()

    def on_train_batch_end(self, *_: Any) -> None:
        if self.stop is not None and len(self.seen) == self.stop:
            self.trainer.save_checkpoint(self.trainer.default_root_dir + "/stopped.ckpt")
            raise KeyboardInterrupt

    def validation_step(self, batch: dict[str, Any], index: int) -> None:
        assert batch["meta"]["epoch"] == 0

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.0)


def fit(
    root: Path, workers: int, stop: int | None = None, resume: bool = False, validate: bool = True,
    persistent: bool = True,
) -> list[Any]:  # fmt: skip
    data, module = dataset(), Recorder(stop)
    trainer = lightning.Trainer(
        max_epochs=EPOCHS, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, use_distributed_sampler=False, default_root_dir=root, val_check_interval=3,
        limit_val_batches=1.0 if validate else 0,
    )  # fmt: skip
    fixed = make_loader(data, BatchSampler(data.cells, {}, 16, fixed=True))
    try:
        batches = loader(data, workers, persistent)
        trainer.fit(module, batches, fixed, ckpt_path=root / "stopped.ckpt" if resume else None)
    except (KeyboardInterrupt, SystemExit):
        if stop is None:
            raise
    return module.seen


pytestmark = [
    pytest.mark.filterwarnings("ignore:The .*dataloader.* does not have many workers"),
    pytest.mark.filterwarnings("ignore:Detected KeyboardInterrupt"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists"),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    seen = fit(tmp_path_factory.mktemp("whole"), workers=0)
    assert len(seen) == 7 * EPOCHS and len({tuple(s) for s in seen}) == len(seen)
    return seen


@pytest.mark.parametrize("stop", [1, 4, 7, 10, 20])
def test_resumes_exactly(tmp_path: Path, whole: list[Any], stop: int) -> None:
    assert fit(tmp_path, 0, stop) == whole[:stop]
    assert fit(tmp_path, 0, resume=True) == whole[stop:]


def test_resumes_exactly_twice_in_a_row(tmp_path: Path, whole: list[Any]) -> None:
    assert fit(tmp_path, 0, 5) == whole[:5]
    assert fit(tmp_path, 0, 6, resume=True) == whole[5:11]
    assert fit(tmp_path, 0, resume=True) == whole[11:]


@pytest.mark.parametrize("persistent", [True, False])
def test_resumes_exactly_with_worker_processes(tmp_path: Path, whole: list[Any], persistent: bool) -> None:
    assert fit(tmp_path, 2, 9, persistent=persistent) == whole[:9]
    assert fit(tmp_path, 2, resume=True, persistent=persistent) == whole[9:]


def test_validation_does_not_shift_training(tmp_path: Path, whole: list[Any]) -> None:
    assert fit(tmp_path, 0, validate=False) == whole


@pytest.mark.parametrize("workers", [0, 2])
def test_state_counts_what_was_consumed_not_what_was_loaded(workers: int) -> None:
    data = dataset()
    plain = loader(data, 0)
    passes = [[b["meta"]["position"].tolist() for b in plain] for _ in range(2)]
    taken = loader(data, workers)
    assert place(taken) == (0, 0)
    assert len(list(itertools.islice(taken, 3))) == 3
    assert place(taken) == (0, 3)
    other = loader(data, 0)
    other.load_state_dict(taken.state_dict())
    assert place(other) == (0, 3)
    assert [b["meta"]["position"].tolist() for b in other] == passes[0][3:]
    assert place(other) == (1, 0)
    assert [b["meta"]["position"].tolist() for b in other] == passes[1]


def place(of: BatchLoader) -> tuple[Any, Any]:
    state = of.state_dict()
    return state["epoch"], state["step"]


def test_the_state_of_other_batches_is_refused() -> None:
    data = dataset()
    state = loader(data, 0).state_dict()
    other = make_loader(data, BatchSampler(data.cells, {"c": ConditionBalanced()}, 16, seed=3))
    with pytest.raises(ValueError) as refused:
        other.load_state_dict(state)
    temporal = repr(TemporallyEnriched(1.0))
    assert f"would not go on: axis t: {temporal} -> none (then -> now). Give the options" in str(refused.value)
    for axes, seed, said in (
        (
            {"c": ConditionBalanced(), "t": TemporallyEnriched(2.0)},
            3,
            f"would not go on: axis t: {temporal} -> Temporally",
        ),
        ({"c": ConditionBalanced(), "t": TemporallyEnriched(1.0)}, 4, "would not go on: seed: 3 -> 4 (then"),
    ):
        with pytest.raises(ValueError, match=re.escape(said)):
            make_loader(data, BatchSampler(data.cells, axes, 16, seed=seed)).load_state_dict(state)


def test_what_is_left_out_of_an_epoch_is_said(tmp_path: Path) -> None:
    sampler = BatchSampler(dataset().cells, {}, 16)
    sampler.load_state_dict({"epoch": 2, "step": 3})
    with pytest.warns(UserWarning, match="4 of 7 batches of epoch 2 are left out: .* at batch 3.* with epoch 3"):
        sampler.set_epoch(3)
    assert sampler.state_dict() == {"epoch": 3, "step": 0}
