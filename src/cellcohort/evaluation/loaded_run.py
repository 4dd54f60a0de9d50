"""A run that was trained, loaded again from its directory."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf

from cellcohort.data import source_of
from cellcohort.datasets.protocol import Samples
from cellcohort.module import ContrastiveModule
from cellcohort.runtime.checkpoint_files import read_checkpoint
from cellcohort.runtime.options import check_kinds
from cellcohort.runtime.stored_config import NEEDED as BUILT
from cellcohort.runtime.stored_config import check_targets, config_told, made_by, read_config


@dataclass(frozen=True)
class LoadedRun:
    """A trained run.

    Attributes
    ----------
    config : DictConfig
        Resolved, as ``config.yaml`` has it.
    module : ContrastiveModule
        With the weights of the checkpoint.
    training, validation : Samples
        The parts of the data that it was trained and validated on.
    step : int
        Steps of the optimizer that the checkpoint has seen.
    """

    config: DictConfig
    module: ContrastiveModule
    training: Samples
    validation: Samples
    step: int


def load_run(directory: str | os.PathLike[str], checkpoint: str = "last", packages: Sequence[str] = ()) -> LoadedRun:
    """Load a run as it was trained: its model, and its data split as they were.

    Parameters
    ----------
    directory : path
        A run directory, as train.py prints it.
    checkpoint : str
        Which of its ``checkpoints``, without ``.ckpt``: "last", "previous" or "best" (by val/loss).
    packages : sequence of str
        Packages besides this one whose functions and classes the run may name; a stored run is data, and names of
        others are refused.

    Returns
    -------
    LoadedRun

    Raises
    ------
    FileNotFoundError
        The directory holds no run, or no such checkpoint.
    ValueError
        Config or checkpoint are damaged, name what is of another package, or do not fit together or to this version.

    Warns
    -----
    UserWarning
        Another version made the run, or the run had not ended.
    """
    directory = Path(directory)
    config, said = _config(directory, packages)
    folder = directory / "checkpoints"
    path, there = folder / f"{checkpoint}.ckpt", sorted(file.stem for file in folder.glob("*.ckpt") if file.is_file())
    if checkpoint not in there:
        lost = "The run ended before its first checkpoint, or was copied in part: copy it again, or train again."
        raise FileNotFoundError(
            f"{directory} has no checkpoint {checkpoint!r}; it has {', '.join(there) or 'none'}. "
            + ("Choose one of these." if there else lost)
        )
    state, module = _module(path, said, packages)
    training, validation = _data(config, directory, said)
    if tuple(training.shape) != module.shape:
        raise ValueError(
            f"the data of {directory} now have inputs of shape {tuple(training.shape)}, but the model was trained on "
            f"{module.shape}: the data have changed. Train again."
        )
    module.views = training.views
    _warn_of_end(config, state, directory)
    return LoadedRun(config, module, training, validation, int(state["global_step"]))


def load_data(directory: str | os.PathLike[str], packages: Sequence[str] = ()) -> tuple[DictConfig, Samples, Samples]:
    """Read the cells of a run again, in the two parts that it was trained and validated on.

    Parameters
    ----------
    directory : path
        A run directory.
    packages : sequence of str
        Packages besides this one whose functions and classes the run may name.

    Returns
    -------
    config : DictConfig
        Resolved, as ``config.yaml`` has it.
    training, validation : Samples

    Raises
    ------
    FileNotFoundError, ValueError
        As for :func:`load_run`.
    """
    config, said = _config(Path(directory), packages)
    return config, *_data(config, Path(directory), said)


def _config(directory: Path, packages: Sequence[str]) -> tuple[DictConfig, str]:
    """Return the config of a run whose targets may be called, and by which version it was made."""
    with config_told(directory):
        config = DictConfig(read_config(directory))
        stored = [*BUILT, *(["pairs"] if "pairs" in config else [])]
        for name in stored:
            check_targets(OmegaConf.to_container(config[name]), name, packages)
        config.data._target_ = source_of(config.data._target_)
        config.data.pop("index_cache", None)  # a directory of whoever made the run
        said = _check_version(config)
        check_kinds(OmegaConf.masked_copy(config, stored))
    return config, said


def _data(config: DictConfig, directory: Path, said: str) -> tuple[Samples, Samples]:
    try:
        pairs = instantiate(config.pairs) if "pairs" in config else None
        training, validation = instantiate(config.split, instantiate(config.data).dataset(pairs))
    except Exception as error:
        error.add_note(
            f"While reading the data of {directory} again ({said}). A relative data.path "
            f"({config.data.get('path')}) is sought from the directory that the training was started in."
        )
        raise
    return training, validation


def unknown(config: DictConfig) -> list[str]:
    """Return what a config asks for that this version does not have: classes, functions and their options."""
    return [
        stranger
        for path, node in _nodes(config)
        if str(path).split(".")[0] in BUILT
        for stranger in _strangers(path, node)
    ]


def _nodes(config: Any, path: str = "") -> Iterator[tuple[str, DictConfig]]:
    if isinstance(config, DictConfig):
        if "_target_" in config:
            yield path, config
        for key in config:
            yield from _nodes(config[key], f"{path}.{key!s}".lstrip("."))


def _strangers(path: str, node: DictConfig) -> list[str]:
    try:
        parameters = inspect.signature(get_object(node["_target_"])).parameters
    except Exception:  # Hydra raises what the import of a module that is not there raises, wrapped
        return [f"{path}._target_={node['_target_']}"]
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return []
    return [f"{path}.{key}" for key in map(str, node.keys()) if not key.startswith("_") and key not in parameters]


def _check_version(config: DictConfig) -> str:
    said = f"the run was {made_by(config)}"
    if strangers := unknown(config):
        raise ValueError(
            f"{said}. Its config has what this version does not know: {', '.join(strangers)}. "
            f"Load it with the version that made it."
        )
    if config.get("version") != version("cellcohort"):
        warnings.warn(f"{said}; every option of its config is still known.", stacklevel=4)
    return said


def _module(path: Path, said: str, packages: Sequence[str]) -> tuple[dict[str, Any], ContrastiveModule]:
    state = read_checkpoint(path)
    try:
        return state, ContrastiveModule.from_state(state, packages).eval()
    except (RuntimeError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is not of the model that this version makes of it: {str(error).splitlines()[0]} ({said}). Load it "
            "with the version that made it."
        ) from error


def _warn_of_end(config: DictConfig, state: dict[str, Any], directory: Path) -> None:
    with config_told(directory):
        epochs, done = config.trainer.get("max_epochs"), int(state["epoch"]) + 1
        ended = config.trainer.get("max_steps", -1) != -1 or not epochs or not 0 < done < epochs
    if not ended:
        warnings.warn(
            f"{directory} did not end: its checkpoint is of epoch {done} of {epochs}, step {state['global_step']}.",
            stacklevel=3,
        )
