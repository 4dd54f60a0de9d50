"""torchdata's StatefulDataLoader: stopped in the middle of an epoch, it goes on with the batches to come."""

from itertools import islice

import numpy as np
import pandas as pd
from torchdata.stateful_dataloader import StatefulDataLoader

from cellcohort.cells import CellTable
from cellcohort.sampling import BatchSampler, ExperimentAware

rng = np.random.default_rng(0)
frame = pd.DataFrame({"experiment": rng.choice(["P1", "P2"], 640), "condition": rng.choice(["mock", "virus"], 640)})
cells = CellTable.from_frame(frame)


def loader() -> StatefulDataLoader:
    sampler = BatchSampler(cells, axes={"experiment": ExperimentAware()}, batch_size=64)
    return StatefulDataLoader(range(640), batch_sampler=sampler, collate_fn=list)


stopped = loader()
first = list(islice(stopped, 3))
state = stopped.state_dict()  # keep it in the checkpoint

later = loader()
later.load_state_dict(state)
print("the rest follows:", first + list(later) == list(loader()))
