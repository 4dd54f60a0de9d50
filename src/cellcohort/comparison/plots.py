"""Pictures of a comparison. Shapes and words carry all that colours do; colours are those of Okabe and Ito (2008)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from textwrap import wrap
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from cellcohort.comparison.runs import FinishedRun, damage_told
from cellcohort.comparison.statistics import estimate
from cellcohort.comparison.table import BETTER, OPEN, WORSE, Arm, rows_of
from cellcohort.evaluation.scores_file import score_range
from cellcohort.files import fingerprint

COLOURS = ("#000000", "#E69F00", "#0072B2", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#8C7A00")
SHAPES = ("o", "^", "s", "D", "v", "P", "X", "*", "<", ">")
LINES = ("-", "--", "-.", ":")
VERDICTS = {  # shape, edge, face
    BETTER: ("^", "#0072B2", "#0072B2"),
    WORSE: ("v", "#D55E00", "#D55E00"),
    OPEN: ("o", "#444444", "white"),
}
UNTESTED = (".", "#444444", "#444444")
REFERENCE_MARK, BASELINE = ("D", "#000000", "#000000"), ("x", "#666666", "#666666")
MOST_LABELS = 24
MOST_SHARES = 16
MOST_LINES = 6  # of a name, for which there is room in every picture
WIDTH = 4.6  # inches: readable at the width of a phone
STYLE = {
    **{"font.size": 9, "axes.titlesize": 10, "axes.spines.top": False, "axes.spines.right": False},
    **{"svg.fonttype": "none", "font.family": "sans-serif", "legend.frameon": False},
}


@contextmanager
def styled() -> Iterator[None]:
    """Return the style of all pictures, for as long as they are drawn and saved."""
    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        yield


def score_plot(rows: pd.DataFrame, reference: str) -> Figure:
    """One score: mean and 95 % interval of each strategy and baseline, the reference as a line.

    Below, where there are any, the differences from the reference, which are what is tested: strategies
    share what a seed does to them, so that differences may be clear where the intervals above overlap.

    Parameters
    ----------
    rows : pandas.DataFrame
        The rows of that score in the table of :func:`cellcohort.comparison.compare`.
    reference : str
        The strategy that the others were compared with.
    """
    differences = rows[rows["difference"].notna()]
    parts = [part for part in (rows, differences) if len(part)]
    tall = [len(part) * (0.14 + 0.13 * max(map(_n_lines, part["strategy"]))) for part in parts]
    figure = Figure(figsize=(WIDTH, sum(tall) + 0.7 * len(parts)), layout="constrained")
    above, *below = figure.subplots(len(parts), squeeze=False, height_ratios=tall)[:, 0]
    _marks(above, rows, ("mean", "low", "high"))
    higher = bool(rows["higher_is_better"].iloc[0])
    above.set_title(f"{rows['score'].iloc[0]} ({'right' if higher else 'left'} is better)", loc="left")
    for axes in below:
        _marks(axes, differences, ("difference", "difference_low", "difference_high"))
        axes.axvline(0, color="#999999", linewidth=0.8, zorder=0)
        axes.set_title(f"minus {reference} of the same seed", loc="left", fontsize=9)
    return figure


def _marks(axes: Any, rows: pd.DataFrame, columns: tuple[str, str, str]) -> None:
    for y, row in enumerate(rows_of(rows)):
        centre, low, high = (getattr(row, column) for column in columns)
        shape, edge, face = VERDICTS.get(str(row.verdict), UNTESTED)
        if row.representation != "model":
            shape, edge, face = BASELINE
        elif row.strategy == row.reference:
            shape, edge, face = REFERENCE_MARK
            axes.axvline(centre, color="#999999", linewidth=0.8, zorder=0)
        if high > low:
            axes.plot([low, high], [y, y], color=edge, linewidth=1.5)
        axes.plot(
            centre, y, marker=shape, color=edge, markerfacecolor=face, markersize=6, linestyle="none", clip_on=False
        )
    axes.set_yticks(range(len(rows)), list(map(_in_lines, rows["strategy"])))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.locator_params(axis="x", nbins=5)  # so that long numbers do not overlap
    if columns[0] == "mean":  # an axis shows no value that the score cannot have
        ends, least = axes.get_xlim(), score_range(str(rows["score"].iloc[0]))
        axes.set_xlim(max(ends[0], least[0]), min(ends[1], least[1]))


def overview_plot(table: pd.DataFrame, reference: str) -> Figure | None:
    """Strategies against scores: the sign and size of each difference from the reference, and whether it is told apart.

    Triangles are differences that are told apart, up for better; their area is the size of the difference relative to
    the largest of them in the same score. All others are small circles, or dots where nothing was tested, whatever
    their size, which the number gives. None where nothing was compared.
    """
    rows = table[(table["representation"] == "model") & table["difference"].notna()]
    if rows.empty:
        return None
    scores, strategies = list(dict.fromkeys(rows["score"])), list(dict.fromkeys(rows["strategy"]))
    names = [_in_lines(name, 16) for name in strategies]
    width = max(WIDTH, 1.9 + 1.15 * len(strategies))
    tall = 0.34 * len(scores) + 0.3 + 0.16 * max(name.count("\n") + 1 for name in names)
    figure = Figure(figsize=(width, tall + 0.5), layout="constrained")
    axes = figure.subplots()
    apart = rows[rows["verdict"].isin((BETTER, WORSE))]
    largest = apart["difference"].abs().groupby(apart["score"]).max()
    for row in rows_of(rows):
        shape, edge, face = VERDICTS.get(str(row.verdict), UNTESTED)
        x, y = strategies.index(row.strategy), scores.index(row.score)
        called = row.verdict in (BETTER, WORSE)
        size = 5 + 6 * np.sqrt(abs(row.difference) / largest[row.score]) if called else 4
        axes.plot(x - 0.3, y, marker=shape, color=edge, markerfacecolor=face, markersize=size, linestyle="none")
        axes.text(
            x - 0.12,
            y,
            _difference(row),
            va="center",
            fontsize=8,
            color=edge,
            fontweight="bold" if called else "normal",
        )
    axes.set(xlim=(-0.5, len(strategies) - 0.4), ylim=(len(scores) - 0.5, -0.5))
    axes.set_xticks(range(len(strategies)), names, fontsize=8)
    axes.xaxis.tick_top()
    arrows = ["↑" if rows.loc[rows["score"] == score, "higher_is_better"].iloc[0] else "↓" for score in scores]
    axes.set_yticks(range(len(scores)), [f"{score} {arrow}" for score, arrow in zip(scores, arrows, strict=True)])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.hlines(np.arange(len(scores) - 1) + 0.5, -0.5, len(strategies) - 0.4, color="#dddddd", linewidth=0.6)
    marks = "▲ better, ▼ worse, ○ not told apart, · not tested"
    figure.supxlabel(_in_lines(f"minus {reference}: {marks}; ↑ higher is better, ↓ lower", 60), fontsize=8)
    return figure


def _difference(row: Any) -> str:
    """Return a difference, to the digit that its interval makes sense of."""
    width = row.difference_high - row.difference_low
    digits = int(np.clip(1 - np.floor(np.log10(width)), 0, 6)) if width > 0 else 3
    return f"{row.difference:+z.{digits}f}"


def composition_plot(rows: pd.DataFrame, name: str) -> Figure | None:
    """Shares of the batches of one strategy: the mean, the range over batches, and what was asked as a bar."""
    shares = rows[rows["quantity"].str.startswith("share ") & (rows["most"] <= 1)].head(MOST_SHARES)
    if shares.empty:
        return None
    labels = list(map(_in_lines, shares["quantity"]))
    tall = sum(0.14 + 0.14 * (label.count("\n") + 1) for label in labels)
    title = _in_lines(f"{name}: ● held, least to most; | asked", 54)
    figure = Figure(figsize=(WIDTH, tall + 0.44 + 0.16 * (title.count("\n") + 1)), layout="constrained")
    axes = figure.subplots()
    for y, row in enumerate(rows_of(shares)):
        axes.plot([row.least, row.most], [y, y], color="#0072B2", linewidth=1.2, alpha=0.6)
        axes.plot(row.held, y, marker="o", color="#0072B2", linestyle="none", clip_on=False)
        if not np.isnan(row.asked):
            axes.plot(row.asked, y, marker="|", color="#000000", markersize=14, markeredgewidth=2, linestyle="none")
    axes.set_yticks(range(len(labels)), labels)
    axes.set(xlim=(0, 1), ylim=(len(labels) - 0.5, -0.5))
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    figure.suptitle(title, x=0, ha="left", fontsize=10)
    return figure


def step_plot(arms: Sequence[Arm], name: str) -> Figure | None:
    """Return a column of metrics.csv against the step, as the mean over seeds; None where no run has two values."""
    figure = Figure(figsize=(WIDTH, 2.6), layout="constrained")
    axes = figure.subplots()
    for arm, (colour, shape, line) in zip(arms, _looks(), strict=False):
        mean = _over_seeds(arm, name)
        if len(mean) > 1:
            every = max(1, len(mean) // 8)
            axes.plot(mean.index, mean, color=colour, marker=shape, linestyle=line, markevery=every, label=arm.name)
    axes.set_xlabel("step")
    axes.set_title(f"{name}, mean over seeds", loc="left")
    if not axes.lines:
        return None
    _legend(figure, ncols=2)
    return figure


def measured(arms: Sequence[Arm]) -> list[str]:
    """Columns of metrics.csv that are the same thing for every strategy, and were taken more than once."""
    names = [_metrics(run) for arm in arms for run in arm.runs.values()]
    columns = dict.fromkeys(str(name) for metrics in names for name in metrics)
    alike = [name for name in columns if name == "val/loss" or name.startswith("eval/")]
    return [name for name in alike if any(metrics[name].count() > 1 for metrics in names if name in metrics)]


def knob_plots(arms: Sequence[Arm], table: pd.DataFrame) -> list[tuple[str, Figure]]:
    """Every score against the one numeric option in which the arms of a strategy differ, such as the leak."""
    plots: list[tuple[str, Figure]] = []
    for name in dict.fromkeys(arm.strategy for arm in arms):
        own = [arm for arm in arms if arm.strategy == name]
        if len(own) < 2 or any(len(arm.knobs) != 1 or arm.others != own[0].others for arm in own):
            continue
        (knob,) = own[0].knobs
        if all(isinstance(arm.knobs[knob], int | float) for arm in own):
            values = {arm.name: float(arm.knobs[knob]) for arm in own}
            plots += [
                (f"{rows['score'].iloc[0]} against {knob} of {name}", _knob(rows, values, knob, name))
                for _, rows in table.groupby("score", sort=False)
            ]
    return plots


def _knob(rows: pd.DataFrame, values: dict[str, float], knob: str, name: str) -> Figure:
    figure = Figure(figsize=(WIDTH, 2.6), layout="constrained")
    axes = figure.subplots()
    own = rows[rows["strategy"].isin(values)]
    own = own.assign(knob=own["strategy"].map(values)).sort_values("knob")
    axes.plot(own["knob"], own["mean"], color="#0072B2", marker="o", label=name)
    axes.vlines(own["knob"], own["low"], own["high"], color="#0072B2")
    beside = rows[rows["strategy"].isin(own["reference"]) & (rows["representation"] == "model")]
    for row in rows_of(beside):
        axes.axhline(row.mean, color="#000000", linestyle="--", label=f"{row.strategy}, with its interval")
        axes.axhspan(row.low, row.high, color="#999999", alpha=0.25, linewidth=0)
    axes.set_xlabel(knob)
    axes.set_title(str(rows["score"].iloc[0]), loc="left")
    _legend(figure, ncols=2)
    return figure


def map_plot(places: np.ndarray, labels: pd.Series, title: str) -> Figure:
    """Cells at their places in two dimensions, by a label (shape and colour) or a number (dark to light).

    Labels beyond the most frequent `MOST_LABELS` are grey dots, since more cannot be told apart by eye.
    """
    figure = Figure(figsize=(WIDTH, 3.4), layout="constrained", dpi=110)
    axes = figure.subplots()
    if labels.name == "hours":  # all others are labels, whatever they are written in
        dots: Any = axes.scatter(places[:, 0], places[:, 1], c=labels, cmap="cividis", s=7, linewidths=0)
        figure.colorbar(dots, label=str(labels.name), location="bottom", shrink=0.8, aspect=30)
    else:
        texts = _as_text(labels)
        frequent = _in_order(texts[labels.notna()].value_counts().index[:MOST_LABELS])
        rest = (labels.notna() & ~texts.isin(frequent)).to_numpy()
        if rest.any():
            name = f"{texts[rest].nunique()} others"
            axes.scatter(places[rest, 0], places[rest, 1], color="#bbbbbb", marker=".", s=9, linewidths=0, label=name)
        for label, (colour, shape, _) in zip(frequent, _looks(), strict=False):
            own = places[(texts == label).to_numpy()]
            axes.scatter(own[:, 0], own[:, 1], color=colour, marker=shape, s=11, linewidths=0, alpha=0.7, label=label)
        _legend(figure, ncols=3, markerscale=1.6)
    axes.set(xticks=[], yticks=[])
    axes.set_title(_in_lines(title, 54), loc="left")
    return figure


def _as_text(labels: pd.Series) -> pd.Series:
    """Labels as text; whole numbers that a missing label turned into floats are whole again."""
    if pd.api.types.is_float_dtype(labels) and (labels.dropna() % 1 == 0).all():
        labels = labels.astype("Int64")
    return labels.astype(str)


def _in_order(names: Iterable[str]) -> list[str]:
    """Names in alphabetical order; numbers before them, by their value."""
    return sorted(names, key=lambda name: (0, float(name), name) if name.isdecimal() else (1, 0.0, name))


def _legend(figure: Figure, ncols: int, **options: Any) -> None:
    """Return a legend below the picture, which grows by as much; long names are broken into lines."""
    handles, names = figure.axes[0].get_legend_handles_labels()
    texts = [_in_lines(name, 54 // ncols - 3) for name in names]
    per_column = -(-len(texts) // ncols)
    lines = per_column * max(text.count("\n") + 1 for text in texts)
    figure.set_figheight(figure.get_figheight() + 0.16 * lines + 0.1)
    figure.legend(handles, texts, loc="outside lower left", ncols=ncols, fontsize=8, **options)


def _in_lines(name: str, width: int = 22) -> str:
    """Break a name into lines; of one with too many, as of runs that differ in many options, leave some out."""
    lines = wrap(name, width)
    if len(lines) > MOST_LINES:
        lines = [*lines[: MOST_LINES - 2], f"… {fingerprint(name, digits=6)} …", lines[-1]]
    return "\n".join(lines)


def _n_lines(name: str) -> int:
    return _in_lines(name).count("\n") + 1


def _looks() -> Iterator[tuple[str, str, str]]:
    """Colour, shape and line of one thing after the other, without end; colour with shape repeats after 40."""
    return zip(cycle(COLOURS), cycle(SHAPES), cycle(LINES), strict=False)


def _metrics(run: FinishedRun) -> pd.DataFrame:
    path = run.directory / "metrics.csv"
    with damage_told(path):
        return pd.read_csv(path) if path.is_file() else pd.DataFrame()


def _over_seeds(arm: Arm, name: str) -> pd.Series:
    of_runs = [_metrics(run) for run in arm.runs.values()]
    series = [each.dropna(subset=[name]).groupby("step")[name].last() for each in of_runs if name in each]
    together = pd.concat(series, axis=1).dropna() if series else pd.DataFrame()
    return together.apply(lambda row: estimate(row).mean, axis=1) if len(together) else pd.Series(dtype=float)
