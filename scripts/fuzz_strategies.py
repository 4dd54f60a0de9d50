"""Values, tables and axes, right ones and wrong ones, that ``scripts/fuzz.py`` draws its examples from."""

from __future__ import annotations

from typing import Any

import pandas as pd
from hypothesis import strategies as st

from cellcohort.sampling import ConditionBalanced, ExperimentAware, TemporallyEnriched, TrackCapped

names = st.sampled_from(["experiment", "condition", "hours_post_infection", "track", "x", "missing", "", "a b", "ü"])
SAMPLES = st.sampled_from(["well", "Well ID", "plate", "sample", "fov"])
numbers = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.floats(), st.sampled_from([0, 1, -1, 0.5, 1e300, float("nan"), float("inf")])
)
texts = st.one_of(
    st.sampled_from(["", "a", "b", "1", "1.0", "nan", "missing", "None", "<b>", "a/b", " a"]), st.text(max_size=6)
)
values = st.one_of(st.none(), st.booleans(), numbers, texts)
trees = st.recursive(
    values,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=6,
)


@st.composite
def columns(draw: st.DrawFn, rows: int) -> pd.Series:
    """Make a column of a table, of any type that pandas has."""
    kind = draw(
        st.sampled_from(["text", "number", "mixed", "category", "bool", "time", "nullable", "arrow", "list", "bytes"])
    )
    of: dict[str, Any] = {
        "text": texts,
        "number": st.floats(-10, 100),
        "mixed": values,
        "category": st.sampled_from(["a", "b", None, "c"]),
        "bool": st.booleans(),
        "time": st.sampled_from([pd.Timestamp(0), pd.NaT, pd.Timestamp("2200-01-01")]),
        "nullable": st.one_of(st.none(), st.integers(-5, 5)),
        "arrow": st.one_of(st.none(), texts),
        "list": st.lists(st.integers(0, 2), max_size=2),
        "bytes": st.binary(max_size=3),
    }
    few = draw(st.lists(of[kind], min_size=1, max_size=4))
    drawn = [draw(st.sampled_from(few)) for _ in range(rows)]
    series = pd.Series(drawn, dtype=object)
    dtype: Any = {"category": "category", "nullable": "Int64", "arrow": "string[pyarrow]", "number": "float64"}.get(
        kind
    )
    return series if dtype is None else series.astype(dtype)


@st.composite
def frames(draw: st.DrawFn) -> pd.DataFrame:
    """Make a table of cells, with columns of the names that matter or others, some of them twice."""
    rows = draw(st.integers(0, 12))
    named = draw(st.lists(names, max_size=6))
    made = [draw(columns(rows)) for _ in named]
    frame = pd.concat(made, axis=1) if made else pd.DataFrame(index=range(rows))
    return frame.set_axis(named, axis=1)


axes: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "experiment": st.builds(
            dict, leaky=numbers, weights=st.one_of(st.none(), texts, st.dictionaries(texts, numbers, max_size=3))
        ),
        "condition": st.builds(
            dict,
            ratio=st.one_of(st.none(), st.dictionaries(texts, numbers, max_size=3)),
            column=st.one_of(names, st.lists(names, max_size=2)),
        ),
        "temporal": st.builds(dict, window_hours=numbers, global_fraction=st.one_of(numbers, st.floats(0, 1))),
        "track": st.builds(dict, max_cells=st.integers(-1, 4)),
    },
)
CLASSES: dict[str, Any] = {
    "experiment": ExperimentAware,
    "condition": ConditionBalanced,
    "temporal": TemporallyEnriched,
    "track": TrackCapped,
}
