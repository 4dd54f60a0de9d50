"""Keys and groups of a command line that the config does not have, and those that may have been meant."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path

from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException


def not_in_config(error: ConfigCompositionException, config_dir: Path) -> str | None:
    """What is not in the config, and what may have been meant; None if the error is of another kind."""
    if group := re.match(r"Could not override '(.+?)'\. No match in the defaults list", str(error)):
        script = Path(sys.argv[0])
        there = ", ".join(_groups(config_dir, script.stem)) or "none"
        return f"{script.name} has no group {group[1]}; its groups are: {there}."
    cause = error.__cause__
    if not (isinstance(cause, OmegaConfBaseException) and cause.full_key and isinstance(cause.parent_node, DictConfig)):
        return None
    node, (path, _, key) = cause.parent_node, str(cause.full_key).rpartition(".")
    keys = [str(name) for name in node if not str(name).startswith("_") and name != "axes"]
    return " ".join(
        [
            f"{path or 'the config'} has no key {key}.",
            *_meant(path, key, keys, node, config_dir),
            f"The keys of {path or 'the config'} are: {', '.join(keys) or 'none'}.",
            *_additional(cause.full_key, node),
        ]
    )


def options_of(group: Path) -> dict[str, list[str]]:
    """The options of a config group, and the keys that each brings."""
    return {file.stem: [str(key) for key in OmegaConf.load(file)] for file in sorted(group.glob("*.yaml"))}


def _meant(path: str, key: str, keys: list[str], node: DictConfig, config_dir: Path) -> list[str]:
    """Options that bring the key; or else the keys of that very name elsewhere, or those of nearly that name."""
    options = {} if not path or "." in path else options_of(config_dir / path)
    brought = {name for names in options.values() for name in names if not name.startswith("_") and name != "axes"}
    near = get_close_matches(key, {*keys, *brought}, cutoff=0.75)
    for name in [key] if key in brought else near[:1]:
        owners = [option for option, names in options.items() if name in names]
        if name not in keys and owners:
            word = "" if name == key else f"Did you mean {path}.{name}? "
            listed = f", alone or in a list ('{path}=[{owners[0]},...]')" if path == "sampler" else ""
            return [f"{word}{name} comes with {path}={owners[0]}: choose it{listed}."]
    if near:
        return [f"Did you mean {', '.join(f'{path}.{name}'.lstrip('.') for name in near)}?"]
    root = node._get_root()
    places = list(_places(root)) if isinstance(root, DictConfig) else []
    names = {place.rpartition(".")[2] for place in places}
    wanted = [key] if key in names else get_close_matches(key, names, cutoff=0.75)
    found = [place for place in places if place.rpartition(".")[2] in wanted]
    return [f"Did you mean {', '.join(found)}?"] if found else []


def _places(node: DictConfig, path: str = "") -> Iterator[str]:
    """The full names of all keys that can be set, from a node on."""
    for key in node:
        name = str(key)
        if name in ("hydra", "axes") or name.startswith("_"):
            continue
        yield f"{path}{name}"
        if not OmegaConf.is_missing(node, key) and isinstance(child := node._get_node(key), DictConfig):
            yield from _places(child, f"{path}{name}.")


def _additional(key: str, node: DictConfig) -> list[str]:
    """How to give an argument that is not in the config to a class of another package, which may take more."""
    target = str(node.get("_target_", "cellcohort"))
    return [] if target.startswith("cellcohort") else [f"Other arguments of {target} are added by +{key}=<value>."]


def _groups(config_dir: Path, name: str) -> Iterator[str]:
    """The groups in the defaults of a config, and of those that it is built on."""
    for entry in OmegaConf.load(config_dir / f"{name}.yaml").defaults:
        if isinstance(entry, DictConfig):
            yield from (str(key) for key in entry if not str(key).startswith("override "))
        elif entry != "_self_":
            yield from _groups(config_dir, entry)
