"""Keys and choices that a config does not have: which there are, and which may have been meant."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from cellcohort.runtime.signatures import declared
from cellcohort.runtime.stored_config import AXES_OF_0_1


def refuse_unread(config: DictConfig, overrides: Iterable[str]) -> None:
    """Refuse keys added by ``+key=value`` that nothing reads.

    A key is read where its node, or one above it, is made into an object (``_target_``), which judges
    its arguments itself, or where another value refers to it.

    Raises
    ------
    ValueError
        The key, and what is there.
    """
    added = [override for override in overrides if override.startswith("+")]
    text = OmegaConf.to_yaml(config) if added else ""  # only then, since it takes time
    for override in added:
        key = override.lstrip("+").split("=")[0]
        root, *below = key.split("@")[0].split(".")
        node, made = config.get(root), False
        for name in [*below, None]:
            made = made or (isinstance(node, DictConfig) and "_target_" in node)
            node = node.get(name) if name is not None and isinstance(node, DictConfig) else None
        if made or f"${{{key}}}" in text:
            continue
        if root == "sampler":
            (conf,) = (Path(it.path) for it in HydraConfig.get().runtime.config_sources if it.provider == "main")
            hint = _renamed(key, _choices_of_axes(conf), chosen=map(str, config.sampler))
            raise ValueError(f"{override!r} adds a key that nothing reads. {hint}")
        there = config.get(root)
        keys = [str(name) for name in (there if isinstance(there, DictConfig) and below else config)]
        raise ValueError(f"{override!r} adds a key that nothing reads; there are: {', '.join(keys)}.")


def not_in_config(error: ConfigCompositionException, config_dir: Path) -> str | None:
    """Return what is not in the config, and what may have been meant; None if the error is of another kind."""
    if group := re.match(r"Could not override '(.+?)'\. No match in the defaults list", str(error)):
        script = Path(sys.argv[0])
        there = ", ".join(_groups(config_dir, script.stem)) or "none"
        return f"{script.name} has no group {group[1]}; its groups are: {there}."
    cause = error.__cause__
    if not (isinstance(cause, OmegaConfBaseException) and cause.full_key and isinstance(cause.parent_node, DictConfig)):
        return None
    node, (path, _, key) = cause.parent_node, str(cause.full_key).rpartition(".")
    keys = [str(name) for name in node if not str(name).startswith("_")]
    what = path or "the config"
    target = str(node.get("_target_", "cellcohort"))
    takes_more = not target.startswith("cellcohort")  # a class of another package
    addable = f"Other arguments of {target} are added by +{path}.{{}}=<value>."
    if takes_more and key in declared(target):
        hints = [addable.format(key)]
    elif path == "sampler":
        hints = [_renamed(_typed(f"sampler.{key}", error), _choices_of_axes(config_dir), chosen=keys)]
    else:
        below = _typed(str(cause.full_key), error).removeprefix(str(cause.full_key))
        hints = _meant(path, key, below, node, config_dir)
        if takes_more and not hints:
            hints = [addable.format("<name>")]
    return " ".join(
        [
            f"{what} has no key {key}.",
            *hints,
            f"The {'axes' if path == 'sampler' else 'keys'} of {what} are: {', '.join(keys) or 'none'}.",
        ]
    )


def _typed(key: str, error: ConfigCompositionException) -> str:
    """Return the key as it was typed, of which `key` is the first part that is not there."""
    found = re.search(rf"{re.escape(key)}[\w.]*", str(error))
    return found[0] if found else key


def _renamed(key: str, axes: dict[str, list[str]], chosen: Iterable[str] = ()) -> str:
    """Return what to type instead of a key of `sampler`: that of an axis, of which `axes` gives the knobs.

    Version 0.1.0 had all knobs flat in `sampler`, and the axes, under other names, in ``sampler.axes``.
    """
    names = [name for name in key.split(".")[1:] if name != "axes"]
    if names and names[0] in AXES_OF_0_1 and names[0] not in axes:
        names[0] = AXES_OF_0_1[names[0]]
    if not names:
        return f"The axes are the keys of sampler itself: {_keys(axes)}."
    first, *below = names
    if first in axes:
        if first not in chosen and "axes" not in key:
            return f"{first} is the axis of sampler={first}: choose it, alone or in a list ('sampler=[{first},...]')."
        return f"Use {'.'.join(['sampler', *names])}, with sampler={first}."
    owners = [axis for axis, knobs in axes.items() if first in knobs]
    if not owners:
        near = get_close_matches(first, {*axes, *(knob for knobs in axes.values() for knob in knobs)}, 1, 0.75)
        owners = [axis for axis, knobs in axes.items() if near and near[0] in knobs]
        if not near:
            return f"There are: {_keys(axes)}."
        if not owners:
            return f"Did you mean {'.'.join(['sampler', near[0], *below])}?"
        first = near[0]
    keys = " or ".join(f"sampler.{axis}.{first}" for axis in owners)
    away = [axis for axis in owners if axis not in chosen]
    remedy = f" It comes with sampler={away[0]}, alone or in a list ('sampler=[{away[0]},...]')." if away else ""
    return f"Did you mean {keys}?{remedy if len(owners) == 1 else ''}"


def _keys(axes: dict[str, list[str]]) -> str:
    return ", ".join(f"sampler.{axis}.{knob}" for axis, knobs in axes.items() for knob in knobs) or "none"


def _knobs(axes: DictConfig) -> dict[str, list[str]]:
    """Return the knobs of axes, by the name of the axis."""
    return {
        str(name): [str(knob) for knob in axis if not str(knob).startswith("_")]
        for name, axis in axes.items()
        if isinstance(axis, DictConfig)
    }


def _choices_of_axes(config_dir: Path) -> dict[str, list[str]]:
    """Return the knobs of every axis that can be chosen."""
    found: dict[str, list[str]] = {}
    for file in sorted((config_dir / "sampler").glob("*.yaml")):
        found |= _knobs(DictConfig(OmegaConf.load(file)))
    return found


def choices_of(group: Path) -> dict[str, list[str]]:
    """Return the choices of a config group, and the keys that each brings."""
    return {file.stem: [str(key) for key in OmegaConf.load(file)] for file in sorted(group.glob("*.yaml"))}


def _meant(path: str, key: str, below: str, node: DictConfig, config_dir: Path) -> list[str]:
    """Options that bring the key; or else the keys of that very name elsewhere, or those of nearly that name.

    `below` is what was typed after the key, such as ``.monitor``.
    """
    keys = [str(name) for name in node if not str(name).startswith("_")]
    options = {} if not path or "." in path else choices_of(config_dir / path)
    brought = {name for names in options.values() for name in names if not name.startswith("_")}
    near = get_close_matches(key, {*keys, *brought}, cutoff=0.75)
    for name in [key] if key in brought else near[:1]:
        owners = [option for option, names in options.items() if name in names]
        if name not in keys and owners:
            word = "" if name == key else f"Did you mean {path}.{name}? "
            return [f"{word}{name} comes with {path}={owners[0]}: choose it."]
    if near:
        return [f"Did you mean {', '.join(f'{path}.{name}'.lstrip('.') for name in near)}?"]
    root = node._get_root()  # OmegaConf gives an error the node at fault and has no public way from there to the whole
    places = list(_places(root)) if isinstance(root, DictConfig) else []
    names = {place.rpartition(".")[2] for place in places}
    wanted = [key] if key in names else get_close_matches(key, names, cutoff=0.75)
    found = [place for place in places if place.rpartition(".")[2] in wanted]
    return [f"Did you mean {', '.join(place + below for place in found)}?"] if found else []


def _places(node: DictConfig, path: str = "") -> Iterator[str]:
    """Return the full names of all keys that can be set, from a node on."""
    for name in map(str, node):
        if name == "hydra" or name.startswith("_"):
            continue
        yield f"{path}{name}"
        if OmegaConf.is_missing(node, name) or OmegaConf.is_interpolation(node, name):
            continue
        if isinstance(child := node.get(name), DictConfig):
            yield from _places(child, f"{path}{name}.")


def _groups(config_dir: Path, name: str) -> Iterator[str]:
    """Return the groups in the defaults of a config, and of those that it is built on."""
    for entry in OmegaConf.load(config_dir / f"{name}.yaml").defaults:
        if isinstance(entry, DictConfig):
            yield from (str(key) for key in entry if not str(key).startswith("override "))
        elif entry != "_self_":
            yield from _groups(config_dir, entry)
