"""The model under training: encoder, projection head and objective as one LightningModule."""

from __future__ import annotations

from cellcohort.extras import require

require("train")

import math
import os
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, override

import lightning
import numpy as np
import torch
from hydra.utils import instantiate
from torch import Tensor, nn

from cellcohort.cells import CellTable, Name
from cellcohort.datasets.partners import pushed_apart
from cellcohort.datasets.protocol import Views
from cellcohort.messages import listed, several, whole_number
from cellcohort.models import experiments
from cellcohort.models._normalisation import experiment_norms
from cellcohort.runtime.checkpoint_files import read_checkpoint
from cellcohort.runtime.distributed import check_place
from cellcohort.runtime.stored_config import check_targets

if TYPE_CHECKING:
    from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

MLP = {"_target_": "cellcohort.models.MLP"}
NTXENT = {"_target_": "cellcohort.objectives.NTXent"}


class NonFiniteLoss(RuntimeError):
    """A loss is NaN or infinite; the message names the batch, its cells and what it held.

    Parameters
    ----------
    what : str
        The loss and its value.
    batch : mapping
        The batch, which is kept.
    rank : int
    cells : CellTable, optional
        What the positions of the batch are positions of.

    Attributes
    ----------
    batch : dict
        Tensors and plain values of the batch, on the CPU.
    """

    def __init__(self, what: str, batch: Mapping[str, Any], rank: int, cells: CellTable | None = None) -> None:
        meta = batch["meta"]
        self.batch = {key: value.detach().cpu() if isinstance(value, Tensor) else value for key, value in batch.items()}
        bad = {key: int((~batch[key].isfinite()).sum()) for key in ("anchor", "positive")}
        super().__init__(
            f"{what} in epoch {meta['epoch']}, step {meta['step']}, on rank {rank}; "
            f"values that are not finite: {bad['anchor']} in the anchors, {bad['positive']} in the positives. "
            f"{_told(meta, cells)}"
            "If there are none, the weights grew without bound: lower module.learning_rate or set "
            "trainer.gradient_clip_val."
        )


def _told(meta: Mapping[str, Any], cells: CellTable | None) -> str:
    """Tell the cells of a batch, and how many there are of each experiment and condition."""
    if "position" not in meta:
        return ""
    positions = [int(position) for position in meta["position"]]
    said = [f"Cells: {listed(positions, 10)}."]
    for role in ("experiment", "condition"):
        if cells is not None and cells.has(role):
            column = cells.column(role)
            counts = Counter(column.labels[code] for code in column.codes[positions])
            said.append(f"By {role}: {listed(f'{n} of {label}' for label, n in counts.most_common())}.")
    return " ".join(said) + " "


