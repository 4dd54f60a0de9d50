"""What encoders normalise over, and that statistics of an experiment are those of its cells and of no others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import lightning
import numpy as np
import pandas as pd
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn

from cellcohort.cells import CellTable
from cellcohort.evaluation import embed
from cellcohort.loading.rows import make_loader
from cellcohort.models import MLP, Conv1d, Conv2d, Conv3d, ExperimentNorm, ResNet, experiments
from cellcohort.models._normalisation import FEWEST, fixed_statistics
from cellcohort.module import ContrastiveModule
from cellcohort.sampling import BatchSampler

KINDS: dict[type, tuple[int, ...]] = {
    MLP: (3, 4),
    Conv1d: (3, 4),
    Conv2d: (2, 1, 24, 20),
    Conv3d: (2, 3, 24, 20),
    ResNet: (2, 1, 40, 40),
}
SIZES: dict[type, dict[str, int]] = {
    MLP: {"hidden": 24},
    Conv1d: {"channels": 16, "layers": 2},
    Conv2d: {"channels": 8, "layers": 3},
    Conv3d: {"channels": 8, "layers": 3},
    ResNet: {"channels": 16},
}
NORMS = ("batch", "experiment", "layer", "group", "instance", "none")
OF_THE_BATCH = ("batch", "experiment")
EVERY = [(encoder, norm) for encoder in KINDS for norm in NORMS if (encoder, norm) != (MLP, "instance")]


def make(encoder: type, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    made: nn.Module = encoder(KINDS[encoder], 8, **SIZES[encoder], **options)
    return made


def inputs_of(encoder: type, n: int) -> Tensor:
    return torch.randn(n, *KINDS[encoder], generator=torch.Generator().manual_seed(1))


# ---- what is normalised over


def by_hand(values: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Normalise each channel within each experiment, experiments with few cells by all cells."""
    made = np.empty_like(values)
    for code in np.unique(codes):
        own = codes == code
        of = values if own.sum() < FEWEST else values[own]
        others = tuple(axis for axis in range(values.ndim) if axis != 1)
        mean, variance = of.mean(others, keepdims=True), of.var(others, keepdims=True)
        made[own] = (values[own] - mean) / np.sqrt(variance + 1e-5)
    return made


