"""Whether the values of a config are those that the functions and classes that it names take."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from cellcohort.files import is_pipe
from cellcohort.runtime.kinds import fits, in_words
from cellcohort.runtime.signatures import declared

_OTHER = re.compile(r"\$\{(?P<name>\w+(\.\w+)*)\}")  # an option whose value is that of another


def check_kinds(config: DictConfig) -> None:
    """Refuse a value of another kind, or out of the range, that its parameter declares, before anything is imported.

    The source of this package and of Lightning is read for it; other classes check their arguments themselves.

    Parameters
    ----------
    config : DictConfig
        A composed config.

    Raises
    ------
    ValueError
        The option, its value, and what it can be.
    """
    for key in map(str, config):
        if OmegaConf.is_missing(config, key) or not isinstance(config.get(key), DictConfig):
            continue
        node = OmegaConf.to_container(config[key], resolve=True)
        if extra := _not_taken(node, key):
            raise ValueError(extra)
        for path, value, annotation in _annotated(node, key):
            if not fits(value, annotation):
                shown = "null" if value is None else repr(value)
                raise ValueError(f"{_typed(config, path)} must be {in_words(annotation)}, got {shown}.")


def check_input(data: DictConfig) -> None:
    """Refuse data that are not there, or a table without the columns that are named, before they are read.

    Parameters
    ----------
    data : DictConfig
        The group `data` of a config.

    Raises
    ------
    FileNotFoundError, ValueError
        The path or the column, and what is there.
    """
    parameters = declared(str(data.get("_target_", "")))
    for name in ("path", "index"):
        path, parameter = data.get(name), parameters.get(name)
        if path is not None and not isinstance(path, str):
            kind = type(path).__name__
            raise ValueError(f"data.{name}={path} is of type {kind}; write ./{path} for a file of that name.")
        if path is not None and is_pipe(path):
            raise ValueError(f"data.{name}={path} is a pipe or a device, which cannot be read again; give a file.")
        if path is None or not parameter or not parameter.may_be_none or Path(path).exists():  # others write it
            continue
        folder = Path(path).parent
        there = sorted(each.name for each in folder.iterdir()) if folder.is_dir() else []
        near = get_close_matches(Path(path).name, there, 1)
        hint = f"Did you mean {folder / near[0]}?" if near else "Give the path of a file or directory that is there."
        raise FileNotFoundError(f"data.{name}={path} is not there (seen from {Path.cwd()}). {hint}")
    source = instantiate(data)
    if hasattr(source, "check_columns"):
        source.check_columns()


def _typed(config: DictConfig, path: str) -> str:
    """Return the option that a value is typed as: that of ``batch_sampler.seed=${seed}`` is ``seed``."""
    node, keys = OmegaConf.to_container(config, resolve=False), path.split(".")
    for n, key in enumerate(keys, 1):
        node = node[int(key)] if isinstance(node, list) else node.get(key) if isinstance(node, dict) else None
        if isinstance(node, str) and (other := _OTHER.fullmatch(node)):
            return _typed(config, ".".join([other["name"], *keys[n:]]))
    return path


def _not_taken(node: Any, path: str) -> str:
    """Tell which keys of a sampler of another library it does not take; empty where it takes all."""
    target = str(node.get("_target_", ""))
    if not target.startswith("cellcohort.sampling.baselines."):
        return ""
    parameters = declared(target)
    extra = [key for key in node if not key.startswith("_") and key not in parameters]
    rows = " It reads cell by cell: use reading=rows." if "chunk_size" in extra else ""
    return f"{path}.{extra[0]} is no option of {target}, which has {', '.join(parameters)}.{rows}" if extra else ""


def _annotated(node: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Give path, value and annotation of every argument in a node and in those below it."""
    if isinstance(node, list):
        for i, value in enumerate(node):
            yield from _annotated(value, f"{path}.{i}")
    if not isinstance(node, dict):
        return
    parameters = declared(str(node.get("_target_", "")))
    for key, value in node.items():
        yield from _annotated(value, f"{path}.{key}")
        parameter = parameters.get(str(key))
        if parameter is None or "_target_" in json.dumps(value):
            continue
        if value is None and parameter.may_be_none:
            continue  # what is needed and not given is refused where it is needed, with what it is for
        yield f"{path}.{key}", value, parameter.annotation
