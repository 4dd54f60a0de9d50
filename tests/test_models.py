from __future__ import annotations

import pytest
import torch

from cellcohort.models import MLP, Conv1d

ENCODERS = [MLP, Conv1d]


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("frames", [1, 2, 7])
def test_a_window_becomes_one_embedding(encoder: type, batch: int, frames: int) -> None:
    model = encoder((3, frames), embedding=8)
    embedding = model(torch.randn(batch, 3, frames))
    assert embedding.shape == (batch, 8)
    assert embedding.isfinite().all()


@pytest.mark.parametrize("encoder", ENCODERS)
def test_an_embedding_does_not_depend_on_the_other_cells_of_the_batch(encoder: type) -> None:
    model, windows = encoder((3, 4)), torch.randn(6, 3, 4)
    torch.testing.assert_close(model(windows)[:2], model(windows[:2]))


@pytest.mark.parametrize("encoder", ENCODERS)
def test_constant_windows_give_finite_embeddings_and_gradients(encoder: type) -> None:
    model = encoder((3, 4))
    model(torch.zeros(1, 3, 4)).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("encoder", ENCODERS)
def test_every_frame_and_feature_reaches_the_embedding(encoder: type) -> None:
    windows = torch.randn(1, 3, 4, requires_grad=True)
    encoder((3, 4))(windows).square().sum().backward()
    assert windows.grad is not None and (windows.grad != 0).all()


@pytest.mark.parametrize("encoder", ENCODERS)
def test_without_layers_the_encoder_is_linear(encoder: type) -> None:
    model, a, b = encoder((3, 4), layers=0), torch.randn(1, 3, 4), torch.randn(1, 3, 4)
    zero = model(torch.zeros(1, 3, 4))
    torch.testing.assert_close(model(a + b) - zero, model(a) + model(b) - 2 * zero)


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("wrong", [{"embedding": 0}, {"layers": -1}])
def test_sizes_out_of_range_are_refused(encoder: type, wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="{}={}".format(*next(iter(wrong.items())))):
        encoder((3, 4), **wrong)


def test_an_mlp_reads_inputs_of_any_shape_and_a_convolution_windows_only() -> None:
    assert (
        MLP((7,), embedding=8)(torch.randn(2, 7)).shape
        == MLP((2, 1, 4, 4), embedding=8)(torch.randn(2, 2, 1, 4, 4)).shape
    )
    with pytest.raises(ValueError, match=r"Conv1d reads windows \(features, frames\), not .*shape=\(7,\)"):
        Conv1d((7,))


def test_an_even_kernel_is_refused() -> None:
    with pytest.raises(ValueError, match=r"kernel=4 is even.*use 5"):
        Conv1d((3, 4), kernel=4)
