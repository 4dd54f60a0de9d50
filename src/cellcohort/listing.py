"""Names for a message, not too many of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any


def listed(names: Iterable[Any], most: int = 20, show: Callable[[Any], str] = str) -> str:
    """The first names, and how many more there are."""
    names = list(names)
    rest = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(map(show, names[:most])) + rest


def joined(names: Sequence[str]) -> str:
    """All names in a sentence, such as ``plate, drug and hours``."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
