"""What differs between two sets of options, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cellcohort.listing import listed


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The options that are not the same: ``seed: 0 -> 1, together: null -> track``; empty where all are.

    Parameters
    ----------
    before, now : mapping of str to object
        Values by option; an option that is in one only reads "none" on the other side.
    """
    keys = [key for key in {**before, **now} if key not in before or key not in now or before[key] != now[key]]
    return listed(f"{key}: {_said(before, key)} -> {_said(now, key)}" for key in keys)


def _said(options: Mapping[str, Any], key: str) -> str:
    value = options.get(key, "none")
    if isinstance(value, list):
        return f"[{listed(value)}]"
    return "null" if value is None else str(value)
