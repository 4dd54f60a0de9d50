# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # A million cells in chunks
#
# Expression profiles that need not fit into memory: AnnData files are written once more, in an order in which batches
# can be read in runs of rows, and training reads some chunks at a time. `CELLS` is the number of cells.

# %%
import os
import time
import warnings
from pathlib import Path

import anndata
import lightning
import numpy as np
import pandas as pd
from scipy import sparse

from cellcohort.data.anndata import AnnData
from cellcohort.datasets.split import split
from cellcohort.loading.chunks import make_chunked_loader
from cellcohort.module import ContrastiveModule
from cellcohort.preparation import prepare
from cellcohort.preview import cover, findings, report, survey
from cellcohort.sampling import ChunkedBatchSampler, ConditionBalanced, ExperimentAware
from cellcohort.sources.anndata import AnnDataFiles

CELLS = int(os.environ.get("CELLS", "1_000_000"))
STEPS = int(os.environ.get("STEPS", "200"))  # of training
PLATES, GENES, BATCH = 4, 50, 256
warnings.filterwarnings("ignore", module="anndata|zarr|lightning")

# %% [markdown]
# ## Files
#
# Counts of 50 genes on four plates, one file each. Your files need the same genes, and columns in `obs` that name
# plate and treatment.

# %%
rng = np.random.default_rng(0)
drugs = ["DMSO", "drug_a", "drug_b"]
programs = np.exp(rng.normal(0, 0.5, (len(drugs), GENES)))
files = Path("plates")
files.mkdir(exist_ok=True)
for plate in range(1, PLATES + 1):
    drug = rng.choice(len(drugs), CELLS // PLATES, p=[0.7, 0.2, 0.1])
    mean = np.exp(rng.normal(-1, 0.5, GENES))  # of the plate
    counts = sparse.vstack(
        [
            sparse.csr_matrix(rng.poisson(mean * programs[part]), dtype=np.float32)
            for part in np.array_split(drug, -(-len(drug) // 50_000))
        ],
        format="csr",
    )
    obs = pd.DataFrame({"plate": f"plate_{plate}", "drug": pd.Categorical.from_codes(drug, drugs)})
    obs.index = [f"plate_{plate}_{i}" for i in range(len(obs))]
    genes = pd.DataFrame(index=[f"gene_{i}" for i in range(GENES)])
    anndata.AnnData(counts, obs, genes).write_h5ad(files / f"plate_{plate}.h5ad")

# %% [markdown]
# ## A store
#
# `group_by` names the columns that axes will look at: cells of one plate and one drug then lie side by side, in
# random order, in chunks of 64. A preparation that is stopped goes on when it is started again.

# %%
begin = time.perf_counter()
store = prepare(AnnDataFiles("plates/*.h5ad"), "cells.zarr", group_by=["plate", "drug"])
print(f"{len(store):,} cells in chunks of {store.chunk_rows}, {time.perf_counter() - begin:.1f} s")

# %% [markdown]
# ## What batches would hold, and what reading them costs
#
# Labels are in memory, a few bytes for each cell; profiles are not. Without tracks, cells for validation are whole
# chunks.

# %%
data = AnnData("cells.zarr", {"experiment": "plate", "condition": "drug"}).dataset()
training, validation = split(data)
axes = {"experiment": ExperimentAware(leaky=0.1), "condition": ConditionBalanced()}
sampler = ChunkedBatchSampler(training.cells, axes, batch_size=BATCH)
measured = survey(sampler, batches=200, limit=min(200, len(sampler)))
print(report(measured, findings(measured), cover(sampler)))
print(f"rows read for each row used: {measured.reading.amplification:.2f}")

# %% [markdown]
# Batches are as exact as those that are read row by row. Only which cells of a stratum come together differs: batches
# that follow each other come from the chunks that are in memory together.

# %%
frame = pd.DataFrame(
    [training.cells.column("experiment").labels[code] for code in training.cells.column("experiment").codes],
    columns=["plate"],
)
frame["drug"] = [training.cells.column("condition").labels[code] for code in training.cells.column("condition").codes]
for step in range(3):
    held = frame.iloc[sampler.batch(epoch=0, step=step)]
    print(held["plate"].value_counts().to_dict(), held["drug"].value_counts().to_dict())

# %% [markdown]
# ## Training
#
# The loader reads the next chunks while the model uses these. Its speed without a model:

# %%
loader = make_chunked_loader(training, sampler)
begin, rows = time.perf_counter(), 0
for step, batch in enumerate(loader):
    rows += len(batch["anchor"])
    if step + 1 >= STEPS:
        break
print(f"{rows / (time.perf_counter() - begin):,.0f} rows per second")

# %%
module = ContrastiveModule(training.shape, views=training.views)
module.standardise(*training.statistics())
trainer = lightning.Trainer(
    max_steps=STEPS,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    use_distributed_sampler=False,
)
trainer.fit(module, make_chunked_loader(training, ChunkedBatchSampler(training.cells, axes, batch_size=BATCH)))
print(f"{trainer.global_step} steps, last loss {float(trainer.callback_metrics['train/loss']):.3f}")

# %% [markdown]
# The same as commands, with scores at the end, is in "AnnData files, and data larger than memory".
