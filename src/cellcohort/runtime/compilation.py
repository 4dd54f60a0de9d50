"""One line where the samplers are compiled, which takes a minute or more on first use."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import override


@contextmanager
def told() -> Iterator[None]:
    """Print a line when the first function of this package is compiled while the block runs.

    Functions that numba has in its cache are loaded without a word.
    """
    from numba.core import event  # here, since a mistyped command line is told at once

    class Teller(event.Listener):
        said = False

        @override
        def on_start(self, event: event.Event) -> None:
            module = event.data["dispatcher"].py_func.__module__
            if not self.said and module.startswith("cellcohort."):
                self.said = True
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
