from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_metric_learning.losses import NTXentLoss, SelfSupervisedLoss
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from cellcohort.objectives import BarlowTwins, NTXent, SupCon, VICReg
from cellcohort.objectives import ntxent as ntxent_module

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


def labels_of(cells: int) -> Tensor:
    """Labels of anchors and positives in two columns; some positives have others than their anchors."""
    return torch.randint(0, 3, (2, 2, cells), generator=torch.Generator().manual_seed(4))


GATHERED = [
    NTXent(gather=True),
    NTXent(gather=True, exclude=["track", "well"]),
    SupCon("condition", gather=True, exclude="track"),
    VICReg(gather=True),
    BarlowTwins(gather=True),
]


def loss_of(objective: nn.Module, projections: Any, labels: Tensor) -> Tensor:
    return objective(*projections, labels) if getattr(objective, "columns", ()) else objective(*projections)


def on_rank() -> list[tuple[float, list[Any]]]:
    """Without and with gathering: the loss of this rank's cells, and the gradients that DDP averages over ranks."""
    rank = torch.distributed.get_rank()
    own = slice(rank * CELLS, (rank + 1) * CELLS)
    pairs, labels = views(CELLS * RANKS)[:, own], labels_of(CELLS * RANKS)[:, :, own]
    found = []
    for objective in (NTXent(), *GATHERED):
        net = DistributedDataParallel(_Both(model()))
        loss = loss_of(objective, net(pairs), labels)
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


@pytest.mark.processes
def test_gathered_loss_and_gradients_are_those_of_one_process(on_ranks: Callable[..., list[Any]]) -> None:
    alone, *every = zip(*on_ranks(on_rank, RANKS), strict=True)
    for objective, gathered in zip(GATHERED, every, strict=True):
        losses, gradients = zip(*gathered, strict=True)
        net, pairs = model(), views(CELLS * RANKS)
        loss = loss_of(objective, (net(pairs[0]), net(pairs[1])), labels_of(CELLS * RANKS))
        loss.backward()
        assert sum(losses) / RANKS == pytest.approx(loss.item(), rel=1e-5), objective
        assert gradients[0] == gradients[1]
        for found, wanted in zip(gradients[0], net.parameters(), strict=True):
            torch.testing.assert_close(torch.tensor(found), wanted.grad, rtol=1e-4, atol=1e-5)

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


# labels: cells that are no negatives, and more positives


def by_hand(rows: Tensor, cells: Tensor, same: Tensor | None, exclude: Tensor, temperature: float) -> Tensor:
    """The loss of every projection, written out with loops; `cells` numbers the pairs, labels are (n_columns, n)."""
    rows = functional.normalize(rows, dim=1)
    losses = []
    for i in range(len(rows)):
        pulled, pushed = [], []
        for j in range(len(rows)):
            alike = float(rows[i] @ rows[j]) / temperature
            if j == i:
                continue
            if cells[i] == cells[j]:
                pulled.append(alike)
            elif any(column[i] == column[j] for column in exclude):
                continue
            elif same is not None and same[i] == same[j]:
                pulled.append(alike)
            else:
                pushed.append(alike)
        total = np.log(np.exp([*pulled, *pushed]).sum())
        losses.append(float(np.mean([total - one for one in pulled])))
    return torch.tensor(losses)


OBJECTIVES = [
    NTXent(0.3, exclude="track"),
    NTXent(0.3, exclude=["track", "well"]),
    SupCon("condition", 0.3),
    SupCon(["condition", "dose"], 0.3, exclude=["track"]),
]