class ContrastiveModule(lightning.LightningModule):
    """Train an encoder so that a cell's two views are close and other cells are far.

    Everything a checkpoint needs to be loaded again, by :meth:`load_from_checkpoint`, is in it:
    the arguments below, save `views`, and the standardisation of the inputs.

    Parameters
    ----------
    shape : sequence of int
        Shape of one input; its first axis holds features, genes or channels.
    model, objective : mapping
        What to make of which class: ``_target_`` and its arguments. The encoder also receives `shape`.
    projection : int
        Length of the projection, which the objective sees; the embedding is what the encoder gives.
    learning_rate, weight_decay : float
        Of AdamW. The learning rate falls to 0 along a cosine over ``trainer.max_epochs``, epoch by
        epoch; without a number of epochs it stays.
    seed : int
        Key of the initial weights and of `views`.
    views : callable, optional
        ``views(inputs, key)`` makes augmented inputs of a batch where the model is, a function of
        its arguments alone. `key` is (seed, epoch, step, rank, 1 for anchors or 2 for positives),
        so that a run repeats. None where the dataset augments.

    Raises
    ------
    ValueError
        A number is out of range.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        shape: Sequence[int],
        model: Mapping[str, Any] = MLP,
        objective: Mapping[str, Any] = NTXENT,
        projection: PositiveInt = 64,
        learning_rate: PositiveFloat = 1e-3,
        weight_decay: NonNegativeFloat = 1e-4,
        seed: NonNegativeInt = 0,
        views: Views | None = None,
    ) -> None:
        super().__init__()
        if projection < 1 or learning_rate <= 0 or weight_decay < 0:
            raise ValueError(
                f"projection={projection}, learning_rate={learning_rate}, weight_decay={weight_decay}: the first must "
                "be at least 1, the second above 0, the third at least 0."
            )
        self.save_hyperparameters(
            {
                "shape": list(shape),
                "model": dict(model),
                "objective": dict(objective),
                "projection": projection,
                "learning_rate": learning_rate,
                "weight_decay": weight_decay,
                "seed": seed,
            },
            logger=False,
        )
        self.shape = tuple(int(n) for n in shape)
        self.learning_rate, self.weight_decay, self.seed, self.views = learning_rate, weight_decay, seed, views
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(whole_number("seed", seed, 0))
            self.encoder: nn.Module = instantiate(model, shape=self.shape)
            embedding = _embedding_length(self.encoder, self.shape)
            self.head = nn.Sequential(nn.Linear(embedding, embedding), nn.GELU(), nn.Linear(embedding, projection))
        self.objective: nn.Module = instantiate(objective)
        self._by_experiment = bool(experiment_norms(self.encoder))
        self._pooled: float | None = None  # share of the last batch whose experiments have too few cells
        self._codes: dict[str, tuple[CellTable, np.ndarray]] = {}  # by columns, of the last table
        self.register_buffer("mean", torch.zeros(self.shape[0]))
        self.register_buffer("std", torch.ones(self.shape[0]))

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]  # Lightning's makes whatever objects the file names
        cls, checkpoint_path: str | os.PathLike[str], map_location: Any | None = "cpu", packages: Sequence[str] = ()
    ) -> ContrastiveModule:
        """Return the module of a checkpoint, with its weights.

        Parameters
        ----------
        checkpoint_path : path
        map_location : device, optional
            Where to put the weights.
        packages : sequence of str
            Packages besides this one whose classes the checkpoint may name, such as that of a model of your own.

        Raises
        ------
        FileNotFoundError
            There is no such file.
        ValueError
            The file is damaged, holds other objects than tensors and plain values, or names a class of another
            package.
        """
        module = cls.from_state(read_checkpoint(checkpoint_path, map_location), packages)
        return module if map_location is None else module.to(map_location)

    @classmethod
    def from_state(cls, state: Mapping[str, Any], packages: Sequence[str] = ()) -> ContrastiveModule:
        """Return the module of a checkpoint that was read; see :meth:`load_from_checkpoint`."""
        options = state["hyper_parameters"]
        check_targets(options, "hyper_parameters", packages)
        module = cls(**options)
        module.load_state_dict(state["state_dict"])
        return module

    def standardise(self, mean: Any, std: Any) -> None:
        """Subtract `mean` from the inputs and divide them by `std` from now on.

        Parameters
        ----------
        mean, std : array of float, shape (shape[0],)
            Of every feature, gene or channel over the training cells. One that does not vary is only centred.
        """
        mean, std = (torch.as_tensor(value, dtype=self.mean.dtype) for value in (mean, std))
        for name, value in (("mean", mean), ("std", std)):
            if value.shape != self.mean.shape or not bool(value.isfinite().all()):
                raise ValueError(
                    f"{name} has shape {tuple(value.shape)} and {several(int((~value.isfinite()).sum()), 'value')} not "
                    f"finite; the inputs have {self.shape[0]} features, each with one finite number."
                )
        constant = std <= 1e-6 * mean.abs()
        self.mean.copy_(mean)
        self.std.copy_(torch.where(constant, torch.ones_like(std), std))

    def forward(self, inputs: Tensor) -> Tensor:
        """Embeddings (batch, embedding) of inputs (batch, *shape)."""
        if inputs.shape[1:] != self.shape:
            raise ValueError(
                f"inputs have shape {tuple(inputs.shape)}, but the model was made for "
                f"(batch, {', '.join(map(str, self.shape))})."
            )
        along = (-1, *[1] * (len(self.shape) - 1))
        return self.encoder((inputs - self.mean.view(along)) / self.std.view(along))

    def on_train_start(self) -> None:
        """Make sure that the batches are those of this rank, and the learning rate that of `max_epochs`.

        Warns if cells that may be pairs are negatives of each other.

        A checkpoint has the learning rate of the end of an epoch, by the `max_epochs` that its run had.
        """
        check_place(self.trainer, self.trainer.train_dataloader)
        together = getattr(getattr(self.trainer.train_dataloader, "dataset", None), "together", ())
        if (said := pushed_apart(together, self.hparams["objective"])) and self.trainer.is_global_zero:
            warnings.warn(said, stacklevel=2)
        for config in self.trainer.lr_scheduler_configs:
            for group, highest in zip(config.scheduler.optimizer.param_groups, config.scheduler.base_lrs, strict=True):
                group["lr"] = highest * self._annealed(self.current_epoch)

    @override
    def training_step(self, batch: Mapping[str, Any], index: int) -> Tensor:
        loss = self._loss(batch, "training")
        self.log("train/loss", loss, prog_bar=True, batch_size=len(batch["anchor"]))
        self.log("train/learning_rate", self._learning_rate_now(), batch_size=len(batch["anchor"]))
        for name, value in getattr(self.objective, "measured", {}).items():
            self.log(f"train/{name}", value, batch_size=len(batch["anchor"]))
        if self._pooled is not None:
            self.log("train/pooled_statistics", self._pooled, batch_size=len(batch["anchor"]))
        if "second_views" in batch["meta"]:  # how many anchors had to be their own positive
            share = batch["meta"]["second_views"] / len(batch["anchor"])
            self.log("train/second_views", share, batch_size=len(batch["anchor"]))
        return loss

    @override
    def validation_step(self, batch: Mapping[str, Any], index: int) -> None:
        loss = self._loss(batch, "validation")
        self.log("val/loss", loss, prog_bar=True, sync_dist=True, batch_size=len(batch["anchor"]))

    @override
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay)
        epochs = self.trainer.max_epochs
        if epochs is None or epochs < 1:
            return optimizer
        return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, self._annealed)]

    def _annealed(self, epoch: int) -> float:
        """Share of the highest learning rate in an epoch: half a cosine over all of them."""
        return 0.5 + 0.5 * math.cos(math.pi * min(epoch / (self.trainer.max_epochs or 1), 1.0))

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Move the inputs; what only tells about the batch (`meta`) stays, so that reading it waits for no device."""
        moved = {key: value for key, value in batch.items() if key != "meta"}
        moved = super().transfer_batch_to_device(moved, device, dataloader_idx)
        return {**moved, "meta": batch["meta"]}

    @override
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Augment the inputs where the model is; in validation a crop is in the middle."""
        if self.views is None:
            return batch
        views = self.views if self.training else getattr(self.views, "centred", self.views)
        key = (self.seed, batch["meta"]["epoch"], batch["meta"]["step"], self.global_rank)
        made = {name: views(batch[name], (*key, i)) for i, name in enumerate(("anchor", "positive"), start=1)}
        return {**batch, **made}

    def _loss(self, batch: Mapping[str, Any], stage: str) -> Tensor:
        with self._experiments(batch["meta"], stage):
            anchors, positives = self.head(self(torch.cat([batch["anchor"], batch["positive"]]))).chunk(2)
        labels = self._labels(batch["meta"], stage, anchors.device)
        loss = self.objective(anchors, positives, *([] if labels is None else [labels]))
        if not bool(loss.isfinite()):
            raise NonFiniteLoss(f"the {stage} loss is {loss.item()}", batch, self.global_rank, self._cells(stage))
        return loss

    def _labels(self, meta: Mapping[str, Any], stage: str, device: torch.device) -> Tensor | None:
        """Labels of anchors and positives in the columns of the objective, int64 (n_columns, 2, batch).

        A positive has the labels of its anchor where the batch does not tell which cell it is.
        """
        columns, cells = getattr(self.objective, "columns", ()), self._cells(stage)
        if not columns:
            return None
        if cells is None:
            raise ValueError(f"the objective needs the labels of {columns}; train with a loader made by make_loader.")
        try:
            return self._coded(columns, cells, meta).to(device)
        except ValueError as error:
            raise ValueError(f"a column of the objective (objective.exclude, objective.same): {error}") from error

    @contextmanager
    def _experiments(self, meta: Mapping[str, Any], stage: str) -> Iterator[None]:
        """Tell the encoder the experiment of each anchor and positive, where it normalises by experiment."""
        if not self._by_experiment:
            yield
            return
        cells = self._cells(stage)
        if cells is None or not cells.has("experiment"):
            raise ValueError(
                "model.norm=experiment needs the experiment of each cell, and "
                + ("no loader names them" if cells is None else "the table has none")
                + "; name its column with data.columns.experiment, in code CellTable.from_frame(..., experiment=...), "
                "train with a loader made by make_loader, or use model.norm=batch."
            )
        with experiments(self._coded(["experiment"], cells, meta).flatten()) as self._pooled:
            yield

    def _coded(self, columns: Sequence[Name], cells: CellTable, meta: Mapping[str, Any]) -> Tensor:
        """Labels of anchors and positives as int64 (n_columns, 2, batch)."""
        key = repr(columns)
        if key not in self._codes or self._codes[key][0] is not cells:
            codes = np.stack([cells.column(name).codes.astype(np.int64) for name in columns])
            self._codes[key] = cells, codes
        both = torch.stack([meta["position"], meta.get("partner", meta["position"])])
        return torch.from_numpy(self._codes[key][1])[:, both]

    def _cells(self, stage: str) -> CellTable | None:
        """Give the cells that a stage draws its batches from, where a trainer is attached."""
        trainer = self._trainer
        if trainer is None:
            return None
        loader: Any = trainer.train_dataloader if stage == "training" else trainer.val_dataloaders
        return getattr(getattr(loader, "batch_sampler", None), "cells", None)

    def _learning_rate_now(self) -> float:
        optimizer = self.optimizers()
        return float(optimizer.param_groups[0]["lr"])  # type: ignore[union-attr]


def _embedding_length(encoder: nn.Module, shape: Sequence[int]) -> int:
    """Length of the embedding of an input, from which running statistics learn nothing."""
    modes = [(module, module.training) for module in encoder.modules()]
    with torch.no_grad(), experiments([0]):
        length: int = encoder.eval()(torch.zeros(1, *shape)).shape[1]
    for module, training in modes:
        module.training = training
    return length
