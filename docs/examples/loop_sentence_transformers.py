"""The trainer of sentence-transformers: it deals out the batches of one sequence, so the sampler has one rank."""

from collections import Counter

import numpy as np
import pandas as pd
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import BatchAllTripletLoss
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from cellcohort.cells import CellTable
from cellcohort.sampling import BatchSampler, ConditionBalanced

rng = np.random.default_rng(0)
frame = pd.DataFrame({"text": rng.integers(0, 50, 640).astype(str), "label": rng.choice(3, 640, p=[0.8, 0.15, 0.05])})
words = {str(word): word for word in range(50)} | {"unknown": 50}
model = SentenceTransformer(modules=[StaticEmbedding(Tokenizer(WordLevel(words, "unknown")), embedding_dim=8)])


def balanced(dataset: Dataset, batch_size: int, seed: int = 0, **_: object) -> BatchSampler:
    cells = CellTable.from_frame(pd.DataFrame({"label": dataset["label"]}), experiment=None, condition="label")
    return BatchSampler(cells, axes={"labels": ConditionBalanced()}, batch_size=batch_size, seed=seed)


arguments = SentenceTransformerTrainingArguments(
    "trainer",
    num_train_epochs=1,
    per_device_train_batch_size=60,
    batch_sampler=balanced,
    report_to="none",
    save_strategy="no",
    use_cpu=True,
    disable_tqdm=True,
)
trainer = SentenceTransformerTrainer(
    model=model, args=arguments, train_dataset=Dataset.from_pandas(frame), loss=BatchAllTripletLoss(model)
)
print("labels:", sorted(Counter(next(iter(trainer.get_train_dataloader()))["label"].tolist()).items()))
trainer.train()
