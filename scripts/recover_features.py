"""How well the nearest neighbours in published features are recovered by a run's embedding.

    uv run python scripts/recover_features.py <run> <features.parquet> --on track_id=CellID FrameID=FrameID

The features are of the same cells: `--on` says which columns of the run's cells are which of the table.
All other columns of numbers are features, save those that `--without` names. The untrained encoder of
the same config and seed stands beside it, and neighbours among all cells beside those of other tracks only.
"""

from __future__ import annotations

import argparse

import numpy as np
import pandas as pd
import torch

from cellcohort.evaluation import load_run
from cellcohort.evaluation.embed import represented, untrained
from cellcohort.evaluation.neighbours import knn_recovery


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("features")
    parser.add_argument("--on", nargs="+", required=True, metavar="COLUMN=FEATURE_COLUMN")
    parser.add_argument("--without", nargs="*", default=[], help="columns that are no features")
    parser.add_argument("--k", type=int, default=15)
    parser.add_argument("--checkpoint", default="last")
    arguments = parser.parse_args()
    run = load_run(arguments.run, arguments.checkpoint)
    cells = run.training.every_cell()
    keys = dict(pair.split("=", 1) for pair in arguments.on)
    published = pd.read_parquet(arguments.features)
    names = published.select_dtypes("number").columns.difference([*keys.values(), *arguments.without], sort=False)
    columns = {key: cells.cells.column(key) for key in keys}
    wanted = pd.DataFrame({keys[key]: np.array(c.labels)[c.codes] for key, c in columns.items()})
    joined = wanted.reset_index().merge(published, on=list(keys.values()), validate="one_to_one")
    encoders = {"model": run.module.eval(), "untrained": untrained(run.module).eval()}
    made = represented(cells, joined["index"].to_numpy(), encoders, torch.device("cpu"))
    print(f"{len(joined)} of {len(cells)} cells are in the table, with {len(names)} features; k={arguments.k}")
    for among, groups in (("all cells", None), ("cells of other tracks", cells.cells.column("track").codes)):
        for name, embedding in made.items():
            of = None if groups is None else groups[joined["index"]]
            share, chance = knn_recovery(embedding, joined[names].to_numpy(), arguments.k, of)
            print(f"  among {among:22} {name:10} {share:6.1%} of the neighbours (chance {chance:.1%})")


if __name__ == "__main__":
    main()
