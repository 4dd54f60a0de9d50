"""Whole numbers that users give, checked in one way everywhere."""

from __future__ import annotations

from typing import Any

import numpy as np


def whole_number(option: str, value: Any, least: int) -> int:
    """The value of an option that is a whole number.

    Raises
    ------
    ValueError
        It is something else, or below `least`.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ValueError(f"{option}={value!r} is out of range; it is a whole number >= {least}.")
    return int(value)
