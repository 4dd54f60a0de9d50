"""The last few results of what takes long, such as chunk windows."""

from __future__ import annotations

from collections.abc import Callable, Hashable


class Kept[Value]:
    """The last `n` values that were made. Threads may share it, and processes have copies of it."""

    def __init__(self, n: int) -> None:
        self._n = n
        self.items: tuple[tuple[Hashable, Value], ...] = ()

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return the value of a key, which is made if it is not kept."""
        for known, value in self.items:
            if known == key:
                return value
        value = make()
        self.items = (*self.items, (key, value))[-self._n :]
        return value
