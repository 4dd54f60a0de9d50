"""Finished runs as one table: every score of every strategy, with its uncertainty and against a reference."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from cellcohort.comparison.runs import FinishedRun, differing
from cellcohort.comparison.statistics import LEVEL, Estimate, estimate, holm
from cellcohort.evaluation.scores_file import P_VALUES, score_range

REFERENCE = "random"
BASELINES = ("untrained", "features")
BUDGET = ("steps", "cells per step", "trainer", "batch_sampler", "version")
DATA = ("cells", "labels", "data", "split", "evaluation")  # what is learned from and scored
OF_SPLIT = ("cells", "labels", "steps", "validation_sampler.seed")  # differ between splits though runs belong together
MOST_NOTES = 3  # that are repeated in full
PAIRING = ["seed", "split", "fold"]
UNCOMPARED = {
    **{"reference": "", "pairs": 0, "verdict": "", "difference": np.nan, "p": np.nan},
    **{"difference_low": np.nan, "difference_high": np.nan},
}
BETTER, WORSE, OPEN, UNTESTABLE = "better", "worse", "not told apart", "not tested"
IS_P = "each value is the p-value of a test already: no difference is tested"


@dataclass(frozen=True)
class Arm:
    """Runs that differ in their seeds and their fold alone.

    Attributes
    ----------
    name : str
        The strategy and whatever tells this arm from others of the comparison, such as ``experiment leaky=0.1``.
    strategy : str
        The strategy alone.
    knobs, others : dict of str to object
        Options of its axes, and other options, in which runs of the comparison differ.
    runs : dict of tuple of int to FinishedRun
        By the seeds of their training and of their split, and by their fold.
    """

    name: str
    strategy: str
    knobs: Mapping[str, Any]
    others: Mapping[str, Any]
    runs: Mapping[tuple[int, int, int], FinishedRun]

    @property
    def steps(self) -> int:
        """Steps of the optimizer that each run made."""
        return next(iter(self.runs.values())).steps


def arms_of(runs: Sequence[FinishedRun], allow_different: bool = False) -> list[Arm]:
    """Sort runs into arms, the reference first, and make sure that comparing them is fair.

    Parameters
    ----------
    runs : sequence of FinishedRun
        Finished runs.
    allow_different : bool
        Take runs of different data, scoring, budget or version. What differs is then part of an arm's name.

    Returns
    -------
    list of Arm

    Raises
    ------
    ValueError
        Runs differ in data, scoring, budget or version and that was not allowed; an arm has two runs of one seed;
        or there is no run.
    """
    if not runs:
        raise ValueError("there is no finished run with scores to compare.")
    different = _differing(runs)
    unfair = [key for key in different if _of(key, BUDGET) or _of(key, DATA)]
    if unfair and not allow_different:
        raise ValueError(
            "the runs differ in data, scoring, budget or version, so that their scores do not tell strategies apart: "
            f"{_spell(runs, unfair)}. Give only runs that belong together, or say --allow-different: then what "
            "differs stands in the table, and only runs that are alike in it are compared."
        )
    knobs = {
        name: differing([run.knobs for run in runs if run.strategy == name])
        for name in dict.fromkeys(run.strategy for run in runs)
    }
    arms: dict[str, Arm] = {}
    for run in runs:
        own = {key.split(".", 1)[1]: run.knobs.get(key) for key in knobs[run.strategy]}
        others = {key: run.options.get(key) for key in different}
        name = " ".join(filter(None, [run.strategy, _tell(own), _tell(others)]))
        arm = arms.setdefault(name, Arm(name, run.strategy, own, others, {}))
        if run.pairing in arm.runs:
            fold = f" and fold {run.fold}" if run.fold >= 0 else ""
            raise ValueError(
                f"{arm.runs[run.pairing].directory} and {run.directory} are both {name} with seed {run.seed}{fold}; "
                "a seed counts once: leave one out."
            )
        arm.runs[run.pairing] = run  # type: ignore[index]
    order = list(arms)
    return sorted(arms.values(), key=lambda arm: (arm.strategy != REFERENCE, order.index(arm.name)))


def _differing(runs: Sequence[FinishedRun]) -> list[str]:
    """Options in which runs differ, without those of `OF_SPLIT` that are alike within each split."""
    splits = {run.split for run in runs}
    within = [key for split in splits for key in differing([run.options for run in runs if run.split == split])]
    every = differing([run.options for run in runs])
    return [key for key in every if key not in OF_SPLIT or key in within]


def compare(arms: Sequence[Arm], reference: str = REFERENCE, scores: Sequence[str] | None = None) -> pd.DataFrame:
    """Every score of every arm over its seeds, and its difference from the reference, seed by seed.

    Where runs hold out folds, values and differences are averaged over the seeds of each fold, and intervals and
    tests are over folds: the seeds of one fold say nothing of other held-out data.

    The family over which p-values are corrected is the whole table: every score of every strategy
    that is tested. Naming the scores that count beforehand makes it smaller and its tests stronger.
    Scores that are p-values themselves are not tested.

    Parameters
    ----------
    arms : sequence of Arm
        From :func:`arms_of`.
    reference : str
        Strategy or name of the arm that others are compared with; of several, the one that is alike
        in all but the strategy.
    scores : sequence of str, optional
        Names of the scores; by default all.

    Returns
    -------
    pandas.DataFrame
        One row per score and arm, and per baseline: "score", "higher_is_better", "strategy",
        "representation" ("model", "untrained", "features"), "reference" (the strategy that it is
        compared with, which may be itself, or ""), "unit" ("seed" or "fold"),
        "n" (how many of these; 0 for features that are the same for all), "mean", "low", "high", "pairs" (seeds
        or folds that the reference has as well), "difference", "difference_low", "difference_high", "p",
        "p_holm", "verdict" ("better", "worse", "not told apart"; "not tested" for scores that cannot
        be, or have too few seeds; "" for what is not compared), "steps" and "note". Intervals hold each
        by itself, at 95 %.

    Raises
    ------
    ValueError
        A score is not there; or the reference is not, and is another than "random".
    """
    names = [name for arm in arms for name in (arm.strategy, arm.name)]
    if reference not in (REFERENCE, *names):
        raise ValueError(f"there is no strategy {reference!r}; there are: {', '.join(dict.fromkeys(names))}.")
    values = pd.concat([_values(arm) for arm in arms], ignore_index=True)
    there = list(dict.fromkeys(values["score"]))
    strange = [name for name in scores or () if name not in there]
    if strange:
        raise ValueError(f"no run has the score {', '.join(strange)}; there are: {', '.join(there)}.")
    rows: list[dict[str, Any]] = []
    for score in scores or there:
        of_score = values[values["score"] == score]
        by_arm = {arm.name: _by_seed(of_score, arm.name, "model") for arm in arms}
        for arm in arms:
            beside = reference_of(arm, arms, reference)
            row = _row(score, of_score, arm, by_arm[arm.name])
            rows.append(row | _against(beside, arm, by_arm, score in P_VALUES))
        rows += [row for name in BASELINES for row in _baseline(score, of_score, arms, name)]
    table = pd.DataFrame(rows)
    table["p_holm"] = holm(table["p"])
    gain = table["difference"] * np.where(table["higher_is_better"], 1, -1)
    called = np.where(table["p_holm"] <= 1 - LEVEL, np.where(gain > 0, BETTER, WORSE), OPEN)
    untested = np.where(table["difference"].notna(), UNTESTABLE, table["verdict"])
    table["verdict"] = np.where(table["p_holm"].notna(), called, untested)
    table["unit"] = "fold" if (values["fold"] >= 0).any() else "seed"
    columns = ["score", "higher_is_better", "strategy", "representation", "reference", "unit"]
    columns += ["n", "mean", "low", "high"]
    columns += ["pairs", "difference", "difference_low", "difference_high", "p", "p_holm", "verdict", "steps", "note"]
    return table[columns]


def reference_of(arm: Arm, arms: Sequence[Arm], reference: str) -> Arm | None:
    """Return the arm to compare `arm` with: the only one of that strategy or name with the same other options."""
    alike = [other for other in arms if reference in (other.strategy, other.name) and other.others == arm.others]
    return alike[0] if len(alike) == 1 else None


def rows_of(table: pd.DataFrame) -> list[Any]:
    """Return the rows of a table, with its columns as attributes."""
    return list(table.itertuples())


def _values(arm: Arm) -> pd.DataFrame:
    own = arm.runs.values()
    parts = [run.scores.assign(seed=run.seed, split=run.split_seed, fold=run.fold, arm=arm.name) for run in own]
    return pd.concat(parts, ignore_index=True)


def _by_seed(values: pd.DataFrame, arm: str, representation: str) -> pd.Series:
    own = values[(values["arm"] == arm) & (values["representation"] == representation)]
    return own.groupby(PAIRING)["value"].first()


def _by_unit(values: pd.Series) -> pd.Series:
    """Return what counts as one value, without those that are NaN: each run, or the mean over the runs of a fold."""
    known = values.dropna()
    folds = (known.index.get_level_values("fold") >= 0).any()
    return known.groupby(["split", "fold"]).mean() if folds else known


def _row(score: str, values: pd.DataFrame, arm: Arm, own: pd.Series) -> dict[str, Any]:
    level = _in_range(estimate(_by_unit(own)), score)
    row: dict[str, Any] = _about(score, values, arm.name, "model", values["arm"] == arm.name)
    return row | {"n": level.n, "mean": level.mean, "low": level.low, "high": level.high, "steps": arm.steps}


def _against(beside: Arm | None, arm: Arm, by_arm: Mapping[str, pd.Series], is_p: bool) -> dict[str, Any]:
    """Return the columns of an arm that come from comparing it with `beside`."""
    if beside is None or beside is arm:
        return UNCOMPARED | {"reference": "" if beside is None else arm.name}
    difference = estimate(_by_unit(by_arm[arm.name] - by_arm[beside.name]))
    row = UNCOMPARED | {"reference": beside.name, "pairs": difference.n}
    if is_p:
        return row | {"verdict": UNTESTABLE}
    row |= {"difference": difference.mean, "p": difference.p}
    return row | {"difference_low": difference.low, "difference_high": difference.high}


def _baseline(score: str, values: pd.DataFrame, arms: Sequence[Arm], name: str) -> list[dict[str, Any]]:
    """One row per kind of data and options: the baseline is the same whatever strategy would have been trained."""
    kinds: dict[str, list[str]] = {}
    for arm in arms:
        kinds.setdefault(_tell(arm.others), []).append(arm.name)
    rows = []
    for kind, members in kinds.items():
        among = values["arm"].isin(members)
        own = values[among & (values["representation"] == name)]
        if own.empty:
            continue
        by_seed = _by_unit(own.groupby(PAIRING)["value"].mean())
        level = _in_range(estimate(by_seed), score)
        row = _about(score, values, f"{name} {kind}".strip(), name, among)
        if name == "features" and len(by_seed) and np.ptp(by_seed) == 0:  # as recorded, so that no seed plays a part
            level = replace(level, low=np.nan, high=np.nan, n=0)
        row |= {"n": level.n, "mean": level.mean, "low": level.low, "high": level.high, "steps": 0}
        rows.append(row | UNCOMPARED)
    return rows


def _in_range(level: Estimate, score: str) -> Estimate:
    """Return the estimate with its interval cut to the values that the score can have."""
    low, high = score_range(score)
    return replace(level, low=float(np.clip(level.low, low, high)), high=float(np.clip(level.high, low, high)))


def _about(score: str, values: pd.DataFrame, name: str, representation: str, own: pd.Series) -> dict[str, Any]:
    notes = values.loc[own & (values["representation"] == representation), "note"]
    said = [str(note) for note in dict.fromkeys(notes) if str(note)]
    if len(said) > MOST_NOTES:  # as of folds, which hold out other cells
        said = [said[0], f"{len(said) - 1} other notes, mostly of other numbers, are in scores.csv of the runs"]
    said += [IS_P] * (score in P_VALUES)
    higher = bool(values["higher_is_better"].iloc[0])
    about = {"score": score, "higher_is_better": higher, "strategy": name, "representation": representation}
    return about | {"note": "; ".join(said)}


def _of(key: str, tops: Sequence[str]) -> bool:
    return key in tops or key.split(".")[0] in tops


def _tell(options: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={_short(value)}" for key, value in options.items())


def _short(value: Any) -> str:
    """Return a value as text; a long one is cut, and told from others by a digest."""
    text = str(value)
    return text if len(text) <= 30 else f"{text[:24]}..{zlib.crc32(text.encode()) & 0xFFFF:04x}"


def _spell(runs: Sequence[FinishedRun], keys: Sequence[str]) -> str:
    spelt = []
    for key in keys:
        having: dict[str, str] = {}
        for run in runs:
            having.setdefault(_short(run.options.get(key)), run.directory.name)
        spelt.append(f"{key} is " + ", ".join(f"{value} ({name})" for value, name in having.items()))
    return "; ".join(spelt)
