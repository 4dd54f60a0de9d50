"""What a directory of runs holds: those that can be compared, and those that cannot, each with the reason."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from cellcohort.composition.log import read_about, read_composition
from cellcohort.evaluation.scores_file import how_scored, read_scores
from cellcohort.runtime.run import FINISHED, strategy

# neither what a run learns from nor how; "seed" is the pairing, "sampler" and "reading" are repeated elsewhere
PASSED_OVER = (
    *("seed", "run_name", "resume", "recipe", "sweep", "logger", "sampler", "reading", "loader.num_workers"),
    *("callbacks.composition", "callbacks.last"),
    "evaluation._target_",
    *("batch_sampler.axes", "trainer.enable_progress_bar", "trainer.enable_model_summary", "trainer.log_every_n_steps"),
)
FIXED_SEEDS = ("split", "validation_sampler", "evaluation")


@dataclass(frozen=True)
class FinishedRun:
    """One finished run with its scores.

    Attributes
    ----------
    directory : pathlib.Path
        The run directory.
    strategy : str
        The axes in alphabetical order, or "random".
    knobs : dict of str to object
        Options of the axes, as ``<axis>.<option>``.
    options : dict of str to object
        Everything else that the run's result depends on, except its seed: the options of the config, and
        "steps", "cells" and "labels", which are what the run did and had, and "evaluation" as it was scored.
    seed : int
        The seed, by which runs of different strategies are paired.
    scores : pandas.DataFrame
        As ``scores.csv`` has them.
    """

    directory: Path
    strategy: str
    knobs: Mapping[str, Any]
    options: Mapping[str, Any]
    seed: int
    scores: pd.DataFrame

    @property
    def steps(self) -> int:
        """How many steps the optimizer made."""
        return int(self.options["steps"])


@dataclass(frozen=True)
class LeftOut:
    """A run that cannot be compared, and why."""

    directory: Path
    reason: str


def read_runs(places: Iterable[str | os.PathLike[str]]) -> tuple[list[FinishedRun], list[LeftOut]]:
    """Read the runs of sweeps.

    Parameters
    ----------
    places : iterable of path
        Sweep directories, whose subdirectories are runs, or run directories.

    Returns
    -------
    runs : list of FinishedRun
        In the order of their directories.
    left_out : list of LeftOut
        Runs that did not finish, have no scores or cannot be read.

    Raises
    ------
    FileNotFoundError
        A directory is not there or holds no run.
    """
    runs: list[FinishedRun] = []
    left_out: list[LeftOut] = []
    for place in map(Path, places):
        directories = [place] if (place / "config.yaml").exists() else sorted(place.glob("*/config.yaml"))
        if not directories:
            raise FileNotFoundError(
                f"{place} {'holds no run' if place.is_dir() else 'is not there'}: no config.yaml in it or one level "
                "below. Give the directory that a sweep printed as `sweep:`."
            )
        for directory in (path if path.is_dir() else path.parent for path in directories):
            try:
                runs.append(read_run(directory))
            except (OSError, ValueError, KeyError, yaml.YAMLError) as error:
                left_out.append(LeftOut(directory, str(error)))
    return runs, left_out


def read_run(directory: Path) -> FinishedRun:
    """Read one run.

    Raises
    ------
    ValueError, OSError
        What is missing or wrong, and what to do.
    """
    config = yaml.safe_load((directory / "config.yaml").read_text(encoding="utf-8"))
    if not isinstance(config, dict) or "batch_sampler" not in config:
        raise ValueError("config.yaml is no config of a training run")
    if not (directory / FINISHED).exists():
        raise ValueError("did not finish; start its sweep again, which runs only what is not finished")
    scores = read_scores(directory)
    scored = how_scored(scores)
    return FinishedRun(
        directory,
        strategy(config["batch_sampler"]["axes"] or {}),
        _flat(config["batch_sampler"]["axes"] or {}),
        _options(config, scored["evaluation.checkpoint"]) | _facts(directory) | scored,
        int(config["seed"]),
        scores,
    )


def _facts(directory: Path) -> dict[str, Any]:
    about = read_about(directory)
    steps = int(read_composition(directory)["global_step"].max()) + 1
    batch = about["batch_size"] * about["world_size"]
    return {"steps": steps, "cells per step": batch, "cells": about["cells"], "labels": about["labels"]}


def _options(config: Mapping[str, Any], scored: str) -> dict[str, Any]:
    flat = _flat(config)
    # the last checkpoint is the end of the run, whichever others were kept
    passed_over = PASSED_OVER if scored != "last" else (*PASSED_OVER, "callbacks.checkpoint")
    return {
        key: value
        for key, value in flat.items()
        if not any(key == name or key.startswith(f"{name}.") for name in passed_over)
        and not (key.endswith(".seed") and key.split(".")[0] not in FIXED_SEEDS)
    }


def _flat(node: Any, path: str = "") -> dict[str, Any]:
    """The leaves of nested mappings, by their dotted path."""
    if not isinstance(node, Mapping):
        return {path: node}
    leaves: dict[str, Any] = {}
    for key, value in node.items():
        leaves |= _flat(value, f"{path}.{key}" if path else str(key))
    return leaves


def differing(mappings: Iterable[Mapping[str, Any]]) -> list[str]:
    """Keys whose values are not the same in all mappings, a key that is absent counting as None."""
    every = list(mappings)
    keys = dict.fromkeys(key for mapping in every for key in mapping)
    return [key for key in keys if any(not _same(mapping.get(key), every[0].get(key)) for mapping in every)]


def _same(one: Any, other: Any) -> bool:
    return bool(one == other) or (one != one and other != other)  # NaN is like NaN
