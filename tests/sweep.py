"""Synthetic run directories: what training and evaluation leave behind, made in milliseconds."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from cellcohort.composition.log import CompositionLog
from cellcohort.runtime.resolvers import strategy

LABELS = {"experiment": ["a", "b"], "condition": ["dead", "alive"]}
AXES: dict[str, dict[str, Any]] = {
    "random": {},
    "experiment": {"experiment": {"_target_": "cellcohort.sampling.ExperimentAware", "leaky": 0.0, "weights": None}},
    "condition": {"condition": {"_target_": "cellcohort.sampling.ConditionBalanced", "ratio": None}},
    "temporal": {"temporal": {"_target_": "cellcohort.sampling.TemporallyEnriched", "window_hours": 2.0}},
}
CONFIG: dict[str, Any] = {
    "data": {"path": "cells", "seed": 0},
    "split": {"by": "track", "seed": 0},
    "batch_sampler": {"axes": {}, "batch_size": 8, "num_batches": None, "scope": "rank", "seed": 0},
    "validation_sampler": {"batch_size": 8, "seed": 0},
    "model": {"_target_": "cellcohort.models.MLP"},
    "trainer": {"max_epochs": 2},
    "callbacks": {"checkpoint": {"monitor": "val/loss"}},
    "logger": {},
    "seed": 0,
    "run_name": "",
    "version": "0.2.0",
}


def make_run(
    directory: Path,
    axes: Mapping[str, Any],
    seed: int,
    scores: Mapping[str, float],
    change: Callable[[dict[str, Any]], None] = lambda config: None,
    steps: int = 6,
    higher: Mapping[str, bool] | None = None,
    cells: int = 100,
    how: Mapping[str, Any] | None = None,
) -> Path:
    """A finished run with these scores, made as `how` says; `change` edits its config."""
    config = copy.deepcopy(CONFIG)
    config["batch_sampler"]["axes"] = copy.deepcopy(dict(axes))
    config["seed"] = config["data"]["seed"] = config["batch_sampler"]["seed"] = seed
    config["run_name"] = f"{strategy(axes)}-s{seed}"
    change(config)
    directory.mkdir(parents=True)
    (directory / "config.yaml").write_text(yaml.dump(config, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper)))
    write_composition(directory, steps, seed, cells)
    (directory / "metrics.csv").write_text(
        "epoch,step,train/loss,val/loss\n"
        + "".join(f"0,{s},{3 - s / 9},\n0,{s},,{3.1 - s / 9}\n" for s in range(steps))
    )
    rows = [
        {"representation": kind, "score": name, "value": value - drop, "n": 50, "note": ""}
        | {"higher_is_better": (higher or {}).get(name, True)}
        for name, value in scores.items()
        for kind, drop in (("model", 0.0), ("untrained", 0.2), ("features", 0.1))
    ]
    pd.DataFrame(rows).assign(**how or {}).to_csv(directory / "scores.csv", index=False)
    write_embeddings(directory, seed)
    (directory / "finished").write_text("d" * 64)
    return directory


def write_composition(directory: Path, steps: int, seed: int, cells: int = 100) -> None:
    rng = np.random.default_rng(seed)
    columns = {
        f"{column}/{kind}/{label}": 0.5 for column, labels in LABELS.items() for label in labels for kind in ("share",)
    }
    names = [
        *columns,
        "condition/asked/dead",
        "condition/asked/alive",
        "leak/asked",
        "leak/held",
        "duplicates",
        "shortfall",
    ]
    about = {"batch_size": 8, "world_size": 1, "cells": cells, "labels": LABELS, "axes": {}, "seed": seed}
    log = CompositionLog(directory, names, about)
    numbers = rng.uniform(0.4, 0.6, size=(steps, 2, len(names)))
    log.add(0, 0, list(range(steps)), [["a", "a"]] * steps, numbers)
    log.close()


def write_embeddings(directory: Path, seed: int, n: int = 60) -> None:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "experiment": rng.choice(["a", "b"], n),
            "condition": rng.choice(["dead", "alive"], n),
            "hours": rng.integers(0, 48, n) / 2,
            "part": rng.choice(["training", "validation"], n),
            "embedding": list(rng.normal(size=(n, 8)).astype(np.float32)),
        }
    )
    frame.to_parquet(directory / "embeddings.parquet")


MADE: dict[str, dict[Path, bytes]] = {}  # what files of a sweep hold, by how it was made


def make_sweep(place: Path, effects: Mapping[str, Mapping[str, float]], **options: Any) -> Path:
    """A sweep as of `new_sweep`, whose files are written again where another test had the same."""
    if "change" in options:  # a function, which does not tell what it does
        new_sweep(place, effects, **options)
        return place
    how = repr((effects, options))
    if how not in MADE:
        with tempfile.TemporaryDirectory() as folder:
            new_sweep(Path(folder), effects, **options)
            files = [file for file in Path(folder).rglob("*") if file.is_file()]
            MADE[how] = {file.relative_to(folder): file.read_bytes() for file in files}
    for name, content in MADE[how].items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
    return place


def new_sweep(
    place: Path,
    effects: Mapping[str, Mapping[str, float]],
    seeds: int = 5,
    noise: float = 0.01,
    key: int = 0,
    **options: Any,
) -> None:
    """``effects[strategy][score]`` is the mean of each score; seeds shift all strategies alike, noise each alone."""
    rng = np.random.default_rng(key)
    for seed in range(seeds):
        shift = rng.normal(scale=0.1)
        for name, means in effects.items():
            scores = {score: mean + shift + rng.normal(scale=noise) for score, mean in means.items()}
            make_run(place / f"{name}-s{seed}", AXES[name], seed, scores, **options)
