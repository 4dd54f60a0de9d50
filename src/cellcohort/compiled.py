"""How functions are compiled: once for all processes, to run beside Python, and with the division of numpy.

A division that raised an error would make numba count the references to arrays.
"""

from __future__ import annotations

from numba import njit

compiled = njit(cache=True, nogil=True, error_model="numpy")
inlined = njit(cache=True, nogil=True, error_model="numpy", inline="always")
