"""What a directory of runs holds: those that can be compared, and those that cannot, each with the reason."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from cellcohort.composition.log import read_about, read_composition
from cellcohort.evaluation.scores_file import how_scored, read_scores
from cellcohort.runtime.resolvers import BASELINES, strategy
from cellcohort.runtime.run_directory import FINISHED, finished
from cellcohort.runtime.stored_config import config_told, read_config

# neither what a run learns from nor how; "seed" is the pairing, "sampler" and "reading" are repeated elsewhere
PASSED_OVER = (
    *(
        "seed",
        "run_name",
        "split.fold",
        "resume",
        "continues",
        "recipe",
        "sweep",
        "logger",
        "sampler",
        "schedule",
        "reading",
        "loader.num_workers",
    ),
    *("callbacks.composition", "callbacks.last"),
    *("batch_sampler.axes", "batch_sampler.schedule", "batch_sampler.index_cache", "data.index_cache"),
    *("trainer.enable_progress_bar", "trainer.enable_model_summary", "trainer.log_every_n_steps"),
)
# options of every batch sampler; those of another library have their own beside these
OF_BATCHES = ("_convert_", "axes", "batch_size", "num_batches", "seed", "chunk_size", "preload_nchunks")
FIXED_SEEDS = ("validation_sampler", "evaluation")


@dataclass(frozen=True)
class FinishedRun:
    """One finished run with its scores.

    Attributes
    ----------
    directory : pathlib.Path
        The run directory.
    strategy : str
        The axes in alphabetical order, "random", or the sampler of another library.
    knobs : dict of str to object
        Options of the axes, as ``<axis>.<option>``, or of the sampler of another library.
    options : dict of str to object
        Everything else that the run's result depends on, except its seed: the options of the config, and
        "steps", "cells" and "labels", which are what the run did and had, and "evaluation" as it was scored.
    seed : int
        The seed of the training.
    split_seed : int
        The seed of the split.
    fold : int
        The fold that was held out, -1 where the split has no folds. Runs of different strategies are paired by both
        seeds and the fold.
    parts : tuple of pathlib.Path
        Directories of the whole training, the oldest first: the runs that this one continues, and its own.
    resume : str
        The checkpoint that it began with, or "".
    scores : pandas.DataFrame
        As ``scores.csv`` has them.
    """

    directory: Path
    strategy: str
    knobs: Mapping[str, Any]
    options: Mapping[str, Any]
    seed: int
    split_seed: int
    fold: int
    parts: tuple[Path, ...]
    resume: str
    scores: pd.DataFrame

    @property
    def split(self) -> tuple[int, int]:
        """The seed of the split and its fold: which cells were held out."""
        return self.split_seed, self.fold

    @property
    def pairing(self) -> tuple[int, int, int]:
        """The seed of the training, that of the split and its fold, by which runs are paired."""
        return self.seed, *self.split

    def composition(self) -> pd.DataFrame:
        """Read what every batch of the whole training held; of steps that two parts made, the later ones.

        Returns
        -------
        pandas.DataFrame
            As :func:`cellcohort.composition.log.read_composition` returns it.
        """
        rows = pd.DataFrame()
        for part in self.parts:
            own = read_composition(part)
            before = rows[rows["global_step"] < own["global_step"].min()] if len(rows) else rows
            rows = pd.concat([before, own], ignore_index=True)
        return rows

    @property
    def steps(self) -> int:
        """How many steps the optimizer made."""
        return int(self.options["steps"])


@dataclass(frozen=True)
class LeftOut:
    """A run that cannot be compared, and why.

    Attributes
    ----------
    directory : pathlib.Path
        The run directory.
    reason : str
        Why it cannot be compared, as a sentence.
    """

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
        below = sorted(file.parent for file in place.glob("*/config.yaml"))
        directories = [place] if (place / "config.yaml").is_file() else below
        if not directories:
            raise FileNotFoundError(
                f"{place} {'holds no run' if place.is_dir() else 'is not there'}: no config.yaml in it or one level "
                "below. Give the directory that a sweep printed as `sweep:`."
            )
        for directory in directories:
            try:
                runs.append(read_run(directory))
            except (OSError, ValueError) as error:
                left_out.append(LeftOut(directory, str(error)))
    return _without_continued(runs, left_out)


@contextmanager
def damage_told(path: Path) -> Iterator[None]:
    """Name a file that only pictures are drawn of, where it cannot be read.

    Raises
    ------
    ValueError
        The file, and that the comparison can do without it.
    """
    try:
        yield
    except (ValueError, KeyError, TypeError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the disk; that of pyarrow has no number
            raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"{path} is damaged: {reason}. Restore it from a copy, or remove it: the report then lacks its pictures."
        ) from error


def read_run(directory: Path) -> FinishedRun:
    """Read one run.

    Raises
    ------
    ValueError, OSError
        What is missing or wrong, and what to do.
    """
    config = read_config(directory, ("batch_sampler",))
    if not finished(directory):
        if (directory / FINISHED).is_file():
            raise ValueError(f"its file {FINISHED} is damaged; copy the run again, or start its sweep again")
        raise ValueError("did not finish; start its sweep again, which runs only what is not finished")
    scores = read_scores(directory)
    scored = how_scored(scores)
    with config_told(directory):
        sampling = config["batch_sampler"]
        split = config.get("split") or {}
        return FinishedRun(
            directory,
            strategy(sampling["axes"] or {}, str(sampling.get("_target_", ""))),
            _knobs(sampling),
            _options(config, scored["evaluation.checkpoint"]) | _facts(directory) | scored,
            int(config["seed"]),
            int(split.get("seed") or 0),
            -1 if split.get("fold") is None else int(split["fold"]),
            _parts(directory, config),
            str(config.get("resume") or ""),
            scores,
        )


def _parts(directory: Path, config: Mapping[str, Any]) -> tuple[Path, ...]:
    """Return the directories of the runs that a run continues, as far as they are there, and its own."""
    parts = [directory]
    while resume := config.get("resume"):
        before = Path(resume).absolute().parents[1]  # of <run>/checkpoints/<name>.ckpt
        found = [place for place in (before, parts[0].parent / before.name) if (place / "config.yaml").is_file()]
        if not found or found[0].resolve() in [part.resolve() for part in parts]:
            break
        try:
            read_about(found[0])
        except (OSError, ValueError):  # it logged no composition
            break
        parts.insert(0, found[0])
        config = read_config(found[0], ("batch_sampler",))
    return tuple(parts)


def _without_continued(runs: list[FinishedRun], left_out: list[LeftOut]) -> tuple[list[FinishedRun], list[LeftOut]]:
    """Take a run that another one continues as a part of that one."""
    later = {part.resolve(): run.directory for run in runs for part in run.parts[:-1]}
    there = [run.directory for run in runs] + [each.directory for each in left_out]
    given = [place for place in there if place.resolve() in later]
    own = [LeftOut(place, f"{later[place.resolve()].name} continues it and counts for both") for place in given]
    others = [each for each in left_out if each.directory not in given]
    return [run for run in runs if run.directory not in given], others + own


def continued(runs: Iterable[FinishedRun]) -> list[str]:
    """Describe each run that continues another: what was counted of both.

    Parameters
    ----------
    runs : iterable of FinishedRun
        Runs that are compared.

    Returns
    -------
    list of str
        One sentence per run.
    """
    said = []
    for run in runs:
        if len(run.parts) > 1:
            before = " and ".join(part.name for part in run.parts[:-1])
            said.append(f"{run.directory.name} continues {before}: the batches of both are counted as one training.")
        elif run.resume:
            said.append(
                f"{run.directory.name} continues {run.resume}, whose run directory is not there: what its batches held "
                "is known of the rest of the training only."
            )
    return said


def _facts(directory: Path) -> dict[str, Any]:
    about = read_about(directory)
    steps = int(read_composition(directory)["global_step"].max()) + 1
    batch = about["batch_size"] * about["world_size"]
    return {"steps": steps, "cells per step": batch, "cells": about["cells"], "labels": about["labels"]}


def _knobs(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the axes, or those of the sampler of another library that are its own."""
    if not _is_baseline(sampling):
        schedule = {f"schedule.{key}": str(values) for key, values in (sampling.get("schedule") or {}).items()}
        return _flat(sampling["axes"] or {}) | schedule
    return _flat(
        {"batch_sampler": {key: value for key, value in sampling.items() if key not in (*OF_BATCHES, "_target_")}}
    )


