from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from cellcohort.cells import CellTable
from cellcohort.module import ContrastiveModule

SHAPE = (3, 4)


def batch(cells: int = 5, value: float | None = None) -> dict[str, Any]:
    if value is None:
        windows = torch.randn(2, cells, *SHAPE, generator=torch.Generator().manual_seed(0))
    else:
        windows = torch.full((2, cells, *SHAPE), value)
    return {"anchor": windows[0], "positive": windows[1], "meta": {"epoch": 2, "step": 7}}


@pytest.mark.parametrize("encoder", ["MLP", "Conv1d"])
@pytest.mark.parametrize("given", [batch(1), batch(5, value=0.0), batch(5, value=1e6)], ids=["one", "zero", "large"])
def test_one_cell_and_constant_features_give_finite_losses_and_gradients(encoder: str, given: dict[str, Any]) -> None:
    module = ContrastiveModule(SHAPE, {"_target_": f"cellcohort.models.{encoder}"})
    module.standardise(np.full(3, 1e6, np.float32), np.zeros(3, np.float32))
    loss = module._loss(given, "training")
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad is None or p.grad.isfinite().all() for p in module.parameters())


def test_features_are_standardised_by_the_training_statistics() -> None:
    module, windows = ContrastiveModule(SHAPE), batch()["anchor"]
    plain = module(windows)
    mean, std = np.array([1, -2, 3], np.float32), np.array([2, 0.5, 10], np.float32)
    module.standardise(mean, std)
    scaled = windows * torch.from_numpy(std)[:, None] + torch.from_numpy(mean)[:, None]
    torch.testing.assert_close(module(scaled), plain)


def test_a_feature_without_spread_is_only_centred() -> None:
    module = ContrastiveModule(SHAPE)
    module.standardise([5.0, 1000.0, 0.0], [0.0, 1e-5, 0.0])
    assert module.std.tolist() == [1.0, 1.0, 1.0] and module.mean.tolist() == [5.0, 1000.0, 0.0]


@pytest.mark.parametrize(
    ("mean", "std", "said"),
    [
        ([0.0, 0.0], [1.0, 1.0, 1.0], r"mean has shape \(2,\).*3 features"),
        ([0.0, 0.0, 0.0], [1.0, float("nan"), 1.0], r"std has shape \(3,\) and 1 value not finite"),
    ],
)
def test_statistics_of_another_shape_or_not_finite_are_refused(mean: Any, std: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ContrastiveModule(SHAPE).standardise(mean, std)


def test_windows_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(2, 3, 5\), but the model was made for \(batch, 3, 4\)"):
        ContrastiveModule(SHAPE)(torch.zeros(2, 3, 5))


def test_the_seed_alone_decides_the_first_weights() -> None:
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    one = ContrastiveModule(SHAPE, seed=5)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    same, other = ContrastiveModule(SHAPE, seed=5), ContrastiveModule(SHAPE, seed=6)
    windows = batch()["anchor"]
    assert torch.equal(one(windows), same(windows))
    assert not torch.equal(one(windows), other(windows))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_says_where_and_why(bad: float) -> None:
    given = batch()
    given["positive"][0, 0, 0] = bad
    said = r"training loss is nan in epoch 2, step 7, on rank 0; .*0 in the anchors, 1 in the positives"
    with pytest.raises(RuntimeError, match=said):
        ContrastiveModule(SHAPE)._loss(given, "training")


@pytest.mark.parametrize("wrong", [{"projection": 0}, {"learning_rate": 0.0}, {"weight_decay": -1.0}])
def test_numbers_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="{}={}".format(*next(iter(wrong.items())))):
        ContrastiveModule(SHAPE, **wrong)


def test_an_unknown_argument_of_the_model_is_refused() -> None:
    with pytest.raises(Exception, match="unexpected keyword argument 'hiden'"):
        ContrastiveModule(SHAPE, {"_target_": "cellcohort.models.MLP", "hiden": 3})


def test_what_tells_about_a_batch_stays_where_it_is() -> None:
    given = batch()
    given["meta"]["position"] = torch.arange(5)
    moved = ContrastiveModule(SHAPE).transfer_batch_to_device(given, torch.device("meta"), 0)
    assert moved["anchor"].device.type == moved["positive"].device.type == "meta"
    assert moved["meta"]["position"].device.type == "cpu"


