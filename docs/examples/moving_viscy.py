"""VisCy's FlexibleBatchSampler and ours, with the same arguments."""

from importlib.util import find_spec

import numpy as np
import pandas as pd

from cellcohort.sampling import FlexibleBatchSampler

rng = np.random.default_rng(0)
frame = pd.DataFrame(
    {
        "experiment": rng.choice(["P1", "P2"], 6000),
        "condition": rng.choice(["mock", "infected", "rare"], 6000, p=[0.6, 0.35, 0.05]),
        "hours_post_perturbation": rng.integers(0, 96, 6000) / 2,
    }
)
options = {"batch_size": 100, "batch_group_by": "experiment", "stratify_by": "condition", "leaky": 0.1, "seed": 0}


def held(sampler):
    rows = frame.iloc[next(iter(sampler))]
    return {name: rows[name].value_counts().to_dict() for name in ("experiment", "condition")}


print("cellcohort:", held(FlexibleBatchSampler(frame, **options)))
print("with time: ", held(FlexibleBatchSampler(frame, **options, temporal_enrichment=True)))
if find_spec("viscy_data"):
    from viscy_data.sampler import FlexibleBatchSampler as FlexibleOfVisCy

    print("VisCy:     ", held(FlexibleOfVisCy(frame, **options)))
    print("with time: ", held(FlexibleOfVisCy(frame, **options, temporal_enrichment=True)))
