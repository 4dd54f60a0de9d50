"""Networks of timm as encoders: channels of the data, weights from files only, normalisation by one option."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import nn

from cellcohort.extras import LIBRARIES
from cellcohort.models import ExperimentNorm, Timm, experiments
from cellcohort.module import ContrastiveModule

SHAPE = (5, 1, 32, 32)
SMALL = "mobilenetv3_small_050"  # whose batch normalisations also activate


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: Any) -> None:
        raise AssertionError("a download was tried")

    monkeypatch.setattr(socket.socket, "connect", refused)


def make(**options: Any) -> Timm:
    torch.manual_seed(0)
    return Timm(SHAPE, **{"name": SMALL, "embedding": 8, **options})


@pytest.mark.parametrize("name", ["resnet18", SMALL, "vit_tiny_patch16_224"])
def test_a_network_reads_the_channels_and_the_size_of_the_data(name: str) -> None:
    assert make(name=name).eval()(torch.randn(2, *SHAPE)).shape == (2, 8)


def test_without_norm_the_network_is_as_timm_has_it() -> None:
    torch.manual_seed(0)
    plain = timm.create_model(SMALL, in_chans=5, num_classes=8)
    network = make()
    assert str(network.network) == str(plain)
    torch.testing.assert_close(network.eval()(torch.ones(1, *SHAPE)), plain.eval()(torch.ones(1, 5, 32, 32)))


@pytest.mark.parametrize("name", ["resnet18", SMALL])
def test_a_normalisation_takes_the_place_of_every_batch_normalisation_and_activates_as_it_did(name: str) -> None:
    plain, other = (make(name=name, norm=norm).train() for norm in ("batch", "experiment"))
    inputs = torch.randn(6, *SHAPE) * 2 + 1
    n = sum(isinstance(layer, nn.BatchNorm2d) for layer in plain.modules())
    assert n == sum(isinstance(layer, ExperimentNorm) for layer in other.modules()) > 10
    with experiments([3] * 6):
        torch.testing.assert_close(other(inputs), plain(inputs), rtol=1e-2, atol=1e-3)


def test_a_run_begins_with_the_weights_in_a_file(tmp_path: Path) -> None:
    torch.manual_seed(1)
    trained = timm.create_model(SMALL)
    torch.save(trained.state_dict(), tmp_path / "trained.pth")
    network = make(pretrained=True, weights=tmp_path / "trained.pth").network
    torch.testing.assert_close(network.blocks[0][0].conv_dw.weight, trained.blocks[0][0].conv_dw.weight)
    assert network.conv_stem.weight.shape[1] == 5
    replaced = make(pretrained=True, weights=tmp_path / "trained.pth", norm="experiment").network
    torch.testing.assert_close(replaced.conv_stem.weight, network.conv_stem.weight)


def test_a_module_with_a_network_of_timm_is_loaded_again() -> None:
    node = {"_target_": "cellcohort.models.Timm", "name": SMALL, "embedding": 8, "norm": "group"}
    module = ContrastiveModule(SHAPE, node)
    loss = module._loss(
        {"anchor": torch.randn(4, *SHAPE), "positive": torch.randn(4, *SHAPE), "meta": {"epoch": 0, "step": 0}},
        "training",
    )
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())
    state = {"hyper_parameters": dict(module.hparams), "state_dict": module.state_dict()}
    again = ContrastiveModule.from_state(state).eval()
    inputs = torch.randn(2, *SHAPE)
    torch.testing.assert_close(again(inputs), module.eval()(inputs))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": "resnet19"}, r"timm .* has no network 'resnet19'. Near it are resnet18,"),
        ({"name": "hf-hub:timm/resnet18"}, r"no network 'hf-hub:timm/resnet18'"),
        (
            {"pretrained": True},
            "pretrained=True needs the weights in a file, since nothing is downloaded: give weights",
        ),
        ({"weights": "there.pth"}, r"weights=there.pth are read with pretrained=True only"),
        (
            {"name": "vit_tiny_patch16_224", "norm": "layer"},
            r"norm='layer' replaces .* vit_.* has none; leave norm out",
        ),
        ({"norm": "lair"}, r"norm='lair' is not a choice. Did you mean 'layer'"),
    ],
)
def test_what_cannot_be_made_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make(**options)


def test_weights_that_are_not_there_are_named() -> None:
    with pytest.raises(FileNotFoundError, match=r"weights=there.pth: there is no such file"):
        make(pretrained=True, weights="there.pth")


def test_volumes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"images of one slice, but these patches have 3 .*use model=resnet"):
        Timm((2, 3, 16, 16))


def test_a_missing_timm_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LIBRARIES, "timm", ("not_there",))
    with pytest.raises(ModuleNotFoundError, match=r"^not_there is not installed.*pip install 'cellcohort\[timm\]'"):
        make()