class Elsewhere:
    """The place of a rank among others whose rows are known, without processes."""

    def __init__(self, rank: int, projections: Tensor, labels: Tensor) -> None:
        self.rank, self.world_size = rank, len(projections)
        self.rows = {True: projections.flatten(0, 1), False: labels.flatten(2).permute(0, 2, 1).flatten(0, 1)}
        self.own = {True: projections[rank], False: labels[rank].flatten(1).T}

    def gathered(self, rows: Tensor) -> Tensor:
        assert torch.equal(rows, self.own[rows.is_floating_point()])
        return self.rows[rows.is_floating_point()]


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda one: f"{type(one).__name__}-{one.columns}")
def test_labels_take_cells_out_of_the_negatives_of_all_ranks(
    objective: NTXent, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = len(objective.columns)
    pairs = views(CELLS * ranks)  # (2, ranks x cells, dim)
    labels = torch.randint(0, 3, (n, 2, CELLS * ranks), generator=torch.Generator().manual_seed(1))
    projections = pairs.unflatten(1, (ranks, CELLS)).transpose(0, 1).flatten(1, 2)  # (ranks, 2 x cells, dim)
    of_ranks = labels.unflatten(2, (ranks, CELLS)).permute(2, 0, 1, 3)  # (ranks, n, 2, cells)
    flat = of_ranks.flatten(2).permute(1, 0, 2).flatten(1)  # (n, ranks x 2 x cells), in the order of projections
    cells = torch.arange(ranks * CELLS).view(ranks, 1, CELLS).expand(-1, 2, -1).flatten()
    several = isinstance(objective, SupCon)
    wanted = by_hand(
        projections.flatten(0, 1), cells, flat[0] if several else None, flat[1:] if several else flat, 0.3
    ).view(ranks, -1)
    excluded = torch.stack([column[:, None] == column for column in flat[several:]]).any(0) if n > several else None
    for rank in range(ranks):
        monkeypatch.setattr(ntxent_module.Ranks, "here", lambda gather, r=rank: Elsewhere(r, projections, of_ranks))
        loss = objective(pairs[0].view(ranks, CELLS, -1)[rank], pairs[1].view(ranks, CELLS, -1)[rank], of_ranks[rank])
        torch.testing.assert_close(loss, wanted[rank].mean(), rtol=1e-5, atol=1e-5)
        if excluded is not None:
            others = cells.view(ranks, -1)[rank][:, None] != cells
            own = excluded.view(ranks, 2 * CELLS, -1)[rank]
            assert float(objective.measured["excluded"]) == pytest.approx(float(own[others].float().mean()))


def test_no_negative_left_is_no_loss_and_labels_of_their_own_change_nothing() -> None:
    anchors, positives = views()
    alike, apart = torch.zeros(1, 2, CELLS, dtype=torch.int64), torch.arange(CELLS).expand(1, 2, -1)
    assert NTXent(exclude="track")(anchors, positives, alike) == 0
    torch.testing.assert_close(NTXent(exclude="track")(anchors, positives, apart), NTXent()(anchors, positives))
    torch.testing.assert_close(SupCon()(anchors, positives, apart), NTXent()(anchors, positives))
    of_two = SupCon()
    of_two(anchors, positives, torch.arange(CELLS).expand(1, 2, -1) // 3)
    assert float(of_two.measured["positives"]) == 5


def test_labels_are_needed_where_columns_are_named_and_a_label_column_by_supcon() -> None:
    with pytest.raises(ValueError, match="needs the labels of its columns"):
        NTXent(exclude="track")(*views())
    with pytest.raises(ValueError, match=r"objective.same=\[\] names no column"):
        SupCon(same=[])


# losses without negatives


def test_vicreg_is_the_sum_of_its_three_terms() -> None:
    one, two = views(20)
    apart = (one - two).square().mean()
    spread = sum(functional.relu(1 - (z.var(0) + 1e-4).sqrt()).mean() / 2 for z in (one, two))
    covariance = [torch.cov(z.T) for z in (one, two)]
    mixed = sum((c.square().sum() - c.diagonal().square().sum()) / len(c) for c in covariance)
    torch.testing.assert_close(VICReg()(one, two), 25 * apart + 25 * spread + mixed)
    torch.testing.assert_close(VICReg(1, 0, 0)(one, two), apart)


def test_barlow_twins_compares_the_correlations_with_the_identity() -> None:
    one, two = views(20)
    correlation = np.corrcoef(one.T.numpy(), two.T.numpy())[:5, 5:]
    wanted = ((np.eye(5) - correlation)[np.eye(5) > 0] ** 2).sum() + 0.1 * (correlation[np.eye(5) == 0] ** 2).sum()
    assert float(BarlowTwins(redundancy=0.1)(one, two)) == pytest.approx(wanted, rel=1e-4)
    assert float(BarlowTwins()(one, one)) < float(BarlowTwins()(one, two))


@pytest.mark.parametrize("objective", [VICReg(), BarlowTwins()])
def test_collapsed_projections_give_finite_gradients_and_one_cell_is_refused(objective: nn.Module) -> None:
    projections = torch.full((CELLS, 4), 2.0, requires_grad=True)
    loss = objective(projections, projections)
    loss.backward()
    assert loss.isfinite() and loss > 0 and projections.grad is not None and projections.grad.isfinite().all()
    with pytest.raises(ValueError, match="two cells or more"):
        objective(*views(1))
    with pytest.raises(ValueError, match="redundancy=-1"):
        BarlowTwins(-1)
