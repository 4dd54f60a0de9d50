"""Where a sampler goes on: its state during a pass, and torchdata's loader over it."""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch

from cellcohort.cells import CellTable
from cellcohort.sampling import BatchSampler, ChunkedBatchSampler, ExperimentAware
from tables import table

CELLS = CellTable.from_frame(table({(f"e{e}", "c"): 40 for e in range(4)}))
STEPS = 20


def sampler() -> BatchSampler:
    return BatchSampler(CELLS, {"e": ExperimentAware(0.1)}, 8, seed=3)


class Rows(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return len(CELLS)

    def __getitem__(self, i: int) -> int:
        return i


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("taken", [0, 1, 7, STEPS])
def test_state_counts_the_batches_taken(chunked: bool, taken: int) -> None:
    def make() -> BatchSampler:
        return ChunkedBatchSampler(CELLS, None, 8, chunk_size=8, preload_nchunks=4) if chunked else sampler()

    s = make()
    first = list(itertools.islice(s, taken))
    assert s.state_dict() == {"epoch": 0, "step": taken}
    later = make()
    later.load_state_dict(s.state_dict())
    assert later.state_dict() == s.state_dict()
    assert [*first, *later] == list(make())
    assert next(iter(later)).epoch == 1


def test_state_after_a_pass_and_in_the_next_one() -> None:
    s = sampler()
    assert len(list(s)) == STEPS
    assert s.state_dict() == {"epoch": 1, "step": 0} == dict(zip(("epoch", "step"), s.next_pass, strict=True))
    next(iter(s))
    assert s.state_dict() == {"epoch": 1, "step": 1} and s.next_pass == (2, 0)
    s.set_epoch(5)
    assert s.state_dict() == {"epoch": 5, "step": 0}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_goes_on_where_it_stopped(workers: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchdata.stateful_dataloader import StatefulDataLoader

    def loader() -> StatefulDataLoader:
        return StatefulDataLoader(
            Rows(),
            batch_sampler=sampler(),
            num_workers=workers,
            collate_fn=list,
            multiprocessing_context="fork" if workers else None,
        )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stopped = loader()
        first = list(itertools.islice(stopped, 7))
        later = loader()
        later.load_state_dict(stopped.state_dict())
        rest, following = list(later), list(later)
    of = sampler()
    assert first + rest == [of.batch(0, step).tolist() for step in range(STEPS)]
    assert following == [of.batch(1, step).tolist() for step in range(STEPS)]
