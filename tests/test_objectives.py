from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from pytorch_metric_learning.losses import NTXentLoss, SelfSupervisedLoss
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from cellcohort.objectives import NTXent

CELLS, RANKS = 6, 2


def views(cells: int = CELLS, seed: int = 0) -> Tensor:
    """Anchors and positives, (2, cells, 5)."""
    return torch.randn(2, cells, 5, generator=torch.Generator().manual_seed(seed))


def model() -> nn.Module:
    made = nn.Linear(5, 4)
    with torch.no_grad():
        made.weight.copy_(torch.linspace(-1, 1, 20).view(4, 5))
        made.bias.copy_(torch.linspace(0, 1, 4))
    return made


def loss_and_gradients(net: nn.Module, objective: nn.Module, pairs: Tensor) -> tuple[float, list[Any]]:
    loss = objective(net(pairs[0]), net(pairs[1]))
    loss.backward()
    return loss.item(), [parameter.grad.tolist() for parameter in net.parameters() if parameter.grad is not None]


def on_rank() -> list[tuple[float, list[Any]]]:
    """Without and with gathering: the loss of this rank's cells, and the gradients that DDP averages over ranks."""
    rank = torch.distributed.get_rank()
    pairs = views(CELLS * RANKS)[:, rank * CELLS : (rank + 1) * CELLS]
    found = []
    for gather in (False, True):
        net = DistributedDataParallel(_Both(model()))
        loss = NTXent(gather=gather)(*net(pairs))
        loss.backward()
        found.append((loss.item(), [p.grad.tolist() for p in net.parameters() if p.grad is not None]))
    return found


class _Both(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, pairs: Tensor) -> tuple[Tensor, Tensor]:
        return self.net(pairs[0]), self.net(pairs[1])


@pytest.mark.parametrize("temperature", [0.05, 0.2, 1.0])
def test_it_is_ntxent(temperature: float) -> None:
    anchors, positives = views()
    expected = SelfSupervisedLoss(NTXentLoss(temperature=temperature))(anchors, positives)
    torch.testing.assert_close(NTXent(temperature)(anchors, positives), expected)


def test_gathering_on_one_process_changes_nothing() -> None:
    assert loss_and_gradients(model(), NTXent(gather=True), views()) == loss_and_gradients(model(), NTXent(), views())


def test_gathered_loss_and_gradients_are_those_of_one_process(on_ranks: Callable[..., list[Any]]) -> None:
    alone, gathered = zip(*on_ranks(on_rank, RANKS), strict=True)

    losses, gradients = zip(*gathered, strict=True)
    loss, expected = loss_and_gradients(model(), NTXent(), views(CELLS * RANKS))
    assert sum(losses) / RANKS == pytest.approx(loss, rel=1e-5)
    assert gradients[0] == gradients[1]
    for found, wanted in zip(gradients[0], expected, strict=True):
        torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted))

    shares = views(CELLS * RANKS).split(CELLS, dim=1)
    assert [loss for loss, _ in alone] == pytest.approx(
        [loss_and_gradients(model(), NTXent(), share)[0] for share in shares], rel=1e-5
    )


def test_one_cell_has_no_negative_and_no_loss() -> None:
    net = model()
    loss, gradients = loss_and_gradients(net, NTXent(), views(1))
    assert loss == 0
    assert all(torch.tensor(gradient).eq(0).all() for gradient in gradients)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_equal_projections_give_a_finite_loss(value: float) -> None:
    projections = torch.full((CELLS, 4), value, requires_grad=True)
    loss = NTXent()(projections, projections)
    loss.backward()
    assert loss.isfinite() and projections.grad is not None and projections.grad.isfinite().all()


def test_certain_and_hopeless_pairs_count_in_the_mean_as_they_are() -> None:
    """At a low temperature some pairs have loss 0 and some a very large one; no floor or ceiling is put in."""
    anchors = torch.cat([torch.eye(4)[:2], views(2)[0, :, :4]])
    positives = torch.cat([torch.eye(4)[:2], views(2)[1, :, :4]])
    rows = functional.normalize(torch.cat([anchors, positives]), dim=1)
    logits = (rows @ rows.T / 0.005).fill_diagonal_(-torch.inf)
    expected = functional.cross_entropy(logits, torch.arange(8).roll(4))
    assert functional.cross_entropy(logits, torch.arange(8).roll(4), reduction="none").min() == 0
    torch.testing.assert_close(NTXent(0.005)(anchors, positives), expected)


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_temperature_must_be_above_zero(temperature: float) -> None:
    with pytest.raises(ValueError, match=f"temperature={temperature}"):
        NTXent(temperature)
