"""Names and numbers for a message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
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


def meant(absent: Iterable[Any], there: Sequence[Any]) -> str:
    """``Did you mean 'Gem'? ``, of labels that are not there; empty where no other is near.

    Of a number or its text only the other is near: ``'1'`` may have been meant for 1, but not for 10.
    """
    texts = {label.casefold(): label for label in there if isinstance(label, str)}
    found, hint = [], ""
    for label in absent:
        if same := [one for one in there if _number(one) == _number(label) is not None]:
            hint = " (a number and the text of a number are different labels)"
        found += same or [texts[name] for name in get_close_matches(str(label).casefold(), texts, 1)]
    return f"Did you mean {listed(dict.fromkeys(found), show=repr)}{hint}? " if found else ""


def _number(label: Any) -> float | None:
    try:
        return float(label)
    except (TypeError, ValueError):
        return None
