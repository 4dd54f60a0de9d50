"""A progress bar for what takes long; silent where nobody watches, and for quick work."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tqdm import tqdm  # type: ignore[import-untyped]

SECONDS = 2.0  # of work before a bar is shown


def progress_bar(items: Iterable[Any] | None, what: str, unit: str, total: int | None = None) -> Any:
    """Return a bar that shows itself after two seconds, on a terminal only, and goes when the work is done.

    Parameters
    ----------
    items : iterable, optional
        Iterate over the bar instead of these; without them, call its ``update``.
    what : str
        What is done.
    unit : str
        One of what is counted.
    total : int, optional
        How many there are, where `items` have no length.

    Returns
    -------
    tqdm.tqdm
    """
    return tqdm(items, desc=what, total=total, unit=unit, disable=None, leave=False, delay=SECONDS)
