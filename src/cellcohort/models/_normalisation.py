"""How encoders normalise: over a batch, the cells of an experiment in it, or the channels of one cell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from cellcohort.messages import listed, meant

Norm = Literal["batch", "experiment", "layer", "group", "instance", "none"]
GROUPS = 8  # of channels, where a model has no option for it
FEWEST = 4  # inputs of an experiment whose mean and variance are taken by themselves
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)  # by the axes behind the channels


def normalisation(norm: str, channels: int, axes: int, groups: int = GROUPS) -> nn.Module:
    """Return a normalisation of inputs (batch, channels, ...).

    Parameters
    ----------
    norm : {"batch", "experiment", "layer", "group", "instance", "none"}
    channels : int
    axes : int
        How many axes follow the channels: 0 for vectors, 1 for windows, 2 for images, 3 for volumes.
    groups : int
        Of channels for "group", where they can be divided so that each group has several; else all are one.

    Raises
    ------
    ValueError
        `norm` is no choice, or "instance" of vectors.
    """
    if norm not in get_args(Norm):
        choices = get_args(Norm)
        raise ValueError(f"norm={norm!r} is not a choice. {meant([norm], choices)}Use one of {', '.join(choices)}.")
    if norm == "instance" and not axes:
        raise ValueError(
            "norm='instance' normalises each channel of a cell over its pixels or frames, but a unit of MLP has one "
            "value per cell, which would always become 0; use norm='layer', which normalises over the units."
        )
    made: dict[str, Callable[[], nn.Module]] = {
        "batch": lambda: BATCH_NORMS[axes](channels),
        "experiment": lambda: ExperimentNorm(channels),
        "layer": lambda: nn.GroupNorm(1, channels) if axes else nn.LayerNorm(channels),
        "group": lambda: nn.GroupNorm(groups if channels % groups == 0 and channels > groups else 1, channels),
        "instance": lambda: InstanceNorm(channels),
        "none": nn.Identity,
    }
    return made[norm]()


def of_inputs(norm: str, channels: int, axes: int) -> list[nn.Module]:
    """Return the normalisation of what an encoder gets: one without weights for "batch" and "experiment", else none."""
    if norm == "batch":
        return [BATCH_NORMS[axes](channels, affine=False)]
    return [ExperimentNorm(channels, affine=False)] if norm == "experiment" else []


def replace_batch_norms(module: nn.Module, norm: str, groups: int = GROUPS) -> int:
    """Put another normalisation in the place of every batch normalisation of a module, and return their number.

    It keeps the weights of the one before.
    """
    n = 0
    for name, child in module.named_children():
        if isinstance(child, nn.modules.batchnorm._BatchNorm):
            axes = BATCH_NORMS.index(next(kind for kind in BATCH_NORMS if isinstance(child, kind)))
            made = normalisation(norm, child.num_features, axes or 1, groups)
            for weight in ("weight", "bias"):
                if isinstance(getattr(made, weight, None), nn.Parameter):
                    setattr(made, weight, getattr(child, weight))
            # that of timm drops and activates as well
            after = [part for part in map(child._modules.get, ("drop", "act")) if part is not None]
            setattr(module, name, nn.Sequential(made, *after) if after else made)
            n += 1
        else:
            n += replace_batch_norms(child, norm, groups)
    return n


class InstanceNorm(nn.GroupNorm):
    """Normalise each channel of a cell over its pixels or frames.

    Parameters
    ----------
    channels : int
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels, channels)

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalise inputs (batch, channels, ...) to the same shape.

        Raises
        ------
        ValueError
            A channel has a single value, which would always become 0.
        """
        if inputs[0, 0].numel() == 1:
            raise ValueError(
                f"norm='instance' normalises each channel over its pixels or frames, but one is left where the encoder "
                f"has {inputs.shape[1]} channels; use norm='layer' or norm='group', fewer layers or larger inputs."
            )
        return super().forward(inputs)


class _Batch:
    """The experiments of the inputs that are in the network now.

    Attributes
    ----------
    labels : list
        Of the experiments that the inputs have.
    rows : torch.Tensor of int64, shape (n,)
        Index of each input into `labels`.
    few : torch.Tensor of bool, shape (n_labels,)
        Experiments with fewer than `FEWEST` inputs.
    sums : _Sums or None
        Where statistics are being collected.
    """

    def __init__(self, codes: np.ndarray, labels: Sequence[Any] | None, sums: _Sums | None = None) -> None:
        present, rows, counts = np.unique(codes, return_inverse=True, return_counts=True)
        self.labels = [int(code) if labels is None else labels[code] for code in present]
        self.rows, self.counts, self.sums = torch.from_numpy(rows.ravel()), torch.from_numpy(counts), sums
        self.few = self.counts < FEWEST
        self.n_few = int(self.counts[self.few].sum())

    def to(self, device: torch.device) -> None:
        """Move the indices, so that only the first layer waits for it."""
        if self.rows.device != device:
            self.rows, self.counts, self.few = (part.to(device) for part in (self.rows, self.counts, self.few))

    def means(self, values: Tensor) -> Tensor:
        """Mean over the inputs of each experiment, (n_labels, channels), of values (n, channels)."""
        # a product, since sums by index are not the same twice on a GPU
        members = (self.rows == torch.arange(len(self.labels), device=values.device)[:, None]).to(values.dtype)
        return (members @ values) / self.counts[:, None]


_NOW: ContextVar[_Batch | None] = ContextVar("experiments of the inputs", default=None)


@contextmanager
def experiments(codes: Any, labels: Sequence[Any] | None = None) -> Iterator[float]:
    """Tell the experiment of each input to the networks that are called in this context.

    Parameters
    ----------
    codes : array of int, shape (batch,)
        Experiment of each input.
    labels : sequence, optional
        Labels of the codes, by which statistics of an evaluation are found; by default the codes themselves.

    Yields
    ------
    float
        Share of the inputs whose experiment has too few for a mean and a variance of its own.
    """
    now = _Batch(np.asarray(codes), labels)
    token = _NOW.set(now)
    try:
        yield now.n_few / max(len(now.rows), 1)
    finally:
        _NOW.reset(token)


class ExperimentNorm(nn.Module):
    """Normalise each channel by the mean and the variance of the cells of the same experiment.

    These are the cells in the network together with it, in training as in validation; for an evaluation,
    :func:`fixed_statistics` takes them over all cells of an experiment. Nothing of them is kept, so that experiments
    that were not seen in training are treated as those that were. For inputs of one experiment this is batch
    normalisation in training.

    An experiment with fewer than four inputs has the mean and the variance of all inputs together: those of two or
    three would tell hardly more than which is larger.

    Parameters
    ----------
    channels : int
    affine : bool
        Whether each channel is multiplied and shifted by weights that are learned.
    eps : float
        Added to the variance.
    """

    def __init__(self, channels: int, affine: bool = True, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels)) if affine else None
        self.bias = nn.Parameter(torch.zeros(channels)) if affine else None
        self.statistics: _Statistics | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalise the channels of inputs.

        Parameters
        ----------
        inputs : torch.Tensor of float, shape (batch, channels, ...)

        Returns
        -------
        torch.Tensor of the same shape

        Raises
        ------
        ValueError
            Nothing tells the experiments of the inputs, or of so many.
        """
        now = _NOW.get()
        if now is None or len(now.rows) != len(inputs):
            told = "nothing tells them" if now is None else f"{len(now.rows)} are told"
            raise ValueError(
                f"norm='experiment' needs the experiment of each of {len(inputs)} inputs, but {told}; call the network "
                "within `with cellcohort.models.experiments(codes):`, or train it with norm='batch'."
            )
        now.to(inputs.device)
        with torch.autocast(inputs.device.type, enabled=False):
            values = inputs.to(torch.promote_types(inputs.dtype, torch.float32)).reshape(*inputs.shape[:2], -1)
            if self.statistics is not None:
                mean, variance = self.statistics.of(now)
            elif now.sums is not None:
                now.sums.add(self, values, now)
                raise _Collected
            else:
                mean, variance = _of_batch(values, now)
            scale, shift = (variance + self.eps).rsqrt(), None
            if self.weight is not None:
                scale, shift = scale * self.weight, self.bias
            made = (values - mean[..., None]) * scale[..., None]
            if shift is not None:
                made = made + shift[:, None]
            return made.reshape(inputs.shape).to(inputs.dtype)


