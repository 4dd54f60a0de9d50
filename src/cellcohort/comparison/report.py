"""One HTML file with a whole comparison: it opens from disk, asks the network for nothing, and fits a phone."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape

import numpy as np
import pandas as pd

from cellcohort.comparison import plots
from cellcohort.comparison.figures import Picture
from cellcohort.comparison.table import BETTER, OPEN, UNTESTABLE, WORSE, Arm, rows_of
from cellcohort.comparison.text import better, cells, head, interval, notes
from cellcohort.evaluation.scores_file import MEANINGS
from cellcohort.messages import several

MARKS = {BETTER: "▲ ", WORSE: "▼ ", OPEN: "○ ", UNTESTABLE: "· ", "reference": "◆ "}
GROUPS = {
    "curves": ("How much of it", "Each score against the option that was varied, with 95 % intervals."),
    "steps": ("Along the training", "The same validation batches for every strategy; mean over seeds."),
    "maps": ("Maps of the embedding", "Held-out cells of one run of each strategy. A map shows what is near what; "
             "it is no test."),
}  # fmt: skip
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"  # the browser itself refuses any request
CSS = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; margin: 0 auto; max-width: 75rem;
  padding: 0 1rem 3rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; border-bottom: 1px solid #999; margin-top: 2.5rem; }
h3 { font-size: 1rem; margin-bottom: .2rem; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 22rem), 1fr)); gap: 1rem; }
figure { margin: 0; } img { width: 100%; height: auto; } figcaption { color: #444; font-size: .85rem; }
.wide { overflow-x: auto; } table { border-spacing: 0; font-size: .9rem; width: 100%; }
th, td { text-align: left; padding: .2rem .6rem; border-bottom: 1px solid #ddd; white-space: nowrap; }
th:first-child { position: sticky; left: 0; background: #fff; white-space: normal; overflow-wrap: anywhere;
  min-width: 7.5rem; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 0 2rem; }
.pair > * { min-width: 0; }
p.note { color: #444; font-size: .85rem; margin: .2rem .6rem; }
tr.called { font-weight: 600; } nav a { margin-right: 1rem; }
a:focus-visible, .wide:focus-visible, summary:focus-visible { outline: 3px solid #0072b2; }
"""


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
    shown = [group for group in GROUPS if any(picture.group == group for picture in pictures)]
    links = {"short": "In short", "scores": "Scores", "held": "What batches held"} | {g: GROUPS[g][0] for g in shown}
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        f"<title>{escape(title)}</title><style>{CSS}</style></head><body>",
        f"<header><h1>{escape(title)}</h1><nav>",
        *(f'<a href="#{key}">{escape(text)}</a>' for key, text in links.items()),
        '</nav></header><main><section id="short"><h2>In short</h2>',
        "<p>What a way of choosing the cells of a batch did to what an encoder learns, judged on cells that it was "
        "not trained on. Each strategy was trained once for every seed, which fixes its batches, views and first "
        "weights.</p>",
        _list(verdicts(table, reference)),
        "<h3>How to read this</h3>",
        _list([*_about(arms), *remarks]),
        '</section><section id="scores"><h2>Scores</h2>',
        f"<p>▲ better than {escape(reference)}, ▼ worse, ○ not told apart, · not tested, ◆ {escape(reference)} "
        "itself, x without training: the untrained encoder, and the features as recorded. Bars are 95 % intervals over "
        "seeds: above, of the scores; below, of the differences at the same seed, which are what is tested.</p>",
        _grid(pictures, "scores"),
        "<h3>The numbers</h3>",
        *(_scores(str(score), rows, reference) for score, rows in table.groupby("score", sort=False)),
        '</section><section id="held"><h2>What batches held</h2>',
        "<p>Means over the batches of every rank and seed, with the least and the most of any batch.</p>",
        *(_held(arm, held[held["strategy"] == arm.name], table) for arm in arms),
        "</section>",
    ]
    for group in shown:
        heading, text = GROUPS[group]
        parts += [f'<section id="{group}"><h2>{heading}</h2><p>{text}</p>', _grid(pictures, group), "</section>"]
    return "\n".join([*parts, "</main></body></html>"]) + "\n"


def verdicts(table: pd.DataFrame, reference: str) -> list[str]:
    """What can be said of each strategy that was tested, in a sentence."""
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
    return said or ["Nothing was tested, so nothing can be said of any strategy."]


def _about(arms: Sequence[Arm]) -> list[str]:
    runs = [run for arm in arms for run in arm.runs.values()]
    steps = ", ".join(several(n, "step") for n in sorted({run.steps for run in runs}))
    return [f"{several(len(runs), 'run')} of {several(len(arms), 'strategy', 'strategies')}, {steps} each."]


def _list(items: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"


def _grid(pictures: Sequence[Picture], group: str) -> str:
    own = [picture for picture in pictures if picture.group == group]
    return '<div class="grid">' + "".join(f"<figure>{_image(picture)}</figure>" for picture in own) + "</div>"


def _image(picture: Picture) -> str:
    """Lines as SVG, which stays sharp; maps of many cells as PNG, which stays small."""
    kind, mime = ("png", "png") if picture.group == "maps" else ("svg", "svg+xml")
    file = io.BytesIO()
    with plots.styled():
        picture.figure.savefig(file, format=kind, metadata={"Date": None} if kind == "svg" else None)
    data = base64.b64encode(file.getvalue()).decode()
    image = f'<img alt="{escape(picture.words)}" src="data:image/{mime};base64,{data}">'
    meaning = MEANINGS.get(picture.name, "") if picture.group == "scores" else ""
    return image + (f"<figcaption>{escape(meaning)}</figcaption>" if meaning else "")


def _table(caption: str, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    """A table that scrolls sideways where it is too wide; each row has a class."""
    titles = "".join(f'<th scope="col">{escape(title)}</th>' for title in columns)
    body = ""
    for kind, (first, *rest) in rows:
        body += f'<tr class="{kind}"><th scope="row">{escape(first)}</th>'
        body += "".join(f"<td>{escape(cell)}</td>" for cell in rest) + "</tr>"
    label = escape(caption)
    return (
        f'<h3>{label}</h3><div class="wide" tabindex="0" role="region" aria-label="{label}">'
        f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _scores(score: str, rows: pd.DataFrame, reference: str) -> str:
    lines = []
    for _, row in rows.iterrows():
        name, verdict, *numbers = cells(row)
        kind = "called" if verdict in (BETTER, WORSE) else ""
        lines.append((kind, [name, f"{MARKS.get(verdict, '')}{verdict}", *numbers]))
    said = "".join(f'<p class="note">{escape(note.strip())}</p>' for note in notes(rows))
    return _table(f"{score} ({better(rows)})", head(reference), lines) + said


def _held(arm: Arm, rows: pd.DataFrame, table: pd.DataFrame) -> str:
    lines = [
        ("", (str(row.quantity), _share(row.asked), _share(row.held), f"{_share(row.least)} to {_share(row.most)}"))
        for row in rows_of(rows)
    ]
    own = table[table["strategy"] == arm.name]
    scores = [f"{row.score} {interval(row.mean, row.low, row.high)}{_sign(str(row.verdict))}" for row in rows_of(own)]
    held_table = _table(arm.name, ("a batch", "asked", "held", "least to most"), lines)
    return f'<div class="pair"><div>{held_table}</div><div><h3>Its scores</h3>{_list(scores)}</div></div>'


def _sign(verdict: str) -> str:
    return f" {MARKS[verdict]}{verdict}" if verdict in (BETTER, WORSE) else ""


def _share(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.3g}"
