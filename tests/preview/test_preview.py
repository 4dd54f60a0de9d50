"""The preview: numbers that are those of the batches, findings that say what is amiss, a text, a picture, a command."""

from __future__ import annotations

import shlex
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from matplotlib.figure import Figure
from omegaconf import DictConfig, OmegaConf

from cellcohort.cells import CellTable
from cellcohort.composition.meter import describe
from cellcohort.preview import Survey, cover, findings, picture, report, survey, training_cells
from cellcohort.preview.checks.labels import alike, merge_option
from cellcohort.preview.describe import asked_lines
from cellcohort.preview.tables import WIDTH
from cellcohort.sampling import (
    BatchSampler,
    ConditionBalanced,
    ExperimentAware,
    ShortfallWarning,
    TemporallyEnriched,
    TrackCapped,
)
from cellcohort.sampling.axes.base import Axis
from cellcohort.sampling.coverage import coverage
from launches import new_process
from tables import table

ROOT = Path(__file__).parents[2]
EVEN = {(f"e{e}", f"c{c}"): 200 for e in range(3) for c in range(2)}
ALL: dict[str, Axis] = {
    "experiment": ExperimentAware(leaky=0.1),
    "condition": ConditionBalanced(),
    "temporal": TemporallyEnriched(),
}


def cells_of(sizes: dict[tuple[str, str], int], **changes: Any) -> CellTable:
    frame = table(sizes).assign(**changes)
    return CellTable.from_frame(frame, track="track")


def sampler(cells: CellTable, axes: dict[str, Axis], batch_size: int = 20, **options: Any) -> BatchSampler:
    return BatchSampler(cells, axes, batch_size, **({"world_size": 2} | options))


def problems(of: Survey, **options: Any) -> str:
    return "\n".join(f"{one.problem} {' '.join(one.reasons)} -> {one.change}" for one in findings(of, **options))


@pytest.mark.parametrize("scope", ["rank", "global"])
def test_the_numbers_are_those_of_the_batches(scope: Any) -> None:
    made = sampler(cells_of(EVEN), ALL, scope=scope)
    of = survey(made, batches=40)
    ranks = [made.for_rank(rank, 2) for rank in (0, 1)]
    each = [[rank.batch(0, step) for rank in ranks] for step in range(20)]
    batches = [np.concatenate(of_step) for of_step in each] if scope == "global" else [b for s in each for b in s]
    asked = [rank.asked(0, s) for s in range(len(each)) for rank in ranks][:: 2 if scope == "global" else 1]
    assert of.n_batches == len(batches) and of.steps == len(each) and of.batch_cells == len(batches[0])
    assert np.array_equal(of.first_batches[0], batches[0])
    for held in of.label_shares:
        shares = np.array([np.bincount(held.column.codes[b], minlength=len(held.cells)) / len(b) for b in batches])
        for found, wanted in ((held.mean, shares.mean(0)), (held.least, shares.min(0)), (held.most, shares.max(0))):
            assert np.allclose(found, wanted)
        assert np.allclose(held.absent, (shares == 0).mean(0))
        assert np.allclose(held.asked, 1 / len(held.cells))  # over all batches, whatever these have
        by_rank = [np.bincount(held.column.codes[np.concatenate(r)]) for r in zip(*each, strict=True)]
        assert np.allclose(held.by_rank, [count / count.sum() for count in by_rank])
        led = np.asarray(of.primary)
        assert held.by_primary is not None
        assert np.allclose(held.by_primary, [shares[led == leader].mean(0) for leader in range(3)])
    told = [describe(made.cells, b, a, made.axes) for b, a in zip(batches, asked, strict=True)]
    for name in ("window/held", "leak/held", "duplicates", "same_track_pairs", "shortfall"):
        assert np.allclose(of.numbers[name], [one[name] for one in told]), name
    tracks = made.cells.column("track").codes
    mates = [
        np.isin(tracks[b], [t for t, n in zip(*np.unique(tracks[b], return_counts=True), strict=True) if n > 1])
        for b in batches
    ]
    assert of.same_track_share is not None and np.allclose(of.same_track_share, [one.mean() for one in mates])
    assert [len(np.intersect1d(*of_step)) for of_step in each] == of.shared_cells.tolist()


