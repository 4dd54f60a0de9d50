"""Tables of tests and pictures that ``scripts/evidence.py`` makes of the runs of its studies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from omegaconf import OmegaConf

from cellcohort.comparison.plots import VERDICTS
from cellcohort.comparison.statistics import LEVEL, estimate, holm
from cellcohort.comparison.table import BETTER, OPEN, WORSE
from cellcohort.evaluation.scores_file import read_scores
from cellcohort.runtime.resolvers import strategy
from cellcohort.runtime.run_directory import FINISHED

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#000000")  # of Okabe and Ito (2008)
SHORT = {"experiment": "E", "condition": "C", "temporal": "T", "random": "R"}
PLANTED_SCORES = ("condition_probe_across", "rarest_probe_across", "hours_explained_across", "experiment_ilisi")
JUMP_SCORES = ("condition_probe_across", "replicate_map", "experiment_ilisi")
BBBC021_SCORES = ("nsc", "nscb", "mechanism_map")
TIMELAPSE_SCORES = ("condition_probe_across", "hours_explained_across", "experiment_ilisi")
DIAL = {"data.experiment_effect": "experiment_effect", "data.rare_share": "rare_share", "data.drift": "drift"}
MIDDLE = {"data.experiment_effect": 1.0, "data.rare_share": 0.1, "data.drift": 0.0}
BLOOD_DIAL = {"data.experiment_effect": "experiment_effect", "data.rare_share": "rare_share"}


def values_of(directory: Path, options: Sequence[str]) -> pd.DataFrame:
    """Read the scores of all finished runs: one row per run, representation and score."""
    parts = []
    for path in sorted(directory.glob(f"*/{FINISHED}")):
        config = OmegaConf.load(path.parent / "config.yaml")
        axes = strategy(config.batch_sampler.axes or {}, config.batch_sampler._target_).split("-")
        arm = "+".join(sorted((SHORT.get(axis, axis) for axis in axes), key="ECT".find))
        told: dict[str, Any] = {"run": path.parent.name, "strategy": arm, "seed": config.seed}
        if OmegaConf.select(config, "pairs.same"):
            told["strategy"] = "P" if arm == "R" else f"{arm}+P"
        told |= {option: OmegaConf.select(config, option) for option in options}
        parts.append(read_scores(path.parent).assign(**told))
    if not parts:
        raise ValueError(f"{directory} has no finished run; run the study without --only-tables first.")
    return pd.concat(parts, ignore_index=True)


def told_apart(differences: pd.DataFrame, by: Sequence[str], over: str) -> pd.DataFrame:
    """Test the mean of the column "difference" against 0 in each group, over replicates; Holm over all groups."""
    rows = []
    for key, own in differences.groupby(list(by), sort=False):
        found = estimate(own.groupby(over)["difference"].mean())
        rows.append(
            dict(zip(by, key, strict=True))
            | {"n": found.n, "difference": found.mean, "low": found.low, "high": found.high, "p": found.p}
        )
    table = pd.DataFrame(rows)
    table["p_holm"] = holm(table["p"])
    called = np.where(table["difference"] > 0, BETTER, WORSE)
    table["verdict"] = np.where(table["p_holm"] <= 1 - LEVEL, called, OPEN)
    return table


def planted_differences(values: pd.DataFrame, dial: Iterable[str] = DIAL) -> pd.DataFrame:
    """Differences from random of the same cells, split and seed, one row per run and score."""
    own = values[(values["representation"] == "model") & values["score"].isin(PLANTED_SCORES)]
    point = [*dial, "seed", "score"]
    reference = own[own["strategy"] == "R"].set_index(point)["value"].rename("reference")
    joined = own[own["strategy"] != "R"].join(reference, on=point)
    return joined.assign(difference=joined["value"] - joined["reference"]).dropna(subset="difference")


def line_tables(values: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Differences from random over the lines through the middle of the dial, and at each of their points."""
    joined = planted_differences(values)
    lines = []
    for dial, name in DIAL.items():
        rest = [other for other in DIAL if other != dial]
        on_line = np.logical_and.reduce([joined[other] == MIDDLE[other] for other in rest])
        lines.append(joined[on_line].assign(dial=name, level=joined[dial]))
    points = told_apart(
        joined, [*DIAL, "strategy", "score"], "seed"
    )  # the middle is a point of every line, and one test
    every = pd.concat(lines).drop_duplicates(["dial", *DIAL, "strategy", "score"])
    levels = every[["dial", "level", *DIAL, "strategy", "score"]].merge(points, on=[*DIAL, "strategy", "score"])
    return {"overall": told_apart(joined, ["strategy", "score"], "seed"), "levels": levels, "means": means(values)}


def cross_tables(values: pd.DataFrame, dial: Mapping[str, str] = DIAL) -> dict[str, pd.DataFrame]:
    """Differences from random over the whole dial, and at each of its levels."""
    joined = planted_differences(values, dial)
    levels = pd.concat([joined.assign(dial=name, level=joined[option]) for option, name in dial.items()])
    return {
        "overall": told_apart(joined, ["strategy", "score"], "seed"),
        "levels": told_apart(levels, ["dial", "level", "strategy", "score"], "seed"),
        "means": means(values, dial),
    }


