"""What a config asks for by ``${...}``: names of strategies and runs, folds, and the version."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import datetime
from importlib.metadata import version
from typing import Any

from omegaconf import OmegaConf

from cellcohort.runtime.distributed import Launch
from cellcohort.runtime.trackers import wandb_mode

SHORT = {"experiment_aware": "experiment", "track_capped": "track"}  # axes in the names of runs and strategies
BASELINES = "cellcohort.sampling.baselines."


def strategy(axes: Mapping[str, Any], sampler: str = "") -> str:
    """Return the name of a sampling strategy.

    Parameters
    ----------
    axes : mapping
        The axes, by name.
    sampler : str
        The class of the batch sampler, as ``_target_`` names it.

    Returns
    -------
    str
        The axes in alphabetical order, or "random" if there is none; for a sampler of another library the choice of
        ``batch_sampler``.
    """
    if sampler.startswith(BASELINES):
        return sampler.removeprefix(BASELINES).partition(".")[0]
    return "-".join(sorted(SHORT.get(name, name) for name in axes)) or "random"


def stamp() -> str:
    """Return a name that no other launch has and all ranks of this one share: ``<day>/<time>-<four characters>``.

    A launch that torchrun restarts has the name of its first start.
    """
    return Launch.here().agree(lambda: f"{datetime.now():%Y-%m-%d/%H-%M-%S}-{secrets.token_hex(2)}", keep="stamp")


def each_fold(folds: Any) -> str:
    """Return the choices of a sweep over all folds, ``0,1,2,...``.

    Raises
    ------
    ValueError
        `folds` is not an integer of at least 2.
    """
    if not isinstance(folds, int) or folds < 2:
        raise ValueError(
            f"split.folds={folds} is not a number of folds; give as many as the data have experiments, such as "
            "split.folds=9."
        )
    return ",".join(map(str, range(folds)))


def register() -> None:
    """Let configs use them."""
    OmegaConf.register_new_resolver("each_fold", each_fold, replace=True)
    OmegaConf.register_new_resolver("strategy", strategy, replace=True)
    OmegaConf.register_new_resolver("stamp", stamp, use_cache=True, replace=True)
    OmegaConf.register_new_resolver("wandb_mode", wandb_mode, replace=True)
    OmegaConf.register_new_resolver("version", lambda: version("cellcohort"), replace=True)
