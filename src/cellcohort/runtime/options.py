"""Whether the values of a config are of the kinds that the functions and classes that it names take."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf


def check_kinds(config: DictConfig, only: Sequence[str] = ()) -> None:
    """Refuse a value of another kind than the annotation of its parameter allows, before anything is made of it.

    Only functions and classes of this package are looked at; others check their arguments themselves.

    Parameters
    ----------
    config : DictConfig
        A composed config.
    only : sequence of str
        Its keys to look at; by default all. What they name is imported.

    Raises
    ------
    ValueError
        The option, its value, and what it can be.
    """
    for key in only or [str(key) for key in config]:
        if OmegaConf.is_missing(config, key) or not isinstance(config.get(key), DictConfig):
            continue
        node = OmegaConf.to_container(config[key], resolve=True)
        if extra := _not_taken(node, key):
            raise ValueError(extra)
        for path, value, annotation in _annotated(node, key):
            if reason := _reason(value, annotation):
                shown = "null" if value is None else repr(value)
                raise ValueError(f"{path}={shown} is of the wrong kind: {reason}.")


def _not_taken(node: Any, path: str) -> str:
    """Tell which keys of a sampler of another library it does not take; empty where it takes all."""
    target = str(node.get("_target_", ""))
    if not target.startswith("cellcohort.sampling.baselines."):
        return ""
    parameters = inspect.signature(get_object(target)).parameters
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
    target = str(node.get("_target_", ""))
    parameters = inspect.signature(made := get_object(target)).parameters if target.startswith("cellcohort.") else {}
    for key, value in node.items():
        yield from _annotated(value, f"{path}.{key}")
        parameter = parameters.get(str(key))
        if parameter is None or parameter.annotation is inspect.Parameter.empty or "_target_" in json.dumps(value):
            continue
        if value is None and parameter.default in (None, inspect.Parameter.empty):
            continue  # what is needed and not given is refused where it is needed, with what it is for
        scope = vars(sys.modules[made.__module__])
        yield f"{path}.{key}", value, _evaluated(parameter.annotation, scope)


def _evaluated(annotation: Any, scope: dict[str, Any]) -> Any:
    """Give an annotation as an object; Any where its names are imported for type checkers only."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, scope)
    except (NameError, TypeError):
        return Any


def _reason(value: Any, annotation: Any) -> str:
    """Tell why a value does not fit an annotation; empty where it does."""
    from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError  # here, since it takes time

    rules = ConfigDict(arbitrary_types_allowed=True, coerce_numbers_to_str=True)
    try:
        try:
            kind: TypeAdapter[Any] = TypeAdapter(annotation, config=rules)
        except PydanticUserError as error:
            if error.code != "type-adapter-config-unused":
                return ""
            kind = TypeAdapter(annotation)
        kind.validate_json(json.dumps(value))
    except ValidationError as wrong:
        return "; or ".join(dict.fromkeys(each["msg"].lower() for each in wrong.errors()))
    except TypeError:  # an annotation that pydantic does not know
        return ""
    return ""
