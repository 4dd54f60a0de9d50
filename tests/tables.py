"""Random tables of cells and random sets of axes, for the tests of the sampler's laws."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pandas as pd
from hypothesis import strategies as st

from cellcohort.cells import CellTable
from cellcohort.sampling import ConditionBalanced, ExperimentAware, TemporallyEnriched, TrackCapped
from cellcohort.sampling.axes.base import Axis

SUBSETS = [s for n in range(5) for s in itertools.combinations(("experiment", "condition", "temporal", "track"), n)]


@dataclass
class Case:
    frame: pd.DataFrame
    cells: CellTable
    axes: dict[str, Axis]
    batch_size: int
    seed: int

    def __repr__(self) -> str:
        strata = self.frame.groupby(["experiment", "condition"]).size().to_dict()
        return f"Case({strata}, {self.axes}, batch_size={self.batch_size}, seed={self.seed})"


def table(sizes: dict[tuple[str, str], int], hours: np.ndarray | None = None, seed: int = 0) -> pd.DataFrame:
    """A table with so many cells per (experiment, condition), in random order."""
    keys = [key for key, n in sizes.items() for _ in range(n)]
    rng = np.random.default_rng(seed)
    times = rng.integers(0, 25, len(keys)) / 2 if hours is None else hours
    frame = pd.DataFrame(keys, columns=["experiment", "condition"]).assign(hours_post_infection=times)
    frame["track"] = [f"{e}-{i // 6}" for i, e in enumerate(frame.experiment)]
    return frame.sample(frac=1, random_state=seed).reset_index(drop=True)


@st.composite
def cases(draw: st.DrawFn, subset: tuple[str, ...], even: bool = False) -> Case:
    """A table and a sampler's arguments; with `even`, every stratum has plenty of cells."""
    experiments, conditions = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    size = st.integers(60, 120) if even else st.one_of(st.just(0), st.integers(1, 4), st.integers(5, 80))
    sizes = {
        (f"e{e}", f"c{c}"): draw(size) for e in range(experiments) for c in range(conditions)
    }  # fmt: skip
    if sum(sizes.values()) < 2:
        sizes["e0", "c0"] = 8
    frame = table(sizes, seed=draw(st.integers(0, 2**20)))
    present = sorted(frame.condition.unique())
    ratio = draw(
        st.one_of(st.none(), st.fixed_dictionaries({c: st.sampled_from([0.5, 1.0, 2.0, 3.7]) for c in present}))
    )
    leaky = draw(st.sampled_from([0.0, 0.0, 0.1, 0.37]))
    batch_size = draw(st.integers(1, 50)) if even else draw(st.integers(1, min(64, len(frame))))
    cells_of = np.sort(frame.experiment.value_counts().to_numpy())
    blocks = draw(st.sampled_from([1, 1, 2, 3]))
    if blocks > min(len(cells_of), batch_size) or leaky * batch_size > cells_of[: len(cells_of) - blocks].sum():
        blocks = 1
    axes: dict[str, Axis] = {
        "experiment": ExperimentAware(leaky, draw(st.sampled_from([None, "uniform"])), experiments=blocks),
        "condition": ConditionBalanced(ratio),
        "temporal": TemporallyEnriched(draw(st.sampled_from([0.0, 0.5, 2.0])), draw(st.sampled_from([0.0, 0.3, 1.0]))),
        "track": TrackCapped(draw(st.integers(1, 2))),
    }
    return Case(
        frame,
        CellTable.from_frame(frame, track="track"),
        {n: axes[n] for n in subset},
        batch_size,
        draw(st.integers(0, 2**40)),
    )
