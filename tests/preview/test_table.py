"""Tables of labels alone: previewed, and refused for training."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas as pd
import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from cellcohort.data.table import Table
from cellcohort.preview import findings, survey, training_cells
from stores import QUIET

pytestmark = QUIET

CONF = str(Path(__file__).parents[2] / "conf")


def obs() -> pd.DataFrame:
    rows = [(p, c, m, f"d{i % 3}") for p in ("01", "1") for c in ("NA", "drug") for m in ("a", "b") for i in range(30)]
    frame = pd.DataFrame(rows, columns=["experiment", "condition", "marker", "donor"])
    return frame.assign(hours=np.arange(len(frame)) % 7 / 2)


def saved(tmp_path: Path, kind: str) -> Path:
    path, frame = tmp_path / f"obs.{kind}", obs()
    if kind == "csv":
        frame.to_csv(path, index=False)
    elif kind == "parquet":
        frame.to_parquet(path)
    else:
        frame.index = [f"cell{i}" for i in range(len(frame))]
        adata = anndata.AnnData(obs=frame)
        adata.write_h5ad(path) if kind == "h5ad" else adata.write_zarr(path)
    return path


def config(path: Path, *line: str) -> Any:
    with initialize_config_dir(CONF, version_base="1.3"):
        return compose("preview", ["data=table", f"data.path={path}", "batch_sampler.batch_size=16", *line])


@pytest.mark.parametrize("kind", ["csv", "parquet", "h5ad", "zarr"])
def test_any_columns_of_a_table_can_be_sampled_by(tmp_path: Path, kind: str) -> None:
    made = config(
        saved(tmp_path, kind),
        "sampler=[experiment_aware,condition]",
        "sampler.experiment_aware.column=marker",
        "sampler.condition.column=[condition,donor]",
        "data.columns.hours=hours",
    )
    found = training_cells(made)
    cells = found.cells
    assert cells.column("experiment").labels == ("01", "1") and cells.column("condition").labels == ("NA", "drug")
    assert cells.hours is not None and found.n_all == 240 and len(cells) == 192
    assert found.held_out_line().endswith("whole rows of the table (no track is named, data.columns.track).")
    batch = cells.take(instantiate(made.batch_sampler, cells, world_size=1).batch(0, 0))
    assert len(batch.column("marker").present()) == 1 and len(batch.column(["condition", "donor"]).present()) == 6


def test_groups_of_a_table_are_held_out_whole(tmp_path: Path) -> None:
    found = training_cells(config(saved(tmp_path, "csv"), "split.by=[experiment,donor]", "split.fraction=0.3"))
    assert len(found.cells.column(["experiment", "donor"]).present()) == 4
    assert found.held_out_line().endswith("held out for validation: whole groups of experiment and donor (split.by).")


def test_training_on_a_table_is_refused_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data=table holds labels only.*data=tracks data\.columns\.features"):
        instantiate(config(saved(tmp_path, "csv")).data).dataset()


def test_a_table_that_is_not_as_named_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="means nothing; use experiment, condition, hours, track"):
        Table(saved(tmp_path, "csv"), {"time": "hours"}).cells()
    with pytest.raises(ValueError, match=r"condition='drug' is not a column; .* data\.columns\.condition"):
        Table(saved(tmp_path, "csv"), {"condition": "drug"}).cells()
    with pytest.raises(FileNotFoundError, match=r"no file nowhere\.h5ad"):
        Table("nowhere.h5ad").cells()
    (tmp_path / "bad.h5ad").write_text("x")
    with pytest.raises(ValueError, match=r"bad\.h5ad has no obs that can be read"):
        Table(tmp_path / "bad.h5ad").cells()


def plates_of_wells(path: Path, wells: int, seed: int) -> Path:
    """Three plates with so many wells of each of three conditions, of 20 to 60 cells each."""
    rng = np.random.default_rng(seed)
    rows = [
        (plate, condition, f"{condition}{well}")
        for plate in ("007", "008", "0013")
        for condition in ("mock/ctrl", "drug", "other")
        for well in range(wells)
        for _ in range(rng.integers(20, 60))
    ]
    pd.DataFrame(rows, columns=["experiment", "condition", "Well"]).to_csv(path / "wells.csv", index=False)
    return path / "wells.csv"


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("seed", range(3))
def test_conditions_of_an_experiment_without_held_out_cells_are_named_with_a_split_that_has_some(
    tmp_path: Path, seed: int
) -> None:
    line = ["split.by=[experiment,Well]", f"split.seed={seed}"]
    path = plates_of_wells(tmp_path, 3, seed)
    made = config(path, *line)
    found = training_cells(made)
    frame = pd.read_csv(path, dtype=str)
    out = frame.drop(found.cells.rows).groupby(["experiment", "condition"]).size()
    pairs = frame.groupby(["experiment", "condition"]).size().index
    lost = [f"{c} of {e}" for e, c in pairs if (e, c) not in out.index and e in out.index.get_level_values(0)]
    assert lost and sorted(found.not_scored) == sorted(lost)
    sampler = instantiate(made.batch_sampler, found.cells, world_size=1)
    (told,) = [one for one in findings(survey(sampler, source=found)) if "no held-out cells" in one.problem]
    assert all(one in told.problem for one in lost[:6]) and told.typed.startswith("split.fraction=0.")
    assert not training_cells(config(path, *line, told.typed)).not_scored, "the advice holds"


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_conditions_of_one_well_an_experiment_get_no_fraction(tmp_path: Path) -> None:
    found = training_cells(config(plates_of_wells(tmp_path, 1, 0), "split.by=[experiment,Well]"))
    assert found.not_scored and found.scored_with is None


def test_whole_experiments_held_out_lack_no_condition(tmp_path: Path) -> None:
    assert not training_cells(config(plates_of_wells(tmp_path, 3, 0), "split.by=experiment")).not_scored


def uneven_wells(path: Path) -> Path:
    """A plate with three wells of each of two conditions, most cells in one of them."""
    sizes = {"a1": 20, "a2": 60, "a3": 120, "b1": 20, "b2": 60, "b3": 120}
    rows = [("p", well[0], well) for well, n in sizes.items() for _ in range(n)]
    pd.DataFrame(rows, columns=["experiment", "condition", "Well"]).to_csv(path / "uneven.csv", index=False)
    return path / "uneven.csv"


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_share_held_out_far_from_the_one_asked_for_is_told_with_an_option_that_comes_near(tmp_path: Path) -> None:
    path, told = uneven_wells(tmp_path), []
    for seed in range(6):
        line = ["split.by=[experiment,Well]", "split.fraction=0.3", f"split.seed={seed}"]
        made = config(path, *line)
        found = training_cells(made)
        share = 1 - len(found.cells) / 400
        assert found.held_out is not None and len(found.held_out) + len(found.cells) == 400
        sampler = instantiate(made.batch_sampler, found.cells, world_size=1)
        said = [
            one
            for one in findings(survey(sampler, source=found))
            if "split.fraction=0.3 asks for 30.0 %" in one.problem
        ]
        assert len(said) == (not 0.225 <= share <= 0.4)
        told += [(line, share, one) for one in said]
    assert told
    for line, share, one in told:
        assert one.problem.startswith(f"{100 * share:.1f} % of the cells are held out for validation")
        assert "each experiment x Well is held out whole, and the 6 of them" in one.problem
        option, _, value = one.typed.partition("=")
        assert option in ("split.seed", "split.fraction") and value
        kept = [each for each in line if not each.startswith(option)]
        assert training_cells(config(path, *kept, one.typed)).missed_share is None, "the advice holds"
    line = ["split.by=[experiment,Well]", "split.held_out=[[p,a1],[p,b1]]"]
    assert training_cells(config(path, *line)).missed_share is None


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_option_that_holds_out_a_condition_of_an_experiment_whole_is_not_advised(tmp_path: Path) -> None:
    """Families join wells, so that some seeds hold out all cells of a condition of a plate."""
    rng, rows = np.random.default_rng(1), []
    for plate in ("P1", "P2", "P3"):
        for track in range(60):
            well, mother = int(rng.integers(0, 6)), track - 20 if track >= 55 else -1
            times = np.arange(int(rng.integers(8, 40))) + 60 * (mother >= 0)
            rows += [(plate, "abc"[well % 3], f"w{well}", track, time, mother) for time in times]
    names = ["experiment", "condition", "well", "track", "time", "mother"]
    pd.DataFrame(rows, columns=names).assign(area=1.0).to_csv(tmp_path / "t.csv", index=False)
    columns = ["data.columns.features=[area]", "data.columns.parent=mother", "data.interval_minutes=30"]
    line = ["data=tracks", *columns, "split.by=[experiment,well]"]
    told, causes = set(), []
    for seed in (0, 3):
        if missed := training_cells(config(tmp_path / "t.csv", *line, f"split.seed={seed}")).missed_share:
            causes.append(missed.cause)
            told |= {one for one in [missed.typed] if one}
    assert causes and all(re.search(r"; \d+ lineages with cells in several of them join", one) for one in causes)
    for one in told:
        found = training_cells(config(tmp_path / "t.csv", *line, one))
        assert found.missed_share is None and len(found.cells.column(["experiment", "condition"]).present()) == 9
