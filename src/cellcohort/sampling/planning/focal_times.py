"""Which time a batch with a time window is drawn around; compiled."""

from __future__ import annotations

import numpy as np

from cellcohort.compiled import compiled
from cellcohort.sampling.rng import Whole, bits_of, key_of_three, mix, permuted

_U = np.uint64


@compiled
def focal_times(
    times: np.ndarray, indptr: np.ndarray, sets: np.ndarray, occurrence: np.ndarray, seed: np.uint64, epoch: Whole
) -> np.ndarray:
    """For each batch, one of ``times[indptr[g]:indptr[g + 1]]``: each in turn, in a pseudo-random order.

    `g` is the primary group in ``sets[i]``, of several each in turn. A missing time passes its turn on to the next
    one; -inf if all are missing.
    """
    out, k = np.full(len(sets), -np.inf), sets.shape[1]
    for i in range(len(sets)):
        group, turn = sets[i, occurrence[i] % k], occurrence[i] // k
        first, n = indptr[group], indptr[group + 1] - indptr[group]
        at = permuted(turn % n, n, bits_of(n), mix(key_of_three(seed, _U(epoch), _U(group)), _U(turn // n)))
        for j in range(n):
            time = times[first + (at + j) % n]
            if np.isfinite(time):
                out[i] = time
                break
    return out
