"""torch's WeightedRandomSampler, and the axis whose shares hold in every batch."""

from collections import Counter
from importlib.util import find_spec
from itertools import islice

import numpy as np
import pandas as pd

from cellcohort.cells import CellTable
from cellcohort.sampling import BatchSampler, ConditionBalanced

labels = np.array(["common"] * 3600 + ["rare"] * 400)
cells = CellTable.from_frame(pd.DataFrame({"condition": labels}), experiment=None)
sampler = BatchSampler(cells, axes={"shares": ConditionBalanced({"common": 3, "rare": 1})}, batch_size=64)
print("cellcohort:", [Counter(labels[rows].tolist())["rare"] for rows in islice(sampler, 8)])
if find_spec("torch"):
    from torch.utils.data import BatchSampler as Batches
    from torch.utils.data import WeightedRandomSampler

    weights = np.where(labels == "rare", 1 / 4 / 400, 3 / 4 / 3600)
    drawn = Batches(WeightedRandomSampler(weights, len(labels)), batch_size=64, drop_last=True)
    print("torch:     ", [Counter(labels[rows].tolist())["rare"] for rows in islice(drawn, 8)])