def test_what_is_asked_is_what_the_weights_say_however_few_batches_are_measured() -> None:
    """Each primary experiment comes by its weight, and what leaks into its batches by the cells of the others."""
    weights = {"e0": 3.0, "e1": 1.0, "e2": 1.0}
    of = survey(
        sampler(cells_of(EVEN), {"experiment": ExperimentAware(0.1, weights), "condition": ConditionBalanced()}), 8
    )
    (held,) = [shares for shares in of.label_shares if shares.rule == "group"]
    assert held.asked == pytest.approx([0.9 * 0.6 + 0.05 * 0.4, *[0.9 * 0.2 + 0.05 * 0.8] * 2])
    assert np.abs(held.mean - held.asked).max() > 0.01, "the few batches have other shares"
    few = survey(sampler(cells_of(EVEN), {"experiment": ExperimentAware(0.1, weights)}), 2)
    (shares,) = [shares for shares in few.label_shares if shares.rule == "group"]
    assert shares.asked == pytest.approx(shares.mean), "those of two batches, as not all experiments have one"


def test_batches_of_several_experiments_are_told_as_such() -> None:
    made = sampler(cells_of(EVEN), {**ALL, "experiment": ExperimentAware(0.1, experiments=2)})
    of = survey(made, batches=40)
    text = " ".join(report(of, findings(of), cover(made)).split())
    assert (
        "Each batch has 2 primary experiments in equal blocks: 90.0 % of its cells are of them, 10.0 % leak in" in text
    )
    assert "EXPERIMENT: share of a batch (each batch has several primary labels)" in text
    assert of.primary is None and of.group is None and (of.numbers["leak/held"] == 0.1).all()
    picture(of, "blocks")


def test_shares_within_the_labels_of_a_group_are_told_as_such() -> None:
    group, columns = {"group": ExperimentAware(column="condition")}, ["condition", "experiment"]
    equal = sampler(cells_of(EVEN), {**group, "share": ConditionBalanced(column=columns)})
    title = "condition x experiment"
    assert f"Each {title} has the same share of the cells of its condition in a batch." in asked_lines(equal)
    ratio = {label: 1 + number % 2 for number, label in enumerate(equal.cells.column(columns).present())}
    unequal = sampler(cells_of(EVEN), {**group, "share": ConditionBalanced(ratio, column=columns)})
    (said,) = (line for line in asked_lines(unequal) if line.startswith(f"Each {title}"))
    assert said.startswith(f"Each {title} has its share of the cells of its condition in a batch, in proportion to ")


def test_one_of_anything_is_told_as_one() -> None:
    made = sampler(cells_of(EVEN), {}, num_batches=1, world_size=1)
    of = survey(made)
    said = report(of, findings(of), cover(made))
    assert "1 batch of 20 cells on 1 rank:" in said and "Measured below: 1 batch," in said
    assert "a cell is drawn 1 time at most" in said


def test_the_whole_epoch_is_counted_however_few_batches_are_measured() -> None:
    made = sampler(cells_of(EVEN), ALL)
    of, every = survey(made, batches=3, epochs=3), coverage(made)
    assert of.n_batches == 4 and of.draws.sum() == len(made) * 40, "a step is measured on all its ranks"
    assert np.array_equal(of.coverage.drawn, every.drawn)
    assert of.coverage_by_epoch[0] == pytest.approx(every.share)
    seen = [
        np.concatenate([made.for_rank(r, 2).batch(e, s) for r in (0, 1) for s in range(len(made))]) for e in range(3)
    ]
    assert np.allclose(of.coverage_by_epoch, [len(np.unique(np.concatenate(seen[: e + 1]))) / 1200 for e in range(3)])


@pytest.mark.parametrize(("limit", "steps"), [(5, 5), (0.5, 15), (1.0, 30), (1000, 30), (None, 30)])
def test_an_epoch_may_be_cut_as_lightning_cuts_it(limit: float | None, steps: int) -> None:
    of = survey(sampler(cells_of(EVEN), {}), limit=limit)
    assert (of.epoch_steps, of.steps) == (steps, steps) and of.draws.sum() == steps * 40


