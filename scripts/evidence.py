"""Run the studies of docs/evidence.md, and write their tables and pictures.

    uv run python scripts/evidence.py --data <directory>     # all studies, two jobs at a time
    uv run python scripts/evidence.py lines --jobs 4
    uv run python scripts/evidence.py lines --only-tables  # of the runs that are finished

Each study is made of sweeps in ``outputs/evidence/<study>``. Started again, it runs only what is not finished.
Tables and pictures go to ``outputs/evidence/<study>/tables``. The studies of real data need the directory that holds
``jump_s3_controls/fields.parquet``, ``bbbc021_profiles/wells.parquet``, ``tcell_behav3d/tcell_tracks.parquet`` and
``bodenmiller_cytof/bodenmiller.h5ad``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anndata as ad
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from omegaconf import OmegaConf

from cellcohort.comparison.plots import VERDICTS, styled
from cellcohort.comparison.statistics import LEVEL, estimate, holm
from cellcohort.comparison.table import BETTER, OPEN, WORSE
from cellcohort.evaluation.scores_file import read_scores
from cellcohort.files import whole
from cellcohort.runtime.resolvers import strategy
from cellcohort.runtime.run_directory import FINISHED
from cellcohort.sources.planted import Planted

HERE = Path(__file__).parent
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#000000")  # of Okabe and Ito (2008)
SHORT = {"experiment": "E", "condition": "C", "temporal": "T", "random": "R"}
PLANTED_SCORES = ("condition_probe_across", "rarest_probe_across", "hours_explained_across", "experiment_ilisi")
JUMP_SCORES = ("condition_probe_across", "replicate_map", "experiment_ilisi")
BBBC021_SCORES = ("nsc", "nscb", "mechanism_map")
TIMELAPSE_SCORES = ("condition_probe_across", "hours_explained_across", "experiment_ilisi")
DIAL = {"data.experiment_effect": "experiment_effect", "data.rare_share": "rare_share", "data.drift": "drift"}
MIDDLE = {"data.experiment_effect": 1.0, "data.rare_share": 0.1, "data.drift": 0.0}
LINES = tuple(
    ("sweep=planted", *(f"{other}={MIDDLE[other]}" for other in DIAL if other != dial), "seed=0,1,2,3,4,5,6,7")
    for dial in DIAL
)
QUIET = (
    "logger=none",
    "trainer.limit_val_batches=0",
    "trainer.enable_progress_bar=false",
    "evaluation.permutations=19",
)
VIEWS = ("pairs.same=null", "pairs.different=null", "objective.exclude=null")  # the positive is a view of the cell
PAIRED = 'run_name="${strategy:${sampler}}-pairs-s${seed}"'  # tells runs apart from those without pairs
JUMP = (
    *("recipe=jump_controls", "sweep=leave_one_experiment_out", "split.folds=9"),
    *QUIET,
)
BBBC021 = ("-m", "recipe=bbbc021", "seed=0,1,2,3,4", "model.norm=batch,layer", *QUIET)
TIMELAPSE = (
    *("-m", "seed=0,1,2,3,4", "split.seed=${seed}", "batch_sampler.batch_size=128", "trainer.max_epochs=4"),
    *("trainer.limit_train_batches=60", "evaluation.max_cells=6000", *QUIET),
)
TIMELAPSE_ARMS = "sampler=random,experiment_aware,condition,temporal,[experiment_aware,condition,temporal]"
PLATES = ("data=demo_timelapse", "data.path=outputs/evidence/plates-${seed}", "data.simulation_seed=${seed}")
ACROSS = ("pairs.same=[condition]", "pairs.different=[experiment]", "objective.exclude=[condition]")
MIDDLE_OF_DIAL = ("sweep=planted", *(f"{dial}={level}" for dial, level in MIDDLE.items()), "seed=0,1,2,3,4,5,6,7")
BLOOD_CELLS = Path("outputs/evidence/blood_cells")
BLOOD_POINTS = tuple(product((0, 1, 2), (0.03, 0.1, 0.2)))  # effect of experiments, share of the rare condition
BLOOD_RARE, BLOOD_SIZE = "vanadate", 24_000
BLOOD_DIAL = {"data.experiment_effect": "experiment_effect", "data.rare_share": "rare_share"}
BLOOD = (
    *("-m", "seed=0,1,2,3,4", "split.seed=${seed}"),
    *("data=profiles", "data.columns.experiment=experiment", "data.columns.condition=Treatment"),
    "batch_sampler.batch_size=128",
    "data.path=" + ",".join(f"{BLOOD_CELLS}/{effect}-{share}-${{seed}}.parquet" for effect, share in BLOOD_POINTS),
    *("split.fraction=0.3", "trainer.max_epochs=4", "trainer.limit_train_batches=60"),
    *("evaluation.max_cells=6000", *QUIET),
)
OTHERS = (  # samplers of other libraries, as near to what our axes ask as their options allow
    ("batch_sampler=weighted_random", "batch_sampler.column=[experiment,condition]"),
    ("batch_sampler=m_per_class",),
    ("batch_sampler=viscy",),
    ("batch_sampler=concord",),
)


@dataclass(frozen=True)
class Study:
    """A sweep and what is made of its runs.

    Attributes
    ----------
    parts : tuple of tuple of str
        Arguments of each sweep that the study is made of.
    options : tuple of str
        Options of runs that tell what is compared, by their dotted names.
    tables : callable
        From the values of all runs to the table of tests of each family, by name.
    picture : callable
        From those tables to a figure.
    file : str
        Where the data lie in the directory that the user names; "" for simulated data.
    beside : str
        Another study, whose runs are compared with these; "" if there is none.
    plant : callable, optional
        Writes the data that the runs read, from that file.
    """

    parts: tuple[tuple[str, ...], ...]
    options: tuple[str, ...]
    tables: Callable[[pd.DataFrame], dict[str, pd.DataFrame]]
    picture: Callable[[dict[str, pd.DataFrame]], Figure]
    file: str = ""
    beside: str = ""
    plant: Callable[[Path], None] | None = None


def plant_blood_cells(file: Path) -> None:
    """Write some of the real cells for each point and replicate of `blood`, dealt to planted experiments."""
    cells = ad.read_h5ad(file)
    treatments = cells.obs["Treatment"].to_numpy().astype(str)
    for (effect, share), seed in product(BLOOD_POINTS, range(5)):
        path = BLOOD_CELLS / f"{effect}-{share}-{seed}.parquet"
        if path.exists():
            continue
        rng, names = np.random.default_rng(seed), sorted(set(treatments))
        rare = round(share * BLOOD_SIZE)
        sizes = [rare if name == BLOOD_RARE else (BLOOD_SIZE - rare) // (len(names) - 1) for name in names]
        rows = [rng.choice(np.flatnonzero(treatments == name), n, False) for name, n in zip(names, sizes, strict=True)]
        thinned = cells[np.sort(np.concatenate(rows))].copy()
        with TemporaryDirectory() as folder:
            thinned.write_h5ad(Path(folder, "thinned.h5ad"))
            source = Planted(Path(folder, "thinned.h5ad"), shift=0.5 * effect, gain=0.2 * effect, seed=seed)
            markers = pd.DataFrame(source.read(0, thinned.n_obs), thinned.obs_names, list(thinned.var_names))
            table = source.obs[["experiment", "Treatment"]].join(markers)
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole(path) as beside:
            table.to_parquet(beside, index=False)


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


STUDIES = {
    "lines": Study(LINES, tuple(DIAL), line_tables, planted_picture),
    "planted": Study((("sweep=planted",),), tuple(DIAL), cross_tables, planted_picture),
    "blood": Study(
        (
            (*BLOOD, "sampler=random,experiment_aware,condition,[experiment_aware,condition]"),
            (*BLOOD, *ACROSS, PAIRED, "sampler=random"),
        ),
        ("data.path",),
        blood_tables,
        planted_picture,
        "bodenmiller_cytof/bodenmiller.h5ad",
        plant=plant_blood_cells,
    ),
    "jump": Study(
        tuple(  # seed by seed: where the study is cut short, the seeds that are finished compare all strategies
            (*JUMP, "model.norm=batch,layer,experiment", f"seed={seed}", *arm)
            for seed in range(5)
            for arm in (
                (*VIEWS, "sampler=random,experiment_aware,condition,[experiment_aware,condition]"),
                (PAIRED, "sampler=random"),
            )
        ),
        ("model.norm", "split.fold"),
        partial(arm_tables, scores=JUMP_SCORES, over="fold"),
        arm_picture,
        "jump_s3_controls/fields.parquet",
    ),
    "bbbc021": Study(
        (
            (*BBBC021, *VIEWS, "sampler=random,experiment_aware,condition"),
            (*BBBC021, PAIRED, "sampler=random,experiment_aware"),
        ),
        ("model.norm",),
        partial(arm_tables, scores=BBBC021_SCORES, over="seed"),
        arm_picture,
        "bbbc021_profiles/wells.parquet",
    ),
    "tcell": Study(
        (
            (*TIMELAPSE, "recipe=tcell", TIMELAPSE_ARMS),
            (*TIMELAPSE, "recipe=tcell", *ACROSS, PAIRED, "sampler=random"),
        ),
        ("model.norm",),
        partial(arm_tables, scores=TIMELAPSE_SCORES, over="seed", norm="layer"),
        arm_picture,
        "tcell_behav3d/tcell_tracks.parquet",
    ),
    "timelapse": Study(
        (
            (*TIMELAPSE, *PLATES, TIMELAPSE_ARMS),
            (*TIMELAPSE, *PLATES, *ACROSS, PAIRED, "sampler=random"),
        ),
        ("model.norm",),
        partial(arm_tables, scores=TIMELAPSE_SCORES, over="seed", norm="layer"),
        arm_picture,
    ),
    "planted_others": Study(
        (
            (*MIDDLE_OF_DIAL, "sampler=random,experiment_aware,condition,[experiment_aware,condition]"),
            *((*MIDDLE_OF_DIAL, "sampler=random", *other) for other in OTHERS),
        ),
        ("model.norm",),
        partial(arm_tables, scores=PLANTED_SCORES, over="seed", norm="layer"),
        arm_picture,
    ),
    "jump_others": Study(
        tuple(
            (*JUMP, "model.norm=batch", f"seed={seed}", *VIEWS, "sampler=random", *other)
            for seed in range(5)
            for other in OTHERS
        ),
        ("model.norm", "split.fold"),
        other_tables,
        arm_picture,
        "jump_s3_controls/fields.parquet",
        beside="jump",
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="*", help=f"of {', '.join(STUDIES)}; by default all")
    parser.add_argument("--data", type=Path, help="directory of the real data")
    parser.add_argument("--jobs", type=int, default=2, help="jobs at a time")
    parser.add_argument("--only-tables", action="store_true", help="of the runs that are finished")
    options = parser.parse_args()
    if strange := [name for name in options.studies if name not in STUDIES]:
        parser.error(f"there is no study {', '.join(strange)}; there are: {', '.join(STUDIES)}")
    chosen = options.studies or list(STUDIES)
    if options.data is None and (real := [name for name in chosen if STUDIES[name].file]) and not options.only_tables:
        parser.error(f"{', '.join(real)} need --data, the directory that holds {STUDIES[real[0]].file}")
    for name in chosen:
        study = STUDIES[name]
        directory = Path("outputs/evidence") / name
        beside = ["hydra/launcher=joblib", f"hydra.launcher.n_jobs={options.jobs}"] if options.jobs > 1 else []
        for part in () if options.only_tables else study.parts:
            if study.plant:
                study.plant(options.data / study.file)
            data = [f"data.path={options.data / study.file}"] if study.file and not study.plant else []
            sweep = [*part, *data, f"hydra.sweep.dir={directory}", *beside]
            subprocess.run([sys.executable, str(HERE / "train.py"), *sweep], check=True)
        places = [directory, *([directory.parent / study.beside] if study.beside else [])]
        tables = study.tables(pd.concat([values_of(path, study.options) for path in places], ignore_index=True))
        place = directory / "tables"
        place.mkdir(exist_ok=True)
        for family, table in tables.items():
            table.to_csv(place / f"{family}.csv", index=False)
            print(f"\n{name}: {family}\n{table.to_string(index=False, float_format='%.3f')}")
        with styled():
            study.picture(tables).savefig(place / f"{name}.png", dpi=120)
        print(f"evidence: {place}")


if __name__ == "__main__":
    main()
