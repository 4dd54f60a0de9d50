"""Samplers in the training loops of other libraries: which batches each process gets, and after which epoch."""

from __future__ import annotations

import itertools
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader

from cellcohort.cells import CellTable
from cellcohort.sampling import BatchSampler, ExperimentAware
from tables import table

CELLS = CellTable.from_frame(table({(f"e{e}", "c"): 40 for e in range(4)}))
DOCS = Path(__file__).parents[2] / "docs"


def sampler(rank: int = 0, world_size: int = 1, **options: Any) -> BatchSampler:
    return BatchSampler(CELLS, {"e": ExperimentAware(0.1)}, 8, seed=3, rank=rank, world_size=world_size, **options)


def loader(of: BatchSampler) -> DataLoader[Any]:
    return DataLoader(range(len(CELLS)), batch_sampler=of, collate_fn=list)  # type: ignore[arg-type]


def prepared(of: BatchSampler, rank: int) -> Iterator[list[int]]:
    """Yield what accelerate gives a process of two."""
    pytest.importorskip("accelerate")
    from accelerate.data_loader import prepare_data_loader
    from accelerate.state import PartialState

    PartialState(cpu=True)
    yield from prepare_data_loader(loader(of), num_processes=2, process_index=rank, rng_types=[])


def sequence(epoch: int, n: int) -> list[list[int]]:
    return [sampler().batch(epoch, step).tolist() for step in range(n)]


def test_two_processes_that_are_not_told_their_rank_train_on_the_same_batches() -> None:
    assert list(loader(sampler())) == sequence(0, 20)  # in every process, which is what `rank` is for
    ranks = [list(loader(sampler(rank, 2))) for rank in range(2)]
    assert [batch for step in zip(*ranks, strict=True) for batch in step] == sequence(0, 20)


@pytest.mark.parametrize("length", [20, 19])
def test_accelerate_deals_out_the_batches_of_a_sampler_of_one_rank(length: int) -> None:
    ranks = [list(prepared(sampler(num_batches=length), rank)) for rank in range(2)]
    dealt = [batch for step in zip(*ranks, strict=True) for batch in step]
    assert dealt == sequence(0, 20)[: 2 * (length // 2)]  # the last one, which has no partner, is left out on both


def test_accelerate_deals_out_once_more_what_a_rank_has() -> None:
    ranks = [list(prepared(sampler(rank, 2), rank)) for rank in range(2)]
    own = [[sampler(rank, 2).batch(0, step).tolist() for step in range(10)] for rank in range(2)]
    assert ranks == [own[0][0::2], own[1][1::2]]  # half of what each rank has: such a loader is not to be prepared


def test_transformers_resumes_at_the_end_and_in_the_middle_of_an_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    trainer = runpy.run_path(str(DOCS / "examples" / "loop_transformers.py"))["trainer"]
    once = trainer(epochs=3)
    once.args.save_strategy, once.args.save_steps = "steps", 5
    once.train()
    assert len(once.model.seen) == 30 and len(set(map(tuple, once.model.seen))) == 30
    for step in (10, 15):
        resumed = trainer(epochs=3)
        resumed.train(resume_from_checkpoint=f"trainer/checkpoint-{step}")
        assert resumed.model.seen == once.model.seen[step:], step


class Recorder(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(1, 1), []

    def training_step(self, batch: list[int], step: int) -> torch.Tensor:
        self.seen.append(batch)
        return self.layer(torch.ones(1, 1)).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize("fixed", [False, True])
def test_lightning_overfits_a_few_batches_if_the_sampler_is_fixed(fixed: bool, tmp_path: Path) -> None:
    model = Recorder()
    Trainer(
        max_epochs=3,
        overfit_batches=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        use_distributed_sampler=False,
    ).fit(model, loader(sampler(fixed=fixed)))
    epochs = [0, 0, 0] if fixed else [0, 1, 2]
    assert model.seen == list(itertools.chain(*(sequence(epoch, 2) for epoch in epochs)))