@pytest.mark.parametrize(
    ("options", "message"),
    [({"batches": 0}, "batches must be an integer >= 1, got 0"), ({"limit": 0}, "limit_train_batches=0 of 30")],
)
def test_a_survey_of_nothing_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        survey(sampler(cells_of(EVEN), {}), **options)


def test_what_is_well_is_not_complained_of() -> None:
    cells = cells_of({key: 2000 for key in EVEN}, track=np.arange(12000))
    text = report(of := survey(sampler(cells, {"condition": ConditionBalanced()})), findings(of), cover(of.sampler))
    assert (
        findings(of) == [] and "NO PROBLEM FOUND" in text and "batch_sampler.num_batches=cover makes an epoch" in text
    )


SCARCE = {("a", "x"): 400, ("a", "y"): 400, ("b", "x"): 400, ("b", "y"): 3, ("c", "x"): 400}


def test_labels_that_hold_a_comma_are_quoted_in_a_list() -> None:
    scarce = {("MOI: 5", "ZIKV, MOI 0.5"): 400, ("MOI: 5", "mock"): 3, ("b", "ZIKV, MOI 0.5"): 400}
    with pytest.warns(ShortfallWarning):
        made = sampler(cells_of(scarce), {"experiment": ExperimentAware(), "condition": ConditionBalanced()})
    said = problems(survey(made))
    assert "mock: 0.0 % instead of 50.0 % in batches of experiment b, mock: 15.0 % instead of 50.0 % in" in said
    assert "in batches of experiment 'MOI: 5'." in said
    ratio = ConditionBalanced(ratio={"ZIKV, MOI 0.5": 0.75, "mock": 0.25})
    lines = " ".join(asked_lines(sampler(cells_of({**scarce, ("b", "mock"): 400}), {"condition": ratio})))
    assert "'ZIKV, MOI 0.5' 75.0 %, mock 25.0 %." in lines


def test_what_the_table_lacks_is_said_with_the_reason_and_the_measure() -> None:
    with pytest.warns(ShortfallWarning):
        made = sampler(cells_of(SCARCE), {"experiment": ExperimentAware(), "condition": ConditionBalanced()})
    said = problems(survey(made))
    assert (
        "y: 0.0 % instead of 50.0 % in batches of experiment c, y: 15.0 % instead of 50.0 % in batches of experiment b."
        in said
    )
    assert "no cells of condition 'y' in experiment 'c', only 'x'; it cannot be balanced there." in said
    assert (
        "few cells of condition in experiment 'b': 3 of 'y'" in said and "raise sampler.experiment_aware.leaky" in said
    )


@pytest.mark.parametrize("leaky", [0.0, 0.2])
def test_batches_are_not_short_of_labels_of_other_groups_than_their_own(leaky: float) -> None:
    both = ["condition", "experiment"]
    axes: dict[str, Axis] = {"e": ExperimentAware(leaky), "c": ConditionBalanced(column=both)}
    of = survey(sampler(cells_of(EVEN), axes))
    assert "too few cells" not in problems(of) and (of.numbers["shortfall"] == 0).all()
    held = next(shares for shares in of.label_shares if "x" in shares.title)
    assert held.by_primary is not None and np.allclose(held.by_primary, held.asked_by_primary, atol=0.05)


def test_batches_that_repeat_cells_are_not_said_to_lack_labels() -> None:
    with pytest.warns(ShortfallWarning):
        few = sampler(cells_of({(f"e{i}", "c"): 12 for i in range(3)}), {"experiment": ExperimentAware()}, world_size=1)
    (said,) = [one for one in findings(survey(few)) if "too few cells" in one.problem]
    assert said.problem == "The table has too few cells for what is asked."
    assert all("cells come repeatedly" in one for one in said.reasons)
    assert "labels" not in said.change


def test_a_lone_experiment_cannot_leak() -> None:
    with pytest.warns(ShortfallWarning):
        made = sampler(cells_of({("a", "x"): 400, ("a", "y"): 400}), {"experiment": ExperimentAware(leaky=0.2)})
    assert "leaked cells 0.0 % instead of 20.0 %" in (said := problems(survey(made)))
    assert "There is one experiment: leave out the axis" in said


