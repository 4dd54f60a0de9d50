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
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import anndata as ad
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from cellcohort.comparison.plots import styled
from cellcohort.files import whole
from cellcohort.sources.planted import Planted
from evidence_tables import (
    BBBC021_SCORES,
    DIAL,
    JUMP_SCORES,
    MIDDLE,
    PLANTED_SCORES,
    TIMELAPSE_SCORES,
    arm_picture,
    arm_tables,
    blood_tables,
    cross_tables,
    line_tables,
    other_tables,
    planted_picture,
    values_of,
)

HERE = Path(__file__).parent
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
