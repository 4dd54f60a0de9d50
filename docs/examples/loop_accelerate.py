"""A training loop of accelerate: the sampler is told its rank, and the loader is not prepared."""

import numpy as np
import pandas as pd
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

from cellcohort.cells import CellTable
from cellcohort.sampling import BatchSampler, ExperimentAware

rng = np.random.default_rng(0)
frame = pd.DataFrame({"experiment": rng.choice(["P1", "P2"], 640), "condition": rng.choice(["mock", "virus"], 640)})
features = torch.from_numpy(rng.normal(size=(640, 8))).float()

accelerator = Accelerator(cpu=True)
sampler = BatchSampler(
    CellTable.from_frame(frame),
    axes={"experiment": ExperimentAware()},
    batch_size=64,
    rank=accelerator.process_index,
    world_size=accelerator.num_processes,
)
loader = DataLoader(TensorDataset(torch.arange(640), features), batch_sampler=sampler)
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer = accelerator.prepare(model, optimizer)  # not the loader: it would deal the batches out once more

for epoch in range(2):
    sampler.set_epoch(epoch)
    for rows, inputs in loader:
        loss = model(inputs.to(accelerator.device)).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        held = frame["experiment"].iloc[rows.numpy()].unique()
    print(f"epoch {epoch}: {len(sampler)} batches in this process, the last of {', '.join(held)}")
