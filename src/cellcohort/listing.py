"""Names and numbers for a message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any


def listed(names: Iterable[Any], most: int = 20, show: Callable[[Any], str] = str) -> str:
    """The first names, and how many more there are."""
    names = list(names)
    rest = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(map(show, names[:most])) + rest


def several(n: int, what: str, plural: str | None = None) -> str:
    """A number and what it counts, such as ``1 track``, ``1,936 tracks`` or ``2 batches``."""
    ending = "es" if what.endswith("ch") else "s"
    return f"{n:,} {what if n == 1 else plural or what + ending}"


def joined(names: Sequence[str]) -> str:
    """All names in a sentence, such as ``plate, drug and hours``."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
