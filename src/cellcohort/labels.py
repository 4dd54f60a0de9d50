"""Labels: how they are sorted, and which of them a key stands for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import yaml


def in_order(labels: list[Any]) -> list[int]:
    """Places of the labels as they are sorted: numbers and their texts by size, other texts by letters."""
    if all(isinstance(label, str) and re.fullmatch(r"-?\d+(\.\d+)?", label) for label in labels):
        return sorted(range(len(labels)), key=lambda i: (float(labels[i]), labels[i]))
    return sorted(range(len(labels)), key=lambda i: (type(labels[i]).__name__, labels[i]))


def by_label[Value](given: Mapping[Any, Value], labels: Sequence[Any]) -> tuple[dict[Any, Value], list[Any]]:
    """Values by label, from values by what was typed for it.

    YAML and the command line read some labels as numbers or as truth values: 7, 1e3, on. Such a key stands for the
    one label that is a text of it and that no other key names: 7 for "7" or for "007", but for none where there are
    both, since either may have been typed.

    Parameters
    ----------
    given : mapping of object to object
    labels : sequence
        The labels that there are.

    Returns
    -------
    found : dict of label to object
    unknown : list
        Keys that stand for no label, or for more than one.

    Raises
    ------
    ValueError
        Two keys stand for one label.
    """
    known, found, unknown = set(labels), dict[Any, Value](), []
    for key, value in given.items():
        label = key if key in known else _text_of(key, [text for text in labels if text not in given])
        if label is None:
            unknown.append(key)
        elif label in found:
            raise ValueError(f"{key!r} and another key both stand for the label {label!r}; give it once, in quotes.")
        else:
            found[label] = value
    return found, unknown


def _text_of(key: Any, labels: Sequence[Any]) -> str | None:
    """Find the one label that YAML or Hydra reads as this number or truth value."""
    if isinstance(key, str) or not isinstance(key, bool | int | float | np.number):
        return None
    same = [
        text
        for text in labels
        if isinstance(text, str)
        and (
            text == str(key)
            or any(read == key and isinstance(read, bool) == isinstance(key, bool) for read in _read(text))
        )
    ]
    return same[0] if len(same) == 1 else None


def _read(text: str) -> list[Any]:
    """List what a text may be read as."""
    found: list[Any] = []
    if len(text) < 40:
        with suppress(ValueError):
            found.append(float(text))
        with suppress(yaml.YAMLError, ValueError):
            found.append(yaml.safe_load(text))
    return [value for value in found if isinstance(value, bool | int | float)]
