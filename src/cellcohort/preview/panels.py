"""The panels of the preview's picture."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from cellcohort.messages import several
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
TIMES = ("#FFFFFF", "#C6DBEF", "#6BAED6", "#2171B5", "#08306B")  # cells drawn 0, 1, 2, 3 times, or more
_SIZE = 8
_BINS = 32  # of time, at most


def shown(held: LabelShares) -> tuple[np.ndarray, int]:
    """The labels that panels show, and how many are left out."""
    codes, rest = both_ends(np.flatnonzero(held.cells), held.cells)
    return codes, len(rest)


def _dress(axes: Axes, title: str, xlabel: str = "", ylabel: str = "") -> None:
    axes.set_title(title, loc="left", fontsize=_SIZE + 1, fontweight="bold")
    axes.set_xlabel(xlabel, fontsize=_SIZE)
    axes.set_ylabel(ylabel, fontsize=_SIZE)
    axes.tick_params(labelsize=_SIZE)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _legend(axes: Axes) -> None:
    axes.legend(fontsize=_SIZE - 1, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), borderaxespad=0)


def _rows(axes: Axes, labels: list[str]) -> np.ndarray:
    """One row per label, the first on top."""
    y = np.arange(len(labels))
    axes.set_yticks(y, [short(label, 28) for label in labels])
    axes.set_ylim(len(labels) - 0.4, -0.6)
    return y


def shares(axes: Axes, held: LabelShares) -> None:
    """Share of each label in a batch: asked, mean, and from least to most; and in the table."""
    codes, rest = shown(held)
    y = _rows(axes, [held.names[code] for code in codes])
    axes.hlines(y, 100 * held.least[codes], 100 * held.most[codes], color=HELD, alpha=0.35, lw=5, label="least to most")
    axes.plot(100 * (held.cells / held.cells.sum())[codes], y, "D", mfc="none", mec=TABLE, ms=5, label="in the table")
    if held.asked is not None:
        axes.plot(100 * held.asked[codes], y, "|", color=ASKED, ms=13, mew=2.2, label="asked")
    axes.plot(100 * held.mean[codes], y, "o", color=HELD, ms=4.5, label="mean of batches")
    axes.set_xlim(left=0)
    axes.grid(axis="x", color="#EEEEEE")
    axes.set_axisbelow(True)
    left_out = f" ({several(rest, 'more label')} between)" if rest else ""
    _dress(axes, f"{held.title}: share of a batch{left_out}", "% of the cells of a batch")
    _legend(axes)


def first_batches(axes: Axes, survey: Survey, held: LabelShares, palette: int = 0) -> None:
    """The first batches, one bar each, coloured by label; the labels with most cells have colours of their own."""
    n_labels, n, colours = len(held.cells), len(survey.first_batches), PALETTES[palette % len(PALETTES)]
    counts = np.stack([np.bincount(held.column.codes[batch], minlength=n_labels) for batch in survey.first_batches])
    present = np.flatnonzero(held.cells)
    most = np.sort(present[np.argsort(-held.cells[present], kind="stable")][: len(colours)])
    bottom, edges = np.zeros(n), np.arange(n + 1) - 0.5
    parts = [(short(held.names[code], 16), colours[i], counts[:, code]) for i, code in enumerate(most)]
    if len(present) > len(most):
        parts.append((f"{len(present) - len(most):,} more", OTHER, counts.sum(axis=1) - counts[:, most].sum(axis=1)))
    for label, colour, count in parts:
        top = bottom + 100 * count / survey.batch_cells
        axes.stairs(top, edges, baseline=bottom, fill=True, color=colour, label=label)
        bottom = top
    axes.vlines(edges, 0, 100, color="white", lw=1)
    axes.set_xlim(-0.5, n - 0.5)
    axes.set_ylim(0, 100)
    _dress(axes, f"{held.title}: the first {several(n, 'batch')}", "batch", "% of its cells")
    _legend(axes)


def by_primary(axes: Axes, group: LabelShares, held: LabelShares) -> None:
    """Mean share of each label in the batches built around each label of the group, coloured by what is amiss."""
    leaders, more_leaders = shown(group)
    codes, more = shown(held)
    usual, name = (held.cells / held.cells.sum(), "in the table") if held.asked is None else (held.asked, "asked")
    values = 100 * np.vstack([usual[codes], np.asarray(held.by_primary)[np.ix_(leaders, codes)]])
    off = values - values[0]
    reach = max(1.0, float(np.nanmax(np.abs(off))))
    image = axes.imshow(off, aspect="auto", cmap="RdBu", vmin=-1.4 * reach, vmax=1.4 * reach)
    _rows(axes, [name, *(group.names[code] for code in leaders)])
    axes.set_xticks(np.arange(len(codes)), [short(held.names[code], 14) for code in codes])
    if sum(len(label.get_text()) + 2 for label in axes.get_xticklabels()) > 56:
        for label in axes.get_xticklabels():
            label.set(rotation=50, ha="right", rotation_mode="anchor")
    if len(codes) > 10:
        axes.figure.colorbar(image, ax=axes, pad=0.01).ax.tick_params(labelsize=_SIZE - 1)
    else:
        digits = 2 if values[0].max() < 1 else 1
        for (row, column), value in np.ndenumerate(values):
            text = "-" if np.isnan(value) else f"{value:.{digits}f}"
            axes.text(column, row, text, ha="center", va="center", fontsize=_SIZE - 1)
    left_out = f" ({several(more_leaders + more, 'more label')} left out)" if more_leaders + more else ""
    title = f"{held.title} in the batches of each {group.title}: mean %{left_out}"
    _dress(axes, title, f"red: less than {name}; blue: more")


def ranks(axes: Axes, survey: Survey) -> None:
    """How far the shares of each rank lie from those of all."""
    labels, apart = [], []
    for held in survey.label_shares:
        codes = np.flatnonzero(held.cells)
        off = np.abs(held.by_rank - held.mean).max(axis=0)[codes]
        for code in codes[np.argsort(-off, kind="stable")][:4]:
            labels.append(f"{held.title} {short(held.names[code], 16)}")
            apart.append(100 * (held.by_rank[:, code] - held.mean[code]))
    y = _rows(axes, labels)
    for rank, marker in zip(range(survey.sampler.world_size), "osD^v<>P" * survey.sampler.world_size, strict=False):
        axes.plot(
            [row[rank] for row in apart],
            y,
            marker,
            color=PALETTES[0][rank % len(PALETTES[0])],
            ms=5,
            label=f"rank {rank}",
        )
    reach = max(1.0, 1.1 * np.abs(apart).max())
    axes.set_xlim(-reach, reach)
    axes.axvline(0, color=TABLE, lw=0.8)
    axes.grid(axis="x", color="#EEEEEE")
    title = f"ranks: the most unequal labels, over {several(survey.steps, 'step')}"
    _dress(axes, title, "share in the rank's batches, minus the mean of ranks (percentage points)")
    _legend(axes)


def strata(survey: Survey) -> tuple[list[str], np.ndarray]:
    """The strata that the coverage shows, most to least sampled, and shares of their cells by number of draws."""
    table, drawn = survey.coverage.table(), survey.coverage.drawn
    present = np.flatnonzero(table["cells"].to_numpy())
    order, _ = both_ends(present, table["draws per cell"].to_numpy(), 12)
    order = order[np.argsort(-table["draws per cell"].to_numpy()[order], kind="stable")]
    last = len(TIMES) - 1
    wide = np.pad(drawn, ((0, 0), (0, max(0, last + 1 - drawn.shape[1]))))[order]
    times = np.column_stack([wide[:, :last], wide[:, last:].sum(axis=1)])
    return [str(table["stratum"][k]) for k in order], times / times.sum(axis=1, keepdims=True)


def coverage(axes: Axes, survey: Survey) -> None:
    """How many cells of each stratum one epoch draws how often."""
    labels, times = strata(survey)
    y = _rows(axes, labels)
    left, last = np.zeros(len(labels)), len(TIMES) - 1
    for k, colour in enumerate(TIMES):
        name = ("not drawn", "once", f"{k} times", f"{k} times or more")[min(k, 2) + (k == last)]
        axes.barh(y, 100 * times[:, k], 0.8, left=left, color=colour, edgecolor="#888888", lw=0.4, label=name)
        left += 100 * times[:, k]
    axes.set_xlim(0, 100)
    more = int((survey.coverage.drawn.sum(axis=1) > 0).sum()) - len(labels)
    left_out = f" ({more:,} strata between left out)" if more else ""
    _dress(axes, f"coverage: how often one epoch draws a cell{left_out}", "% of the cells of the stratum")
    _legend(axes)


def times(axes: Axes, survey: Survey) -> None:
    """The table's cells, the focal times and the draws over time, as densities of equal height."""
    axis = next((axis for axis in survey.sampler.axes.values() if isinstance(axis, WindowAxis)), None)
    hours = survey.sampler.cells.hours if axis is None else axis.values(survey.sampler.cells)
    if hours is None or len(known := np.flatnonzero(~np.isnan(hours))) == 0:
        axes.set_axis_off()
        return
    edges = _edges(np.unique(hours[known]))
    parts = [("cells of the table", TABLE, ":", np.histogram(hours[known], edges)[0])]
    parts.append(("draws of an epoch", HELD, "-", np.histogram(hours[known], edges, weights=survey.draws[known])[0]))
    if axis is not None:
        focal = survey.numbers["window/focal_hours"]
        parts.append(("focal times of batches", ASKED, "--", np.histogram(focal[np.isfinite(focal)], edges)[0]))
    for label, colour, line, count in parts:
        axes.stairs(100 * count / max(count.sum(), 1), edges, color=colour, ls=line, lw=1.6, baseline=None, label=label)
    axes.set_ylim(bottom=0)
    _dress(axes, "time: where cells, draws and focal times lie", "hours", f"% in each of {len(edges) - 1} bins")
    _legend(axes)


def _edges(times: np.ndarray) -> np.ndarray:
    """Bins that hold equally many of the sorted times, give or take one."""
    first = np.unique(np.linspace(0, len(times), min(len(times), _BINS) + 1).round().astype(int)[1:-1])
    half = (times[1] - times[0]) / 2 if len(times) > 1 else 0.5
    return np.concatenate([[times[0] - half], (times[first - 1] + times[first]) / 2, [times[-1] + half]])
