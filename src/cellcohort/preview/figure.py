"""A survey as a picture: what batches were asked to hold, and what they hold."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from cellcohort.messages import several
from cellcohort.preview.describe import asked_lines, table_line
from cellcohort.preview.label_shares import LabelShares
from cellcohort.preview.survey import Survey
from cellcohort.preview.tables import both_ends, short
from cellcohort.sampling.axes.base import WindowAxis

# palettes that colour-blind readers can tell apart: "Safe" of CARTOColors, Okabe and Ito's
PALETTES = (
    (
        *("#332288", "#88CCEE", "#117733", "#DDCC77", "#CC6677", "#44AA99", "#AA4499", "#999933", "#882255"),
        *("#661100", "#6699CC"),
    ),
    ("#56B4E9", "#D55E00", "#F0E442", "#009E73", "#CC79A7", "#0072B2", "#E69F00"),
)
OTHER = "#DDDDDD"
HELD, ASKED, TABLE = "#0072B2", "#D55E00", "#777777"  # Okabe and Ito
DRAWS = ("#FFFFFF", "#C6DBEF", "#6BAED6", "#2171B5", "#08306B")  # cells drawn 0, 1, 2, 3 times, or more
WIDTH = 13.0  # inches
_ROW, _LABEL = 1.1, 0.21  # inches of a panel, and of each label in it
_SIZE = 8
_MOST_TIMES, _BINS = 100, 32  # times that have a bin each; bins of more times


def picture(survey: Survey, title: str = "") -> Figure:
    """Draw what batches were asked to hold and what they hold.

    Parameters
    ----------
    survey : Survey
    title : str
        Name of the sampling strategy.

    Returns
    -------
    matplotlib.figure.Figure
    """
    columns = list(survey.label_shares)
    beside = [shares for shares in columns if shares.rule != "group" and shares.by_primary is not None]
    heights = [_height(len(_shown(shares)[0])) for shares in columns]
    if survey.group and beside:
        heights.append(_height(1 + len(_shown(survey.group)[0])))
    heights.append(_height(min(12, len(_strata(survey)[0]))))
    figure = Figure(figsize=(WIDTH, 1.0 + sum(heights)), dpi=110)
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.08)  # inches; "tight" takes longer
    rows = figure.add_gridspec(len(heights), 2, height_ratios=heights)
    for row, shares in enumerate(columns):
        _shares(figure.add_subplot(rows[row, 0]), shares)
        _first_batches(figure.add_subplot(rows[row, 1]), survey, shares, row)
    if survey.group and beside:
        _by_primary(figure.add_subplot(rows[len(columns), 0]), survey.group, beside[0])
        if survey.sampler.world_size > 1:
            _ranks(figure.add_subplot(rows[len(columns), 1]), survey)
    _coverage(figure.add_subplot(rows[-1, 0]), survey)
    _times(figure.add_subplot(rows[-1, 1]), survey)
    lines = [f"{title}   {table_line(survey.sampler.cells)}".strip(), *asked_lines(survey.sampler)]
    text = "\n".join(line for one in lines for line in textwrap.wrap(one, 165))
    figure.suptitle(text, x=0.01, ha="left", fontsize=10)
    return figure


def legend_names(names: Sequence[str], most: int = 16) -> tuple[list[str], str]:
    """Cut names to what tells them apart.

    Parameters
    ----------
    names : sequence of str
    most : int
        Characters that a name may have.

    Returns
    -------
    list of str
        The names as they are, where all are short; otherwise without the beginning and the end that all share.
    str
        The common part with an ellipsis for what differs, such as ``2024-01-…_plate``; empty where nothing was cut.
    """
    if len(names) < 2 or max(map(len, names)) <= most:
        return list(names), ""
    start = _common_start(names)
    rest = [name[len(start) :] for name in names]
    end = _common_start([name[::-1] for name in rest])[::-1]
    cut = [name[: len(name) - len(end)] for name in rest]
    if not (start or end) or not all(cut):
        return [short(name, most) for name in names], ""
    return [short(name, most) for name in cut], f"{short(start)}…{short(end)}"


def _common_start(names: Sequence[str]) -> str:
    """Return what all names begin with, up to the last character that is no letter or digit."""
    first, last = min(names), max(names)
    n = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    while n and first[n - 1].isalnum():
        n -= 1
    return first[:n]


def _height(n_labels: int) -> float:
    return _ROW + _LABEL * max(6, n_labels)


def _shown(shares: LabelShares) -> tuple[np.ndarray, int]:
    """Return the labels that panels show, and how many are left out."""
    codes, rest = both_ends(np.flatnonzero(shares.cells), shares.cells)
    return codes, len(rest)


def _dress(axes: Axes, title: str, xlabel: str = "", ylabel: str = "") -> None:
    axes.set_title(title, loc="left", y=1.0, fontsize=_SIZE + 1, fontweight="bold")  # without y, ticks are measured
    axes.set_xlabel(xlabel, fontsize=_SIZE)
    axes.set_ylabel(ylabel, fontsize=_SIZE)
    axes.tick_params(labelsize=_SIZE)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _legend(axes: Axes, title: str = "") -> None:
    axes.legend(
        fontsize=_SIZE - 1,
        frameon=False,
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
        borderaxespad=0,
        title=title or None,
        title_fontsize=_SIZE - 1,
        alignment="left",
    )


def _rows(axes: Axes, labels: list[str]) -> np.ndarray:
    """One row per label, the first on top."""
    y = np.arange(len(labels))
    axes.set_yticks(y, [short(label, 28) for label in labels])
    axes.set_ylim(len(labels) - 0.4, -0.6)
    return y


def _shares(axes: Axes, shares: LabelShares) -> None:
    """Share of each label in a batch: asked, mean, and from least to most; and in the table."""
    codes, rest = _shown(shares)
    y = _rows(axes, [shares.names[code] for code in codes])
    least, most = 100 * shares.least[codes], 100 * shares.most[codes]
    axes.hlines(y, least, most, color=HELD, alpha=0.35, lw=5, label="least to most")
    axes.plot(
        100 * (shares.cells / shares.cells.sum())[codes], y, "D", mfc="none", mec=TABLE, ms=5, label="in the table"
    )
    if shares.asked is not None:
        axes.plot(100 * shares.asked[codes], y, "|", color=ASKED, ms=13, mew=2.2, label="asked")
    axes.plot(100 * shares.mean[codes], y, "o", color=HELD, ms=4.5, label="mean of batches")
    axes.set_xlim(left=0)
    axes.grid(axis="x", color="#EEEEEE")
    axes.set_axisbelow(True)
    left_out = f" ({several(rest, 'more label')} between)" if rest else ""
    _dress(axes, f"{shares.title}: share of a batch{left_out}", "% of the cells of a batch")
    _legend(axes)


def _first_batches(axes: Axes, survey: Survey, shares: LabelShares, palette: int = 0) -> None:
    """Return the first batches, one bar each; the labels with most cells have colours of their own."""
    n_labels, n, colours = len(shares.cells), len(survey.first_batches), PALETTES[palette % len(PALETTES)]
    counts = np.stack([np.bincount(shares.column.codes[batch], minlength=n_labels) for batch in survey.first_batches])
    present = np.flatnonzero(shares.cells)
    most = np.sort(present[np.argsort(-shares.cells[present], kind="stable")][: len(colours)])
    bottom, edges = np.zeros(n), np.arange(n + 1) - 0.5
    names, common = legend_names([shares.names[code] for code in most])
    parts = [(name, colours[i], counts[:, code]) for i, (name, code) in enumerate(zip(names, most, strict=True))]
    if len(present) > len(most):
        parts.append((f"{len(present) - len(most):,} more", OTHER, counts.sum(axis=1) - counts[:, most].sum(axis=1)))
    for label, colour, count in parts:
        top = bottom + 100 * count / survey.batch_cells
        axes.stairs(top, edges, baseline=bottom, fill=True, color=colour, label=label)
        bottom = top
    axes.vlines(edges, 0, 100, color="white", lw=1)
    axes.set_xlim(-0.5, n - 0.5)
    axes.set_ylim(0, 100)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _dress(axes, f"{shares.title}: the first {several(n, 'batch')}", "batch", "% of its cells")
    _legend(axes, common)


def _by_primary(axes: Axes, group: LabelShares, shares: LabelShares) -> None:
    """Mean share of each label in the batches of each primary label; the colour is the difference to what is asked."""
    primary, more_primary = _shown(group)
    codes, more = _shown(shares)
    if shares.asked is None:
        reference, name = shares.cells / shares.cells.sum(), "in the table"
    else:
        reference, name = shares.asked, "asked"
    values = 100 * np.vstack([reference[codes], np.asarray(shares.by_primary)[np.ix_(primary, codes)]])
    difference = values - values[0]
    reach = max(1.0, float(np.nanmax(np.abs(difference))))
    image = axes.imshow(difference, aspect="auto", cmap="RdBu", vmin=-1.4 * reach, vmax=1.4 * reach)
    _rows(axes, [name, *(group.names[code] for code in primary)])
    names, common = legend_names([shares.names[code] for code in codes], 14)
    axes.set_xticks(np.arange(len(codes)), names)
    if sum(len(label.get_text()) + 2 for label in axes.get_xticklabels()) > 56:
        for label in axes.get_xticklabels():
            label.set(rotation=50, ha="right", rotation_mode="anchor")
    if len(codes) > 10:
        bar = axes.figure.colorbar(image, cax=axes.inset_axes((1.01, 0.0, 0.03, 1.0)))
        bar.ax.tick_params(labelsize=_SIZE - 1)
        bar.set_label(f"minus {name} (percentage points)", fontsize=_SIZE - 1)
    else:
        digits = 2 if values[0].max() < 1 else 1
        for (row, column), value in np.ndenumerate(values):
            text = "-" if np.isnan(value) else f"{value:.{digits}f}"
            colour = "white" if abs(difference[row, column]) > 0.9 * reach else "black"
            axes.text(column, row, text, ha="center", va="center", fontsize=_SIZE - 1, color=colour)
    forced = _forced(group, shares)[np.ix_(primary, codes)]
    for row, column in np.argwhere(forced):
        box = Rectangle((column - 0.5, row + 0.5), 1, 1, fill=False, hatch="////", ec="#00000055", lw=0)
        axes.add_patch(box)
    left_out = f" ({several(more_primary + more, 'more label')} left out)" if more_primary + more else ""
    marks = "; hatched: no other value is possible" if forced.any() else ""
    title = f"{shares.title} in the batches of each {group.title}: mean %{left_out}"
    _dress(axes, title, f"{common and common + '; '}red: less than {name}; blue: more{marks}")


def _forced(group: LabelShares, shares: LabelShares) -> np.ndarray:
    """Where the table leaves no choice, since cells do not leak in, shape (n_groups, n_labels).

    That is, where the group has no cell of the label, or has cells of one label only.
    """
    n = len(shares.cells)
    pairs = group.column.codes.astype(np.int64) * n + shares.column.codes
    there = np.bincount(pairs, minlength=len(group.cells) * n).reshape(-1, n) > 0
    pure = np.diag(np.ones(len(group.cells), bool))
    by_primary = group.by_primary
    leaks = by_primary is not None and bool((np.nan_to_num(by_primary)[~pure] > 0).any())
    return (~there | (there.sum(axis=1, keepdims=True) == 1)) & (not leaks)


def _ranks(axes: Axes, survey: Survey) -> None:
    """How far the shares of each rank lie from those of all."""
    labels: list[str] = []
    difference: list[np.ndarray] = []
    for shares in survey.label_shares:
        codes = np.flatnonzero(shares.cells)
        off = np.abs(shares.by_rank - shares.mean).max(axis=0)[codes]
        codes = codes[np.argsort(-off, kind="stable")][:4]
        names, _ = legend_names([shares.names[code] for code in codes])
        labels += [f"{shares.title} {name}" for name in names]
        difference += [100 * (shares.by_rank[:, code] - shares.mean[code]) for code in codes]
    y = _rows(axes, labels)
    for rank in range(survey.sampler.world_size):
        marker, colour = "osD^v<>P"[rank % 8], PALETTES[0][rank % len(PALETTES[0])]
        axes.plot([row[rank] for row in difference], y, marker, color=colour, ms=5, label=f"rank {rank}")
    reach = max(1.0, 1.1 * np.abs(difference).max())
    axes.set_xlim(-reach, reach)
    axes.axvline(0, color=TABLE, lw=0.8)
    axes.grid(axis="x", color="#EEEEEE")
    title = f"ranks: the most unequal labels, over {several(survey.steps, 'step')}"
    _dress(axes, title, "share in the rank's batches, minus the mean of ranks (percentage points)")
    _legend(axes)


def _strata(survey: Survey) -> tuple[list[str], np.ndarray]:
    """Return the strata that the coverage shows, most sampled first, and shares of their cells by draws."""
    coverage = survey.coverage
    each, last = coverage.draws_per_cell, len(DRAWS) - 1
    codes, _ = both_ends(np.flatnonzero(coverage.cells), each, 12)
    codes = codes[np.argsort(-each[codes], kind="stable")]
    wide = np.pad(coverage.drawn[codes], ((0, 0), (0, max(0, last + 1 - coverage.drawn.shape[1]))))
    cells = np.column_stack([wide[:, :last], wide[:, last:].sum(axis=1)])
    return [coverage.names[code] for code in codes], cells / cells.sum(axis=1, keepdims=True)


def _coverage(axes: Axes, survey: Survey) -> None:
    """How many cells of each stratum one epoch draws how often."""
    labels, cells = _strata(survey)
    y = _rows(axes, labels)
    left, last = np.zeros(len(labels)), len(DRAWS) - 1
    for k, colour in enumerate(DRAWS):
        name = ("not drawn", "once", f"{k} times", f"{k} times or more")[min(k, 2) + (k == last)]
        axes.barh(y, 100 * cells[:, k], 0.8, left=left, color=colour, edgecolor="#888888", lw=0.4, label=name)
        left += 100 * cells[:, k]
    axes.set_xlim(0, 100)
    more = int((survey.coverage.cells > 0).sum()) - len(labels)
    left_out = f" ({several(more, 'stratum', 'strata')} between left out)" if more else ""
    _dress(axes, f"coverage: how often one epoch draws a cell{left_out}", "% of the cells of the stratum")
    _legend(axes)


def _times(axes: Axes, survey: Survey) -> None:
    """Return the table's cells, the focal times and the draws over time, as shares of each."""
    axis = next((axis for axis in survey.sampler.axes.values() if isinstance(axis, WindowAxis)), None)
    hours = survey.sampler.cells.hours if axis is None else axis.values(survey.sampler.cells)
    if hours is None or len(known := np.flatnonzero(~np.isnan(hours))) == 0:
        axes.set_axis_off()
        return
    times = np.unique(hours[known])
    edges = time_edges(times)
    parts = [("cells of the table", TABLE, ":", np.histogram(hours[known], edges)[0])]
    parts.append(("draws of an epoch", HELD, "-", np.histogram(hours[known], edges, weights=survey.draws[known])[0]))
    if axis is not None:
        focal = survey.numbers["window/focal_hours"]
        parts.append(("focal times of batches", ASKED, "--", np.histogram(focal[np.isfinite(focal)], edges)[0]))
    for label, colour, line, count in parts:
        axes.stairs(100 * count / max(count.sum(), 1), edges, color=colour, ls=line, lw=1.6, baseline=None, label=label)
    axes.set_ylim(bottom=0)
    each = "at each time" if len(edges) - 1 == len(times) else f"in each of {len(edges) - 1} bins"
    _dress(axes, "time: where cells, draws and focal times lie", "hours", f"% {each}")
    _legend(axes)


def time_edges(times: np.ndarray) -> np.ndarray:
    """Return edges of bins: one per time for up to 100 times, otherwise bins of as equally many times as possible.

    Parameters
    ----------
    times : numpy.ndarray, shape (n,)
        The times that there are, in order and without repeats.

    Returns
    -------
    numpy.ndarray, shape (n_bins + 1,)
    """
    n_bins = len(times) if len(times) <= _MOST_TIMES else _BINS
    first = np.linspace(0, len(times), n_bins + 1).round().astype(int)[1:-1]
    half = (times[1] - times[0]) / 2 if len(times) > 1 else 0.5
    return np.concatenate([[times[0] - half], (times[first - 1] + times[first]) / 2, [times[-1] + half]])
