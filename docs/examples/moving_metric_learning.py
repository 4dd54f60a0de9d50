"""pytorch-metric-learning's MPerClassSampler, and the axis that gives every class its share."""

from collections import Counter
from importlib.util import find_spec
from itertools import islice

import numpy as np
import pandas as pd

from cellcohort.cells import CellTable
from cellcohort.sampling import BatchSampler, ConditionBalanced

labels = np.random.default_rng(0).choice([f"compound_{i}" for i in range(8)], 4000)
cells = CellTable.from_frame(pd.DataFrame({"compound": labels}), experiment=None, condition="compound")
sampler = BatchSampler(cells, axes={"classes": ConditionBalanced()}, batch_size=32)
print("cellcohort:", Counter(labels[next(iter(sampler))].tolist()))  # each of 8 classes, 4 times
if find_spec("pytorch_metric_learning"):
    from pytorch_metric_learning.samplers import MPerClassSampler

    drawn = MPerClassSampler(labels, m=4, batch_size=32)
    print("MPerClass: ", Counter(labels[list(islice(drawn, 32))].tolist()))
