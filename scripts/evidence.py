"""Run the studies of docs/evidence.md, and write their tables and pictures.

    uv run python scripts/evidence.py                        # all studies, two jobs at a time
    uv run python scripts/evidence.py lines --jobs 4
    uv run python scripts/evidence.py lines --only-tables  # of the runs that are finished

Each study is made of sweeps in ``outputs/evidence/<study>``. Started again, it runs only what is not finished.
Tables and pictures go to ``outputs/evidence/<study>/tables``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from omegaconf import OmegaConf

from cellcohort.comparison.plots import VERDICTS, styled
from cellcohort.comparison.statistics import LEVEL, estimate, holm
from cellcohort.comparison.table import BETTER, OPEN, WORSE
from cellcohort.evaluation.scores_file import read_scores
from cellcohort.runtime.run import FINISHED, strategy

HERE = Path(__file__).parent
SHORT = {"experiment": "E", "condition": "C", "temporal": "T", "random": "R"}
PLANTED_SCORES = ("condition_probe_across", "rarest_probe_across", "hours_explained_across", "experiment_ilisi")
DIAL = {"data.experiment_effect": "experiment_effect", "data.rare_share": "rare_share", "data.drift": "drift"}
MIDDLE = {"data.experiment_effect": 1.0, "data.rare_share": 0.1, "data.drift": 0.0}
LINES = tuple(
    (*(f"{other}={MIDDLE[other]}" for other in DIAL if other != dial), "seed=0,1,2,3,4,5,6,7") for dial in DIAL
)


@dataclass(frozen=True)
class Study:
    """A sweep and what is made of its runs.

    Attributes
    ----------
    sweep : str
        Name of the preset in ``conf/sweep``.
    parts : tuple of tuple of str
        Overrides of each sweep that the study is made of.
    options : tuple of str
        Options of runs that tell what is compared, by their dotted names.
    tables : callable
        From the values of all runs to the table of tests of each family, by name.
    picture : callable, optional
        From those tables to a figure.
    """

    sweep: str
    parts: tuple[tuple[str, ...], ...]
    options: tuple[str, ...]
    tables: Callable[[pd.DataFrame], dict[str, pd.DataFrame]]
    picture: Callable[[dict[str, pd.DataFrame]], Figure] | None = None


def values_of(directory: Path, options: Sequence[str]) -> pd.DataFrame:
    """Read the scores of all finished runs: one row per run, representation and score."""
    parts = []
    for path in sorted(directory.glob(f"*/{FINISHED}")):
        config = OmegaConf.load(path.parent / "config.yaml")
        axes = strategy(config.batch_sampler.axes or {}).split("-")
        arm = "+".join(sorted((SHORT.get(axis, axis) for axis in axes), key="ECT".find))
        told: dict[str, Any] = {"run": path.parent.name, "strategy": arm, "seed": config.seed}
        told |= {option: OmegaConf.select(config, option) for option in options}
        parts.append(read_scores(path.parent).assign(**told))
    if not parts:
        raise ValueError(f"{directory} has no finished run; run the study without --only-tables first.")
    return pd.concat(parts, ignore_index=True)


def tested(differences: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Test the mean of the column "difference" against 0 in each group, over replicates; Holm over all groups."""
    rows = []
    for key, own in differences.groupby(list(by), sort=False):
        found = estimate(own.groupby("seed")["difference"].mean())
        rows.append(
            dict(zip(by, key, strict=True))
            | {"n": found.n, "difference": found.mean, "low": found.low, "high": found.high, "p": found.p}
        )
    table = pd.DataFrame(rows)
    table["p_holm"] = holm(table["p"])
    called = np.where(table["difference"] > 0, BETTER, WORSE)
    table["verdict"] = np.where(table["p_holm"] <= 1 - LEVEL, called, OPEN)
    return table


def planted_differences(values: pd.DataFrame) -> pd.DataFrame:
    """Differences from random of the same cells, split and seed, one row per run and score."""
    own = values[(values["representation"] == "model") & values["score"].isin(PLANTED_SCORES)]
    point = [*DIAL, "seed", "score"]
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
    points = tested(joined, [*DIAL, "strategy", "score"])  # the middle is a point of every line, and one test
    every = pd.concat(lines).drop_duplicates(["dial", *DIAL, "strategy", "score"])
    levels = every[["dial", "level", *DIAL, "strategy", "score"]].merge(points, on=[*DIAL, "strategy", "score"])
    return {"overall": tested(joined, ["strategy", "score"]), "levels": levels, "means": means(values)}


