"""What sentence-transformers' batch samplers promise, over a table: labels twice or more, and no value twice."""

from collections import Counter

import numpy as np
import pandas as pd

from cellcohort.cells import CellTable
from cellcohort.sampling import BatchSampler, ConditionBalanced, TrackCapped

rng = np.random.default_rng(0)
frame = pd.DataFrame({"label": rng.choice(list("abcd"), 2000), "text": rng.integers(0, 500, 2000).astype(str)})
cells = CellTable.from_frame(frame, experiment=None, condition="label")
by_label = BatchSampler(cells, axes={"labels": ConditionBalanced()}, batch_size=32)
print("labels:", Counter(frame["label"].iloc[next(iter(by_label))]))
unique = BatchSampler(cells, axes={"texts": TrackCapped(max_cells=1, column="text")}, batch_size=32)
print("most of one text in any batch:", max(max(Counter(frame["text"].iloc[rows]).values()) for rows in unique))
