"""The cells that a training run would sample, without their features."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from inspect import signature
from typing import Any

from hydra.utils import get_method, instantiate
from omegaconf import DictConfig, OmegaConf

from cellcohort.cells import CellTable


def training_cells(config: DictConfig) -> tuple[CellTable, int]:
    """The training cells of a config, and how many cells there are with those held out for validation.

    The module of ``data._target_`` may have a function ``load_cells``, which takes some of the same
    arguments and ``also``, the columns that axes name, and reads no features. Without one the data are
    loaded whole.

    Raises
    ------
    TypeError
        `data` has a key that its loading function does not take.
    ValueError
        The cells that are held out are too few for a batch of every rank.
    """
    load = get_method(config.data._target_)
    load_cells = getattr(sys.modules[load.__module__], "load_cells", None)
    if load_cells is None:
        whole = instantiate(config.data)
    else:
        node: Any = OmegaConf.to_container(config.data, resolve=True)
        options = {key: value for key, value in node.items() if not key.startswith("_")}
        signature(load).bind_partial(**options)
        taken = {key: value for key, value in options.items() if key in signature(load_cells).parameters}
        whole = load_cells(**taken, also=sorted(set(_columns(config.sampler.axes))))
    training, validation = instantiate(config.split, whole)
    instantiate(config.validation_sampler, validation.cells, world_size=config.get("world_size", 1))
    return training.cells, len(whole.cells)


def _columns(axes: Mapping[str, Any]) -> Iterator[str]:
    """The columns that a config's axes name."""
    for axis in axes.values():
        column = axis.get("column") or ()
        yield from [column] if isinstance(column, str) else column