def cross_tables(values: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Differences from random over the whole dial, and at each of its levels."""
    joined = planted_differences(values)
    levels = pd.concat([joined.assign(dial=name, level=joined[dial]) for dial, name in DIAL.items()])
    return {
        "overall": tested(joined, ["strategy", "score"]),
        "levels": tested(levels, ["dial", "level", "strategy", "score"]),
        "means": means(values),
    }


def means(values: pd.DataFrame) -> pd.DataFrame:
    """Mean and standard deviation over replicates of each strategy and baseline at each point of the dial."""
    own = values[values["score"].isin(PLANTED_SCORES)]
    by = [*DIAL, "representation", "strategy", "score"]
    return own.groupby(by, sort=False)["value"].agg(["mean", "std", "count"]).reset_index()


def planted_picture(tables: dict[str, pd.DataFrame]) -> Figure:
    """One row per score, one column per dial: the difference from random of each strategy at each level."""
    table = tables["levels"]
    dials = list(DIAL.values())
    strategies = list(dict.fromkeys(table["strategy"]))
    figure = Figure(figsize=(9, 2.3 * len(PLANTED_SCORES)), layout="constrained")
    grid = figure.subplots(len(PLANTED_SCORES), len(dials), sharey="row", squeeze=False)
    for axes_of, score in zip(grid, PLANTED_SCORES, strict=True):
        for axes, dial in zip(axes_of, dials, strict=True):
            own = table[(table["dial"] == dial) & (table["score"] == score)]
            levels = sorted(own["level"].unique())
            axes.axhline(0, color="#999999", linewidth=0.8, zorder=0)
            for number, (name, colour) in enumerate(
                zip(strategies, ("#0072B2", "#E69F00", "#009E73", "#000000"), strict=False)
            ):
                rows = own[own["strategy"] == name].set_index("level").loc[levels]
                x = np.arange(len(levels)) + 0.16 * (number - (len(strategies) - 1) / 2)
                spread = np.array([rows["difference"] - rows["low"], rows["high"] - rows["difference"]])
                axes.errorbar(x, rows["difference"], spread, fmt="none", ecolor=colour, elinewidth=1)
                for at, row in zip(x, rows.itertuples(), strict=True):
                    filled = row.verdict != OPEN
                    shape = VERDICTS[str(row.verdict)][0]
                    axes.plot(at, row.difference, shape, color=colour, mfc=colour if filled else "white", ms=5)
                axes.plot([], [], "s", color=colour, label=name)
            axes.set_xticks(np.arange(len(levels)), [f"{level:g}" for level in levels])
            if axes is axes_of[0]:
                axes.set_ylabel(score, fontsize=8)
            if axes_of is grid[-1]:
                axes.set_xlabel(dial)
    grid[0, -1].legend(loc="best", fontsize=8)
    figure.suptitle("Difference from random (filled triangles: told apart from 0)", fontsize=10)
    return figure


STUDIES = {
    "lines": Study("planted", LINES, tuple(DIAL), line_tables, planted_picture),
    "planted": Study("planted", ((),), tuple(DIAL), cross_tables, planted_picture),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="*", help=f"of {', '.join(STUDIES)}; by default all")
    parser.add_argument("--jobs", type=int, default=2, help="jobs at a time")
    parser.add_argument("--only-tables", action="store_true", help="of the runs that are finished")
    options = parser.parse_args()
    if strange := [name for name in options.studies if name not in STUDIES]:
        parser.error(f"there is no study {', '.join(strange)}; there are: {', '.join(STUDIES)}")
    for name in options.studies or STUDIES:
        study = STUDIES[name]
        directory = Path("outputs/evidence") / name
        if not options.only_tables:
            beside = ["hydra/launcher=joblib", f"hydra.launcher.n_jobs={options.jobs}"] if options.jobs > 1 else []
            for part in study.parts:
                sweep = [f"sweep={study.sweep}", f"hydra.sweep.dir={directory}", *part, *beside]
                subprocess.run([sys.executable, str(HERE / "train.py"), *sweep], check=True)
        tables = study.tables(values_of(directory, study.options))
        place = directory / "tables"
        place.mkdir(exist_ok=True)
        for family, table in tables.items():
            table.to_csv(place / f"{family}.csv", index=False)
            print(f"\n{name}: {family}\n{table.to_string(index=False, float_format='%.3f')}")
        if study.picture:
            with styled():
                study.picture(tables).savefig(place / f"{name}.png", dpi=120)
        print(f"evidence: {place}")


if __name__ == "__main__":
    main()
