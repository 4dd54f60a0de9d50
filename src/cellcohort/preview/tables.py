"""The tables of a preview, in plain text."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cellcohort.composition.metrics import MOST_LABELS
from cellcohort.messages import several
from cellcohort.preview.describe import percent
from cellcohort.preview.label_shares import LabelShares
from cellcohort.preview.survey import Survey
from cellcohort.sampling.axes.base import WindowAxis

WIDTH = 100  # characters of a line
EACH_END = 5  # labels shown from both ends of a long column
COLUMNS = 6  # labels that are columns of a table
BINS = 8  # of time
_RULES = {
    "group": "each batch has one primary label",
    "share": "each has its share of a batch",
    None: "governed by no axis",
}


def tables(survey: Survey) -> Iterator[list[str]]:
    """Write the lines of each table that has something to show."""
    for shares in survey.label_shares:
        yield _shares(survey, shares)
    if survey.group is not None:
        for shares in survey.label_shares:
            if shares.rule != "group" and shares.by_primary is not None:
                yield _by_primary(survey.group, shares)
    yield _batch(survey)
    if "window/held" in survey.numbers:
        yield _times(survey)
    yield _coverage(survey)
    if survey.sampler.world_size > 1:
        yield _ranks(survey)


def grid(rows: Sequence[Sequence[str]], indent: int = 2) -> list[str]:
    """Align rows of texts, the first of which is the header.

    Parameters
    ----------
    rows : sequence of sequence of str
        The first column is aligned left and cut to the width that is free, the others right.
    indent : int
        Spaces before each line.

    Returns
    -------
    list of str
    """
    others = sum(max(len(row[i]) for row in rows) + 2 for i in range(1, len(rows[0])))
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    for i in range(len(rows[0])):
        table.add_column(justify="right" if i else "left", no_wrap=True)
    for first, *rest in rows:
        table.add_row(Text(short(first, WIDTH - indent - others)), *map(Text, rest))
    text = io.StringIO()
    Console(file=text, width=WIDTH - indent, color_system=None).print(table)
    return [" " * indent + line for line in text.getvalue().splitlines()]


def short(name: str, most: int = 30) -> str:
    """Cut a label to a width, in its middle, since names often differ at their ends."""
    if len(name) <= most:
        return name
    return name[: most // 2] + "…" + name[len(name) - (most - most // 2 - 1) :]


def both_ends(present: np.ndarray, size: np.ndarray, most: int = MOST_LABELS) -> tuple[np.ndarray, np.ndarray]:
    """Return, of many labels, those of largest and of smallest size, and those between them.

    Parameters
    ----------
    present : numpy.ndarray of int, shape (n,)
        Codes of the labels.
    size : numpy.ndarray, shape (n_labels,)
    most : int
        So many labels are not too many.
    """
    if len(present) <= most:
        return present, present[:0]
    order = present[np.argsort(-size[present], kind="stable")]
    return np.concatenate([order[:EACH_END], order[-EACH_END:]]), order[EACH_END:-EACH_END]


def _shares(survey: Survey, shares: LabelShares) -> list[str]:
    present = np.flatnonzero(shares.cells)
    header = ["", "cells", "of table", *(["asked"] if shares.asked is not None else []), "mean", "least", "most"]
    one = shares is survey.group
    header += ["primary in", "by weight"] if one else ["absent from"]
    rows = [header]
    shown, rest = both_ends(present, shares.cells)
    primary = survey.primary_shares if one else np.empty((2, 0))
    for code in shown:
        values = [shares.cells[code] / shares.cells.sum(), *([shares.asked[code]] if shares.asked is not None else [])]
        values += [shares.mean[code], shares.least[code], shares.most[code]]
        values += [primary[1, code], primary[0, code]] if one else [shares.absent[code]]
        rows.append([shares.names[code], f"{shares.cells[code]:,}", *map(percent, values)])
    rule = "each batch has several primary labels" if shares.rule == "group" and not one else _RULES[shares.rule]
    lines = [f"{shares.title.upper()}: share of a batch ({rule})", *grid(rows)]
    if len(rest):
        never = int((shares.most[present] == 0).sum())
        lines.append(
            f"  … {len(rest):,} more of {shares.cells[rest].min():,} to {shares.cells[rest].max():,} cells: mean "
            f"{percent(shares.mean[rest].min())} to {percent(shares.mean[rest].max())}. "
            f"In no batch: {several(never, 'label')}."
        )
    return lines


def _by_primary(group: LabelShares, shares: LabelShares) -> list[str]:
    """Mean shares of the labels in the batches of each primary label."""
    of = shares.by_primary if shares.by_primary is not None else np.empty((0, 0))
    present = np.flatnonzero(shares.cells)
    columns = np.sort(present[np.argsort(-shares.cells[present], kind="stable")][:COLUMNS])
    more = len(present) - len(columns)
    rows = [[f"primary {group.title}", *(short(shares.names[code], 11) for code in columns)]]
    if shares.asked is not None:
        rows.append(["asked", *(percent(shares.asked[code]) for code in columns)])
    known = np.flatnonzero(~np.isnan(of).any(axis=1))
    shown, rest = both_ends(known, group.cells)
    for code in shown:
        rows.append([group.names[code], *(percent(of[code, column]) for column in columns)])
    left_out = [f"{len(rest):,} more of {group.title}"] if len(rest) else []
    left_out += [f"{more:,} more of {shares.title}"] if more else []
    title = f"{shares.title.upper()} in the batches of each {group.title}: mean share"
    return [title, *grid(rows), *([f"  … {' and '.join(left_out)}."] if left_out else [])]


def _batch(survey: Survey) -> list[str]:
    numbers, size = survey.numbers, survey.batch_cells
    rows = [["", "asked", "mean", "least", "most"]]

    def add(what: str, asked: str, values: np.ndarray) -> None:
        rows.append([what, asked, *(f"{value:.1f}" for value in (values.mean(), values.min(), values.max()))])

    for what, title in (("leak", "% leaked in from the others"), ("window", "% inside the time window")):
        if f"{what}/held" in numbers:
            add(title, f"{100 * numbers[f'{what}/asked'].mean():.1f}", 100 * numbers[f"{what}/held"])
    add("repeated cells", "0", numbers["duplicates"])
    if survey.same_track_share is not None:
        add("pairs of cells of one track", "", numbers["same_track_pairs"])
        add("% with another cell of their track", "", 100 * survey.same_track_share)
    add("shortfall in cells", "0", numbers["shortfall"])
    return [f"EACH BATCH ({several(size, 'cell')})", *grid(rows)]


def _times(survey: Survey) -> list[str]:
    """Where in time the cells, the focal times and the draws lie."""
    focal = survey.numbers["window/focal_hours"]
    axis = next(axis for axis in survey.sampler.axes.values() if isinstance(axis, WindowAxis))
    hours = axis.values(survey.sampler.cells)
    known = ~np.isnan(hours)
    times, low, high = np.unique(hours[known]), hours[known].min(), hours[known].max()
    edges = np.linspace(low, high, (BINS if high > low else 1) + 1)
    n_focal = len(np.unique(focal[np.isfinite(focal)]))
    rows = [["hours", "cells", "of table", "focal in", "draws per cell"]]
    of_cells, _ = np.histogram(hours[known], edges)
    of_focal, _ = np.histogram(focal[np.isfinite(focal)], edges)
    of_draws, _ = np.histogram(hours[known], edges, weights=survey.draws[known])
    for k in range(len(edges) - 1):
        rows.append(
            [
                f"{edges[k]:.4g} to {edges[k + 1]:.4g}",
                f"{of_cells[k]:,}",
                percent(of_cells[k] / len(hours)),
                percent(of_focal[k] / survey.n_batches),
                f"{of_draws[k] / of_cells[k]:.2f}" if of_cells[k] else "-",
            ]
        )
    return [
        f"TIME: {n_focal:,} of {several(len(times), 'time')} are focal in {several(survey.n_batches, 'batch')}",
        *grid(rows),
    ]


def _coverage(survey: Survey) -> list[str]:
    coverage = survey.coverage
    drawn = 1 - coverage.drawn[:, 0] / np.maximum(coverage.cells, 1)
    present = np.flatnonzero(coverage.cells)
    order = present[np.argsort(-coverage.draws_per_cell[present], kind="stable")]
    shown, rest = both_ends(order, coverage.draws_per_cell, 2 * EACH_END)
    rows = [["", "cells", "drawn at least once", "draws per cell"]]
    if len(present) > 1:
        rows.append(["all", f"{len(survey.draws):,}", percent(coverage.share), f"{survey.draws.mean():.2f}"])
    for k in shown:
        name, each = coverage.names[k], coverage.draws_per_cell[k]
        rows.append([name, f"{coverage.cells[k]:,}", percent(drawn[k]), f"{each:.2f}"])
    most = several(int(survey.draws.max()), "time")
    lines = [f"COVERAGE of one epoch, most to least sampled; a cell is drawn {most} at most", *grid(rows)]
    if len(rest):
        never = int((coverage.draws_per_cell[present] == 0).sum())
        lines.append(f"  … {len(rest):,} more between these. Without a draw: {several(never, 'stratum', 'strata')}.")
    if (n := len(survey.coverage_by_epoch)) > 1:
        lines.append(
            f"  Drawn at least once after 1 to {n} epochs: {', '.join(map(percent, survey.coverage_by_epoch))}."
        )
    return lines


def _ranks(survey: Survey) -> list[str]:
    n = survey.sampler.world_size
    rows = [["most unequal label", *(f"rank {rank}" for rank in range(min(n, COLUMNS)))]]
    for shares in survey.label_shares:
        code = int(np.ptp(shares.by_rank, axis=0).argmax())
        rows.append([f"{shares.title} {shares.names[code]}", *map(percent, shares.by_rank[:COLUMNS, code])])
    steps = int((survey.shared_cells > 0).sum())
    common = f"share cells in {steps:,} of {several(survey.steps, 'step')}" if steps else "share no cell within a step"
    more = [f"  … {several(n - COLUMNS, 'more rank')}."] if n > COLUMNS else []
    return [f"RANKS: {n} see these shares of cells, and {common}", *grid(rows), *more]
