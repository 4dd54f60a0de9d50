"""Which values an annotation allows: whether a value is one of them, and what they are in words."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

_WORDS = {
    int: "an integer",
    float: "a number",
    str: "a string",
    bool: "true or false",
    Path: "a path",
    NoneType: "null",
}
_PLURALS = {"an integer": "integers", "a number": "numbers", "a string": "strings", "a path": "paths"}
_SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}


def fits(value: Any, annotation: Any) -> bool:
    """Tell whether a value of a config is one that an annotation allows.

    Parameters
    ----------
    value : object
        A plain value: None, a number, text, or lists and mappings of these.
    annotation : object
        A type, with bounds or without.

    Returns
    -------
    bool
        True also where pydantic does not know the annotation.
    """
    if annotation is Any or annotation is type(value):
        return True
    from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError  # here, since it takes time

    rules = ConfigDict(arbitrary_types_allowed=True, coerce_numbers_to_str=True)
    try:
        try:
            kind: TypeAdapter[Any] = TypeAdapter(annotation, config=rules)
        except PydanticUserError as error:
            if error.code != "type-adapter-config-unused":
                return True
            kind = TypeAdapter(annotation)
        kind.validate_json(json.dumps(value))
    except ValidationError:
        return False
    except (TypeError, NameError):  # an annotation that pydantic does not know
        return True
    return True


def in_words(annotation: Any) -> str:
    """Return the values that an annotation allows, in words: "an integer > 0 or null".

    Parameters
    ----------
    annotation : object
        A type, with bounds or without.

    Returns
    -------
    str
        To stand after "must be".
    """
    return _either(_alternatives(annotation))


def _alternatives(annotation: Any) -> list[str]:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        kinds = list(inner)
        if int in kinds and float in kinds:  # Python gives one of two equal unions for the other, in its order
            first, second = sorted((kinds.index(int), kinds.index(float)))
            kinds[first], kinds[second] = int, float
        return [words for each in kinds for words in _alternatives(each)]
    if origin is Literal:
        return [json.dumps(each) if isinstance(each, bool) else repr(each) for each in inner]
    return [_kind(annotation, origin, inner)]


def _kind(annotation: Any, origin: Any, inner: tuple[Any, ...]) -> str:
    if origin is None or not inner:
        return _WORDS.get(annotation) or f"a {getattr(annotation, '__name__', annotation)}"
    if origin is Annotated:
        bounds = [bound for mark in inner[1:] for bound in getattr(mark, "metadata", [mark])]
        limits = [f"{_SIGNS[key]} {getattr(bound, key):g}" for bound in bounds for key in _SIGNS if hasattr(bound, key)]
        return f"{in_words(inner[0])} {' and '.join(limits)}".strip()
    if issubclass(origin, Mapping):
        return f"a mapping of names to {_several(inner[-1])}"
    if origin is tuple and ... not in inner:
        return f"a list of {len(inner)} {_several(inner[0])}"
    if not issubclass(origin, Iterable):
        return f"a {origin.__name__}"
    return f"a list of {_several(inner[0])}"


def _several(annotation: Any) -> str:
    plurals = [_PLURALS.get(words, "") for words in _alternatives(annotation)]
    return _either(plurals) if all(plurals) else "values"


def _either(words: list[str]) -> str:
    *first, last = dict.fromkeys(words)
    return f"{', '.join(first)} or {last}" if first else last
