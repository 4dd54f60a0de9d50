"""Positives by labels and time: which cells may be partners, and that each is drawn as often as the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from cellcohort.cells import CellTable
from cellcohort.datasets.partners import PairRule, Partners, pushed_apart


def frame(n: int = 300, seed: int = 0) -> pd.DataFrame:
    """Cells of 3 experiments and 2 conditions, with wells that lie in one experiment, and donors across them."""
    rng = np.random.default_rng(seed)
    experiment = rng.choice(["a", "b", "c"], n, p=[0.6, 0.3, 0.1])
    return pd.DataFrame(
        {
            "experiment": experiment,
            "condition": rng.choice(["mock", "drug"], n, p=[0.8, 0.2]),
            "well": [f"{e}{k}" for e, k in zip(experiment, rng.integers(0, 4, n), strict=True)],
            "donor": rng.choice([1, 2, 3], n),
            "hours": rng.integers(0, 20, n) / 2,
        }
    )


def table(cells: pd.DataFrame, **roles: Any) -> CellTable:
    return CellTable.from_frame(cells, hours="hours", **roles)


def allowed(cells: pd.DataFrame, rule: PairRule) -> np.ndarray:
    """Whether a row (first axis) may have another as its partner, written out."""
    fits = ~np.eye(len(cells), dtype=bool)
    for option, differs in ((rule.same, False), (rule.different, True)):
        for name in [option] if isinstance(option, str) else option or []:
            labels = cells[name].to_numpy()
            fits &= (labels[:, None] != labels) == differs
    apart = np.abs(cells["hours"].to_numpy()[:, None] - cells["hours"].to_numpy())
    if rule.hours_at_most is not None:
        fits &= apart <= rule.hours_at_most + 1e-9
    if rule.hours_at_least is not None:
        fits &= apart >= rule.hours_at_least - 1e-9
    return fits


RULES = [
    PairRule(same="condition"),
    PairRule(same=["condition"], different=["experiment"]),
    PairRule(same=["condition", "donor"], different=["experiment"]),
    PairRule(same="condition", different=["experiment", "well"]),
    PairRule(same="condition", different=["donor", "well"]),
    PairRule(different=["donor", "experiment", "condition"]),
    PairRule(same="condition", hours_at_most=1.0),
    PairRule(same="condition", different="experiment", hours_at_most=2.0, hours_at_least=1.0),
    PairRule(same="condition", different=["experiment", "donor"], hours_at_least=4.0),
    PairRule(hours_at_most=0.0),
    PairRule(same=["condition"], different="experiment", hours_at_least=0.0),
]


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("n", [1, 2, 12, 300])
def test_a_partner_is_one_of_the_cells_that_qualify_and_all_are_counted(rule: PairRule, n: int) -> None:
    cells = frame(n)
    partners, rows, fits = Partners(table(cells), rule), np.arange(n), allowed(cells, rule)
    assert np.array_equal(partners.counts(rows), fits.sum(axis=1))
    for epoch in range(3):
        drawn = partners.draw(rows, rows, epoch)
        assert np.where(fits.any(axis=1), fits[rows, drawn], drawn == rows).all()


@pytest.mark.parametrize("rule", [*RULES[1:6:2], RULES[7], RULES[8]], ids=str)
def test_every_cell_that_qualifies_is_drawn_as_often(rule: PairRule) -> None:
    cells = frame(120)
    partners, fits = Partners(table(cells), rule), allowed(cells, rule)
    several = np.flatnonzero(fits.sum(axis=1) > 1)[::12]
    assert len(several) > 3
    for row in several:
        others, n = np.flatnonzero(fits[row]), 60 * int(fits[row].sum())
        keys = np.arange(n)  # a draw is keyed by the row of the table and the epoch
        drawn = np.concatenate([partners.draw(np.full(n, row), keys, epoch) for epoch in range(2)])
        counts = np.bincount(np.searchsorted(others, drawn), minlength=len(others))
        assert stats.chisquare(counts).pvalue > 1e-4, (row, counts)


def test_a_draw_depends_on_seed_epoch_and_row_and_on_no_other_cell_of_the_batch() -> None:
    partners = Partners(table(frame()), RULES[1])
    rows = np.arange(300)
    whole = partners.draw(rows, rows, 4)
    some = np.array([250, 3, 77])
    assert np.array_equal(partners.draw(some, some, 4), whole[some])
    assert not np.array_equal(partners.draw(rows, rows, 5), whole)
    other = Partners(table(frame()), PairRule("condition", "experiment", seed=1))
    assert not np.array_equal(other.draw(rows, rows, 4), whole)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_among_some_cells_it_is_as_if_there_were_no_others(rule: PairRule) -> None:
    cells = frame(200)
    partners, rows = Partners(table(cells), rule), np.arange(200)
    among = np.random.default_rng(1).permutation(200)[:60]
    counts, drawn = partners.counts(rows, among), partners.draw(rows, rows, 0, among)
    fits = allowed(cells, rule) & np.isin(rows, among)
    assert np.array_equal(counts, fits.sum(axis=1))
    assert np.where(counts > 0, fits[rows, drawn], drawn == rows).all()
    assert np.array_equal(partners.draw(rows, rows, 0, among[:0]), rows)


def test_cells_without_a_time_have_no_partner_where_time_counts() -> None:
    cells = frame(50)
    cells.loc[::5, "hours"] = np.nan
    labelled = table(cells, missing="label")
    rows = np.arange(50)
    partners = Partners(labelled, PairRule(same="condition", hours_at_most=3.0))
    assert not partners.counts(rows)[::5].any() and partners.counts(rows).any()
    drawn = partners.draw(rows, rows, 0)
    assert np.array_equal(drawn[::5], rows[::5]) and not np.isin(drawn[1::5], rows[::5]).any()
    assert Partners(labelled, PairRule(same="condition")).counts(rows).all(), "time does not count"
    no_times = labelled.take(rows[::5])
    assert not Partners(no_times, PairRule(same="condition", hours_at_most=3.0)).counts(rows[:10]).any()


def test_hours_between_are_those_of_the_two_cells() -> None:
    cells = frame(50)
    partners, rows = Partners(table(cells), PairRule(same="condition", different="donor")), np.arange(50)
    drawn = partners.draw(rows, rows, 0)
    apart = partners.hours_between(rows, drawn)
    hours = cells["hours"].to_numpy()
    assert np.isnan(apart[drawn == rows]).all()
    assert np.allclose(apart[drawn != rows], (hours[drawn] - hours)[drawn != rows])


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_rules_over_any_labels(data: st.DataObject) -> None:
    n = data.draw(st.integers(2, 40))
    seed = data.draw(st.integers(0, 999))
    rng = np.random.default_rng(seed)
    cells = pd.DataFrame({name: rng.integers(0, data.draw(st.integers(1, 5)), n) for name in "abcd"})
    cells["hours"] = rng.integers(0, 6, n) * 0.1
    roles = data.draw(st.lists(st.sampled_from(["same", "different", "none"]), min_size=4, max_size=4))
    columns = {role: [name for name, of in zip("abcd", roles, strict=True) if of == role] for role in set(roles)}
    least, most = sorted(data.draw(st.lists(st.integers(0, 5), min_size=2, max_size=2)))
    times = data.draw(st.sampled_from([{}, {"hours_at_most": most * 0.1}, {"hours_at_least": least * 0.1}]))
    rule = PairRule(columns.get("same"), columns.get("different"), **times)
    partners = Partners(CellTable.from_frame(cells, experiment=None, condition=None, hours="hours"), rule)
    rows = np.arange(n)
    drawn, fits = partners.draw(rows, rows, 0), allowed(cells, rule)
    assert np.array_equal(partners.counts(rows), fits.sum(axis=1))
    assert np.where(fits.any(axis=1), fits[rows, drawn], drawn == rows).all()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"same": "condition", "different": ["condition"]}, "both name condition"),
        ({"hours_at_most": -1}, "pairs.hours_at_most=-1 must be a number of hours >= 0"),
        ({"hours_at_least": float("nan")}, "pairs.hours_at_least=nan"),
        ({"hours_at_least": 3, "hours_at_most": 2}, "is above pairs.hours_at_most=2"),
        ({"missing": "drop"}, "pairs.missing='drop' is not a choice; use view or leave_out"),
        ({"seed": -1}, "pairs.seed must be an integer >= 0, got -1"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        PairRule(**options)


def test_columns_and_times_that_are_not_there_are_named_with_those_that_are() -> None:
    cells = frame()
    with pytest.raises(ValueError, match=r"pairs.same='drug': the table has no column 'drug'; it has .*donor"):
        Partners(table(cells), PairRule(same="drug"))
    with pytest.raises(ValueError, match=r"pairs.different='plate': the table has no column 'plate'"):
        Partners(table(cells), PairRule(different=["experiment", "plate"]))
    bare = CellTable.from_frame(cells.drop(columns="hours"))
    with pytest.raises(ValueError, match=r"name its column with data\.columns\.hours, in code CellTable"):
        Partners(bare, PairRule(same="condition", hours_at_most=1))


def test_a_rule_is_chosen_by_any_of_its_options() -> None:
    assert not PairRule().chosen and not PairRule(same=[], missing="leave_out").chosen
    assert all(rule.chosen for rule in RULES)
    assert str(RULES[7]) == "the same condition, another experiment and 1 to 2 hours between them"


@pytest.mark.parametrize(
    ("together", "objective", "said"),
    [
        (["condition"], {"exclude": None}, True),
        (["condition", "dose"], {"exclude": ["track"]}, True),
        (["condition", "dose"], {"exclude": ["dose"]}, False),
        (["condition"], {"exclude": "condition"}, False),
        (["condition"], {"same": "condition", "exclude": None}, False),
        (["condition"], {"same": ["condition", "dose"], "exclude": None}, True),
        (["condition", "dose"], {"same": ["condition"], "exclude": None}, False),
        (["condition"], {"invariance": 25}, False),
        ([], {"exclude": None}, False),
    ],
)
def test_an_objective_may_push_apart_what_pairs_pull_together(together: Any, objective: Any, said: bool) -> None:
    sentence = pushed_apart(together, objective)
    assert bool(sentence) == said
    assert not said or f"set objective.exclude=[{','.join(together)}]" in sentence