@pytest.mark.parametrize(("fraction", "where"), [(0.0, "inside"), (0.95, "outside")])
def test_windows_that_run_out_are_said(fraction: float, where: str) -> None:
    hours = np.where(np.arange(1200) < (1200 if where == "inside" else 1100), np.arange(1200) % 24, 100.0)
    hours = np.arange(1200) % 24 if where == "inside" else np.where(np.arange(1200) < 1195, 5.0, 20.0)
    cells = cells_of(EVEN, hours_post_infection=hours)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ShortfallWarning)  # which the sampler issues where cells inside are too few
        made = sampler(cells, {"t": TemporallyEnriched(0.0, fraction)}, 100)
    said = problems(survey(made))
    assert f"Too few cells {where} the time window: " in said
    assert (
        "Widen sampler.temporal.window_hours" if where == "inside" else "Narrow sampler.temporal.window_hours"
    ) in said


def test_repeats_and_mates_and_what_is_drawn_too_often_are_said() -> None:
    with pytest.warns(ShortfallWarning):
        made = sampler(
            cells_of({("a", "x"): 600, ("b", "x"): 8, ("b", "y"): 600}),
            {"e": ExperimentAware(weights="uniform"), "c": ConditionBalanced()},
            30,
        )
    of = survey(made)
    said = problems(of)
    assert "of a batch's cells share their track" in said and "Add the axis track_capped" in said
    assert "of the 8 cells of b x x" in said and "memorize them" in said
    tiny = cells_of({("a", "x"): 600, ("b", "x"): 8})
    with pytest.warns(ShortfallWarning):
        said = problems(survey(sampler(tiny, {"e": ExperimentAware(weights="uniform")}, 30)))
    assert "50.0 % of 20 batches hold a cell more than once: 11.0 of 30 places" in said and "weight 0" in said
    assert "ranks hold some of the same cells" in said or "Ranks see experiment" in said
    with pytest.warns(ShortfallWarning):
        capped = sampler(tiny, {"e": ExperimentAware(weights="uniform"), "t": TrackCapped()}, 30)
    assert "1 of 2 experiments (b) has " in (said := problems(survey(capped))) and "so the cap is exceeded" in said


