"""The tables of the studies test the differences that they name, each once."""

from __future__ import annotations

import runpy
from itertools import product
from pathlib import Path
from typing import Any

import anndata as ad
import numpy as np
import pandas as pd
import pytest


@pytest.fixture(scope="module")
def evidence() -> dict[str, Any]:
    scripts = Path(__file__).parents[2] / "scripts"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(scripts)  # as where Python runs the script
        return runpy.run_path(str(scripts / "evidence.py"))


def test_lines_find_the_point_at_which_a_strategy_helps(evidence: dict[str, Any]) -> None:
    middle = tuple(evidence["MIDDLE"].values())
    points = {middle, *((x, *middle[1:]) for x in (0.0, 2.0)), *((*middle[:2], x) for x in (1.0, 3.0))}
    rng = np.random.default_rng(0)
    rows = []
    for point, seed, score in product(points, range(8), evidence["PLANTED_SCORES"]):
        base = rng.normal(0.5, 0.1)  # of the cells, the same for all strategies
        for strategy in ("R", "E", "C"):
            gain = 0.2 if strategy == "E" and point[0] == 2.0 else 0.0
            told = dict(zip(evidence["DIAL"], point, strict=True))
            value = base + gain + (strategy != "R") * rng.normal(0, 0.01)
            rows.append(
                {**told, "seed": seed, "score": score, "strategy": strategy, "representation": "model", "value": value}
            )
    tables = evidence["line_tables"](pd.DataFrame(rows))
    levels = tables["levels"]
    helped = levels[levels["verdict"] == "better"]
    assert set(helped["strategy"]) == {"E"} and set(helped["dial"]) == {"experiment_effect"}
    assert helped["level"].eq(2.0).all() and len(helped) == 4 and np.allclose(helped["difference"], 0.2, atol=0.02)
    assert not (levels["verdict"] == "worse").any()
    once = levels.drop_duplicates([*evidence["DIAL"], "strategy", "score"])
    assert len(once) == 5 * 2 * 4 and (levels["dial"] == "rare_share").sum() == 2 * 4, "the middle is on every line"
    assert len(tables["overall"]) == 8 and (tables["overall"]["n"] == 8).all()


def test_arms_are_paired_by_fold_and_seed_and_tested_over_folds(evidence: dict[str, Any]) -> None:
    rng = np.random.default_rng(2)
    rows = []
    for fold, seed in product(range(9), range(5)):
        base = rng.normal(0.5, 0.2)
        for strategy, norm in product(("R", "P"), ("batch", "experiment")):
            value = base + 0.1 * (strategy == "P") + rng.normal(0, 0.005)
            told = {"split.fold": fold, "seed": seed, "model.norm": norm, "strategy": strategy}
            rows.append({**told, "score": "nsc", "representation": "model", "value": value})
    tables = evidence["arm_tables"](pd.DataFrame(rows), ("nsc",), "fold")
    table = tables["differences"].set_index(["strategy", "norm"])
    assert len(table) == 3 and (table["n"] == 9).all()
    assert table["verdict"]["P", "batch"] == table["verdict"]["P", "experiment"] == "better"
    assert (
        table["verdict"]["R", "experiment"] == "not told apart" and abs(table["difference"]["P", "batch"] - 0.1) < 0.01
    )


def test_points_of_real_cells_are_read_from_the_names_of_their_files(evidence: dict[str, Any]) -> None:
    rng = np.random.default_rng(3)
    rows = []
    for (effect, share), seed in product(evidence["BLOOD_POINTS"], range(5)):
        base = rng.normal(0.5, 0.1)
        for strategy in ("R", "P"):
            value = base + (strategy == "P") * (0.1 * effect + rng.normal(0, 0.001))
            told = {"data.path": f"cells/{effect}-{share}-{seed}.parquet", "seed": seed, "strategy": strategy}
            rows.append({**told, "score": "experiment_ilisi", "representation": "model", "value": value})
    tables = evidence["blood_tables"](pd.DataFrame(rows))
    levels = tables["levels"].set_index(["dial", "level"])
    assert np.allclose(levels.loc["experiment_effect", "difference"], [0.0, 0.1, 0.2], atol=0.01)
    assert np.allclose(levels.loc["rare_share", "difference"], 0.1, atol=0.01) and len(levels) == 6
    assert len(tables["overall"]) == 1 and (levels["n"] == 5).all() and len(tables["means"]) == 2 * 9


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of pandas 3, of options that anndata looks at
def test_real_cells_are_thinned_and_dealt_to_planted_experiments(
    evidence: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    treatments = np.repeat(["reference", "stimulus", "vanadate"], [500, 500, 200])
    features = np.arange(1200 * 2, dtype=np.float32).reshape(-1, 2)
    ad.AnnData(features, pd.DataFrame({"Treatment": treatments}, map(str, range(1200)))).write_h5ad(
        tmp_path / "all.h5ad"
    )
    options = {"BLOOD_CELLS": tmp_path / "cells", "BLOOD_POINTS": ((0, 0.1), (2, 0.1)), "BLOOD_SIZE": 600}
    for name, value in options.items():
        monkeypatch.setitem(evidence["plant_blood_cells"].__globals__, name, value)
    evidence["plant_blood_cells"](tmp_path / "all.h5ad")
    assert len(list((tmp_path / "cells").iterdir())) == 2 * 5
    plain, moved = (pd.read_parquet(tmp_path / "cells" / f"{effect}-0.1-3.parquet") for effect in (0, 2))
    assert plain["Treatment"].value_counts().to_dict() == {"reference": 270, "stimulus": 270, "vanadate": 60}
    assert plain["experiment"].nunique() == 4 and plain["experiment"].equals(moved["experiment"])
    assert set(plain["0"]) <= set(features[:, 0]) and plain["0"].is_unique, "real cells, each once"
    means = [rows.groupby("experiment", observed=True)["0"].mean().std() for rows in (plain, moved)]
    assert means[1] > 3 * means[0]
