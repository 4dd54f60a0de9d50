"""Simulate profiles of wells: ``profiles.parquet``, with one row per well."""

import numpy as np
import pandas as pd

rng = np.random.default_rng(0)
compounds = [f"compound_{i}" for i in range(1, 8)]
wells = [f"{row}{column:02d}" for row in "ABCDEFGH" for column in range(1, 13)]
effects = {name: rng.normal(0, 1, 30) for name in compounds} | {"DMSO": np.zeros(30)}
rows, values = [], []
for plate in ("P1", "P2", "P3", "P4"):
    shift, gain = rng.normal(0, 2, 30), np.exp(rng.normal(0, 0.3, 30))  # what each plate does to the features
    for number, compound in enumerate(rng.permutation(["DMSO"] * 26 + compounds * 10)):
        rows.append((plate, wells[number], compound))
        values.append(shift + gain * (effects[compound] + rng.normal(0, 1, 30)))
frame = pd.DataFrame(rows, columns=["Metadata_Plate", "Metadata_Well", "Metadata_Compound"])
features = pd.DataFrame(np.array(values, dtype=np.float32), columns=[f"Cells_Feature_{i}" for i in range(30)])
pd.concat([frame, features], axis=1).to_parquet("profiles.parquet")
print(frame.value_counts(["Metadata_Plate"]).sort_index().to_dict())
