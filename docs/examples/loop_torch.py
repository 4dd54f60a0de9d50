"""A plain loop of torch: views of each cell, epochs, a checkpoint, and going on in the middle of an epoch."""

import numpy as np
import pandas as pd
import torch
from torch.utils.data import DataLoader, Dataset

from cellcohort.cells import CellTable
from cellcohort.objectives import NTXent
from cellcohort.sampling import BatchSampler, ConditionBalanced, ExperimentAware

rng = np.random.default_rng(0)
frame = pd.DataFrame({"experiment": rng.choice(["P1", "P2"], 640), "condition": rng.choice(["mock", "virus"], 640)})
features = rng.normal(size=(len(frame), 16)).astype(np.float32)
cells = CellTable.from_frame(frame)


class Views(Dataset):
    """Two noisy views of each cell; the noise depends on the place of the batch alone, so that it repeats."""

    def __len__(self):
        return len(features)

    def __getitems__(self, batch):  # the loader gives all rows of a batch at once
        noise = np.random.default_rng([batch.epoch, batch.step]).normal(0, 0.1, (2, len(batch), features.shape[1]))
        anchor, positive = torch.from_numpy(features[batch] + noise.astype(np.float32))
        return anchor, positive, {"epoch": batch.epoch, "step": batch.step}


def as_it_is(batch):
    """Return a batch that is made already; a function with a name can be sent to worker processes."""
    return batch


def train(epochs, stop_after=None, checkpoint=None):
    """Train, and return the loss of every step; under DDP give the sampler ``rank=`` and ``world_size=``."""
    torch.manual_seed(0)
    axes = {"experiment": ExperimentAware(), "condition": ConditionBalanced()}
    sampler = BatchSampler(cells, axes=axes, batch_size=64)
    loader = DataLoader(Views(), batch_sampler=sampler, collate_fn=as_it_is, num_workers=0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
    optimizer, objective = torch.optim.AdamW(model.parameters()), NTXent()
    if checkpoint is not None:
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        sampler.load_state_dict(checkpoint["sampler"])
    losses = []
    for epoch in range(sampler.state_dict()["epoch"], epochs):
        sampler.set_epoch(epoch)  # of the epoch that was loaded, the rest
        for anchor, positive, place in loader:
            loss = objective(model(anchor), model(positive))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if len(losses) == stop_after:
                # the place of the batch that arrived: with worker processes, the sampler is ahead of it
                state = {"epoch": place["epoch"], "step": place["step"] + 1}
                torch.save(
                    {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "sampler": state}, "last.pt"
                )
                return losses
    return losses


if __name__ == "__main__":
    whole = train(epochs=3)
    first = train(epochs=3, stop_after=14)  # in the middle of the second epoch
    rest = train(epochs=3, checkpoint=torch.load("last.pt"))
    print("stopped and resumed, the losses are the same:", first + rest == whole)
