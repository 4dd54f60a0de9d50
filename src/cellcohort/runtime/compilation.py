"""One line where functions of this package are compiled, which takes a minute or more on first use."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import override

_said = False  # in this process


@contextmanager
def told() -> Iterator[None]:
    """Print a line when the first function of this package is compiled while a block runs, once in a process.

    Functions that numba has in its cache are loaded without a word.
    """
    from numba.core import event  # here, since a mistyped command line is told at once

    class Teller(event.Listener):
        @override
        def on_start(self, event: event.Event) -> None:
            global _said
            module = event.data["dispatcher"].py_func.__module__
            if not _said and module.startswith("cellcohort."):
                _said = True
                print(
                    "compiling the sampler for this computer, which takes up to two minutes; later runs load it.",
                    file=sys.stderr,
                    flush=True,
                )

        @override
        def on_end(self, event: event.Event) -> None:
            pass

    with event.install_listener("numba:compile", Teller()):
        yield
