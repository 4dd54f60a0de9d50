"""The config of a stored run, read as data: in the names of this version, and made into objects of known packages."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from hydra.utils import get_object, instantiate
from omegaconf.errors import OmegaConfBaseException

from cellcohort.files import read_yaml
from cellcohort.messages import listed
from cellcohort.moved import new_name

PARTS = ("augment", "data", "datasets", "evaluation", "models", "module", "objectives", "sampling")
"""Modules of this package of which a stored run names functions and classes."""
AXES_OF_0_1 = {"experiment": "experiment_aware", "track": "track_capped"}  # names of axes then, and now
COLUMNS = {"experiment_aware": "experiment", "condition": "condition", "temporal": "hours", "track_capped": "track"}
CALLBACKS_OF_0_1 = ("checkpoint", "composition")  # which stood beside `trainer`
NEEDED = ("data", "split", "module")  # what a run is loaded from


def read_config(directory: str | os.PathLike[str], needed: Sequence[str] = NEEDED) -> dict[str, Any]:
    """Read the config of a run in the names of this version.

    Parameters
    ----------
    directory : path
        A run directory.
    needed : sequence of str
        Keys without which it is no config of a training run.

    Returns
    -------
    dict of str to object
        Mappings, lists and plain values.

    Raises
    ------
    FileNotFoundError
        The directory holds no run.
    ValueError
        The file is damaged, or is no config of a training run.
    """
    directory = Path(directory)
    file = directory / "config.yaml"
    if not file.is_file():
        held = listed(sorted(path.name for path in directory.iterdir())) if directory.is_dir() else "no such directory"
        raise FileNotFoundError(
            f"{directory} holds no run: no config.yaml ({held}). Give what train.py printed as `run:`."
        )
    try:
        config = read_yaml(file)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is damaged: {' '.join(str(error).split())}") from error
    if not isinstance(config, dict) or not all(isinstance(config.get(name), dict) for name in needed):
        raise ValueError(
            f"{file} is not that of a training run, or is cut off: it needs {', '.join(needed)}. Train again, or "
            "restore it from where the run was copied."
        )
    with config_told(directory):
        return translated(config)


@contextmanager
def config_told(directory: str | os.PathLike[str]) -> Iterator[None]:
    """Tell where the config of a run lacks what every run has, or has something else in its place.

    Raises
    ------
    ValueError
        What was sought in the config.
    """
    try:
        yield
    except (KeyError, TypeError, AttributeError, OmegaConfBaseException) as error:
        what = " ".join(str(error).split())
        raise ValueError(
            f"{Path(directory) / 'config.yaml'} was changed or is damaged: {type(error).__name__}: {what}. Restore it "
            "from a copy, or train again."
        ) from error


def translated(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config of version 0.1.0 in the names of this version; one of a later version as it is."""
    if not of_0_1(config):
        return dict(config)
    new: dict[str, Any] = _with_new_targets(config)
    sampling = new.get("batch_sampler") or {}
    sampling["axes"] = {AXES_OF_0_1.get(name, name): axis for name, axis in (sampling.get("axes") or {}).items()}
    for name, column in COLUMNS.items():
        if name in sampling["axes"]:
            sampling["axes"][name].setdefault("column", column)
    new["sampler"] = sampling["axes"]
    new["callbacks"] = {name: new.pop(name) for name in CALLBACKS_OF_0_1 if name in new}
    return new


def of_0_1(config: Mapping[str, Any]) -> bool:
    """Whether a config is of version 0.1.0, or of one before it, which did not say so."""
    return str(config.get("version") or "0.1").startswith("0.1")


def made_by(config: Mapping[str, Any]) -> str:
    """By which version a run was made, and which this one is, as a part of a sentence."""
    by = config.get("version") or "a version before 0.1.0"
    return f"made by cellcohort {by}; this is {version('cellcohort')}"


def _with_new_targets(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {
            key: new_target(value) if key == "_target_" and isinstance(value, str) else _with_new_targets(value)
            for key, value in node.items()
        }
    return [_with_new_targets(each) for each in node] if isinstance(node, list) else node


def new_target(target: str) -> str:
    """Return the name that a function or class of version 0.1.0 has now."""
    if target == "cellcohort.augment.Augment":
        return "cellcohort.augment.features.Augment"
    module, _, name = target.rpartition(".")
    return f"{new_name(module) or module}.{name}"


def instantiate_stored(node: Mapping[str, Any], path: str, packages: Sequence[str] = (), **arguments: Any) -> Any:
    """Make the object that a node of a stored file describes, if all that it names may be called.

    Parameters
    ----------
    node : mapping
        Mappings, lists and plain values; ``_target_`` names what is called.
    path : str
        Of the node, for messages, such as "data".
    packages : sequence of str
        Packages besides this one that the user trusts.
    **arguments
        Further arguments of what the node names.

    Raises
    ------
    ValueError
        A target is not of this package or of one of `packages`; or a value is an expression of OmegaConf.
    """
    check_targets(node, path, packages)
    return instantiate(node, **arguments)


def check_targets(node: Any, path: str, packages: Sequence[str] = ()) -> None:
    """Refuse a node of a stored file that names what is not of this package or of one of `packages`.

    Raises
    ------
    ValueError
        The target, and the option that allows its package; or the value that is an expression of OmegaConf.
    """
    for where, value in _leaves(node, path):
        if isinstance(value, str) and "${" in value:
            raise ValueError(
                f"{where}={value!r} is an expression, but a stored config holds plain values only: the file was not "
                "written by a run, or was changed. Write the value itself in its place."
            )
        if where.rpartition(".")[2] == "_target_" and not _allowed(value, packages):
            raise ValueError(
                f"{where}={value} is not called: a stored run is data, and may name functions and classes of "
                f"{', '.join(f'cellcohort.{part}' for part in PARTS)} only. If the run is yours, or you trust who made "
                f"it, name the package of {value} as well: packages=[{str(value).partition('.')[0]}]."
            )


def _allowed(target: Any, packages: Sequence[str]) -> bool:
    """Whether a target is a function or class that was defined in one of the packages, and not only imported there."""
    roots = [f"{__package__.partition('.')[0]}.{part}" for part in PARTS]

    def within(name: str, among: Sequence[str]) -> bool:
        return any(name == root or name.startswith(f"{root}.") for root in among)

    if not isinstance(target, str) or not within(target, [*roots, *packages]):
        return False
    if not within(target, roots):
        return True
    try:
        made = get_object(target)
    except Exception:  # Hydra raises what the import of a module that is not there raises, wrapped
        return True  # which is told where the object is made
    return within(str(getattr(made, "__module__", "")), roots)


def _leaves(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    """All values of nested mappings and lists, by their dotted path."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from _leaves(value, f"{path}.{key}")
    elif isinstance(node, (list, tuple)):
        for i, value in enumerate(node):
            yield from _leaves(value, f"{path}.{i}")
    else:
        yield path, node