def cells_in_tracks(n_tracks: int, of_each: int = 10) -> CellTable:
    """Return the cells of three experiments, each of so many tracks of so many cells."""
    track = np.repeat(np.arange(3 * n_tracks), of_each)
    frame = pd.DataFrame({"experiment": [f"e{one}" for one in track // n_tracks], "condition": "c", "track": track})
    return CellTable.from_frame(frame, hours=None, track="track")


@pytest.mark.parametrize("leaky", [0.0, 0.2])
def test_a_cap_is_not_advised_where_an_experiment_has_fewer_tracks_than_a_batch_has_places(leaky: float) -> None:
    cells, axes = cells_in_tracks(65), {"e": ExperimentAware(leaky)}
    room = 65 if leaky == 0 else 81
    said = problems(survey(sampler(cells, axes, 128)))
    assert "Add the axis track_capped" not in said
    assert "3 of 3 experiments (e0, e1, e2) have 65 tracks, too few for the " in said
    assert f"use a batch_sampler.batch_size of at most {room}." in said
    capped = {**axes, "t": TrackCapped()}
    said = problems(survey(sampler(cells, capped, 128)))
    assert "65 tracks, too few" in said and "so the cap is exceeded" in said
    assert "share their track" not in problems(survey(sampler(cells, capped, room))), "the advice holds"


def test_the_tracks_of_the_whole_table_count_where_batches_have_no_primary_experiment() -> None:
    cells = cells_in_tracks(10)
    assert "The table has 30 tracks, too few for the 50 cells" in (said := problems(survey(sampler(cells, {}, 50))))
    assert "batch_size of at most 30." in said
    assert "Add the axis track_capped" in problems(survey(sampler(cells, {}, 25)))
    shared = problems(survey(sampler(cells, {}, 50, scope="global")))
    assert "too few for the 100 cells" in shared and "batch_size of at most 15." in shared


def test_a_cap_that_is_kept_is_not_said_to_be_exceeded() -> None:
    said = problems(survey(sampler(cells_in_tracks(20), {"t": TrackCapped(max_cells=3)}, 50)))
    assert "exceeded" not in said and "The cap allows 3 cells of each track: lower sampler.track_capped" in said


def test_a_cap_that_labels_do_not_allow_is_said_to_be_exceeded_for_them() -> None:
    track = np.r_[np.arange(400), np.repeat(np.arange(400, 404), 100)]
    frame = pd.DataFrame({"experiment": "a", "condition": np.where(track < 400, "x", "y"), "track": track})
    cells = CellTable.from_frame(frame, hours=None, track="track")
    said = problems(survey(sampler(cells, {"c": ConditionBalanced(), "t": TrackCapped()}, 30)))
    assert "Too few tracks have cells of the labels and times that are asked, so the cap is exceeded" in said


def test_a_rare_condition_that_no_axis_looks_at_is_said() -> None:
    said = problems(survey(sampler(cells_of({("a", "x"): 1000, ("a", "y"): 10}), {}, 10)))
    assert "of batches hold no cell of y." in said and "Add the axis condition" in said


def test_a_low_coverage_is_said_with_the_way_that_there_is() -> None:
    cells = cells_of({("a", "x"): 2000, ("a", "y"): 60})
    share = {"c": ConditionBalanced()}
    assert "Set batch_sampler.num_batches=cover" in problems(survey(sampler(cells, share)))
    assert "Raise trainer.limit_train_batches" in problems(survey(sampler(cells, share), limit=2))
    window = {**share, "t": TemporallyEnriched()}
    assert "Set batch_sampler.num_batches above 51" in problems(survey(sampler(cells, window)))
    assert "is not available with a time window" in cover(sampler(cells, window))
    assert "of the cells" not in problems(survey(sampler(cells, share, num_batches="cover")))


def test_an_epoch_that_would_be_too_long_to_cover_the_cells_is_described() -> None:
    """A screen: controls in thousands of wells, and as many treatments as places."""
    conditions = ["control"] * 4000 + [f"treatment {i}" for i in range(4000)]
    cells = CellTable.from_frame(pd.DataFrame({"experiment": "a", "condition": conditions}), hours=None)
    made = BatchSampler(cells, {"condition": ConditionBalanced()}, 32)
    assert cover(made).startswith("batch_sampler.num_batches='cover' takes about ")


def test_labels_that_look_alike_are_found_and_others_are_not() -> None:
    assert alike(["Gem", "GEM", "Lap", "LAP ", "Palblo", "Palbo", "Tax"]) == [
        ["Gem", "GEM"],
        ["Lap", "LAP "],
        ["Palblo", "Palbo"],
    ]
    assert alike(["drug A", "drug-a", "Drug_A", "AU-601", "AU601", 1, "1"]) == [
        ["drug A", "drug-a", "Drug_A"],
        ["AU-601", "AU601"],
        [1, "1"],
    ]
    assert alike(["Gemcitabine", "Gemcitabien", "Gemcitabin"]) == [["Gemcitabine", "Gemcitabien", "Gemcitabin"]]
    different = [
        "CD8+",
        "CD8-",
        "5 nM",
        "50 nM",
        "0.5 nM",
        "plate_1_2",
        "plate_12",
        "plate_a",
        "plate_b",
        "treated",
        "untreated",
        "-5",
        "5",
        "mock",
        "muck",
        "1.0",
        "10",
        "_",
        " ",
    ]
    assert alike(different) == []
    assert alike([f"gene{i}" for i in range(5000)] + ["Gene7"]) == [["gene7", "Gene7"]]


@pytest.mark.parametrize(
    "merged", [{"GEM": "Gem", "gem x": "Gem"}, {"a:b (c), [d]={e}\\": "plain"}, {" lap": "Lap", "lap ": "Lap"}, {3: 4}]
)
def test_what_is_said_to_type_is_understood(merged: dict[Any, Any]) -> None:
    (word,) = shlex.split(merge_option("condition", merged))
    override = OverridesParser.create().parse_override(word)
    assert override.key_or_group == "data.merge_labels" and override.value() == {"condition": merged}


@pytest.mark.parametrize("merged", [{"1": 1}, {"it's": "its"}, {"µM": "uM"}, {"null": "none"}])
def test_what_cannot_be_typed_is_for_a_file(merged: dict[Any, Any]) -> None:
    said = merge_option("condition", merged)
    assert "recipe" in said
    assert OmegaConf.to_container(OmegaConf.create(said.split(") ")[1])) == {"merge_labels": {"condition": merged}}


def test_alike_labels_are_said_with_the_line_to_type() -> None:
    cells = cells_of({("a", "Gem"): 300, ("a", "GEM"): 100, ("A", "Gem"): 50})
    found = findings(survey(sampler(cells, {}, 10)))
    assert "'GEM' (100 cells) and 'Gem' (350 cells)" in found[1].problem
    assert found[0].typed == "'data.merge_labels={experiment:{A:a}}'" and "{condition:{GEM:Gem}}" in found[1].typed
    assert "give them one name in the table" in problems(survey(sampler(cells, {}, 10)), mergeable=False)


CASES: dict[str, tuple[dict[tuple[str, str], int], dict[str, Axis]]] = {
    "ten plates": ({(f"2024-01-{e:02}_plate", f"compound {c} (10 uM)"): 60 for e in range(10) for c in range(4)}, ALL),
    "one": ({("a", "x"): 300, ("a", "y"): 80}, {"condition": ConditionBalanced()}),
    "many": ({("a", f"gene {c}"): 3 for c in range(150)}, {"condition": ConditionBalanced()}),
    "many plates": ({(f"plate {e}", f"gene {c}"): 8 for e in range(30) for c in range(12)}, ALL),
    "none": (EVEN, {}),
    "long names": (
        {
            (f"{'a long name of an experiment' * 3} {e}", f"{'condition' * 9} {c}"): 90
            for e in range(2)
            for c in range(2)
        },
        ALL,
    ),
}


@pytest.mark.filterwarnings("ignore::cellcohort.sampling.ShortfallWarning")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("world_size", [1, 2, 8])
def test_the_text_fits_and_sums_long_columns_up(name: str, world_size: int) -> None:
    sizes, axes = CASES[name]
    made = sampler(cells_of(sizes), axes, 5 if world_size == 8 else 20, world_size=world_size)
    text = report(of := survey(made), findings(of), cover(made), ["Source."])
    assert max(map(len, text.splitlines())) <= WIDTH
    for held in of.label_shares:
        lines = text.split(f"{held.title.upper()}: share of a batch")[1].split("\n\n")[0].splitlines()[2:]
        n = int((held.cells > 0).sum())
        assert len(lines) == (n if n <= 20 else 11)
        assert n <= 20 or f"… {n - 10:,} more" in lines[-1]
        shown = [line.split("  ")[1] for line in lines[: n if n <= 20 else 10]]
        assert len(set(shown)) == len(shown), "cut names still differ"
    assert ("RANKS" in text) == (world_size > 1) and ("TIME" in text) == ("temporal" in axes)


def clashes(figure: Figure) -> list[tuple[str, str]]:
    """Pairs of texts along an axis, or of a legend, that overlap."""
    figure.draw_without_rendering()
    found = []
    for axes in figure.axes:
        legend = axes.get_legend()
        for texts in (axes.get_yticklabels(), axes.get_xticklabels(), legend.get_texts() if legend else []):
            shown = [text for text in texts if text.get_text() and text.get_visible() and not text.get_rotation()]
            boxes = [(text.get_text(), text.get_window_extent().shrunk(0.95, 0.8)) for text in shown]
            found += [(a, b) for i, (a, one) in enumerate(boxes) for b, other in boxes[i + 1 :] if one.overlaps(other)]
    return found


@pytest.mark.filterwarnings("ignore::cellcohort.sampling.ShortfallWarning")
@pytest.mark.parametrize("name", ["ten plates", "one", "many"])
def test_the_picture_is_drawn_without_labels_on_each_other(name: str) -> None:
    sizes, axes = CASES[name]
    figure = picture(survey(sampler(cells_of(sizes), axes, 5)), "a-strategy")
    assert len(figure.axes) >= 6 and clashes(figure) == []


@pytest.mark.parametrize("world_size", [1, 2])
def test_the_picture_compares_ranks_where_there_are_several(world_size: int) -> None:
    axes: dict[str, Axis] = {"e": ExperimentAware(), "c": ConditionBalanced()}
    figure = picture(survey(sampler(cells_of(EVEN), axes, world_size=world_size)))
    assert any(panel.get_title("left").startswith("ranks: ") for panel in figure.axes) == (world_size > 1)


def test_a_table_without_experiment_condition_hours_and_track_can_be_previewed() -> None:
    cells = CellTable.from_frame(pd.DataFrame({"x": range(100)}), None, None, None)
    of = survey(sampler(cells, {}, 10))
    assert "100 cells: no experiment" in report(of, findings(of), cover(of.sampler)) and picture(of).axes


def config(*overrides: str, name: str = "preview") -> DictConfig:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose(name, list(overrides))


def test_what_is_typed_for_training_can_be_typed_here() -> None:
    line = [
        "sampler=[experiment_aware,condition,temporal]",
        "sampler.experiment_aware.leaky=0.1",
        "recipe=tcell",
        "data.path=x",
        "model=conv1d",
    ]
    train, preview = (dict(config(*line, name=name).items_ex(resolve=False)) for name in ("train", "preview"))
    assert preview.pop("logger") == {} and train.pop("logger") != {}
    assert [preview.pop(key) for key in ("world_size", "batches")] == [1, 2000] and preview == train


@pytest.mark.filterwarnings("ignore::cellcohort.sampling.ShortfallWarning")
@pytest.mark.parametrize("positive", ["track_or_view", "track"])
def test_the_batches_are_those_of_training(tmp_path: Path, positive: str) -> None:
    line = ["data=demo", f"data.path={tmp_path}", "data.founders=40", f"data.positive={positive}", "split.fraction=0.3"]
    line += ["sampler=[condition,temporal]", "sampler.condition.column=[condition,lineage_id]"]
    made = config(*line)
    source = training_cells(made)
    cells = source.cells
    training, validation = instantiate(made.split, instantiate(made.data).dataset())
    assert source.n_all == len(training) + len(validation) and cells.has("lineage_id") and not cells.has("area")
    one, other = (instantiate(made.batch_sampler, each, world_size=2) for each in (cells, training.cells))
    assert all(np.array_equal(one.batch(1, step), other.batch(1, step)) for step in range(5))


def test_an_option_that_the_source_does_not_take_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InstantiationException, match="speed"):
        training_cells(config(f"data.path={tmp_path}", "+data.speed=1"))


def test_the_command_leaves_text_picture_and_config_and_needs_no_torch(tmp_path: Path) -> None:
    frame = table({(e, c): 200 for e in "ab" for c in ("mock", "Mock")}).rename(
        columns={"hours_post_infection": "time"}
    )
    frame["time"], frame["area"] = np.arange(len(frame)), 1.0
    frame.to_parquet(tmp_path / "cells.parquet")
    heavy = ["torch", "lightning", "monai", "wandb", "sklearn", "statsmodels", "jinja2"]
    heavy += ["matplotlib.pyplot", "scipy.stats", "anndata", "zarr"]
    script = f"""
import runpy, sys
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    print("imported:", [name for name in {heavy} if name in sys.modules])
"""
    line = ["data=tracks", "data.path=cells.parquet", "data.interval_minutes=30", "data.columns.features=[area]"]
    line += [
        "sampler=[experiment_aware,condition]",
        "sampler.experiment_aware.leaky=0.2",
        "batch_sampler.batch_size=16",
        "world_size=3",
    ]
    command = [sys.executable, "-W", "error", "-c", script, str(ROOT / "scripts" / "preview.py"), *line]
    done = new_process(tmp_path, *command)
    assert done.returncode == 0, done.stderr
    *_, run, imported = done.stdout.splitlines()
    assert imported == "imported: []"
    directory = tmp_path / run.removeprefix("run: ")
    files = sorted(path.name for path in directory.iterdir())
    assert files == ["config.yaml", "finished", "preview.png", "preview.txt"]
    text = (directory / "preview.txt").read_text(encoding="utf-8")
    assert text in done.stdout and "on each of 3 ranks" in text and "'data.merge_labels={condition:{" in text
    assert OmegaConf.load(directory / "config.yaml").world_size == 3
    assert (directory / "preview.png").read_bytes().startswith(b"\x89PNG")
    assert [line for line in done.stderr.splitlines() if not line.startswith("compiling the sampler")] == []