def _of_batch(values: Tensor, now: _Batch) -> tuple[Tensor, Tensor]:
    """Mean and variance for each input, (n, channels), of values (n, channels, places)."""
    means = now.means(values.mean(-1))
    variances = now.means((values - means[now.rows][..., None]).square().mean(-1))
    if now.n_few:
        variance, mean = torch.var_mean(values, (0, 2), correction=0)
        few = now.few[:, None]
        means, variances = torch.where(few, mean, means), torch.where(few, variance, variances)
    return means[now.rows], variances[now.rows]


class _Collected(Exception):
    """The layer whose statistics are sought has been reached; what follows it is not needed."""


class _Statistics:
    """Mean and variance of each experiment at one layer.

    Parameters
    ----------
    labels : sequence
    means, variances : torch.Tensor of float32, shape (n_labels, channels)
    """

    def __init__(self, labels: Sequence[Any], means: Tensor, variances: Tensor) -> None:
        self._row = {label: row for row, label in enumerate(labels)}
        self._means, self._variances = means, variances

    def of(self, now: _Batch) -> tuple[Tensor, Tensor]:
        """Mean and variance for each input, (n, channels)."""
        if unknown := [label for label in now.labels if label not in self._row]:
            raise ValueError(
                f"no cell of experiment {listed(unknown)} is among those that the statistics of norm='experiment' were "
                f"taken of; there are {listed(self._row)}. Take them of a dataset that has it."
            )
        rows = torch.tensor([self._row[label] for label in now.labels], device=self._means.device)[now.rows]
        return self._means[rows], self._variances[rows]


