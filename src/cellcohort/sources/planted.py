"""Cells from AnnData files, dealt out to experiments that distort them: real cells, and a known batch effect."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, override

import numpy as np
import pandas as pd
from scipy import sparse
from sklearn.preprocessing import StandardScaler

from cellcohort.messages import whole_number
from cellcohort.sampling.rng import key_of, uniform
from cellcohort.sources.anndata import AnnDataFiles, Kinds

BLOCK = 8192  # rows read at a time


class Planted(AnnDataFiles):
    """Real cells of one experiment, as if they came from several.

    Every cell is dealt to one of the experiments by a keyed draw, whatever its labels. Experiment e sees
    feature f of a cell as ``mean_f + gain_ef * (x - mean_f) + shift_ef * spread_f``, where mean and
    spread are those of the feature over all cells, log(gain_ef) is normal with standard deviation
    `gain` and shift_ef normal with standard deviation `shift`. The experiment is an obs column
    "experiment"; nothing else of obs changes.

    Parameters
    ----------
    path, layer, kinds
        As for :class:`~cellcohort.sources.anndata.AnnDataFiles`.
    experiments : int
        How many, named "planted_1", "planted_2", ...; at least 2.
    shift : float
        In units of a feature's spread.
    gain : float
        Standard deviation of the log of the factor.
    seed : int
        Key of the dealing and of the distortion.

    Raises
    ------
    ValueError
        An option is out of range, or obs has experiments of its own.
    """

    def __init__(
        self,
        path: str | Path | Sequence[str | Path] | None = None,
        layer: str | None = None,
        experiments: int = 4,
        shift: float = 0.5,
        gain: float = 0.2,
        seed: int = 0,
        kinds: Kinds = "same",
    ) -> None:
        if experiments < 2 or shift < 0 or gain < 0:
            raise ValueError(
                f"experiments={experiments}, shift={shift}, gain={gain}: the first must be at least 2, the others 0 or "
                "more."
            )
        whole_number("seed", seed, 0)
        super().__init__(path, layer, kinds)
        if "experiment" in super().obs.columns:
            raise ValueError("obs has a column 'experiment' already; prepare it as it is, with source=anndata.")
        rows, n = np.arange(self._ends[-1], dtype=np.uint64), self.shape[0]
        self._options = {"experiments": experiments, "shift": shift, "gain": gain, "seed": seed}
        self._of = (uniform(key_of(seed), rows) * experiments).astype(np.int16)
        rng = np.random.default_rng(seed)
        self._gain = np.exp(rng.normal(0, gain, (experiments, n))).astype(np.float32)
        self._shift = rng.normal(0, shift, (experiments, n)).astype(np.float32)
        self._mean, self._spread = self._moments()
        self.sparse = False

    @property
    @override
    def options(self) -> dict[str, Any]:
        return {**super().options, **self._options}

    @property
    @override
    def obs(self) -> pd.DataFrame:
        names = [f"planted_{e + 1}" for e in range(len(self._gain))]
        return super().obs.assign(experiment=pd.Categorical(np.array(names)[self._of]))

    @override
    def read(self, start: int, stop: int) -> np.ndarray:
        of = self._of[start:stop]
        return self._mean + self._gain[of] * (self._real(start, stop) - self._mean) + self._shift[of] * self._spread

    def _real(self, start: int, stop: int) -> np.ndarray:
        rows = super().read(start, stop)
        return rows.toarray() if sparse.issparse(rows) else rows

    def _moments(self) -> tuple[np.ndarray, np.ndarray]:
        n, found = int(self._ends[-1]), StandardScaler()
        for start in range(0, n, BLOCK):
            found.partial_fit(self._real(start, min(start + BLOCK, n)).astype(np.float64))
        return found.mean_.astype(np.float32), np.sqrt(found.var_).astype(np.float32)