@pytest.mark.parametrize("behind", [(), (5,), (3, 2)])
def test_a_mixed_batch_is_normalised_within_each_experiment(behind: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    codes = rng.permutation([0] * 9 + [3] * 7 + [5] * 3 + [7])
    values = rng.normal(codes.reshape(-1, *[1] * (1 + len(behind))), 1 + codes.max(), (20, 4, *behind))
    layer = ExperimentNorm(4, affine=False)
    with experiments(codes) as pooled:
        made = layer(torch.from_numpy(values))
    np.testing.assert_allclose(made.numpy(), by_hand(values, codes), atol=1e-9)
    assert pooled == 4 / 20, "three cells and one cell are too few for statistics of their own"


def test_weights_of_channels_follow_and_gradients_are_right() -> None:
    layer, codes = ExperimentNorm(3).double(), np.array([0, 1, 1, 0, 1, 0, 1, 0, 2])
    values = torch.randn(9, 3, 2, dtype=torch.float64, requires_grad=True)
    with experiments(codes):
        assert torch.autograd.gradcheck(layer, values)
        plain = layer(values)
        with torch.no_grad():
            layer.weight.copy_(torch.tensor([2.0, 3.0, 4.0]))
            layer.bias.copy_(torch.tensor([5.0, 6.0, 7.0]))
        torch.testing.assert_close(
            layer(values), plain * layer.weight[:, None] + layer.bias[:, None], rtol=1e-12, atol=1e-12
        )


def test_half_precision_has_statistics_in_single_precision() -> None:
    layer, values = ExperimentNorm(2), torch.randn(64, 2) * 400 + 300  # whose squares are above the largest half
    with experiments(np.zeros(64, int)):
        made = layer(values.half())
        assert made.dtype == torch.float16
        torch.testing.assert_close(made.float(), layer(values.half().float()), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("encoder", KINDS)
def test_a_batch_of_one_experiment_is_batch_normalised(encoder: type) -> None:
    plain, by_experiment = make(encoder, norm="batch").train(), make(encoder, norm="experiment").train()
    inputs = inputs_of(encoder, 12) * 3 + 1
    with experiments([4] * 12):
        torch.testing.assert_close(by_experiment(inputs), plain(inputs), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("encoder", KINDS)
def test_cells_of_a_mixed_batch_do_not_depend_on_those_of_other_experiments(encoder: type, training: bool) -> None:
    model, inputs, codes = make(encoder, norm="experiment").train(training), inputs_of(encoder, 12), np.arange(12) % 2
    with experiments(codes):
        mixed = model(inputs)
    with experiments(codes[codes == 1]):
        alone = model(inputs[codes == 1])
    torch.testing.assert_close(mixed[codes == 1], alone, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("encoder", "norm"), EVERY)
def test_a_cell_depends_on_the_others_only_where_the_batch_is_normalised(encoder: type, norm: str) -> None:
    model, inputs = make(encoder, norm=norm).train(), inputs_of(encoder, 12)
    with experiments([0] * 12):
        together = model(inputs)[:6]
    with experiments([0] * 6):
        apart = model(inputs[:6])
    assert torch.allclose(together, apart, rtol=1e-3, atol=1e-4) == (norm not in OF_THE_BATCH)


@pytest.mark.parametrize(("encoder", "norm"), EVERY)
def test_the_scale_of_an_input_reaches_the_embedding_only_without_normalisation(encoder: type, norm: str) -> None:
    model, inputs = make(encoder, norm=norm).train(), inputs_of(encoder, 8)
    for layer in model.modules():  # biases are not scaled with the inputs
        if isinstance(layer, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)) and layer.bias is not None:
            nn.init.zeros_(layer.bias)
    with experiments([0] * 8):
        same = torch.allclose(model(inputs), model(inputs * 4), rtol=0.05, atol=0.01)
    assert same == (norm != "none")


# ---- defaults are those of stored runs

# parameters, checksum of their names, and the embedding of one input, as in version 0.1.0
DEFAULTS: dict[type, tuple[int, int, list[float]]] = {
    MLP: (10, 473264960, [0.0152, -0.0516, -0.6794, -0.3273, 0.6182, 0.1276, 0.0237, -0.1581]),
    Conv1d: (10, 2559455884, [-0.0377, -0.0177, -0.4793, 0.1534, -0.1571, -0.0666, 0.6268, -0.1845]),
    Conv2d: (14, 1738486719, [-0.1657, -0.6784, 0.3302, 0.0365, 0.0743, 0.0852, -0.3466, -0.3249]),
    Conv3d: (14, 2826534103, [0.1036, 0.2096, 0.1945, 0.1516, -0.4235, -0.2955, 0.2544, -0.4893]),
    ResNet: (41, 3194171288, [0.6408, -0.3276, -0.0865, -0.6236, -0.2652, -0.6788, 0.1329, -0.0538]),
}


@pytest.mark.parametrize("encoder", DEFAULTS)
def test_by_default_encoders_are_those_of_stored_runs(encoder: type) -> None:
    model, (n, names, embedding) = make(encoder), DEFAULTS[encoder]
    assert (len(model.state_dict()), crc32(" ".join(model.state_dict()).encode())) == (n, names)
    torch.testing.assert_close(model(inputs_of(encoder, 2))[0], torch.tensor(embedding), rtol=0, atol=1e-3)


# ---- statistics for an evaluation


def in_blocks(inputs: Tensor, codes: np.ndarray, order: np.ndarray, size: int) -> Any:
    return lambda: ((inputs[some], codes[some]) for some in np.array_split(order, -(-len(order) // size)))


@pytest.mark.parametrize("encoder", KINDS)
def test_fixed_statistics_are_exact_whatever_the_blocks_and_the_order(encoder: type) -> None:
    model = make(encoder, norm="experiment").eval()
    codes = np.array([0, 1, 1, 0, 1, 0, 1, 0, 1, 0, 0, 1, 0, 1, 2])
    inputs = inputs_of(encoder, 15) * torch.from_numpy(1.0 + codes).float().view(-1, *[1] * len(KINDS[encoder]))
    with experiments(codes):
        at_once = model(inputs)
    for size, order in ((1, np.arange(15)), (4, np.random.default_rng(0).permutation(15)), (15, np.arange(15))):
        with fixed_statistics(model, ["a", "b", "c"], in_blocks(inputs, codes, order, size)):
            with experiments(codes, ["a", "b", "c"]):
                torch.testing.assert_close(model(inputs), at_once, rtol=1e-3, atol=1e-4)
            with experiments([0], ["b"]):
                torch.testing.assert_close(model(inputs[1:2]), at_once[1:2], rtol=1e-3, atol=1e-4)
        assert all(layer.statistics is None for layer in model.modules() if isinstance(layer, ExperimentNorm))


def test_statistics_of_large_and_close_values_are_not_lost_to_rounding() -> None:
    layer, rng = ExperimentNorm(2, affine=False).eval(), np.random.default_rng(0)
    values = torch.from_numpy(rng.normal(4096, 1.0, (4000, 2)).astype(np.float32))
    codes = np.zeros(4000, int)
    with fixed_statistics(layer, ["a"], in_blocks(values, codes, np.arange(4000), 7)), experiments(codes, ["a"]):
        torch.testing.assert_close(layer(values).std(0, correction=0), torch.ones(2), rtol=1e-4, atol=0)


def test_an_experiment_without_cells_among_the_statistics_is_named() -> None:
    model, inputs, codes = make(MLP, norm="experiment").eval(), inputs_of(MLP, 8), np.zeros(8, int)
    with (
        fixed_statistics(model, ["a"], in_blocks(inputs, codes, np.arange(8), 8)),
        experiments(codes, ["b"]),
        pytest.raises(ValueError, match=r"no cell of experiment b is among those .* there are a"),
    ):
        model(inputs)


@pytest.mark.parametrize("encoder", KINDS)
def test_experiments_that_differ_by_scale_and_shift_of_features_have_the_same_embeddings(encoder: type) -> None:
    one = inputs_of(encoder, 10)
    features = torch.arange(1.0, one.shape[1] + 1).view(-1, *[1] * (one.dim() - 2))
    inputs, codes = torch.cat([one, one * features * 2 - 3 * features]), np.repeat([0, 1], 10)
    told = ["a", "b"]
    same = {}
    for norm in OF_THE_BATCH:
        model = make(encoder, norm=norm).train()
        with experiments(codes):
            model(inputs)  # from which batch normalisation keeps running statistics
        model.eval()
        with (
            fixed_statistics(model, told, in_blocks(inputs, codes, np.arange(20), 6)),
            experiments(codes, told),
            torch.no_grad(),
        ):
            first, second = model(inputs).chunk(2)
        same[norm] = torch.allclose(first, second, rtol=1e-2, atol=1e-3)
    assert same == {"batch": False, "experiment": True}


# ---- what is refused


@pytest.mark.parametrize(
    ("encoder", "options", "said"),
    [
        (MLP, {"norm": "instance"}, "a unit of MLP has one value per cell.*use norm='layer'"),
        (MLP, {"norm": "batches"}, "norm='batches' is not a choice. Did you mean 'batch'.*experiment, layer"),
        (ResNet, {"norm": "layer", "groups": 4}, "groups=4 is for norm='group', not norm='layer'"),
    ],
)
def test_options_that_mean_nothing_are_refused(encoder: type, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make(encoder, **options)


@pytest.mark.parametrize("encoder", [Conv1d, Conv2d, Conv3d, ResNet])
def test_a_channel_of_one_value_is_not_normalised_by_itself(encoder: type) -> None:
    shape = (2, 1) if encoder is Conv1d else (2, 1, 4, 4)
    with pytest.raises(ValueError, match=r"one is left where the encoder has .* channels; use norm='layer'"):
        encoder(shape, norm="instance")(torch.zeros(3, *shape))


def test_experiments_must_be_told() -> None:
    model, inputs = make(MLP, norm="experiment"), inputs_of(MLP, 6)
    with pytest.raises(ValueError, match=r"experiment of each of 6 inputs, but nothing tells them; .*experiments"):
        model(inputs)
    with experiments([0] * 5), pytest.raises(ValueError, match="each of 6 inputs, but 5 are told"):
        model(inputs)


# ---- training and evaluation


class Cells:
    """Cells of three experiments and one more with three cells only; a positive is a cell of another experiment."""

    shape, whole, views = (3, 4), "track", None

    def __init__(self, positions: np.ndarray | None = None, plate: str | None = "plate") -> None:
        rng = np.random.default_rng(0)
        frame = pd.DataFrame({"plate": np.r_[np.arange(90) % 3, 3, 3, 3].astype(str), "track": np.arange(93)})
        scale = 1 + frame["plate"].astype(int).to_numpy()[:, None, None]
        self.values = (rng.normal(size=(93, 3, 4)) * scale + scale).astype(np.float32)
        self.every = CellTable.from_frame(frame, experiment=plate, track="track")
        self.positions = np.arange(93) if positions is None else positions
        self.cells = self.every.take(self.positions)

    def __len__(self) -> int:
        return len(self.cells)

    def every_cell(self) -> Cells:
        return Cells()

    def recorded(self, positions: Sequence[int] | np.ndarray) -> np.ndarray:
        return self.values[self.positions[np.asarray(positions)]]

    def __getitems__(self, positions: Any) -> dict[str, Any]:
        position = np.array(positions)
        partner = (position + 1) % len(self)
        meta = {"position": torch.from_numpy(position), "partner": torch.from_numpy(partner)}
        meta |= {"epoch": getattr(positions, "epoch", 0), "step": getattr(positions, "step", 0)}
        anchor, positive = (torch.from_numpy(self.recorded(some)) for some in (position, partner))
        return {"anchor": anchor, "positive": positive, "meta": meta}


def module_of(norm: str, **options: Any) -> ContrastiveModule:
    model = {"_target_": "cellcohort.models.MLP", "hidden": 16, "embedding": 8, "norm": norm}
    return ContrastiveModule(Cells.shape, model, **options)


def test_an_embedding_of_an_evaluation_depends_on_no_other_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    module, data, some = module_of("experiment").eval(), Cells(), np.array([3, 92, 10, 4])
    with experiments(data.cells.column("experiment").codes), torch.no_grad():
        at_once = module(torch.from_numpy(data.values)).numpy()
    device = torch.device("cpu")
    for block in (2**21, 60, 12):
        monkeypatch.setattr(embed, "BLOCK", block)
        whole = embed.represented(data, np.arange(93), {"model": module, "features": embed.flattened}, device)  # type: ignore[arg-type]
        np.testing.assert_allclose(whole["model"], at_once, rtol=1e-3, atol=1e-5)
        part = embed.represented(Cells(some), np.array([3, 0]), {"model": module}, device)  # type: ignore[arg-type]
        np.testing.assert_allclose(part["model"], at_once[[4, 3]], rtol=1e-3, atol=1e-5)
    pairs = embed.represented_pairs(Cells(some), np.array([1, 2]), {"model": module}, device, 0)["model"]  # type: ignore[arg-type]
    np.testing.assert_allclose(pairs, [at_once[[92, 10]], at_once[[10, 4]]], rtol=1e-3, atol=1e-5)


def test_statistics_of_a_large_experiment_are_those_of_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embed, "MOST_OF_EXPERIMENT", 10)
    module, read = module_of("experiment").eval(), []
    monkeypatch.setattr(Cells, "recorded", lambda self, some: (read.append(np.array(some)), self.values[some])[1])
    with embed.statistics_by_experiment([module, module], Cells(), torch.device("cpu")):  # type: ignore[list-item, arg-type]
        counts = np.bincount(Cells().cells.column("experiment").codes[read[0]])
        assert counts.tolist() == [10, 10, 10, 3]
        assert len(read) == 3, "once for the inputs and once for each of two layers"


def test_the_module_tells_the_experiments_of_anchors_and_of_partners() -> None:
    module, data = module_of("experiment"), Cells()
    module._cells = lambda stage: data.cells  # type: ignore[method-assign]
    batch = data.__getitems__([0, 1, 2, 6, 9, 12, 4, 7, 10, 5, 8, 91])
    module._loss(batch, "training")
    assert module._pooled == 2 / 24, "91 and its partner 92 are of the experiment of three cells"
    codes = torch.tensor([*[0, 1, 2, 0, 0, 0, 1, 1, 1, 2, 2, 3], *[1, 2, 0, 1, 1, 1, 2, 2, 2, 0, 0, 3]])
    seen = []
    module.encoder[1].register_forward_hook(lambda layer, given, made: seen.append((given[0], made)))  # type: ignore[index]
    module._loss(batch, "training")
    np.testing.assert_allclose(seen[0][1].numpy(), by_hand(seen[0][0].numpy(), codes.numpy()), rtol=1e-3, atol=1e-4)


def test_cells_without_experiments_are_refused() -> None:
    module, data = module_of("experiment"), Cells(plate=None)
    said = "model.norm=experiment needs the experiment of each cell, and "
    with pytest.raises(ValueError, match=f"{said}no loader names them"):
        module._loss(data.__getitems__([0, 1, 2]), "training")
    module._cells = lambda stage: data.cells  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=f"{said}the table has none; name its column with data.columns.experiment"):
        module._loss(data.__getitems__([0, 1, 2]), "training")


@pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.filterwarnings("ignore:.*smaller than the logging interval")
@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists")
@pytest.mark.parametrize("norm", [norm for norm in NORMS if norm != "instance"])
def test_a_run_with_each_normalisation_goes_on_from_its_checkpoint(norm: str, tmp_path: Path) -> None:
    def trained(resume: Path | None = None) -> tuple[lightning.Trainer, ContrastiveModule]:
        loaders = [
            make_loader(some, BatchSampler(some.cells, {}, 24, seed=0))  # type: ignore[arg-type]
            for some in (Cells(), Cells(np.arange(0, 93, 2)))
        ]
        module = module_of(norm)
        trainer = lightning.Trainer(
            max_epochs=3, accelerator="cpu", devices=1, logger=False, use_distributed_sampler=False,
            enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
            callbacks=[ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1)],
        )  # fmt: skip
        trainer.fit(module, *loaders, ckpt_path=resume)
        return trainer, module

    trainer, whole = trained()
    assert ("train/pooled_statistics" in trainer.callback_metrics) == (norm == "experiment")
    resumed = trained(tmp_path / "epoch=1.ckpt")[1]
    loaded = ContrastiveModule(**whole.hparams)
    loaded.load_state_dict(torch.load(tmp_path / "epoch=2.ckpt", weights_only=True)["state_dict"])
    by = {"whole": whole.eval(), "resumed": resumed.eval(), "loaded": loaded.eval(), "new": module_of(norm).eval()}
    made = embed.represented(Cells(), np.arange(93), by, torch.device("cpu"))  # type: ignore[arg-type]
    np.testing.assert_array_equal(made["whole"], made["loaded"])
    np.testing.assert_allclose(made["whole"], made["resumed"], rtol=1e-5, atol=1e-6)
    assert np.isfinite(made["whole"]).all() and not np.allclose(made["whole"], made["new"], atol=1e-3)
