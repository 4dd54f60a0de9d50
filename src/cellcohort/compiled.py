"""How functions are compiled: once for all processes, to run beside Python, and with the division of numpy.

A division that raised an error would make numba count the references to arrays.
"""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Callable
from typing import Any, override

from numba import njit
from numba.core import event
from numba.core.caching import IndexDataCacheFile

from cellcohort.files import fingerprint


class CodeOfItsTypes(IndexDataCacheFile):
    """Files of compiled code of a function that are loaded only whole, and for the types that they were made for.

    Numba numbers these files in an index. Of two processes that compile a function for different types at the same
    time, as the ranks of a first run do, each may take the same number, and the index of one with the code of the other
    would give wrong results in all later runs. Files that a machine left cut or changed are made again.
    """

    @override
    def save(self, key: Any, data: Any) -> None:
        code = self._dump(data)
        super().save(key, (self._source_stamp, key, fingerprint(code), code))

    @override
    def load(self, key: Any) -> Any:
        try:
            stamp, types, digest, code = super().load(key)
        except Exception:  # there is none, or it was cut, which can raise anything
            return None
        return pickle.loads(code) if (stamp, types, digest) == (self._source_stamp, key, fingerprint(code)) else None

    @override
    def _load_index(self) -> Any:
        try:
            return super()._load_index()
        except OSError:
            raise
        except Exception:  # it was cut
            return {}


def compiled[Function: Callable[..., Any]](function: Function) -> Function:
    """Compile a function when it is called first."""
    return _of_its_types(njit(cache=True, nogil=True, error_model="numpy")(function))


def inlined[Function: Callable[..., Any]](function: Function) -> Function:
    """Compile a function into those that call it."""
    return _of_its_types(njit(cache=True, nogil=True, error_model="numpy", inline="always")(function))


def _of_its_types(function: Any) -> Any:
    file = getattr(getattr(function, "_cache", None), "_cache_file", None)  # none with NUMBA_DISABLE_JIT
    if isinstance(file, IndexDataCacheFile):
        file.__class__ = CodeOfItsTypes
    return function


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
