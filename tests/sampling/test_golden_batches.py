"""Every version draws the same batches: of each case, hashes of its batches and of what was asked of them.

The hashes are in ``data/golden_batches.json``. To write them anew, where batches are to change::

    python tests/sampling/test_golden_batches.py --write
"""

from __future__ import annotations

import hashlib
import itertools
import json
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cellcohort.cells import CellTable
from cellcohort.sampling import (
    BatchSampler,
    ChunkedBatchSampler,
    ChunksInOrder,
    ChunksShuffled,
    ConditionBalanced,
    ExperimentAware,
    FlexibleBatchSampler,
    ShortfallWarning,
    TemporallyEnriched,
    TrackCapped,
)

GOLDEN = Path(__file__).parents[1] / "data" / "golden_batches.json"
EPOCHS, FIRST, LAST = 3, 20, 4  # the steps of an epoch that are looked at: so many from its beginning, and its last
PASSED = 3  # batches of a pass
HOURS = "hours_post_infection"


# tables


def table(n: int, seed: int, experiments: Sequence[int], conditions: Sequence[int], per_track: int = 6) -> pd.DataFrame:
    """Cells in random order; labels as often as their whole numbers say, hours 0 to 24 in steps of a half."""
    rng = np.random.default_rng(seed)
    experiment, condition = drawn(rng, n, experiments), drawn(rng, n, conditions)
    track = rng.integers(0, max(1, n // per_track), n)
    return pd.DataFrame(
        {
            "experiment": [f"e{i:05d}" for i in experiment],
            "condition": [f"c{i:05d}" for i in condition],
            HOURS: rng.integers(0, 49, n) / 2,
            "track": experiment * n + track,
            "plate": rng.integers(0, 3, n),
            "dose": rng.integers(0, 5, n) * 10,
            "lineage": track // 4,
        }
    )


def drawn(rng: np.random.Generator, n: int, often: Sequence[int]) -> np.ndarray:
    bounds = np.cumsum(np.asarray(often))
    return np.searchsorted(bounds, rng.integers(0, bounds[-1], n), side="right")


def with_holes(frame: pd.DataFrame, **every: int) -> pd.DataFrame:
    """The table with a value missing in every so many rows of a column."""
    for column, step in every.items():
        frame[column] = frame[column].mask(np.arange(len(frame)) % step == 0)
    return frame


def laid_out(frame: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """The table in the order of a store that was prepared for some columns."""
    return frame.sort_values(list(columns), kind="stable").reset_index(drop=True)


PLAIN = partial(table, 3000, 1, [40, 30, 20, 10], [50, 30, 15, 5])
STORE = partial(table, 6000, 2, [40, 35, 25], [50, 30, 20], 8)
THREE = ("experiment", "condition", HOURS)
FRAMES: dict[str, Callable[[], pd.DataFrame]] = {
    "plain": PLAIN,
    "even": partial(table, 2400, 3, [1, 1, 1], [1, 1, 1]),
    "two labels": partial(table, 1000, 4, [1, 1], [9, 1]),
    "few hours missing": lambda: with_holes(PLAIN(), **{HOURS: 7}),
    "most hours missing": lambda: with_holes(PLAIN(), **{HOURS: 2}).assign(
        **{HOURS: lambda frame: frame[HOURS].mask(frame["experiment"] == "e00003")}
    ),
    "labels missing": lambda: with_holes(PLAIN(), condition=11, experiment=13),
    "one hour": lambda: PLAIN().assign(**{HOURS: 3.0}),
    "long tracks": partial(table, 1500, 5, [5, 3, 2], [1, 1], 100),
    "skewed": partial(table, 4000, 6, [1000, 100, 10, 1], [1000, 100, 10, 1]),
    "200 experiments": partial(table, 6000, 7, range(1, 201), [1, 1, 1]),
    "5,000 conditions": partial(table, 20_000, 8, [3, 2], range(1, 5001)),
    "100,000 conditions": partial(table, 250_000, 9, [3, 2, 1], [1] * 100_000),
    "20,000 experiments": partial(table, 60_000, 10, [1] * 20_000, [1, 1]),
    "5 cells": partial(table, 5, 11, [1, 1], [1, 1]),
    "12 cells": partial(table, 12, 12, [2, 1], [3, 1]),
    "40 cells": partial(table, 40, 13, [30, 9, 1], [20, 15, 5], 3),
    "store": lambda: laid_out(STORE(), *THREE),
    "store by condition": lambda: laid_out(STORE(), "condition"),
    "store by experiment": lambda: laid_out(STORE(), "experiment"),
    "random store": STORE,
    "store, hours missing": lambda: laid_out(with_holes(STORE(), **{HOURS: 9}), *THREE),
    "store, 60 experiments": lambda: laid_out(table(9000, 14, range(20, 80), [2, 1], 8), *THREE),
    "store, 300 conditions": lambda: laid_out(table(9000, 15, [1, 1], range(10, 310), 8), *THREE),
    "store, skewed": lambda: laid_out(table(8000, 16, [100, 30, 3], [100, 30, 3], 8), *THREE),
    "small store": lambda: laid_out(table(400, 17, [2, 1], [2, 1], 8), *THREE),
}
# which rows of a table are cells, where not all are: the others are those of validation
PARTS: dict[str, Callable[[int], np.ndarray]] = {
    "all": np.arange,
    "4 of 5": lambda n: np.flatnonzero(np.arange(n) % 5 != 3),
    "half": lambda n: np.flatnonzero(np.random.default_rng(18).integers(0, 2, n)),
    "blocks": lambda n: np.flatnonzero(np.arange(n) // 50 % 4 != 1),
    "late": lambda n: np.arange(n // 3, n),
    "1 of 5": lambda n: np.flatnonzero(np.arange(n) % 5 == 3),
}


@cache
def frame_of(name: str) -> pd.DataFrame:
    return FRAMES[name]()


@cache
def cells_of(name: str, part: str) -> CellTable:
    frame = frame_of(name)
    cells = CellTable.from_frame(frame, track="track", missing="label")
    return cells if part == "all" else cells.take(PARTS[part](len(frame)))


# samplers, each of which is made anew for every rank


def rows(name: str, *axes: Any, part: str = "all", **options: Any) -> BatchSampler:
    """A sampler that reads row by row."""
    return BatchSampler(cells_of(name, part), named(axes), **{"batch_size": 48, **options})


def chunks(name: str, *axes: Any, part: str = "all", kind: Any = ChunkedBatchSampler, **options: Any) -> BatchSampler:
    """A sampler that reads in chunks."""
    given = {"batch_size": 32, "chunk_size": 16, "preload_nchunks": 16, **options}
    return kind(cells_of(name, part), named(axes), **given)


def flexible(name: str, world_size: int = 1, **options: Any) -> BatchSampler:
    """The sampler in flat form."""
    return FlexibleBatchSampler(frame_of(name), **{"batch_size": 48, "num_replicas": world_size, **options})


def named(axes: Sequence[Any]) -> dict[str, Any]:
    return {f"axis {i}": axis for i, axis in enumerate(axes)}


E, C, T, K = ExperimentAware, ConditionBalanced, TemporallyEnriched, TrackCapped
ROWS, CHUNKS, FLEXIBLE = partial(partial, rows), partial(partial, chunks), partial(partial, flexible)
AXES: dict[str, Any] = {"experiment": E(), "condition": C(), "temporal": T(), "track": K()}
LEAKS = {"leaky 0.1": E(0.1), "leaky 0.5": E(0.5)}
SUBSETS = [subset for n in range(5) for subset in itertools.combinations(AXES, n)]
MOST, FEW = {"e00000": 1, "e00001": 2, "e00002": 0, "e00003": 5.5}, {"e00000": 1, "e00001": 0.25, "e00002": 3}
RATIO = {"c00000": 1, "c00001": 1, "c00002": 2, "c00003": 0.7}
WITHOUT = {"c00000": 0, "c00001": 3, "c00002": 1, "c00003": 1}

# a case makes the sampler of rank 0 when called, and that of another rank with rank=
CASES: dict[str, Callable[..., BatchSampler]] = {
    # every subset of the axes, and those with experiments with leaks
    **{" + ".join(subset) or "random": ROWS("plain", *(AXES[name] for name in subset)) for subset in SUBSETS},
    **{
        " + ".join([leak, *subset[1:]]): ROWS("plain", LEAKS[leak], *(AXES[name] for name in subset[1:]))
        for subset in SUBSETS
        if "experiment" in subset
        for leak in LEAKS
    },
    # options of axes
    "weights uniform": ROWS("plain", E(0.0, "uniform"), C()),
    "weights uniform, leaky": ROWS("plain", E(0.1, "uniform"), C(), T()),
    "weights mapping": ROWS("plain", E(0.0, MOST)),
    "weights mapping, leaky": ROWS("plain", E(0.37, MOST), C()),
    "weights mapping, temporal, track": ROWS("plain", E(0.1, MOST), T(), K()),
    "ratio": ROWS("plain", C(RATIO)),
    "ratio with a 0": ROWS("plain", C(WITHOUT), K()),
    "ratio with experiments": ROWS("plain", E(0.1), C(RATIO)),
    "ratio with experiments, temporal": ROWS("plain", E(0.1), C(RATIO), T(4.0, 0.5)),
    "weights and ratio with a 0": ROWS("plain", E(0.2, MOST), C(WITHOUT), T(), K(3)),
    "cap 3": ROWS("plain", K(3)),
    "cap 3 of long tracks": ROWS("long tracks", E(), C(), K(3)),
    "cap 1 of long tracks": ROWS("long tracks", E(0.1), K(1)),
    "cap 3, temporal": ROWS("long tracks", E(0.1), C(), T(), K(3)),
    "cap 1 of lineages": ROWS("plain", C(), K(1, ["experiment", "lineage"])),
    "window 0": ROWS("plain", E(), T(0.0, 0.3)),
    "window all inside": ROWS("plain", C(), T(3.0, 0.0)),
    "window all outside": ROWS("plain", E(0.1), C(), T(3.0, 1.0)),
    "window wider than all": ROWS("plain", C(), T(100.0, 0.3)),
    "window of another column": ROWS("plain", E(), T(10.0, 0.25, "dose")),
    "one hour": ROWS("one hour", E(0.1), C(), T()),
    # columns
    "experiment of two columns": ROWS("plain", E(0.1, None, ["experiment", "plate"]), C()),
    "condition of two columns": ROWS("plain", E(), C(None, ["condition", "plate"])),
    "two shares": ROWS("plain", C(), C(None, "plate")),
    "two shares with experiments": ROWS("plain", E(0.1), C(RATIO), C({0: 1, 1: 1, 2: 3}, "plate")),
    "two shares, one of two columns": ROWS("plain", C(), C(None, ["plate", "dose"]), T()),
    "three shares": ROWS("plain", E(0.1), C(), C(None, "plate"), C(None, "dose"), K()),
    "numbers as labels": ROWS("plain", E(0.1, {0: 1, 1: 0, 2: 3}, "plate"), C(None, "dose")),
    # missing values
    "few hours missing": ROWS("few hours missing", E(0.1), C(), T()),
    "few hours missing, all inside": ROWS("few hours missing", T(1.0, 0.0), K()),
    "most hours missing": ROWS("most hours missing", E(0.1), C(), T()),
    "labels missing": ROWS("labels missing", E(0.1), C()),
    # ranks
    "2 ranks": ROWS("plain", E(0.1), C(), T(), world_size=2),
    "3 ranks": ROWS("plain", E(), C(), world_size=3),
    "4 ranks": ROWS("plain", C(), K(), world_size=4, batch_size=31),
    "4 ranks, random": ROWS("plain", world_size=4),
    "2 ranks, global": ROWS("plain", E(0.1), C(), scope="global", world_size=2),
    "3 ranks, global": ROWS("plain", E(0.1), C(), T(), scope="global", world_size=3, batch_size=17),
    "4 ranks, global": ROWS("plain", E(), C(), T(), K(), scope="global", world_size=4),
    "4 ranks, global, cap": ROWS("long tracks", C(), K(3), scope="global", world_size=4, batch_size=20),
    "3 ranks, global, random": ROWS("plain", scope="global", world_size=3),
    "1 rank, global": ROWS("plain", E(0.5), T(), scope="global"),
    # lengths, seeds and sizes
    "7 batches": ROWS("plain", E(0.1), C(), num_batches=7),
    "2,500 batches": ROWS("plain", E(0.1), C(), T(), num_batches=2500),
    "2,500 batches, cap": ROWS("plain", C(), K(3), num_batches=2500, world_size=2),
    "cover": ROWS("plain", E(0.1), C(), num_batches="cover"),
    "cover, random": ROWS("plain", num_batches="cover"),
    "cover, 3 ranks": ROWS("skewed", E(), C(), num_batches="cover", world_size=3),
    "cover, 2 ranks, global": ROWS("skewed", E(0.5, "uniform"), C(), num_batches="cover", world_size=2, scope="global"),
    "fixed": ROWS("plain", E(0.1), C(), T(), fixed=True),
    "fixed, random, 2 ranks": ROWS("plain", fixed=True, world_size=2, part="1 of 5"),
    "seed 7": ROWS("plain", E(0.1), C(), T(), K(), seed=7),
    "seed 2**63 + 1": ROWS("plain", E(0.1), C(), seed=2**63 + 1),
    "batches of 1": ROWS("plain", E(0.5), C(), T(), batch_size=1),
    "batches of 7": ROWS("plain", E(0.1), C(), K(), batch_size=7),
    "batches of 1,000": ROWS("plain", E(0.1), C(), T(), batch_size=1000),
    "a batch of all cells": ROWS("plain", E(0.1), C(), batch_size=3000),
    "part of a table": ROWS("plain", E(0.1), C(), T(), part="half"),
    # labels from 2 to 100,000
    "two labels": ROWS("two labels", E(0.1), C(), T()),
    "even": ROWS("even", E(0.1), C(), T()),
    "skewed": ROWS("skewed", E(0.1, "uniform"), C(), T(), K()),
    "200 experiments": ROWS("200 experiments", E(0.1), C()),
    "200 experiments, uniform": ROWS("200 experiments", E(0.0, "uniform"), T(), num_batches=300),
    "200 conditions": ROWS("200 experiments", C(None, "experiment"), K()),
    "5,000 conditions": ROWS("5,000 conditions", E(0.1), C(), T()),
    "100,000 conditions": ROWS("100,000 conditions", C(), batch_size=256),
    "100,000 conditions, leaky": ROWS("100,000 conditions", E(0.1), C(), batch_size=256, world_size=2),
    "20,000 experiments": ROWS("20,000 experiments", E(), C(), batch_size=16),
    "20,000 experiments, leaky": ROWS("20,000 experiments", E(0.5), batch_size=16),
    # tables so small that cells repeat
    "5 cells": ROWS("5 cells", E(), C(), batch_size=4),
    "5 cells, all axes": ROWS("5 cells", E(0.5), C(), T(), K(), batch_size=5),
    "5 cells, random": ROWS("5 cells", batch_size=2, num_batches=30),
    "12 cells": ROWS("12 cells", E(), C(), T(), batch_size=10, num_batches=30),
    "12 cells, 2 ranks, global": ROWS("12 cells", E(0.1), C(), scope="global", world_size=2, batch_size=6),
    "40 cells": ROWS("40 cells", E(0.1), C(), T(), K(), batch_size=25),
    "40 cells, cap": ROWS("40 cells", C(), K(), batch_size=40),
    "40 cells, cover": ROWS("40 cells", E(0.0, FEW), C(), batch_size=25, num_batches="cover"),
    # flat form
    "flexible": FLEXIBLE("plain"),
    "flexible, all": FLEXIBLE("plain", leaky=0.1, temporal_enrichment=True, world_size=2, seed=3),
    "flexible, options": FLEXIBLE(
        "plain", leaky=0.5, experiment_weights=MOST, condition_ratio=RATIO,
        temporal_enrichment=True, temporal_window_hours=5.0, temporal_global_fraction=0.1,
    ),
    "flexible, random": FLEXIBLE("plain", experiment_aware=False, condition_balanced=False, drop_last=False),
    "flexible, uniform": FLEXIBLE("plain", condition_balanced=False, experiment_weights="uniform"),
    "flexible, 4 ranks": FLEXIBLE("plain", world_size=4, drop_last=False, leaky=0.1),
    # in chunks: stores laid out for the axes
    "chunks: random": CHUNKS("store"),
    "chunks: experiment": CHUNKS("store", E()),
    "chunks: leaky": CHUNKS("store", E(0.1)),
    "chunks: leaky 0.5": CHUNKS("store", E(0.5), C()),
    "chunks: condition": CHUNKS("store", C()),
    "chunks: temporal": CHUNKS("store", T()),
    "chunks: track": CHUNKS("store", K()),
    "chunks: two": CHUNKS("store", E(), C()),
    "chunks: two, leaky": CHUNKS("store", E(0.1), C()),
    "chunks: three": CHUNKS("store", E(), C(), T()),
    "chunks: three, leaky": CHUNKS("store", E(0.1), C(), T()),
    "chunks: four": CHUNKS("store", E(0.1), C(), T(), K()),
    "chunks: condition, cap 3": CHUNKS("store", C(), K(3), seed=5),
    "chunks: experiment, temporal": CHUNKS("store", E(), T(1.0, 0.2)),
    "chunks: condition, temporal, cap": CHUNKS("store", C(), T(3.0, 0.5), K(1)),
    "chunks: weights and ratio": CHUNKS("store", E(0.1, FEW), C({"c00000": 1, "c00001": 2, "c00002": 0})),
    "chunks: uniform": CHUNKS("store", E(0.0, "uniform"), C(), T()),
    "chunks: two shares": CHUNKS("store", C(), C(None, "plate"), preload_nchunks=64),
    "chunks: hours missing": CHUNKS("store, hours missing", E(0.1), C(), T()),
    "chunks: 60 experiments": CHUNKS("store, 60 experiments", E(), C(), preload_nchunks=32),
    "chunks: 300 conditions": CHUNKS("store, 300 conditions", E(), C(), preload_nchunks=64),
    "chunks: skewed": CHUNKS("store, skewed", E(0.1), C(), T(), preload_nchunks=32),
    "chunks: small": CHUNKS("small store", E(0.1), C(), batch_size=16, chunk_size=8, num_batches=60),
    "chunks: large windows": CHUNKS("store", E(0.1), C(), T(), preload_nchunks=128),
    "chunks: odd sizes": CHUNKS("store", E(0.1), C(), batch_size=30, chunk_size=25, preload_nchunks=18),
    # stores in other orders
    "chunks: by condition": CHUNKS("store by condition", C(), T(), preload_nchunks=64),
    "chunks: by experiment": CHUNKS("store by experiment", E(0.1), C(), preload_nchunks=32),
    "chunks: random order": CHUNKS("random store"),
    "chunks: random order, experiment": CHUNKS("random store", E(), preload_nchunks=64),
    "chunks: random order, condition": CHUNKS("random store", C(), K()),
    "chunks: random order, two": CHUNKS("random store", E(0.1), C(), preload_nchunks=64),
    "chunks: random order, three": CHUNKS("random store", E(0.1), C(), T(), preload_nchunks=128),
    # ranks, lengths, and rows that are not cells
    "chunks: 2 ranks": CHUNKS("store", E(0.1), C(), T(), world_size=2),
    "chunks: 3 ranks": CHUNKS("store", C(), world_size=3, preload_nchunks=32),
    "chunks: 4 ranks": CHUNKS("store", E(), C(), K(), world_size=4),
    "chunks: 4 ranks, random": CHUNKS("random store", world_size=4),
    "chunks: 250 batches": CHUNKS("store", E(0.1), C(), num_batches=250),
    "chunks: 9 batches, seed": CHUNKS("store", E(0.1), C(), T(), num_batches=9, seed=2**40 + 3),
    "chunks: fixed": CHUNKS("store", fixed=True, part="1 of 5"),
    "chunks: fixed, axes": CHUNKS("store", E(), C(), fixed=True),
    "chunks: 4 of 5 rows": CHUNKS("store", E(0.1), C(), T(), part="4 of 5"),
    "chunks: half the rows": CHUNKS("store", E(0.1), C(), part="half", preload_nchunks=32, world_size=2),
    "chunks: half the rows, random": CHUNKS("store", part="half"),
    "chunks: blocks of rows": CHUNKS("store", C(), T(), K(), part="blocks"),
    "chunks: late rows": CHUNKS("random store", C(), part="late", preload_nchunks=64),
    # as they come
    "in order": CHUNKS("store", kind=ChunksInOrder),
    "in order, part": CHUNKS("store", kind=ChunksInOrder, part="half", world_size=2),
    "in order, 3 ranks": CHUNKS("random store", kind=ChunksInOrder, world_size=3, num_batches=20),
    "shuffled": CHUNKS("store", kind=ChunksShuffled),
    "shuffled, part": CHUNKS("store", kind=ChunksShuffled, part="blocks", world_size=2, seed=9),
    "shuffled, fixed": CHUNKS("random store", kind=ChunksShuffled, fixed=True, world_size=4, preload_nchunks=8),
    # several primary groups, and options that change
    "2 blocks": ROWS("plain", E(0.1, experiments=2), C(), T(), world_size=2),
    "3 blocks of 200": ROWS("200 experiments", E(0.3, "uniform", experiments=3), C(), batch_size=50),
    "3 blocks of few cells": ROWS("skewed", E(experiments=3), C(), K(), scope="global", world_size=2),
    "a schedule": ROWS("plain", E(), C(), schedule={"axis 0.leaky": {"from": 0.5, "to": 0, "epochs": 3}}),
}  # fmt: skip


def found(case: Callable[..., BatchSampler]) -> dict[str, Any]:
    """Batches per epoch and rank, and hashes over all ranks.

    Of the batches, by epoch and step; of the first ones of two passes; and of what was asked of them.
    """
    batches, passes, asked = hashlib.sha256(), hashlib.sha256(), hashlib.sha256()
    rank, world_size, n = 0, 1, 0
    while rank < world_size:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ShortfallWarning)
            sampler = case(rank=rank)
        rank, world_size, n = rank + 1, sampler.world_size, len(sampler)
        steps = sorted({*range(min(n, FIRST)), *range(max(0, n - LAST), n)})
        for epoch, step in itertools.product(range(EPOCHS), steps):
            batches.update(as_bytes(sampler.batch(epoch, step)))
            of = sampler.asked(epoch, step)
            asked.update(f"{of.experiment} {of.focal_hours:.6f} {of.leaky:.6f}\n".encode())
        for _ in range(2):
            for batch in itertools.islice(sampler, PASSED):
                passes.update(f"{batch.epoch} {batch.step}\n".encode() + as_bytes(batch))
    hashes = {"batches": batches, "passes": passes, "asked": asked}
    return {"length": n, **{name: of.hexdigest() for name, of in hashes.items()}}


def as_bytes(positions: Sequence[int] | np.ndarray) -> bytes:
    return np.ascontiguousarray(positions, dtype="<i8").tobytes()


def test_every_case_is_written_down() -> None:
    assert list(json.loads(GOLDEN.read_text())) == list(CASES)


@pytest.mark.parametrize("name", CASES)
def test_batches_are_those_written_down(name: str) -> None:
    assert found(CASES[name]) == json.loads(GOLDEN.read_text())[name]


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(
            "to write the hashes of the batches of this version: python tests/sampling/test_golden_batches.py --write"
        )
    GOLDEN.write_text(json.dumps({name: found(case) for name, case in CASES.items()}, indent=1) + "\n")
    print(f"{len(CASES)} cases written to {GOLDEN}")
