"""Simulate counts of single cells: ``plates/plate_1.h5ad`` to ``plate_4.h5ad``, with plate and drug in obs."""

from pathlib import Path

import anndata
import numpy as np
import pandas as pd
from scipy import sparse

CELLS, GENES = 1500, 60
rng = np.random.default_rng(0)
programs = {drug: np.exp(rng.normal(0, 0.8, GENES)) for drug in ("drug_a", "drug_b")} | {"DMSO": np.ones(GENES)}
base = rng.gamma(2.0, 1.0, GENES)
Path("plates").mkdir(exist_ok=True)
for number in range(1, 5):
    plate = f"plate_{number}"
    depth = base * np.exp(rng.normal(0, 0.5, GENES))  # what each plate does to the genes
    drugs = rng.choice(list(programs), CELLS, p=[0.2, 0.1, 0.7])
    counts = rng.poisson(depth * np.stack([programs[drug] for drug in drugs]))
    obs = pd.DataFrame({"plate": plate, "drug": drugs}, index=[f"{plate}_{i}" for i in range(CELLS)])
    genes = pd.DataFrame(index=[f"gene_{i}" for i in range(GENES)])
    anndata.AnnData(sparse.csr_matrix(counts, dtype=np.float32), obs, genes).write_h5ad(f"plates/{plate}.h5ad")
print(*sorted(path.name for path in Path("plates").iterdir()))
