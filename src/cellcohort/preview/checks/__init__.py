"""What the preview warns of: one module per kind of check, each of which yields findings."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Finding"]


@dataclass(frozen=True)
class Finding:
    """Something to know before training.

    Attributes
    ----------
    problem : str
        What is wrong, with the numbers that show it.
    change : str
        What to do about it.
    reasons : tuple of str
        Why it is so, as far as known.
    typed : str
        What to add to the command line for `change`; empty where no option does it.
    """

    problem: str
    change: str
    reasons: tuple[str, ...] = ()
    typed: str = ""
