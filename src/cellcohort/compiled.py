"""How functions are compiled: once for all processes, to run beside Python, and with the division of numpy.

A division that raised an error would make numba count the references to arrays.
"""

from __future__ import annotations

import logging
import os
from typing import override

from numba import njit
from numba.core import event

compiled = njit(cache=True, nogil=True, error_model="numpy")
inlined = njit(cache=True, nogil=True, error_model="numpy", inline="always")


class Teller(event.Listener):
    """Logs a line when the first function of this package is compiled, on the first rank of a launch.

    Functions that numba has in its cache are loaded without a word.
    """

    told = False

    @override
    def on_start(self, event: event.Event) -> None:
        rank = os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0"))
        module = event.data["dispatcher"].py_func.__module__ or ""  # None for code that was compiled from text
        if not self.told and rank == "0" and module.startswith("cellcohort."):
            self.told = True
            logging.getLogger("cellcohort").warning(
                "compiling the sampler for this computer, which takes up to two minutes; later runs load it."
            )

    @override
    def on_end(self, event: event.Event) -> None:
        pass


teller = Teller()
event.register("numba:compile", teller)
