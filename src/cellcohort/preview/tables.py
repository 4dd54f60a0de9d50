"""The tables of a preview, in plain text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

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
    "group": "each batch is built around one",
    "share": "each has its share of a batch",
    None: "no axis looks at it",
}


def tables(survey: Survey) -> Iterator[list[str]]:
    """The lines of each table that has something to show."""
    for held in survey.label_shares:
        yield _shares(survey, held)
    if survey.group is not None:
        for held in survey.label_shares:
            if held.rule != "group" and held.by_primary is not None:
                yield _by_leader(survey.group, held)
    yield _batch(survey)
    if "window/held" in survey.numbers:
        yield _times(survey)
    yield _coverage(survey)
    if survey.sampler.world_size > 1:
        yield _ranks(survey)


def grid(rows: Sequence[Sequence[str]], indent: int = 2) -> list[str]:
    """Rows of texts in columns, the first aligned left and cut to what is free, the others right."""
    wide = [max(len(row[i]) for row in rows) for i in range(1, len(rows[0]))]
    free = WIDTH - indent - sum(wide) - 2 * len(wide)
    first = min(free, max(len(row[0]) for row in rows))
    return [
        " " * indent
        + "  ".join([short(row[0], free).ljust(first), *(t.rjust(w) for t, w in zip(row[1:], wide, strict=True))])
        for row in rows
    ]


def short(name: str, most: int = 30) -> str:
    """A label cut to a width, in its middle, since names often differ at their ends."""
    if len(name) <= most:
        return name
    return name[: most // 2] + "…" + name[len(name) - (most - most // 2 - 1) :]


def both_ends(present: np.ndarray, size: np.ndarray, most: int = MOST_LABELS) -> tuple[np.ndarray, np.ndarray]:
    """Of many labels those of largest and of smallest size, and those that are left out between them."""
    if len(present) <= most:
        return present, present[:0]
    order = present[np.argsort(-size[present], kind="stable")]
    return np.concatenate([order[:EACH_END], order[-EACH_END:]]), order[EACH_END:-EACH_END]


def _shares(survey: Survey, held: LabelShares) -> list[str]:
    present = np.flatnonzero(held.cells)
    header = ["", "cells", "of table", *(["asked"] if held.asked is not None else []), "mean", "least", "most"]
    header += ["leads", "asked to"] if held.rule == "group" else ["absent from"]
    rows = [header]
    shown, rest = both_ends(present, held.cells)
    leads = survey.primary_shares if held.rule == "group" else np.empty((2, 0))
    for code in shown:
        shares = [held.cells[code] / held.cells.sum(), *([held.asked[code]] if held.asked is not None else [])]
        shares += [held.mean[code], held.least[code], held.most[code]]
        shares += [leads[1, code], leads[0, code]] if held.rule == "group" else [held.absent[code]]
        rows.append([held.names[code], f"{held.cells[code]:,}", *map(percent, shares)])
    lines = [f"{held.title.upper()}: share of a batch ({_RULES[held.rule]})", *grid(rows)]
    if len(rest):
        never = int((held.most[present] == 0).sum())
        lines.append(
            f"  … {len(rest):,} more of {held.cells[rest].min():,} to {held.cells[rest].max():,} cells: mean "
            f"{percent(held.mean[rest].min())} to {percent(held.mean[rest].max())}. "
            f"In no batch: {several(never, 'label')}."
        )
    return lines


def _by_leader(group: LabelShares, held: LabelShares) -> list[str]:
    """Mean shares of the labels in the batches that are built around each label of the group."""
    shares = held.by_primary if held.by_primary is not None else np.empty((0, 0))
    present = np.flatnonzero(held.cells)
    columns = np.sort(present[np.argsort(-held.cells[present], kind="stable")][:COLUMNS])
    more = len(present) - len(columns)
    rows = [["built around", *(short(held.names[code], 11) for code in columns)]]
    if held.asked is not None:
        rows.append(["asked", *(percent(held.asked[code]) for code in columns)])
    led = np.flatnonzero(~np.isnan(shares).any(axis=1))
    shown, rest = both_ends(led, group.cells)
    for leader in shown:
        rows.append([group.names[leader], *(percent(shares[leader, code]) for code in columns)])
    left = [f"{len(rest):,} more of {group.title}"] * bool(len(rest)) + [f"{more:,} more of {held.title}"] * bool(more)
    title = f"{held.title.upper()} in the batches of each {group.title}: mean share"
    return [title, *grid(rows), *([f"  … {' and '.join(left)}."] if left else [])]


def _batch(survey: Survey) -> list[str]:
    numbers, size = survey.numbers, survey.batch_cells
    rows = [["", "asked", "mean", "least", "most"]]

    def add(what: str, asked: str, values: np.ndarray, form: str = "{:.1f}") -> None:
        rows.append([what, asked, *(form.format(v) for v in (values.mean(), values.min(), values.max()))])

    for what, title in (
        ("leak", "% leaked in from the others"),
        ("window", "% inside the time window"),
    ):
        if f"{what}/held" in numbers:
            add(title, f"{100 * numbers[f'{what}/asked'].mean():.1f}", 100 * numbers[f"{what}/held"])
    add("cells that are there already", "0", numbers["duplicates"])
    if survey.same_track_share is not None:
        add("pairs of cells of one track", "", numbers["same_track_pairs"])
        add("% with another cell of their track", "", 100 * survey.same_track_share)
    add("cells short of what is asked", "0", numbers["shortfall"])
    return [f"EACH BATCH ({size} cells)", *grid(rows)]


def _times(survey: Survey) -> list[str]:
    """Where in time the cells lie, the focal times, and what is drawn."""
    focal = survey.numbers["window/focal_hours"]
    axis = next(axis for axis in survey.sampler.axes.values() if isinstance(axis, WindowAxis))
    hours = axis.values(survey.sampler.cells)
    known = ~np.isnan(hours)
    times, low, high = np.unique(hours[known]), hours[known].min(), hours[known].max()
    edges = np.linspace(low, high, (BINS if high > low else 1) + 1)
    visited = np.unique(focal[np.isfinite(focal)])
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
        f"TIME: {len(visited):,} of {several(len(times), 'time')} are focal in {several(survey.n_batches, 'batch')}",
        *grid(rows),
    ]


def _coverage(survey: Survey) -> list[str]:
    table = survey.coverage.table()
    table = table[table["cells"] > 0].reset_index(drop=True)
    order = table["draws per cell"].to_numpy()
    shown, rest = both_ends(np.argsort(-order, kind="stable"), order, 2 * EACH_END)
    rows = [["", "cells", "drawn at least once", "draws per cell"]]
    if len(table) > 1:
        rows.append(["all", f"{len(survey.draws):,}", percent(survey.coverage.share), f"{survey.draws.mean():.2f}"])
    for k in shown:
        rows.append(
            [
                str(table["stratum"][k]),
                f"{table['cells'][k]:,}",
                percent(table["drawn"][k]),
                f"{table['draws per cell'][k]:.2f}",
            ]
        )
    lines = [
        f"COVERAGE of one epoch, most to least sampled; a cell is drawn {several(survey.draws.max(), 'time')} at most",
        *grid(rows),
    ]
    lines += [f"  … {len(rest):,} more between these."] if len(rest) else []
    if (n := len(survey.coverage_by_epoch)) > 1:
        lines.append(
            f"  Drawn at least once after 1 to {n} epochs: {', '.join(map(percent, survey.coverage_by_epoch))}."
        )
    return lines


def _ranks(survey: Survey) -> list[str]:
    n = survey.sampler.world_size
    rows = [["most unequal label", *(f"rank {rank}" for rank in range(min(n, COLUMNS)))]]
    for held in survey.label_shares:
        code = int(np.ptp(held.by_rank, axis=0).argmax())
        shares = [percent(share) for share in held.by_rank[:COLUMNS, code]]
        rows.append([f"{held.title} {held.names[code]}", *shares])
    steps = int((survey.shared_cells > 0).sum())
    apart = f"share cells in {steps:,} of {several(survey.steps, 'step')}" if steps else "share no cell within a step"
    more = [f"  … {several(n - COLUMNS, 'more rank')}."] if n > COLUMNS else []
    return [f"RANKS: {n} see these shares of cells, and {apart}", *grid(rows), *more]
