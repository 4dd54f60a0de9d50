"""What the batches of each arm held against what was asked, in a few numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from cellcohort.comparison.table import Arm

COUNTED = {  # composition column -> what a reader calls it
    "experiment/present": "experiments in a batch",
    "experiment/effective_labels": "effective experiments in a batch",
    "same_track_pairs": "pairs of one track in a batch",
    "duplicates": "repeated cells in a batch",
    "shortfall": "cells asked and not given, a batch",
    "coverage": "share of all cells drawn in the last epoch",
}


def held(arms: Sequence[Arm]) -> pd.DataFrame:
    """Summarise the batches of every rank and seed.

    Returns
    -------
    pandas.DataFrame
        One row per arm and quantity: "strategy", "quantity", "asked" (NaN where nothing was), "held"
        (the mean over batches), "least" and "most" (of any batch). Shares lie between 0 and 1. A run has one
        coverage, so that this is the mean over runs, and the least and the most of any run.
    """
    rows: list[tuple[str, str, float, float, float, float]] = []
    for arm in arms:
        parts = [run.composition().assign(run=number) for number, run in enumerate(arm.runs.values())]
        batches = pd.concat(parts, ignore_index=True)
        apart = batches[batches["rank"] >= 0]
        rows += [(arm.name, *row) for row in _quantities(apart, batches[batches["rank"] < 0])]
    return pd.DataFrame(rows, columns=["strategy", "quantity", "asked", "held", "least", "most"])


def _quantities(batches: pd.DataFrame, union: pd.DataFrame) -> list[tuple[str, float, float, float, float]]:
    rows: list[tuple[str, float, float, float, float]] = []
    names = [str(name) for name in batches if "/share/" in str(name)]
    shares = [name for name in names if name.startswith("experiment/share/")]
    of_each = batches[[str(name) for name in batches if str(name).startswith("experiment/asked/")]]
    if shares:
        largest = float(of_each.max(axis=1).mean())  # NaN where no axis asks anything of experiments
        rows.append(("share of the largest experiment", largest, *_range(batches[shares].max(axis=1))))
    for column, title in (("leak", "share of other experiments (leak)"), ("window", "share in the time window")):
        if f"{column}/held" in batches:
            rows.append((title, float(batches[f"{column}/asked"].mean()), *_range(batches[f"{column}/held"])))
    for name in (name for name in names if name not in shares):
        asked = batches.get(name.replace("/share/", "/asked/"))
        title = f"share of {name.replace('/share/', ' ')}"
        rows.append((title, np.nan if asked is None else float(asked.mean()), *_range(batches[name])))
    for name, title in COUNTED.items():
        source = union if name == "coverage" else batches
        if name not in source or not source[name].notna().any():
            continue
        values = source[name]
        if name == "coverage":  # it grows from batch to batch of an epoch: one value for each run
            last = union["epoch"] == union.groupby("run")["epoch"].transform("max")
            values = union[last].groupby("run")[name].max()
        alone = name == "experiment/present" and "leak/asked" in batches and not batches["leak/asked"].any()
        experiments = float((of_each > 0).sum(axis=1).mean()) if alone else np.nan
        rows.append((title, experiments, *_range(values)))
    return rows


def _range(values: pd.Series) -> tuple[float, float, float]:
    return float(values.mean()), float(values.min()), float(values.max())
