"""What the preview reports of the design of the experiments, and how pictures mark and name things."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from cellcohort.cells import CellTable
from cellcohort.datasets.protocol import LabelledCells
from cellcohort.preview import Survey, cover, findings, picture, report, survey
from cellcohort.preview.cells import TrainingCells
from cellcohort.preview.figure import legend_names, time_edges
from cellcohort.sampling import BatchSampler, ConditionBalanced, ExperimentAware
from cellcohort.sampling.axes.base import Axis
from tables import table

pytestmark = pytest.mark.filterwarnings("ignore::cellcohort.sampling.ShortfallWarning")
GROUP: dict[str, Axis] = {"experiment": ExperimentAware()}
BALANCE: dict[str, Axis] = {"condition": ConditionBalanced()}


def surveyed(sizes: dict[tuple[str, str], int], axes: dict[str, Axis], **changes: Any) -> Survey:
    cells = CellTable.from_frame(table(sizes).assign(track=np.arange(sum(sizes.values())), **changes), track="track")
    return survey(BatchSampler(cells, axes, 20, world_size=2))


def problems(of: Survey) -> list[str]:
    return [one.problem for one in findings(of)]


NESTED = {(f"e{i}", "ab"[i % 2]): 200 for i in range(6)}


@pytest.mark.parametrize("axes", [{}, BALANCE, GROUP, {**GROUP, **BALANCE}])
def test_conditions_nested_in_experiments_are_reported_with_what_can_be_concluded(axes: dict[str, Axis]) -> None:
    first, *others = findings(surveyed(NESTED, axes))
    assert first.problem.startswith(
        "Experiment and condition are confounded: no experiment holds two conditions. It can be tested whether "
        "experiments that are held out are recognized by their condition, for conditions with several experiments."
    )
    assert "It cannot be concluded that the condition causes a difference" in first.problem
    both = len(axes) == 2
    assert ("Leave out the axis experiment_aware" in first.change) == both
    assert not any("No axis governs the condition" in one.problem for one in others), "no axis could mend that"
    short = [one for one in others if "too few cells" in one.problem]
    assert len(short) == both and not any(one.reasons for one in short), "six times the same reason"


def test_what_the_split_holds_out_whole_is_not_said_to_be_missing_in_the_table() -> None:
    sizes = {(name, condition): 80 for name in "pqr" for condition in ("drug", "mock", "other")}
    del sizes["q", "other"]  # by design
    cells = CellTable.from_frame(table(sizes))
    experiment, condition = cells.column("experiment"), cells.column("condition")
    held = (experiment.codes == experiment.labels.index("p")) & (condition.codes == condition.labels.index("drug"))
    held[np.flatnonzero(~held)[::4]] = True
    training, validation = (LabelledCells(cells).subset(np.flatnonzero(part)) for part in (~held, held))
    source = TrainingCells(training, len(cells), "well", {}, held_out=validation.cells)
    both = {**GROUP, **BALANCE}
    (said,) = [one for one in findings(survey(BatchSampler(training.cells, both, 20), source=source)) if one.reasons]
    assert said.problem.startswith("The training part has too few cells for what is asked: batches are short of")
    assert said.reasons == (
        "the training part has no cells of condition 'drug' in experiment 'p': the split holds out all 80 of them.",
        "no cells of condition 'other' in experiment 'q', only 'drug', 'mock'.",
    )
    assert "another split.seed or split.fraction" in said.change and "by design" not in said.change
    (said,) = [one for one in findings(survey(BatchSampler(cells, both, 20))) if one.reasons]
    assert said.problem.startswith("The table has too few cells") and "differ by design" in said.change


def test_cells_without_a_condition_do_not_hide_that_conditions_are_nested() -> None:
    frame = table(NESTED | {(name, "none"): 2 for name in ("e0", "e1", "e2")}).replace({"condition": {"none": None}})
    cells = CellTable.from_frame(frame, missing="label")
    first, *_ = problems(survey(BatchSampler(cells, {}, 20)))
    assert first.startswith("Experiment and condition are confounded")


def test_one_experiment_for_each_condition_lets_nothing_be_concluded() -> None:
    first = problems(surveyed({("e", "a"): 200, ("f", "b"): 200}, {}))[0]
    assert "Each condition has one experiment, so nothing can be concluded about conditions" in first
    some = problems(surveyed({("e", "a"): 200, ("f", "b"): 200, ("g", "b"): 200}, {}))[0]
    assert "for conditions with several experiments (1 condition of 2 has one)." in some


def test_experiments_with_one_condition_are_named_and_crossed_designs_are_not() -> None:
    sizes = {(f"e{i}", c): 200 for i in range(4) for c in "ab"}
    assert not any("ne condition in" in one or "confounded" in one for one in problems(surveyed(sizes, BALANCE)))
    first = problems(surveyed({**sizes, ("plate 9", "a"): 200}, BALANCE))[0]
    assert first.startswith("Only one condition in 1 of 5 experiments (plate 9)")


def test_conditions_of_one_experiment_are_named_beside_others_that_several_hold() -> None:
    sizes = {(f"e{i}", c): 200 for i in range(3) for c in "ab"}
    assert not any("in one experiment only" in one for one in problems(surveyed(sizes, BALANCE)))
    said = problems(surveyed({**sizes, ("e1", "rare"): 200}, {}))
    (found,) = [one for one in said if "in one experiment only" in one]
    assert found.startswith("1 of 3 conditions is in one experiment only ('rare' in 'e1'): ")
    assert not any("in one experiment only" in one for one in problems(surveyed(NESTED, {}))), "told otherwise"


def test_one_experiment_and_one_condition_are_reported_and_so_is_every_axis_that_changes_nothing() -> None:
    of = surveyed({("e", "a"): 400}, {**GROUP, **BALANCE})
    said = problems(of)
    assert said[0].startswith("There is one experiment and one condition")
    assert "All cells have the same experiment, 'e': the axis experiment changes nothing." in said
    assert "All cells have the same condition, 'a': the axis condition changes nothing." in said
    assert "NO PROBLEM FOUND" not in report(of, findings(of), cover(of.sampler))


def test_a_stratum_of_one_cell_is_called_the_one_cell() -> None:
    of = surveyed({("e", "a"): 400, ("e", "b"): 1}, BALANCE)
    (one,) = [said for said in problems(of) if "may memorize them" in said]
    assert one.startswith("An epoch draws the one cell of b ")


def hatches(figure: Figure) -> list[tuple[int, int]]:
    """Row and column of every hatched cell of the heatmap."""
    (axes,) = [axes for axes in figure.axes if "in the batches of each" in axes.get_title("left")]
    boxes = [patch for patch in axes.patches if patch.get_hatch()]
    return sorted((round(box.get_y() + 0.5), round(box.get_x() + 0.5)) for box in boxes)  # type: ignore[attr-defined]


def test_the_heatmap_hatches_what_the_table_leaves_no_choice_for() -> None:
    sizes = {("e", "a"): 200, ("e", "b"): 200, ("f", "a"): 200, ("f", "b"): 200, ("g", "a"): 200}
    axes = {**GROUP, **BALANCE}
    assert hatches(picture(surveyed(sizes, axes))) == [(3, 0), (3, 1)], "g has only a; row 0 is what is asked"
    leaking: dict[str, Axis] = {"experiment": ExperimentAware(leaky=0.5), **BALANCE}
    assert hatches(picture(surveyed(sizes, leaking))) == []
    assert hatches(picture(surveyed({key: 200 for key in sizes if key[0] != "g"}, axes))) == []


@pytest.mark.parametrize(
    ("names", "cut", "common"),
    [
        (["a", "b"], ["a", "b"], ""),
        (["2024-01-01_left_plate", "2024-01-02_left_plate"], ["01", "02"], "2024-01-…_left_plate"),
        (["compound 1 (10 uM)", "compound 12 (10 uM)"], ["1", "12"], "compound … (10 uM)"),
        (["a long name indeed", "another long one"], ["a long n… indeed", "another long one"], ""),
        (["screen of March", "screen of March, again"], ["March", "March, again"], "screen of …"),
    ],
)
def test_legends_leave_out_what_long_names_have_in_common(names: list[str], cut: list[str], common: str) -> None:
    assert legend_names(names) == (cut, common)


@pytest.mark.parametrize(("n", "bins"), [(1, 1), (38, 38), (100, 100), (101, 32), (999, 32)])
def test_each_of_up_to_100_times_has_a_bin(n: int, bins: int) -> None:
    times = np.arange(n) / 2
    counts, _ = np.histogram(times, time_edges(times))
    assert len(counts) == bins and counts.min() >= 1 and np.ptp(counts) <= 1 and counts.sum() == n
