"""annbatch's ClassSampler, and the axes as a sampler of annbatch's Loader."""

from collections import Counter
from importlib.util import find_spec

import numpy as np
import pandas as pd

from cellcohort.cells import CellTable

rng = np.random.default_rng(0)
plates = np.repeat(["P1", "P2", "P3"], 2048)  # as a store holds them: cells of one class side by side
drugs = rng.choice(["DMSO", "drug"], len(plates), p=[0.9, 0.1])
values = rng.normal(size=(len(plates), 5)).astype(np.float32)
cells = CellTable.from_frame(pd.DataFrame({"experiment": plates, "condition": drugs}))
if find_spec("annbatch"):
    from annbatch import Loader
    from annbatch.samplers import ClassSampler

    from cellcohort.sampling import ChunkedBatchSampler, ConditionBalanced, ExperimentAware

    sizes = {"chunk_size": 64, "preload_nchunks": 32, "batch_size": 64}
    axes = {"class": ExperimentAware(weights="uniform"), "condition": ConditionBalanced()}
    ours = ChunkedBatchSampler(cells, axes, **sizes)
    theirs = ClassSampler(**sizes, classes=pd.Categorical(plates), num_samples=4096, drop_last=True)
    for name, sampler in (("cellcohort", ours), ("ClassSampler", theirs)):
        loader = Loader(batch_sampler=sampler, return_index=True, preload_to_gpu=False, to="torch")
        rows = next(iter(loader.add_dataset(values)))["index"]
        print(name, *(dict(sorted(Counter(labels[rows].tolist()).items())) for labels in (plates, drugs)))
