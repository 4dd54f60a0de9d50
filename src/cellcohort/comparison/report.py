"""One HTML file with a whole comparison: it opens from disk, asks the network for nothing, and fits a phone."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from cellcohort.comparison import plots
from cellcohort.comparison.figures import Picture
from cellcohort.comparison.table import BETTER, OPEN, UNTESTABLE, WORSE, Arm, rows_of
from cellcohort.comparison.text import behind_baselines, better, cells, head, interval, notes
from cellcohort.evaluation.scores_file import MEANINGS
from cellcohort.messages import several

MARKS = {BETTER: "▲ ", WORSE: "▼ ", OPEN: "○ ", UNTESTABLE: "· ", "reference": "◆ "}
GROUPS = {
    "curves": ("How much of it", "Each score against the option that was varied, with 95 % intervals."),
    "steps": ("Along the training", "The same validation batches for every strategy; mean over seeds."),
    "maps": ("Maps of the embedding", "Held-out cells of one run of each strategy. A map shows what is near what; "
             "it is no test."),
}  # fmt: skip


def report(
    title: str, arms: Sequence[Arm], table: pd.DataFrame, held: pd.DataFrame, remarks: Sequence[str],
    pictures: Sequence[Picture], reference: str,
) -> str:  # fmt: skip
    """Write the report.

    Parameters
    ----------
    title : str
        What was compared.
    arms, table, held
        What :func:`arms_of`, :func:`compare` and :func:`held` gave.
    remarks : sequence of str
        What one must know to read the table.
    pictures : sequence of Picture
        From :func:`cellcohort.comparison.figures.pictures`.
    reference : str
        The strategy that others were compared with.

    Returns
    -------
    str
        The HTML document.
    """
    by_group: dict[str, list[dict[str, Any]]] = {}
    for picture in pictures:
        by_group.setdefault(picture.group, []).append(_shown(picture))
    groups = {key: words for key, words in GROUPS.items() if key in by_group}
    links = {"short": "In short", "scores": "Scores", "held": "What batches held"}
    measured = table.groupby("score", sort=False).filter(lambda rows: rows["mean"].notna().any())
    names = {picture.name: _shown(picture) for picture in pictures if picture.group == "held"}
    template = Environment(
        loader=PackageLoader(__package__, "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    ).get_template("report.html.jinja")
    return template.render(
        title=title,
        reference=reference,
        links=links | {key: heading for key, (heading, _) in groups.items()},
        overview=by_group.get("overview", [None])[0],
        verdicts=[*behind_baselines(table), *verdicts(table, reference)],
        remarks=[*_about(arms), *remarks],
        pictures=by_group | {"scores": by_group.get("scores", [])},
        not_measured=not_measured(table),
        head=head(reference),
        scores=[_scores(str(score), rows) for score, rows in measured.groupby("score", sort=False)],
        arms=[_arm(arm, held[held["strategy"] == arm.name], table, names.get(arm.name)) for arm in arms],
        groups=groups,
    )


def not_measured(table: pd.DataFrame) -> dict[str, list[str]]:
    """Return the scores that no run has a value of, by the reason that the evaluation gave."""
    found: dict[str, list[str]] = {}
    for score, rows in table.groupby("score", sort=False):
        if rows["mean"].isna().all():
            reasons = dict.fromkeys(str(note) for note in rows["note"] if note)
            found.setdefault("; ".join(reasons), []).append(str(score))
    return found


def verdicts(table: pd.DataFrame, reference: str) -> list[str]:
    """Return what can be said of each strategy that was tested, in a sentence."""
    said = []
    for strategy, rows in table[table["verdict"].isin((BETTER, WORSE, OPEN))].groupby("strategy", sort=False):
        of = {verdict: rows.loc[rows["verdict"] == verdict, "score"].tolist() for verdict in (BETTER, WORSE, OPEN)}
        found = [f"{MARKS[kind]}{kind} on {', '.join(of[kind])}" for kind in (BETTER, WORSE) if of[kind]]
        if of[OPEN]:
            others = f"the other {len(of[OPEN])} scores" if len(of[OPEN]) > 1 else of[OPEN][0]
            found.append(
                f"{MARKS[OPEN]}{OPEN} on {others if found or len(rows) == 1 else f'any of {len(rows)} scores'}"
            )
        said.append(f"{strategy}, against {reference}: {'; '.join(found)}.")
    if not said:
        return ["Nothing can be said of any strategy, for the reason below."]
    models = table[(table["representation"] == "model") & (table["strategy"] != table["reference"])]
    for strategy, rows in models.groupby("strategy", sort=False):
        if not rows["verdict"].isin((BETTER, WORSE, OPEN)).any():
            pairs = int(rows["pairs"].max())
            shared = several(pairs, "run") if pairs else "no run"
            said.append(f"{strategy}: not tested against {reference}, with which it shares {shared} of like options.")
    return said


def _about(arms: Sequence[Arm]) -> list[str]:
    runs = [run for arm in arms for run in arm.runs.values()]
    steps = ", ".join(several(n, "step") for n in sorted({run.steps for run in runs}))
    return [f"{several(len(runs), 'run')} of {several(len(arms), 'strategy', 'strategies')}, {steps} each."]


def _shown(picture: Picture) -> dict[str, Any]:
    """Return a picture as data: lines as SVG, which stays sharp; maps of many cells as PNG, which stays small."""
    kind, mime = ("png", "png") if picture.group == "maps" else ("svg", "svg+xml")
    file = io.BytesIO()
    with plots.styled():
        picture.figure.savefig(file, format=kind, metadata={"Date": None} if kind == "svg" else None)
    data = base64.b64encode(file.getvalue()).decode()
    meaning = MEANINGS.get(picture.name, "") if picture.group == "scores" else ""
    width = 6 * picture.figure.get_figwidth()  # in rem, at which its text is as large as that of the page
    return {"words": picture.words, "source": f"data:image/{mime};base64,{data}", "meaning": meaning, "width": width}


def _scores(score: str, rows: pd.DataFrame) -> dict[str, Any]:
    lines = []
    for _, row in rows.iterrows():
        name, verdict, *numbers = cells(row)
        own = [name, f"{MARKS.get(verdict, '')}{verdict}", *numbers]
        lines.append({"called": verdict in (BETTER, WORSE), "cells": own})
    return {"caption": f"{score} ({better(rows)})", "rows": lines, "notes": notes(rows)}


def _arm(arm: Arm, rows: pd.DataFrame, table: pd.DataFrame, picture: dict[str, Any] | None) -> dict[str, Any]:
    lines = [
        (str(row.quantity), _share(row.asked), _share(row.held), f"{_share(row.least)} to {_share(row.most)}")
        for row in rows_of(rows)
    ]
    own = table[(table["strategy"] == arm.name) & table["mean"].notna()]
    scores = [f"{row.score} {interval(row.mean, row.low, row.high)}{_sign(str(row.verdict))}" for row in rows_of(own)]
    held_rows = [{"called": False, "cells": line} for line in lines]
    return {"name": arm.name, "rows": held_rows, "scores": scores, "picture": picture}


def _sign(verdict: str) -> str:
    return f" {MARKS[verdict]}{verdict}" if verdict in (BETTER, WORSE) else ""


def _share(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.3g}"