def test_views_are_made_of_both_sides_under_keys_of_their_own() -> None:
    keys: list[tuple[int, ...]] = []

    def views(inputs: torch.Tensor, key: tuple[int, ...]) -> torch.Tensor:
        keys.append(key)
        return inputs + key[-1]

    module, given = ContrastiveModule(SHAPE, seed=3, views=views), batch()
    made = module.on_after_batch_transfer(given, 0)
    torch.testing.assert_close(made["anchor"], given["anchor"] + 1)
    torch.testing.assert_close(made["positive"], given["positive"] + 2)
    assert keys == [(3, 2, 7, 0, 1), (3, 2, 7, 0, 2)]


def test_in_validation_views_that_crop_do_so_in_the_middle() -> None:
    class Views:
        def __init__(self, value: float, centred: Any = None) -> None:
            self.value, self.centred = value, centred

        def __call__(self, inputs: torch.Tensor, key: tuple[int, ...]) -> torch.Tensor:
            return torch.full_like(inputs, self.value)

    module = ContrastiveModule(SHAPE, views=Views(1.0, Views(2.0)))
    assert (module.on_after_batch_transfer(batch(), 0)["anchor"] == 1).all()
    assert (module.eval().on_after_batch_transfer(batch(), 0)["positive"] == 2).all()


def test_views_of_ranks_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[tuple[int, ...]] = []
    module = ContrastiveModule(SHAPE, seed=3, views=lambda inputs, key: (keys.append(key), inputs)[1])
    for rank in (0, 5):
        monkeypatch.setattr(ContrastiveModule, "global_rank", rank)
        module.on_after_batch_transfer(batch(), 0)
    assert keys == [(3, 2, 7, rank, view) for rank in (0, 5) for view in (1, 2)]


def test_inputs_of_images_are_standardised_by_channel() -> None:
    module = ContrastiveModule((2, 1, 3, 3))
    module.standardise([1.0, 2.0], [2.0, 4.0])
    plain = ContrastiveModule((2, 1, 3, 3))
    images = torch.randn(2, 2, 1, 3, 3)
    scaled = images * torch.tensor([2.0, 4.0]).view(2, 1, 1, 1) + torch.tensor([1.0, 2.0]).view(2, 1, 1, 1)
    torch.testing.assert_close(module(scaled), plain(images))


class Labelled(ContrastiveModule):
    """A module whose batches are of some cells."""

    cells: Any = None

    def _cells(self, stage: str) -> Any:
        return self.cells


def test_the_objective_gets_the_labels_of_anchors_and_of_their_partners() -> None:
    frame = pd.DataFrame({"track": list("aabbccc"), "well": [1, 2, 1, 2, 1, 2, 3]})
    module = Labelled(SHAPE, objective={"_target_": "cellcohort.objectives.SupCon", "same": ["track", "well"]})
    module.cells = CellTable.from_frame(frame, experiment=None, condition=None, hours=None)
    meta = {"position": torch.tensor([6, 0, 3]), "partner": torch.tensor([0, 1, 3])}
    labels = module._labels(meta, "training", torch.device("cpu"))
    assert labels is not None and labels.tolist() == [[[6, 0, 3], [0, 1, 3]]]
    alone = module._labels({"position": meta["position"]}, "training", torch.device("cpu"))
    assert alone is not None and alone.tolist() == [[[6, 0, 3], [6, 0, 3]]], "then a positive has those of its anchor"
    module.cells = module.cells.take(np.array([6, 5]))
    other = module._labels({"position": torch.tensor([0, 1])}, "validation", torch.device("cpu"))
    assert other is not None and other[0, 0].tolist() != labels[0, 0, :2].tolist()
    assert ContrastiveModule(SHAPE)._labels(meta, "training", torch.device("cpu")) is None


def test_a_column_of_the_objective_that_is_not_there_is_named() -> None:
    module = Labelled(SHAPE, objective={"_target_": "cellcohort.objectives.NTXent", "exclude": ["clone"]})
    module.cells = CellTable.from_frame(pd.DataFrame({"track": list("ab")}), None, None, None)
    with pytest.raises(ValueError, match=r"objective.exclude.*the table has no column 'clone'; it has .*track"):
        module._labels({"position": torch.tensor([0])}, "training", torch.device("cpu"))
    module.cells = None
    with pytest.raises(ValueError, match=r"needs the labels of .'clone'.; train with a loader"):
        module._loss(batch(), "training")
