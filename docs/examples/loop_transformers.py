"""The Trainer of transformers: its training loader draws the batches of a sampler, also after it is resumed."""

import numpy as np
import pandas as pd
import torch
from torch.utils.data import DataLoader, Dataset
from transformers import Trainer, TrainingArguments

from cellcohort.cells import CellTable
from cellcohort.sampling import BatchSampler, ExperimentAware

rng = np.random.default_rng(0)
frame = pd.DataFrame({"experiment": rng.choice(["P1", "P2"], 640), "condition": rng.choice(["mock", "virus"], 640)})
features = torch.from_numpy(rng.normal(size=(640, 8))).float()
cells = CellTable.from_frame(frame)


class Rows(Dataset):
    def __len__(self) -> int:
        return len(features)

    def __getitem__(self, row: int) -> dict:
        return {"x": features[row], "row": row}


class Encoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(8, 4), []

    def forward(self, x: torch.Tensor, row: torch.Tensor) -> dict:
        self.seen.append(row.tolist())
        return {"loss": self.layer(x).square().mean()}


class CohortTrainer(Trainer):
    def get_train_dataloader(self) -> DataLoader:
        args = self.args
        sampler = BatchSampler(
            cells,
            axes={"experiment": ExperimentAware()},
            batch_size=args.per_device_train_batch_size,
            seed=args.seed,
            rank=args.process_index,
            world_size=args.world_size,
        )
        return DataLoader(self.train_dataset, batch_sampler=sampler, collate_fn=self.data_collator)


def trainer(epochs: int) -> CohortTrainer:
    options = {"per_device_train_batch_size": 64, "save_strategy": "epoch", "report_to": "none", "use_cpu": True}
    arguments = TrainingArguments("trainer", num_train_epochs=epochs, disable_tqdm=True, **options)
    return CohortTrainer(model=Encoder(), args=arguments, train_dataset=Rows())


if __name__ == "__main__":
    once = trainer(epochs=2)
    once.train()
    resumed = trainer(epochs=2)
    resumed.train(resume_from_checkpoint="trainer/checkpoint-10")  # the end of the first epoch
    print("the resumed run draws the batches of the second epoch:", resumed.model.seen == once.model.seen[10:])
