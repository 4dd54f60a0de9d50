"""Cells as vectors: by an encoder, and by what was recorded of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from math import prod

import numpy as np
import torch
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from torch.nn import functional

from cellcohort.datasets.protocol import Samples
from cellcohort.models import experiments
from cellcohort.models._normalisation import fixed_statistics, has_statistics
from cellcohort.module import ContrastiveModule
from cellcohort.progress_bar import progress_bar
from cellcohort.sampling.rng import key_of, uniform

Represent = Callable[[Tensor], Tensor]
BLOCK = 2**21  # numbers that are read at once; what a network makes of them is many times more
GRID = 8  # places along Y and X that are left of an image
MOST = 256  # numbers of a cell that are taken as they are
COMPONENTS = 64
MOST_OF_EXPERIMENT = 2048  # cells of an experiment that its means and variances are taken of, where a model needs them


def represented(
    samples: Samples, positions: np.ndarray, by: Mapping[str, Represent], device: torch.device
) -> dict[str, np.ndarray]:
    """Cells as recorded, each as one vector per way of representing it.

    Parameters
    ----------
    samples : Samples
    positions : numpy.ndarray of int, shape (n,)
        Cells; read in blocks, so that the inputs never are in memory all at once.
    by : mapping of str to callable
        Each makes vectors (block, dim) of inputs (block, *shape).
    device : torch.device

    Returns
    -------
    dict of str to numpy.ndarray of float32, shape (n, dim)
    """
    parts: dict[str, list[np.ndarray]] = {name: [] for name in by}
    with statistics_by_experiment(by.values(), samples, device):
        for some in progress_bar(_blocks(positions, samples), f"embedding: {', '.join(by)}", "block"):
            inputs = torch.from_numpy(samples.recorded(some)).to(device)
            with _told(samples, some):
                for name, represent in by.items():
                    parts[name].append(_computed(represent, inputs))
    return {name: np.concatenate(blocks) for name, blocks in parts.items()}


def represented_pairs(
    samples: Samples, positions: np.ndarray, by: Mapping[str, Represent], device: torch.device, seed: int
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Cells and their positives, augmented as in training; parameters as for :func:`represented`.

    Parameters
    ----------
    seed : int
        Key of the views, where these are left to the device.
    """
    size = max(1, min(1024, BLOCK // prod(samples.shape)))
    parts: dict[str, list[list[np.ndarray]]] = {name: [[], []] for name in by}
    with statistics_by_experiment(by.values(), samples, device):
        for number, start in enumerate(range(0, len(positions), size)):
            some = positions[start : start + size]
            batch = samples.__getitems__(some.tolist())
            for side, key in enumerate(("anchor", "positive")):
                inputs = batch[key].to(device)
                if samples.views is not None:
                    inputs = samples.views(inputs, (seed, 0, number, 0, side + 1))
                with _told(samples, batch["meta"].get("partner", some) if side else some):
                    for name, represent in by.items():
                        parts[name][side].append(_computed(represent, inputs))
    return {name: (np.concatenate(sides[0]), np.concatenate(sides[1])) for name, sides in parts.items()}


@contextmanager
def statistics_by_experiment(by: Iterable[Represent], samples: Samples, device: torch.device) -> Iterator[None]:
    """Fix the statistics of networks that normalise by experiment, while the context lasts.

    They are taken of up to 2048 cells of each experiment, as recorded, of all cells that `samples` are a part of:
    an embedding then depends on no other cell that is embedded with it. Without such networks nothing is read.

    Parameters
    ----------
    by : iterable of callable
        Networks in evaluation mode, among other ways of representing cells.
    samples : Samples
    device : torch.device
        Where the networks are.

    Raises
    ------
    ValueError
        The cells have no experiment.
    """
    modules = [one for one in by if isinstance(one, nn.Module) and not has_statistics(one)]
    if not modules:
        yield
        return
    every = samples.every_cell()
    column = every.cells.column("experiment")
    draws = uniform(key_of(0, 3), np.arange(len(every), dtype=np.uint64))
    order = np.lexsort((draws, column.codes))
    counts = column.counts()
    place = np.empty(len(every), np.int64)  # of a cell among those of its experiment
    place[order] = np.arange(len(every)) - np.repeat(np.cumsum(counts) - counts, counts)
    chosen = np.flatnonzero(place < MOST_OF_EXPERIMENT)

    def blocks() -> Iterator[tuple[Tensor, np.ndarray]]:
        for some in progress_bar(_blocks(chosen, every), "statistics by experiment", "block"):
            yield torch.from_numpy(every.recorded(some)).to(device), column.codes[some]

    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(fixed_statistics(module, column.labels, blocks))
        yield


def untrained(module: ContrastiveModule) -> ContrastiveModule:
    """Return the module as it was before training: the same config, seed and standardisation of the inputs."""
    fresh = ContrastiveModule(**module.hparams)
    fresh.mean.copy_(module.mean)
    fresh.std.copy_(module.std)
    return fresh


def flattened(inputs: Tensor) -> Tensor:
    """Return what was recorded of cells as vectors; images are averaged over an 8 x 8 grid of Y and X, and over Z."""
    if inputs.dim() == 4:  # cells, channels, Y, X
        inputs = functional.adaptive_avg_pool2d(inputs, (GRID, GRID))
    elif inputs.dim() == 5:  # cells, channels, Z, Y, X
        inputs = functional.adaptive_avg_pool3d(inputs, (1, GRID, GRID))
    return inputs.flatten(1)


class Features:
    """Raw features made ready to compare: standardised, and 64 principal components where there are over 256.

    Parameters
    ----------
    training : numpy.ndarray of float, shape (n, dim)
        What both are fitted on.
    shape : tuple of int
        Of one input, for :attr:`note`.

    Attributes
    ----------
    note : str
        What was done, in words.
    """

    def __init__(self, training: np.ndarray, shape: tuple[int, ...]) -> None:
        self._scaler = StandardScaler().fit(training)
        self._pca: PCA | None = None
        said = [f"images averaged over a grid of {GRID} x {GRID}"] if len(shape) >= 3 else []
        if training.shape[1] > MOST and len(training) > COMPONENTS:
            self._pca = PCA(COMPONENTS, random_state=0).fit(self._scaler.transform(training))
            said.append(f"{COMPONENTS} principal components of the training cells")
        self.note = "; ".join(said)

    def __call__(self, features: np.ndarray) -> np.ndarray:
        """Features (n, dim) made ready."""
        scaled = self._scaler.transform(features)
        return scaled if self._pca is None else self._pca.transform(scaled)


def _blocks(positions: np.ndarray, samples: Samples) -> list[np.ndarray]:
    """Cut positions into those that are read at once."""
    size = max(1, min(8192, BLOCK // prod(samples.shape)))
    return [positions[start : start + size] for start in range(0, len(positions), size)]


@contextmanager
def _told(samples: Samples, positions: np.ndarray | Tensor) -> Iterator[None]:
    """Tell networks the experiments of some cells, if cells have one."""
    if not samples.cells.has("experiment"):
        yield
        return
    column = samples.cells.column("experiment")
    with experiments(column.codes[np.asarray(positions)], column.labels):
        yield


def _computed(represent: Represent, inputs: Tensor) -> np.ndarray:
    with torch.inference_mode():
        return represent(inputs).float().cpu().numpy()
