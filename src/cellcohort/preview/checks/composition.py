"""What the batches lack or repeat of what was asked, and what an epoch draws too seldom or too often."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cellcohort.cells import CellTable, Name, names_of
from cellcohort.composition.metrics import label_texts
from cellcohort.messages import in_list, listed, plural_of, several, typed_option
from cellcohort.preview.checks import Finding
from cellcohort.preview.checks.balance import with_chunk_windows
from cellcohort.preview.checks.design import nested
from cellcohort.preview.describe import has_axis, percent, title_of
from cellcohort.preview.label_shares import LabelShares
from cellcohort.preview.survey import Survey
from cellcohort.sampling.axes.base import CapAxis, GroupAxis, ShareAxis, WindowAxis
from cellcohort.sampling.baselines.base import Baseline
from cellcohort.sampling.protocol import in_chunks

REASONS = 6  # reasons that are listed
SAME_TRACK = 0.02  # share of a batch's cells that share their track with another, above which it is a finding
DRAWN = 0.9  # share of the cells that an epoch should draw
OVERDRAWN = 4.0  # draws per cell of the most sampled stratum over those of all cells


def shortfalls(survey: Survey) -> Iterator[Finding]:
    """Find what batches hold less of than asked, and why."""
    lacking, absent = [], False
    for shares in survey.label_shares:
        if shares.rule == "share":
            texts, none_there = _labels_short(survey, shares)
            lacking += [f"{shares.title} {listed(texts, 3)}"] if texts else []
            absent |= none_there
    leaked, leak_asked = survey.numbers.get("leak/held"), survey.numbers.get("leak/asked")
    if leaked is not None and leak_asked is not None and survey.numbers["leak/shortfall"].any():
        lacking.append(f"leaked cells {percent(leaked.mean())} instead of {percent(leak_asked.mean())}")
    if isinstance(survey.sampler, Baseline) and "window/held" in survey.numbers:
        near, asked_near = survey.numbers["window/held"].mean(), survey.numbers["window/asked"].mean()
        if near < asked_near:
            lacking.append(f"cells in the time window {percent(near)} instead of {percent(asked_near)}")
    unreached = survey.sampler.unreached  # which `drift` reports
    reasons = tuple(reason for reason in survey.sampler.warnings if reason not in unreached)
    if not (lacking or reasons):
        return
    group = survey.group
    all_held_out, reasons = _all_held_out(survey, reasons)
    if isinstance(survey.sampler, Baseline):
        yield Finding(
            f"This sampler gives less than is asked: batches are short of {'; '.join(lacking)}.",
            "No action needed if that is what you compare; batch_sampler=default gives it where cells suffice.",
        )
        return
    if group is not None and np.count_nonzero(group.cells) == 1:
        change = f"There is one {group.title}: leave out the axis that builds batches around it."
    elif all_held_out:
        change = (
            "Hold out other cells: another split.seed or split.fraction, or other groups (split.by, split.held_out)."
        )
    elif nested(survey.sampler):
        reasons = ()  # the same for every experiment, and `confounded` gives it
        change = "No setting can balance conditions within an experiment that holds one."
    elif absent and group is not None:
        change = (
            f"No action needed if the {group.title}s differ by design: other labels fill these places. Otherwise raise "
            f"sampler.experiment_aware.leaky, or leave out the axis that builds batches around one {group.title}."
        )
    elif lacking:
        change = (
            "Ask for less of what is rare (sampler.condition.ratio, sampler.experiment_aware.leaky), or use a smaller "
            "batch_sampler.batch_size."
        )
    else:
        change = "No action needed if few places are affected; see the tables."
    what = f": batches are short of {'; '.join(lacking)}" if lacking else ""
    reasons = (*all_held_out, *reasons)
    more = (f"and {len(reasons) - REASONS} more of this kind.",) if len(reasons) > REASONS else ()
    lacks = "The training part" if all_held_out else "The table"
    yield Finding(f"{lacks} has too few cells for what is asked{what}.", change, (*reasons[:REASONS], *more))


def _all_held_out(survey: Survey, reasons: tuple[str, ...]) -> tuple[list[str], tuple[str, ...]]:
    """Say which labels have no cell for training since the split holds out all, and return the other reasons."""
    group, held_out = survey.group, None if survey.source is None else survey.source.held_out
    if group is None or held_out is None:
        return [], reasons
    names = {title_of(axis): axis.column for axis in survey.sampler.axes.values() if isinstance(axis, GroupAxis)}
    names |= {title_of(axis): axis.column for axis in survey.sampler.axes.values() if isinstance(axis, ShareAxis)}
    held_groups, said = _codes_of(held_out, names[group.title], group), []
    for shares in survey.label_shares:
        if shares.rule != "share" or shares.by_primary is None:
            continue
        n = len(shares.names)
        held, trained = (
            np.bincount((codes * n + labels)[(codes >= 0) & (labels >= 0)], minlength=len(group.cells) * n)
            for codes, labels in (
                (held_groups, _codes_of(held_out, names[shares.title], shares)),
                (group.column.codes.astype(np.int64), shares.column.codes.astype(np.int64)),
            )
        )
        absent = (np.nan_to_num(shares.asked_by_primary) > 0) & (trained == 0).reshape(-1, n)
        gone = absent & (held > 0).reshape(-1, n)
        for row, code in np.argwhere(gone):
            said.append(
                f"the training part has no cells of {shares.title} {shares.column.labels[code]!r} in {group.title} "
                f"{group.column.labels[row]!r}: the split holds out all {held[row * n + code]:,} of them."
            )
        for row in np.flatnonzero(gone.any(axis=1) & (gone == absent).all(axis=1)):
            start, end = f"no cells of {shares.column.name} ", f" in {group.column.name} {group.column.labels[row]!r}, "
            reasons = tuple(one for one in reasons if not (one.startswith(start) and end in one))
    return said, reasons


def _codes_of(cells: CellTable, name: Name, shares: LabelShares) -> np.ndarray:
    """Return the label of each cell of another table, as a code of the column of `shares`; -1 for others."""
    column, code = cells.column(name), {label: code for code, label in enumerate(shares.column.labels)}
    return np.array([code.get(label, -1) for label in column.labels], np.int64)[column.codes]


def _labels_short(survey: Survey, shares: LabelShares) -> tuple[list[str], bool]:
    """List labels short by a tenth of their share and a cell, the worst first; and whether any has no cell."""
    group, size = survey.group, survey.batch_cells
    rows, cells = shares.mean[None], shares.cells[None]
    where = [""]
    if group is not None and shares.by_primary is not None:
        rows, n = shares.by_primary, len(shares.cells)
        pairs = group.column.codes.astype(np.int64) * n + shares.column.codes
        cells = np.bincount(pairs, minlength=len(rows) * n).reshape(-1, n)
        where = [f" in batches of {group.title} {in_list(name)}" for name in group.names]
    asked = np.broadcast_to(np.asarray(shares.asked) if where == [""] else shares.asked_by_primary, rows.shape)
    lacking = np.nan_to_num((asked - rows) * size)
    lacking[lacking <= np.maximum(1.0, 0.1 * asked * size)] = 0
    order = [divmod(int(k), lacking.shape[1]) for k in np.argsort(-lacking, axis=None, kind="stable")]
    texts = [
        f"{in_list(shares.names[code])}: {percent(rows[row, code])} instead of {percent(asked[row, code])}{where[row]}"
        for row, code in order[: np.count_nonzero(lacking)]
    ]
    return texts, bool((cells[lacking > 0] == 0).any())


def time_windows(survey: Survey) -> Iterator[Finding]:
    """Find focal times with too few cells inside or outside their time window."""
    if "window/held" not in survey.numbers or isinstance(survey.sampler, Baseline):
        return
    held, asked = survey.numbers["window/held"], survey.numbers["window/asked"]
    short, focal = survey.numbers["window/shortfall"] > 0, survey.numbers["window/focal_hours"]
    wider = "Widen sampler.temporal.window_hours, raise sampler.temporal.global_fraction"
    narrower = "Narrow sampler.temporal.window_hours, lower sampler.temporal.global_fraction"
    for few, where, change in (
        (short & (held < asked), "inside", wider),
        (short & (held > asked), "outside", narrower),
    ):
        if not few.any():
            continue
        times = f" (focal times {focal[few].min():g} to {focal[few].max():g} h)" if np.isfinite(focal).all() else ""
        group, primary, worst = survey.group, survey.primary, ""
        if group is not None and primary is not None:
            n_batches = np.bincount(primary, minlength=len(group.cells))
            share = np.bincount(primary, few, minlength=len(group.cells)) / np.maximum(n_batches, 1)
            code = int(np.argmax(share))
            worst = f", most often in those of {group.title} {group.names[code]} ({percent(share[code])} of them)"
        yield Finding(
            f"Too few cells {where} the time window: {_of_batches(survey, few)} have {percent(held[few].mean())} of "
            f"their cells inside it instead of {percent(asked[few].mean())}{times}{worst}.",
            f"{change}, or use a smaller batch_sampler.batch_size.",
        )


def repeats(survey: Survey) -> Iterator[Finding]:
    """Find batches that hold a cell more than once."""
    places = survey.numbers["duplicates"]
    if not places.any():
        return
    change = "Use a smaller batch_sampler.batch_size"
    if has_axis(survey.sampler, GroupAxis):
        change += (
            ", give small experiments weight 0 (sampler.experiment_aware.weights), or let more cells leak in "
            "(sampler.experiment_aware.leaky)"
        )
    elif has_axis(survey.sampler, ShareAxis):
        change += ", or ask for less of the labels with few cells (sampler.condition.ratio)"
    yield Finding(
        f"{_of_batches(survey, places > 0)} hold a cell more than once: {places.mean():.1f} of {survey.batch_cells} "
        f"places a batch on average, {places.max():.0f} at most.",
        f"{change}.",
    )


def same_tracks(survey: Survey) -> Iterator[Finding]:
    """Find batches with many cells of one track."""
    if survey.same_track_share is None or survey.same_track_share.mean() <= SAME_TRACK:
        return
    by_row = with_chunk_windows(
        survey, lambda of: 0.0 if of.same_track_share is None else float(of.same_track_share.mean())
    )
    change = _keep_tracks_apart(survey, ", or reading=rows" if by_row is not None else "")
    pairs = survey.numbers["same_track_pairs"].mean()
    compared = "" if by_row is None else f"; row by row it would be {percent(by_row)}"
    yield Finding(
        f"{percent(survey.same_track_share.mean())} of a batch's cells share their track with another cell of it "
        f"({pairs:.1f} pairs a batch{compared}): they are near-copies, which the loss treats as negatives.",
        change,
    )


def _keep_tracks_apart(survey: Survey, rows: str) -> str:
    """Return what keeps cells of one track out of a batch: the axis only where the tracks are enough for it."""
    sampler = survey.sampler
    cap = next((axis for axis in sampler.axes.values() if isinstance(axis, CapAxis)), None)
    if isinstance(sampler, Baseline):
        return "Use batch_sampler=default with the axis track_capped, or a smaller batch_sampler.batch_size."
    if too_few := _too_few_tracks(survey, cap):
        return too_few
    smaller = f"a smaller batch_sampler.batch_size{rows}"
    if cap is None:
        return f"Add the axis track_capped to the sampler, or use {smaller}."
    held = np.sort(sampler.cells.column(cap.column).codes[survey.first_batches], axis=1)
    if not (held[:, cap.most :] == held[:, : -cap.most]).any():
        return f"The cap allows {cap.most} cells of each {title_of(cap)}: lower sampler.track_capped.max_cells."
    window = ", widen sampler.temporal.window_hours" if has_axis(sampler, WindowAxis) else ""
    return (
        f"Too few {plural_of(title_of(cap))} have cells of the labels and times that are asked, so the cap is "
        f"exceeded: use {smaller}{window}, or ask for less of what is rare."
    )


def _too_few_tracks(survey: Survey, cap: CapAxis | None) -> str:
    """Return which tables or primary groups have too few tracks for a batch, and a batch size for them; or nothing."""
    sampler, most = survey.sampler, 1 if cap is None else cap.most
    column: Name = "track" if cap is None else cap.column
    track = sampler.cells.column(column)
    title, n_labels = "track" if cap is None else title_of(cap), len(track.labels)
    group = next((axis for axis in sampler.axes.values() if isinstance(axis, GroupAxis)), None)
    if group is None:
        counts, share, who = np.array([len(track.present())]), 1.0, "The table has"
        few = counts * most < survey.batch_cells
    else:
        of = sampler.cells.column(group.column)
        pairs = np.unique(of.codes.astype(np.int64) * n_labels + track.codes)
        counts = np.bincount(pairs // n_labels, minlength=len(of.labels))
        share, primary = (1 - group.leaky) / group.n_primary, (counts > 0) & (group.weights(of) > 0)
        few = primary & (counts * most < np.floor(survey.batch_cells * share))
        names = listed(label_texts([of.labels[code] for code in np.flatnonzero(few)]), 3, in_list)
        who = f"{few.sum():,} of {several(int(primary.sum()), title_of(group))} ({names}) "
        who += "has" if few.sum() == 1 else "have"
    if not few.any():
        return ""
    least, greatest = int(counts[few].min()), int(counts[few].max())
    n = several(least, title) if least == greatest else f"{least:,} to {several(greatest, title)}"
    places = several(int(survey.batch_cells * share), "cell")
    room = int(least * most / share + 1e-9) * sampler.batch_size // survey.batch_cells
    of_each = f" at {most} of each" if most > 1 else ""
    effect = "the cap is exceeded" if cap else "the axis track_capped cannot keep cells of one track apart"
    others = ""
    if group and few.sum() < primary.sum():
        others += ", or give these weight 0 (sampler.experiment_aware.weights)"
    if survey.source is not None and "exclude" in survey.source.objective:
        others += f", or spare them as negatives ({typed_option('objective.exclude', names_of([column]))})"
    return (
        f"{who} {n}{of_each}, too few for the {places} that a batch takes there, so {effect}: use a "
        f"batch_sampler.batch_size of at most {max(room, 1)}{others}."
    )


def low_coverage(survey: Survey) -> Iterator[Finding]:
    """Find a training that leaves many cells out."""
    share, sampler = survey.coverage_by_epoch[-1], survey.sampler
    if share >= DRAWN:
        return
    if survey.epoch_steps < len(sampler):
        change = "Raise trainer.limit_train_batches or trainer.max_epochs: each epoch draws other cells."
    elif (
        isinstance(sampler, Baseline)
        or any(has_axis(sampler, kind) for kind in (WindowAxis, CapAxis))
        or in_chunks(sampler)
        or getattr(sampler, "schedule", None) is not None
    ):
        change = f"Set batch_sampler.num_batches above {len(sampler)}, or raise trainer.max_epochs."
    else:
        change = "Set batch_sampler.num_batches=cover (see its cost below), or raise trainer.max_epochs."
    n = len(survey.coverage_by_epoch)
    later = survey.epochs - survey.epoch - n
    rest = f"{several(later, 'epoch')} follow" if later else "the others are never drawn"
    yield Finding(f"{percent(share)} of the cells are drawn at least once in {several(n, 'epoch')}; {rest}.", change)


def overdrawn(survey: Survey) -> Iterator[Finding]:
    """Find a stratum whose cells are drawn far more often than others."""
    cells, each, usual = survey.coverage.cells, survey.coverage.draws_per_cell, survey.draws.mean()
    most = int(each.argmax())
    if len(cells) == 1 or each[most] <= max(2.0, OVERDRAWN * usual):
        return
    of = "the one cell" if cells[most] == 1 else f"each of the {cells[most]:,} cells"
    yield Finding(
        f"An epoch draws {of} of {survey.coverage.names[most]} {each[most]:.1f} times, {each[most] / usual:.1f} times "
        "as often as the average cell: a model may memorize them.",
        "Ask for less of what is rare (sampler.condition.ratio, sampler.experiment_aware.weights), or train for fewer "
        "or shorter epochs.",
    )


def _of_batches(survey: Survey, which: np.ndarray) -> str:
    return f"{percent(which.mean())} of {several(survey.n_batches, 'batch')}"
