"""Draw one batch of a small table under three strategies."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from cellcohort.cells import CellTable
from cellcohort.sampling import BatchSampler, ConditionBalanced, ExperimentAware, TemporallyEnriched

EXPERIMENTS = {"plate A": "#0072B2", "plate B": "#E69F00", "plate C": "#009E73"}  # colours of Okabe and Ito (2008)
CONDITIONS = {"mock": 0.6, "treated": 0.34, "rare": 0.06}  # the share of each in the table

rng = np.random.default_rng(0)
n = 3000
frame = pd.DataFrame(
    {
        "experiment": rng.choice(list(EXPERIMENTS), n),
        "condition": rng.choice(list(CONDITIONS), n, p=list(CONDITIONS.values())),
        "hours": rng.integers(0, 97, n) / 2,
    }
)
cells = CellTable.from_frame(frame, hours="hours")
experiment = {"experiment": ExperimentAware()}
strategies = {
    "random": {},
    "experiment_aware": experiment,
    "experiment_aware, condition, temporal": {
        **experiment,
        "condition": ConditionBalanced(),
        "temporal": TemporallyEnriched(window_hours=2.0, global_fraction=0.3),
    },
}

height = frame["condition"].map(list(CONDITIONS).index) + rng.uniform(-0.35, 0.35, n)
figure = Figure(figsize=(10, 3), layout="constrained")
panels = figure.subplots(1, 3, sharex=True, sharey=True)
for panel, (name, axes) in zip(panels, strategies.items(), strict=True):
    rows = BatchSampler(cells, axes=axes, batch_size=96, seed=0).batch(epoch=0, step=2)
    held = frame.iloc[rows]
    panel.scatter(frame["hours"], height, s=1, color="0.88")
    panel.scatter(held["hours"], height.iloc[rows], s=14, color=held["experiment"].map(EXPERIMENTS))
    panel.set_title(name, fontsize=10)
    panel.set_xlabel("hours")
    for place, condition in enumerate(CONDITIONS):
        count = (held["condition"] == condition).sum()
        panel.text(49.5, place, count, va="center", fontsize=9, color="0.3")
panels[0].set_yticks(range(len(CONDITIONS)), list(CONDITIONS))
panels[0].set_xlim(-1, 55)
for name, colour in EXPERIMENTS.items():
    panels[0].scatter([], [], s=14, color=colour, label=name)
figure.legend(loc="outside lower center", ncols=3, fontsize=9, frameon=False)

figure.savefig("batches.png", dpi=100)
print("batches.png")
