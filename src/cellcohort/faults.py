"""What is wrong with one input, told at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cellcohort.missing_values import MissingValues, said_others


class Faults:
    """What is wrong with one input, found by steps of which a later one can do without what an earlier one makes.

    Attributes
    ----------
    found : list of ValueError
    """

    def __init__(self) -> None:
        self.found: list[ValueError] = []

    def of[Made](self, function: Callable[..., Made], *arguments: Any) -> Made | None:
        """Return what a function makes; None where it raises ValueError, which is kept."""
        try:
            return function(*arguments)
        except ValueError as error:
            self.found.append(error)
            return None

    def error(self) -> ValueError:
        """Return the error to raise: the only one, or one that tells all."""
        if len(self.found) == 1:
            return self.found[0]
        holes = [error for error in self.found if isinstance(error, MissingValues)]
        told = {name for error in holes for name in error.told}
        others = {name: n for error in holes for name, n in error.others.items() if name not in told}
        said = [error.said if isinstance(error, MissingValues) else str(error) for error in self.found]
        return ValueError("\nalso: ".join(said) + said_others(others))
