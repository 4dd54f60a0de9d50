from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from browser import CHROMIUM, browser
from cellcohort.comparison import arms_of, behind_baselines, compare, read_runs, remarks
from cellcohort.comparison.composition import held
from cellcohort.comparison.figures import Picture, pictures, save
from cellcohort.comparison.maps import MOST_CELLS, principal_components, some_cells
from cellcohort.comparison.plots import map_plot, measured, overview_plot, score_plot, styled
from cellcohort.comparison.report import report, verdicts
from sweep import AXES, make_run, make_sweep

EFFECTS = {
    "random": {"probe": 0.6, "mixing <b>": 0.3},
    "experiment": {"probe": 0.7, "mixing <b>": 0.3},
    "condition": {"probe": 0.5, "mixing <b>": 0.3},
}


def write(place: Path, with_umap: bool = False) -> Path:
    """The report on a sweep, as scripts/compare.py writes it."""
    runs, left_out = read_runs([place])
    arms = arms_of(runs)
    table = compare(arms)
    contents = held(arms)
    drawn = pictures(arms, table, contents, "random", with_umap)
    said = remarks(table, "random", left_out)
    path = place / "report.html"
    path.write_text(report("A sweep", arms, table, contents, said, drawn, "random"), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = make_sweep(tmp_path_factory.mktemp("sweep"), EFFECTS, seeds=5)
    for leaky in (0.1, 0.4):
        axes = {"experiment": {**AXES["experiment"]["experiment"], "leaky": leaky}}
        for seed in range(5):
            make_run(place / f"leaky{leaky}-s{seed}", axes, seed, {"probe": 0.6 + seed / 9, "mixing <b>": 0.3})
    return write(place)


class Tags(HTMLParser):
    """Tags of a document with their attributes, and whether every one that is opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_report_is_one_well_formed_file_that_refers_to_nothing(written: Path) -> None:
    text = written.read_text(encoding="utf-8")
    tags = Tags(text)
    assert tags.open == [] and "mixing <b>" not in text and "mixing &lt;b&gt;" in text
    for tag, attributes in tags.found:
        assert tag not in ("script", "link", "iframe", "object")
        assert str(attributes.get("src", "data:")).startswith("data:")
        assert str(attributes.get("href", "#")).startswith("#")
    assert not re.search(r"@import|url\(", text)
    ids = [attributes["id"] for _, attributes in tags.found if "id" in attributes]
    targets = {str(attributes["href"])[1:] for tag, attributes in tags.found if tag == "a"}
    assert targets == set(ids) and len(ids) == len(set(ids))


def test_every_picture_says_in_words_what_it_shows(written: Path) -> None:
    images = [attributes for tag, attributes in Tags(written.read_text(encoding="utf-8")).found if tag == "img"]
    assert len(images) >= 1 + 5 + 2 + 2 + 1 + 5 * 3  # differences, batches, scores, curves, loss, maps
    assert all(attributes["alt"] for attributes in images)
    assert len({attributes["alt"] for attributes in images}) == len(images)
    assert any("probe, higher is better: random 0." in str(attributes["alt"]) for attributes in images)


def test_verdicts_are_words_and_signs_not_colours_alone(tmp_path: Path) -> None:
    table = compare(arms_of(read_runs([make_sweep(tmp_path, EFFECTS)])[0]))
    said = verdicts(table, "random")
    rest = "○ not told apart on mixing <b>."
    assert said == [
        f"condition, against random: ▼ worse on probe; {rest}",
        f"experiment, against random: ▲ better on probe; {rest}",
    ]
    (only, _) = verdicts(table[table["score"] == "mixing <b>"], "random")
    assert only == "condition, against random: ○ not told apart on mixing <b>."
    assert verdicts(table.assign(verdict=""), "random") == [
        "Nothing can be said of any strategy, for the reason below."
    ]


def test_pictures_of_long_and_like_names_have_a_file_each(tmp_path: Path) -> None:
    names = ["a b", "a_b", "x" * 400, "x" * 400 + "y", "\u7d30" * 200]
    save([Picture("scores", name, "words", Figure(figsize=(1, 1))) for name in names], tmp_path / "pictures")
    files = sorted(path.name for path in (tmp_path / "pictures").iterdir())
    assert len(files) == len(names) and "scores-a_b.png" in files
    assert all(len(name.encode()) < 200 for name in files)


def test_pictures_have_room_for_names_of_runs_that_differ_in_many_options(tmp_path: Path) -> None:
    """Matplotlib warns where there is none, and a warning is an error here."""
    arms = arms_of(read_runs([make_sweep(tmp_path, EFFECTS)])[0])
    name = "condition " + " ".join(f"option{i}=value{i}" for i in range(60))
    table = compare(arms).replace({"strategy": {"condition": name}})
    arms = [replace(arm, name=name) if arm.name == "condition" else arm for arm in arms]
    drawn = pictures(arms, table, held(arms), "random", with_umap=False)
    save(drawn, tmp_path / "pictures")
    maps = [picture.figure.axes[0].get_title(loc="left") for picture in drawn if picture.group == "maps"]
    assert sum("option1=value1" in title and "…" in title for title in maps) == 3
    assert any(title.endswith("PCA by experiment") for title in maps if "…" in title)


def test_a_reader_learns_first_where_every_strategy_is_worse_than_without_training(tmp_path: Path) -> None:
    arms = arms_of(read_runs([make_sweep(tmp_path, EFFECTS)])[0])
    table = compare(arms)
    assert behind_baselines(table) == []
    probe = table["score"] == "probe"
    best = table.loc[probe & (table["representation"] == "model"), "mean"].max()
    for kind, value in (("untrained", best + 0.01), ("features", best - 0.01)):
        table.loc[probe & (table["representation"] == kind), "mean"] = value
    (said,) = behind_baselines(table)
    assert said == "Every strategy is worse than the untrained encoder on 1 of 2 scores (means, not tested): probe."
    page = report("A sweep", arms, table, held(arms), [], [], "random")
    assert page.index(said) < page.index("against random: ")
    where = [one.partition("): ")[2] for one in behind_baselines(table.assign(higher_is_better=False))]
    assert where == ["mixing <b>."] * 2, "where less is better"


def test_what_batches_held_is_the_mean_over_all_batches_of_all_seeds(tmp_path: Path) -> None:
    place = make_sweep(tmp_path, {"random": {"probe": 0.5}}, seeds=3)
    summary = held(arms_of(read_runs([place])[0])).set_index("quantity")
    parts = [pd.read_parquet(path) for path in place.glob("*/composition.parquet")]
    batches = pd.concat([part[part["rank"] == 0] for part in parts])
    row = summary.loc["share of condition dead"]
    assert row["held"] == pytest.approx(batches["condition/share/dead"].mean())
    assert row["asked"] == pytest.approx(batches["condition/asked/dead"].mean())
    assert (row["least"], row["most"]) == (batches["condition/share/dead"].min(), batches["condition/share/dead"].max())
    largest = batches[["experiment/share/a", "experiment/share/b"]].max(axis=1).mean()
    assert summary.loc["share of the largest experiment", "held"] == pytest.approx(largest)
    assert summary.loc["share of other experiments (leak)", "asked"] == pytest.approx(batches["leak/asked"].mean())


@pytest.mark.parametrize(("leak", "largest", "present"), [(0.0, 1.0, 1.0), (0.2, 0.8, np.nan)])
def test_batches_of_one_experiment_each_are_what_was_asked(leak: float, largest: float, present: float) -> None:
    columns = {"rank": [0, 0], "leak/asked": leak, "leak/held": leak, "experiment/present": 1.0}
    for kind in ("share", "asked"):
        columns |= {f"experiment/{kind}/a": [1 - leak, leak], f"experiment/{kind}/b": [leak, 1 - leak]}
    frame = pd.DataFrame(columns)
    for without, asked in (((), (largest, present)), (("leak/", "/asked/"), (np.nan, np.nan))):
        kept = frame[[name for name in frame if not any(word in name for word in without)]]
        arm: Any = SimpleNamespace(name="x", runs={0: SimpleNamespace(composition=lambda kept=kept: kept)})
        found = held([arm]).set_index("quantity")["asked"]
        said = found[["share of the largest experiment", "experiments in a batch"]]
        assert said.to_numpy() == pytest.approx(np.array(asked), nan_ok=True)


def test_coverage_is_that_of_the_last_batch_of_each_run() -> None:
    """It grows within an epoch."""

    def run(last: float) -> Any:
        drawn = {"epoch": [0, 0, 1, 1], "rank": -1, "coverage": [0.1, 0.9, 0.2, last]}
        return SimpleNamespace(composition=lambda: pd.DataFrame(drawn))

    arm: Any = SimpleNamespace(name="random", runs={0: run(0.5), 1: run(0.7)})
    (row,) = held([arm]).to_dict("records")
    assert row["quantity"] == "share of all cells drawn in the last epoch"
    assert (row["held"], row["least"], row["most"]) == (pytest.approx(0.6), 0.5, 0.7)


def test_only_what_is_the_same_for_all_strategies_is_drawn_against_the_step(tmp_path: Path) -> None:
    arms = arms_of(read_runs([make_sweep(tmp_path, EFFECTS)])[0])
    assert measured(arms) == ["val/loss"]


def test_maps_are_of_held_out_cells_and_of_the_largest_variance(tmp_path: Path) -> None:
    (run, *_), _ = read_runs([make_sweep(tmp_path, EFFECTS, seeds=1)])
    cells = some_cells(run)
    assert cells is not None and set(cells["part"]) == {"validation"} and len(cells) <= MOST_CELLS
    spread = np.diag([9.0, 5.0, 0.1, 0.1]) @ np.random.default_rng(0).normal(size=(4, 200))
    found = principal_components(spread.T)
    assert (
        abs(np.corrcoef(found[:, 0], spread[0])[0, 1]) > 0.99 and abs(np.corrcoef(found[:, 1], spread[1])[0, 1]) > 0.99
    )
    (run.directory / "embeddings.parquet").unlink()
    assert some_cells(run) is None


def test_embeddings_that_were_changed_in_the_file_are_named_as_damaged(tmp_path: Path) -> None:
    (run, *_), _ = read_runs([make_sweep(tmp_path, EFFECTS, seeds=1)])
    path = run.directory / "embeddings.parquet"
    cells, whole = pd.read_parquet(path), bytearray(path.read_bytes())
    cells["embedding"] = [embedding * np.nan for embedding in cells["embedding"]]
    cells.to_parquet(path)
    with pytest.raises(ValueError, match=rf"{path} is damaged: it holds embeddings that are not finite"):
        some_cells(run)
    whole[4:60] = b"\xff" * 56
    path.write_bytes(whole)
    with pytest.raises(ValueError, match=rf"{path} is damaged: .*the report then lacks its pictures") as raised:
        some_cells(run)
    assert isinstance(raised.value.__cause__, OSError)  # of pyarrow, with no number of the system


def test_what_is_tested_is_drawn_below_the_scores(tmp_path: Path) -> None:
    table = compare(arms_of(read_runs([make_sweep(tmp_path, EFFECTS)])[0]))
    above, below = score_plot(table[table["score"] == "probe"], "random").axes
    names = [[label.get_text() for label in axes.get_yticklabels()] for axes in (above, below)]
    assert names == [["random", "condition", "experiment", "untrained", "features"], ["condition", "experiment"]]
    assert len(score_plot(table[table["representation"] != "model"].head(2), "random").axes) == 1


@pytest.mark.parametrize(("difference", "half"), [(-0.16, 0.2), (-0.08, 0.1), (0.0004, 0.0011)])
def test_numbers_below_an_axis_do_not_overlap(tmp_path: Path, difference: float, half: float) -> None:
    table = compare(arms_of(read_runs([make_sweep(tmp_path, EFFECTS)])[0]))
    rows = table[table["score"] == "probe"].copy()
    compared = rows["difference"].notna()
    rows.loc[compared, "difference"] = difference
    rows.loc[compared, ["difference_low", "difference_high"]] = difference - half, difference + half
    with styled():
        figure = score_plot(rows, "random")
        figure.canvas.draw()
        for axes in figure.axes:
            boxes = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
            assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


def marks(axes: Axes) -> list[Any]:
    """The marker of each row of a picture."""
    return [line.get_marker() for line in axes.lines if line.get_linestyle() == "None"]


def test_a_score_that_is_not_tested_is_told_from_one_without_a_difference(tmp_path: Path) -> None:
    effects = {name: {**scores, "experiment_mmd_p": 0.3} for name, scores in EFFECTS.items()}
    make_sweep(tmp_path, effects)
    table = compare(arms_of(read_runs([tmp_path])[0]))
    (axes,) = score_plot(table[table["score"] == "experiment_mmd_p"], "random").axes
    assert marks(axes) == ["D", ".", ".", "x", "x"]
    assert not any("experiment_mmd_p" in sentence for sentence in verdicts(table, "random"))
    text = write(tmp_path).read_text(encoding="utf-8")
    assert text.count("<td>· not tested</td>") == 2 and "is the p-value of a test already" in text
    assert text.count("<td>◆ reference</td>") == 3


def test_each_reference_of_runs_that_differ_is_marked(tmp_path: Path) -> None:
    for path in ("one", "other"):
        make_sweep(tmp_path / path, EFFECTS, change=lambda config, path=path: config["data"].update(path=path))
    arms = arms_of(read_runs([tmp_path / "one", tmp_path / "other"])[0], allow_different=True)
    table = compare(arms)
    above = score_plot(table[table["score"] == "probe"], "random").axes[0]
    assert marks(above).count("D") == 2


def test_long_names_leave_room_for_what_they_name(tmp_path: Path) -> None:
    """Matplotlib warns where the names leave none; warnings are errors in tests."""
    arms = arms_of(read_runs([make_sweep(tmp_path, EFFECTS)])[0])
    long = [replace(arm, name=f"{arm.name} trainer.devices=1 cells_per_step=256 of everything") for arm in arms]
    for picture in pictures(long, compare(long), held(long), "random", with_umap=False):
        picture.figure.savefig(tmp_path / "picture.png")


def test_of_many_labels_the_most_frequent_are_told_apart() -> None:
    labels = pd.Series([f"plate {number}" for number in range(40) for _ in range(40 - number)], name="experiment")
    (legend,) = map_plot(np.zeros((len(labels), 2)), labels, "a map").legends
    told = [text.get_text() for text in legend.get_texts()]
    assert told[0] == "16 others" and set(told[1:]) == {f"plate {number}" for number in range(24)}


def overview_rows(names: list[str], verdicts: list[str], differences: list[float]) -> pd.DataFrame:
    rows = pd.DataFrame({"strategy": names, "verdict": verdicts, "difference": differences})
    low, high = rows["difference"] - 0.01, rows["difference"] + 0.01
    same = {"score": "probe", "representation": "model", "higher_is_better": True}
    return rows.assign(difference_low=low, difference_high=high, **same)


def test_the_overview_shows_the_size_of_differences_that_are_told_apart_alone() -> None:
    names, found = ["a", "b", "c", "d"], ["better", "worse", "not told apart", ""]
    figure = overview_plot(overview_rows(names, found, [0.4, -0.1, 0.39, -0.0001]), "random")
    assert figure is not None
    size = [line.get_markersize() for line in figure.axes[0].lines]
    assert size[0] > size[1] > size[2] == size[3]
    assert [line.get_marker() for line in figure.axes[0].lines] == ["^", "v", "o", "."]
    assert [text.get_text() for text in figure.axes[0].texts] == ["+0.400", "-0.100", "+0.390", "+0.000"]


def test_the_names_of_the_overview_do_not_overlap() -> None:
    names = ["condition", "condition-experiment-temporal", "experiment_aware leaky=0.05", "track_capped max_cells=10"]
    figure = overview_plot(overview_rows(names, [""] * 4, [0.1] * 4), "random")
    assert figure is not None
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in figure.axes[0].get_xticklabels()]
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


def test_pictures_have_file_names_of_their_own(tmp_path: Path) -> None:
    arms = arms_of(read_runs([make_sweep(tmp_path / "sweep", EFFECTS)])[0])
    drawn = pictures(arms, compare(arms), held(arms), "random", with_umap=False)
    save(drawn, tmp_path / "pictures")
    assert len(list((tmp_path / "pictures").glob("*.png"))) == len(drawn) == 1 + 3 + 2 + 1 + 3 * 3


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (Debian: apt-get install chromium)")
@pytest.mark.parametrize("width", [360, 1280])
def test_a_browser_shows_it_all_and_asks_for_nothing(written: Path, tmp_path: Path, width: int) -> None:
    with browser(tmp_path / "profile") as page:
        page.open(written, width)
        assert page.see("document.title") == "A sweep"
        assert page.see("[...document.images].every(image => image.naturalWidth > 0)")
        assert page.see("document.querySelectorAll('section').length") == 6
        assert page.see("document.querySelectorAll('#held table').length") == 5
        assert "▲ better" in page.see("document.querySelector('#scores table').innerText")
        assert page.see("document.documentElement.scrollWidth") <= width  # only tables scroll sideways
        assert page.see("Math.min(...[...document.images].map(image => image.clientWidth))") >= 300
        assert page.see("document.querySelector('.overview img').clientWidth") >= 400, (
            "it scrolls before it is too small"
        )
        assert page.complaints() == []
        asked = [address for address in page.requests() if not address.startswith("data:")]
        assert asked == [written.as_uri()]
        page.photograph(tmp_path / "report.png")
        assert (tmp_path / "report.png").stat().st_size > 20_000
