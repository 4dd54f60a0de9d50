# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # From a table to a decision
#
# A table of tracked cells, what batches of it would hold, and whether a strategy changes what the embedding shows.
# The same steps as commands are in "Bring your data".

# %%
import os
import warnings
from pathlib import Path

import lightning
import pandas as pd

from cellcohort.comparison.statistics import estimate
from cellcohort.data.demo import simulate
from cellcohort.data.tracks import Tracks
from cellcohort.datasets.split import split
from cellcohort.evaluation import Evaluation
from cellcohort.loading.rows import make_loader
from cellcohort.module import ContrastiveModule
from cellcohort.preview import cover, findings, report, survey
from cellcohort.sampling import BatchSampler, ConditionBalanced, ExperimentAware

FOUNDERS = int(os.environ.get("FOUNDERS", "130"))  # families of cells in each experiment; 130 make 60,000 rows
EPOCHS = int(os.environ.get("EPOCHS", "4"))
BATCHES = int(os.environ.get("BATCHES", "60"))  # in an epoch
SCORED = int(os.environ.get("SCORED", "4000"))  # cells to take for scores
SEEDS = range(int(os.environ.get("SEEDS", "3")))

# %% [markdown]
# ## The table
#
# One row per cell and frame. This one is simulated; name your own file and columns instead.

# %%
table, _ = simulate(founders=FOUNDERS)
path = Path("tracks.parquet")
table.to_parquet(path)
print(table.iloc[:3, :8])
print(table.groupby(["experiment", "condition"]).size().unstack())

# %%
columns = {
    "experiment": "experiment",
    "condition": "condition",
    "time": "t",
    "track": "track_id",
    "lineage": "lineage_id",
    "features": ["area", "perimeter", "er_intensity", "mito_intensity", "texture_contrast", "speed", "neighbours"],
}
data = Tracks(path, columns, interval_minutes=30).dataset()
training, validation = split(data)
print(f"{len(training):,} cells to train on, {len(validation):,} held out, inputs of shape {training.shape}")

# %% [markdown]
# ## What batches would hold
#
# Two strategies: cells at random, and batches of one experiment with equal shares of its conditions. The preview
# describes what is asked, what comes of it, and what cannot be met.

# %%
strategies = {
    "random": {},
    "experiment and condition": {"experiment": ExperimentAware(), "condition": ConditionBalanced()},
}


def sampler_of(axes, seed=0):
    return BatchSampler(training.cells, axes=axes, batch_size=64, seed=seed, num_batches=BATCHES)


for name, axes in strategies.items():
    measured = survey(sampler_of(axes), batches=BATCHES)
    print(f"\n## {name}\n\n{report(measured, findings(measured), cover(measured.sampler))}")

# %% [markdown]
# ## Train and score
#
# Every strategy has the same budget, the same split and the same seeds, and is scored on the cells that were held
# out.


# %%
def scores_of(axes, seed):
    sampler = sampler_of(axes, seed)
    module = ContrastiveModule(training.shape, seed=seed, views=training.views)
    module.standardise(*training.statistics())
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    trainer.fit(module, make_loader(training, sampler))
    scores = Evaluation(max_cells=SCORED, permutations=19)(module, training, validation).scores
    return scores[scores["representation"] == "model"].set_index("score")["value"]


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Lightning's advice on workers, and on a loop without validation
    scores = pd.DataFrame(
        {(name, seed): scores_of(axes, seed) for name, axes in strategies.items() for seed in SEEDS}
    ).T

# %% [markdown]
# ## The decision
#
# The scores that count are named before one looks: the accuracy of the condition in an experiment that the probe has
# not seen, and the error of the time. Runs of one seed are a pair, and the interval is that of their differences.
# Where it covers 0, the two cannot be told apart with so many seeds. Seeds of one split tell of the noise of training
# and not of other data: before you decide on more than these cells, vary the split too (`split(data, seed=...)`).

# %%
for score in ("condition_probe_across", "hours_mae_across"):
    difference = scores.loc["experiment and condition", score] - scores.loc["random", score]
    found = estimate(difference)
    print(
        f"{score}: random {scores.loc['random', score].mean():.3f}, difference {found.mean:+.3f}, "
        f"95 % interval {found.low:+.3f} to {found.high:+.3f} (n = {found.n})"
    )