class _Sums:
    """Counts, means and squares of each experiment, and of all cells, at the first layer that has no statistics.

    Blocks are combined by the formulas of Chan, Golub and LeVeque (1979), in double precision, so that neither the
    order of the cells nor the size of the blocks matters.
    """

    def __init__(self, labels: Sequence[Any]) -> None:
        self._labels, self._row = labels, {label: row for row, label in enumerate(labels)}
        self.layer: ExperimentNorm | None = None

    def add(self, layer: ExperimentNorm, values: Tensor, now: _Batch) -> None:
        """Add the values (n, channels, places) of a block."""
        if self.layer is None:
            self.layer, size = layer, (len(self._labels) + 1, values.shape[1])
            self._n = torch.zeros(size[0], 1, dtype=torch.float64, device=values.device)
            self._means, self._squares = (torch.zeros(size, dtype=torch.float64, device=values.device) for _ in "12")
        values = values.double()
        means = now.means(values.mean(-1))
        squares = now.means((values - means[now.rows][..., None]).square().mean(-1)) * now.counts[:, None]
        rows = torch.tensor([self._row[label] for label in now.labels], device=values.device)
        self._merge(rows, now.counts[:, None].double(), means, squares)
        variance, mean = torch.var_mean(values, (0, 2), correction=0)
        every = torch.tensor([len(self._labels)], device=values.device)
        self._merge(every, torch.full_like(self._n[:1], len(values)), mean[None], variance[None] * len(values))

    def _merge(self, rows: Tensor, n: Tensor, means: Tensor, squares: Tensor) -> None:
        before, total = self._n[rows], self._n[rows] + n
        away = means - self._means[rows]
        self._squares[rows] += squares + away.square() * before * n / total
        self._means[rows] += away * n / total
        self._n[rows] = total

    def statistics(self) -> _Statistics:
        """Return what was collected; an experiment with few cells has the statistics of all."""
        variances = self._squares / self._n.clamp(min=1)
        few = self._n[:-1] < FEWEST
        means, variances = (torch.where(few, made[-1], made[:-1]) for made in (self._means, variances))
        return _Statistics(self._labels, means.float(), variances.float())


def experiment_norms(module: nn.Module) -> list[ExperimentNorm]:
    """Return the normalisations by experiment of a module."""
    return [layer for layer in module.modules() if isinstance(layer, ExperimentNorm)]


def has_statistics(module: nn.Module) -> bool:
    """Whether nothing in a module still lacks the statistics of experiments: they are fixed, or none are needed."""
    return all(layer.statistics is not None for layer in experiment_norms(module))


@contextmanager
def fixed_statistics(
    module: nn.Module, labels: Sequence[Any], blocks: Callable[[], Iterable[tuple[Tensor, np.ndarray]]]
) -> Iterator[None]:
    """Normalise by the mean and the variance of each experiment over given cells, while the context lasts.

    The cells go through the network once for each normalisation, up to that one, since what reaches it depends on the
    statistics of those before. So the statistics are exact, and an embedding does not depend on the other cells that
    are embedded with it. Left as it is where the module has no such normalisation or its statistics are fixed already.

    Parameters
    ----------
    module : torch.nn.Module
        In evaluation mode.
    labels : sequence
        Labels of the experiments.
    blocks : callable
        Gives the cells anew in each call, as inputs (n, *shape) with their codes (n,), index into `labels`.
    """
    layers = [layer for layer in experiment_norms(module) if layer.statistics is None]
    try:
        for _ in layers:
            sums = _Sums(labels)
            for inputs, codes in blocks():
                token = _NOW.set(_Batch(codes, labels, sums))
                try:
                    with suppress(_Collected), torch.inference_mode():
                        module(inputs)
                finally:
                    _NOW.reset(token)
            if sums.layer is None:  # the network does not use the others
                break
            sums.layer.statistics = sums.statistics()
        yield
    finally:
        for layer in layers:
            layer.statistics = None
