from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from cellcohort.models import MLP, Conv1d, Conv2d, Conv3d, ResNet

WINDOWS = [(3, 1), (3, 2), (3, 7)]
PATCHES = [(1, 1, 16, 16), (2, 1, 17, 12), (3, 5, 16, 16), (1, 2, 5, 3), (2, 1, 1, 1)]
READS: dict[type, list[tuple[int, ...]]] = {
    MLP: [(7,), *WINDOWS, *PATCHES],
    Conv1d: WINDOWS,
    Conv2d: PATCHES,
    Conv3d: PATCHES,
    ResNet: PATCHES,
}
SMALL: dict[type, dict[str, int]] = {Conv2d: {"channels": 8}, Conv3d: {"channels": 8}, ResNet: {"channels": 4}}
EVERY = [(encoder, shape) for encoder, shapes in READS.items() for shape in shapes]


def make(encoder: type, shape: tuple[int, ...], **options: int) -> nn.Module:
    torch.manual_seed(0)
    made: nn.Module = encoder(shape, **{**SMALL.get(encoder, {}), **options})
    return made


@pytest.mark.parametrize(("encoder", "shape"), EVERY)
@pytest.mark.parametrize("batch", [1, 5])
def test_an_input_becomes_one_embedding(encoder: type, shape: tuple[int, ...], batch: int) -> None:
    embedding = make(encoder, shape, embedding=8)(torch.randn(batch, *shape))
    assert embedding.shape == (batch, 8)
    assert embedding.isfinite().all()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("encoder", "shape"), EVERY)
def test_an_embedding_does_not_depend_on_the_other_cells_of_the_batch(
    encoder: type, shape: tuple[int, ...], training: bool
) -> None:
    model, inputs = make(encoder, shape).train(training), torch.randn(6, *shape)
    inputs[3:] *= 10
    torch.testing.assert_close(model(inputs)[:2], model(inputs[:2]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("encoder", "shape"), EVERY)
def test_constant_inputs_give_finite_embeddings_and_gradients(encoder: type, shape: tuple[int, ...]) -> None:
    model = make(encoder, shape)
    model(torch.zeros(1, *shape)).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize(("encoder", "shape"), EVERY)
def test_every_channel_and_region_of_an_input_reaches_the_embedding(encoder: type, shape: tuple[int, ...]) -> None:
    inputs = torch.randn(1, *shape, requires_grad=True)
    make(encoder, shape)(inputs).square().sum().backward()
    assert inputs.grad is not None
    reached = inputs.grad[0].abs()
    if len(shape) == 4:
        reached = nn.functional.max_pool2d(reached, 4, ceil_mode=True)
    assert (reached > 0).all()


@pytest.mark.parametrize("encoder", READS)
def test_an_encoder_has_no_buffers_that_ranks_would_have_to_share(encoder: type) -> None:
    assert not list(make(encoder, READS[encoder][-1]).buffers())


@pytest.mark.parametrize("encoder", [MLP, Conv1d])
def test_without_layers_the_encoder_is_linear(encoder: type) -> None:
    model, a, b = encoder((3, 4), layers=0), torch.randn(1, 3, 4), torch.randn(1, 3, 4)
    zero = model(torch.zeros(1, 3, 4))
    torch.testing.assert_close(model(a + b) - zero, model(a) + model(b) - 2 * zero)


@pytest.mark.parametrize(
    ("encoder", "wrong"),
    [(encoder, {"embedding": 0}) for encoder in READS]
    + [(encoder, {"layers": -1}) for encoder in (MLP, Conv1d)]
    + [(encoder, {"layers": 0}) for encoder in (Conv2d, Conv3d)]
    + [(encoder, {"channels": 0}) for encoder in (Conv1d, Conv2d, Conv3d, ResNet)]
    + [(ResNet, {"blocks": 0}), (ResNet, {"groups": 0})],
)
def test_sizes_out_of_range_are_refused(encoder: type, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="{}={}".format(*next(iter(wrong.items())))):
        encoder(READS[encoder][-1], **wrong)


@pytest.mark.parametrize(
    ("encoder", "shape", "said"),
    [
        (Conv1d, (7,), r"Conv1d reads windows \(features, frames\), not .*shape=\(7,\)"),
        (Conv2d, (3, 16, 16), r"Conv2d reads patches \(channels, slices, height, width\), not .*shape=\(3, 16, 16\)"),
        (Conv3d, (3, 4), r"Conv3d reads patches .*shape=\(3, 4\); use MLP, or Conv1d"),
        (ResNet, (3, 0, 16, 16), r"ResNet has shape=\(3, 0, 16, 16\)"),
    ],
)
def test_inputs_of_another_kind_are_refused(encoder: type, shape: tuple[int, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        encoder(shape)


def test_an_even_kernel_is_refused() -> None:
    with pytest.raises(ValueError, match=r"kernel=4 is even.*use 5"):
        Conv1d((3, 4), kernel=4)