def _is_baseline(sampling: Mapping[str, Any]) -> bool:
    return str(sampling.get("_target_", "")).startswith(BASELINES)


def _options(config: Mapping[str, Any], scored: str) -> dict[str, Any]:
    sampling = config["batch_sampler"]
    if _is_baseline(sampling):  # what it shares with the sampler in whose place it stands, to be compared with that
        shared = {key: sampling[key] for key in OF_BATCHES if key in sampling}
        of_reading = {"_target_": (config.get("reading") or {}).get("batch_sampler"), "scope": "rank"}
        config = {**config, "batch_sampler": {**shared, **of_reading}}
    flat = _flat(config)
    # the last checkpoint is the end of the run, whichever others were kept
    passed_over = PASSED_OVER if scored != "last" else (*PASSED_OVER, "callbacks.checkpoint")
    return {
        key: value
        for key, value in flat.items()
        if not any(key == name or key.startswith(f"{name}.") for name in passed_over)
        and not (key.startswith("evaluation.") and key.endswith(("._target_", "._convert_")))
        and not (key.endswith(".seed") and key.split(".")[0] not in FIXED_SEEDS)
    }


def _flat(node: Any, path: str = "") -> dict[str, Any]:
    """Return the leaves of nested mappings, by their dotted path."""
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


def counted(runs: Iterable[FinishedRun]) -> list[str]:
    """Return the scores that count, as all runs named them before they were trained (``evaluation.scores``).

    Parameters
    ----------
    runs : iterable of FinishedRun
        Runs that are compared.

    Returns
    -------
    list of str
        Empty where a run named none, or they named others.
    """
    named = {str(run.options.get("evaluation.scores") or "") for run in runs}
    return [name for name in named.pop().split(",") if name] if len(named) == 1 else []
