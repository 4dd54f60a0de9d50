"""A data source of one's own: an object with ``cells()``, the labels alone, and ``dataset()``, the cells as seen."""

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from cellcohort.data.tracks import Tracks

rng = np.random.default_rng(0)
rows = [(plate, track, frame) for plate in ("P1", "P2") for track in range(50) for frame in range(12)]
frame = pd.DataFrame(rows, columns=["experiment", "track", "time"])
frame["condition"] = np.where(frame["track"] % 2, "drug", "control")
frame["area"] = rng.normal(size=len(frame))
path = Path(tempfile.mkdtemp()) / "simulated.parquet"
frame.to_parquet(path)


class Simulated(Tracks):
    """``data._target_=mine.Simulated``: a source that exists, with its options set."""

    def __init__(self, path: str | Path, frames: int = 3) -> None:
        columns = {"features": ["area"], "hours": None}
        super().__init__(path, columns=columns, frames=frames, interval_minutes=30.0, tau_hours=(0.5, 1.0))


source = Simulated(path)
print(len(source.cells()), "cells to draw from")
