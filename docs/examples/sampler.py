"""Batches over a table: the base installation is enough."""

import numpy as np
import pandas as pd

from cellcohort.cells import CellTable
from cellcohort.sampling import BatchSampler, ConditionBalanced, ExperimentAware, TemporallyEnriched

rng = np.random.default_rng(0)
frame = pd.DataFrame({"plate": rng.choice(["P1", "P2"], 5000), "drug": rng.choice(["DMSO", "A", "B"], 5000)})
frame["hpi"] = rng.integers(0, 96, len(frame)) / 2  # hours post infection

cells = CellTable.from_frame(frame, experiment="plate", condition="drug", hours="hpi")
axes = {
    "experiment": ExperimentAware(leaky=0.1),
    "condition": ConditionBalanced(),
    "temporal": TemporallyEnriched(window_hours=2.0),
}
sampler = BatchSampler(cells, axes=axes, batch_size=256)
for rows in sampler:
    held = frame.iloc[rows]
    print(held["plate"].value_counts().to_dict(), held["drug"].value_counts().to_dict(), f"{held['hpi'].median()} h")