def blood_tables(values: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Make the tables of the cross for real cells, whose files are named for their point of the dial."""
    points = values["data.path"].map(lambda path: Path(path).stem.split("-")[:2])
    dial = {option: points.str[at].astype(float) for at, option in enumerate(BLOOD_DIAL)}
    return cross_tables(values.assign(**dial), BLOOD_DIAL)


def means(values: pd.DataFrame, dial: Iterable[str] = DIAL) -> pd.DataFrame:
    """Mean and standard deviation over replicates of each strategy and baseline at each point of the dial."""
    own = values[values["score"].isin(PLANTED_SCORES)]
    by = [*dial, "representation", "strategy", "score"]
    return own.groupby(by, sort=False)["value"].agg(["mean", "std", "count"]).reset_index()


def planted_picture(tables: dict[str, pd.DataFrame]) -> Figure:
    """One row per score, one column per dial: the difference from random of each strategy at each level."""
    table = tables["levels"]
    dials = list(dict.fromkeys(table["dial"]))
    scores = [score for score in PLANTED_SCORES if score in set(table["score"])]
    strategies = sorted(set(table["strategy"]), key=lambda name: (len(name), "ECTP".find(name)))
    figure = Figure(figsize=(3 * len(dials), 2.3 * len(scores)), layout="constrained")
    grid = figure.subplots(len(scores), len(dials), sharey="row", squeeze=False)
    for axes_of, score in zip(grid, scores, strict=True):
        for axes, dial in zip(axes_of, dials, strict=True):
            own = table[(table["dial"] == dial) & (table["score"] == score)]
            levels = sorted(own["level"].unique())
            axes.axhline(0, color="#999999", linewidth=0.8, zorder=0)
            for number, (name, colour) in enumerate(zip(strategies, COLOURS, strict=False)):
                rows = own[own["strategy"] == name].set_index("level").loc[levels]
                x = np.arange(len(levels)) + 0.16 * (number - (len(strategies) - 1) / 2)
                _points(axes, x, rows, colour)
                axes.plot([], [], "s", color=colour, label=name)
            axes.set_xticks(np.arange(len(levels)), [f"{level:g}" for level in levels])
            if axes is axes_of[0]:
                axes.set_ylabel(score, fontsize=8)
            if score == scores[-1]:
                axes.set_xlabel(dial)
    _legend(figure, "strategy")
    figure.suptitle("Difference from random (filled triangles: told apart from 0)", fontsize=10)
    return figure


def arm_tables(values: pd.DataFrame, scores: Sequence[str], over: str, norm: str = "batch") -> dict[str, pd.DataFrame]:
    """Differences of each strategy and normalisation from random batches with the normalisation `norm`."""
    values = values[values["score"].isin(scores)].rename(columns={"model.norm": "norm", "split.fold": "fold"})
    own = values[values["representation"] == "model"]
    point = ["fold", "seed", "score"] if "fold" in own else ["seed", "score"]
    first = (own["strategy"] == "R") & (own["norm"] == norm)
    joined = own[~first].join(own[first].set_index(point)["value"].rename("reference"), on=point)
    joined = joined.assign(difference=joined["value"] - joined["reference"]).dropna(subset="difference")
    by = ["representation", "strategy", "norm", "score"]
    level = values.groupby(by, sort=False)["value"].agg(["mean", "std", "count"]).reset_index()
    return {"differences": told_apart(joined, ["strategy", "norm", "score"], over), "means": level}


def other_tables(values: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Differences of samplers of other libraries, E and E+C from random batches, all with batch normalisation."""
    arms = values["model.norm"].eq("batch") & ~values["strategy"].isin(("C", "P"))
    return arm_tables(values[arms], JUMP_SCORES, "fold")


def arm_picture(tables: dict[str, pd.DataFrame], norm: str = "batch") -> Figure:
    """One panel per score: the difference from random batches of each strategy, by normalisation."""
    table = tables["differences"]
    scores, norms, strategies = (list(dict.fromkeys(table[name])) for name in ("score", "norm", "strategy"))
    strategies.sort(key=lambda name: (len(name), "RECTP".find(name)))
    figure = Figure(figsize=(3.4 * len(scores), 3.2), layout="constrained")
    for axes, score in zip(figure.subplots(1, len(scores), squeeze=False)[0], scores, strict=True):
        axes.axhline(0, color="#999999", linewidth=0.8, zorder=0)
        for number, (own, colour) in enumerate(zip(norms, COLOURS, strict=False)):
            rows = table[(table["score"] == score) & (table["norm"] == own)].set_index("strategy")
            x = np.array([strategies.index(name) for name in rows.index]) + 0.2 * (number - (len(norms) - 1) / 2)
            _points(axes, x, rows, colour)
            axes.plot([], [], "s", color=colour, label=own)
        axes.set_xticks(np.arange(len(strategies)), strategies)
        if max(map(len, strategies)) > 6:
            axes.tick_params("x", rotation=30)
            for label in axes.get_xticklabels():
                label.set(ha="right", rotation_mode="anchor")
        axes.set_title(score, fontsize=9)
    known = "random batches"
    if len(norms) > 1:
        _legend(figure, "normalisation")
        known += f" with {norm} normalisation"
    figure.suptitle(f"Difference from {known} (filled: told apart from 0)", fontsize=9)
    return figure


def _legend(figure: Figure, title: str) -> None:
    """Name the colours below the panels, where the legend lies over no point."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, title=title, loc="outside lower center", ncols=len(labels), fontsize=8)


def _points(axes: Any, x: np.ndarray, rows: pd.DataFrame, colour: str) -> None:
    """Draw differences with their intervals; those told apart from 0 are filled triangles."""
    spread = np.array([rows["difference"] - rows["low"], rows["high"] - rows["difference"]])
    axes.errorbar(x, rows["difference"], spread, fmt="none", ecolor=colour, elinewidth=1)
    for at, difference, verdict in zip(x, rows["difference"], rows["verdict"], strict=True):
        face = "white" if verdict == OPEN else colour
        axes.plot(at, difference, VERDICTS[str(verdict)][0], color=colour, mfc=face, ms=5)
