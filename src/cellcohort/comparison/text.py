"""A comparison as text: for the terminal, and as Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from textwrap import indent

import numpy as np
import pandas as pd

from cellcohort.cells import names_of
from cellcohort.comparison.runs import FinishedRun, LeftOut
from cellcohort.comparison.statistics import FEWEST
from cellcohort.comparison.table import Arm, reference_of
from cellcohort.evaluation.scores_file import P_VALUES
from cellcohort.messages import joined, listed, several, text_table

HEAD = (
    "strategy",
    "verdict",
    "mean [95 % interval]",
    "minus {reference} [95 % interval]",
    "p (Holm)",
    "seeds",
    "steps",
)


def terminal(table: pd.DataFrame, reference: str) -> str:
    """Format the comparison as one block of aligned columns per score.

    Parameters
    ----------
    table : pandas.DataFrame
        What :func:`compare` returned.
    reference : str
        Name of the arm that the others are compared with.

    Returns
    -------
    str
    """
    blocks = []
    for score, rows in table.groupby("score", sort=False):
        if rows["mean"].isna().all():
            blocks.append("\n".join([f"{score}: not measured", *(f"  note: {note}" for note in notes(rows))]))
            continue
        lines = text_table(head(reference), [cells(row) for _, row in rows.iterrows()])
        said = [f"note: {note}" for note in notes(rows)]
        blocks.append("\n".join([f"{score} ({better(rows)})", indent("\n".join([lines, *said]), "  ")]))
    return "\n\n".join(blocks)


def markdown(table: pd.DataFrame, reference: str, remarks: Sequence[str] = ()) -> str:
    """Format the comparison as one Markdown table of all scores, and the remarks as a list below it.

    Every character of a label that Markdown or HTML would read as markup is escaped.

    Parameters
    ----------
    table : pandas.DataFrame
        What :func:`compare` returned.
    reference : str
        Name of the arm that the others are compared with.
    remarks : sequence of str
        Result of :func:`remarks`.

    Returns
    -------
    str
    """
    lines = [["score", *map(_escaped, head(reference))], ["---"] * (len(HEAD) + 1)]
    for score, rows in table.groupby("score", sort=False):
        name = _escaped(str(score))
        for _, row in rows.iterrows():
            strategy, *rest = cells(row)
            lines.append([f"{name} ({better(rows)})", _escaped(strategy), *rest])
        lines += [[name, _escaped(f"note: {note}"), *[""] * (len(HEAD) - 1)] for note in notes(rows)]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([text, "", *(f"- {_escaped(remark)}" for remark in remarks)]) + "\n"


def _escaped(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    return re.sub(r"([\\`*{}\[\]<>|~$&]|\b_|_\b)", r"\\\1", " ".join(text.split()))


def better(rows: pd.DataFrame) -> str:
    """Which way a score is good."""
    return "higher is better" if rows["higher_is_better"].iloc[0] else "lower is better"


def remarks(table: pd.DataFrame, reference: str, left_out: Sequence[LeftOut]) -> list[str]:
    """Describe what is needed to read the table: its tests, what they could not do, and what was left out.

    Parameters
    ----------
    table : pandas.DataFrame
        What :func:`compare` returned.
    reference : str
        Name of the arm that the others are compared with.
    left_out : sequence of LeftOut
        Runs that are not compared.

    Returns
    -------
    list of str
    """
    tested = int(table["p"].notna().sum())
    models = table[table["representation"] == "model"]
    said = []
    unit = str(table["unit"].iloc[0])
    paired = "seed" if unit == "seed" else "seed and fold, and averaged over the seeds of a fold"
    if tested:
        said.append(
            f"Differences are paired by {paired}; p-values are of {several(tested, 'paired t test')}, corrected "
            "together (Holm) for a chance of about 5 % of any false call in the whole table. Intervals hold each by "
            "itself."
        )
    else:
        said.append("Nothing was tested.")
    measured = models[models["n"] > 0]
    most = int(models["n"].max())
    if most < FEWEST:
        there = f"There is one {unit}" if most == 1 else f"There are {several(most, unit)}"
        more = "seeds, better five: seed=0,1,2,3,4" if unit == "seed" else "folds: split.fold=0,1,2"
        said.append(f"{there} only: points without an interval, and no test; run at least {FEWEST} {more}.")
    elif len(uneven := measured.loc[measured["n"] < most, "strategy"].unique()):
        said.append(f"Some scores have fewer than {most} {unit}s: {', '.join(uneven)}.")
    lost = models[models["n"] == 0].groupby("score", sort=False)["strategy"].agg(list)
    everywhere = [str(score) for score, names in lost.items() if len(names) == models["strategy"].nunique()]
    if everywhere:
        said.append(f"Not measured on these data: {', '.join(everywhere)}; the notes give the reasons.")
    for name, without in lost.drop(everywhere).items():
        said.append(f"{name} was not measured for {joined(without)}; the notes give the reasons.")
    if not (models["pairs"] > 0).any() and (models["strategy"] != reference).any():
        names = ", ".join(models["strategy"].unique())
        said.append(f"No runs of {reference!r} are alike in all other options: no difference. There are: {names}.")
    constant = table["p"].isna() & (table["pairs"] >= FEWEST) & table["difference"].notna()
    if constant.any():
        where = ", ".join(f"{row.score} of {row.strategy}" for row in table[constant].itertuples())
        said.append(f"Every {unit} gives the same difference, so that its spread is unknown and not tested: {where}.")
    return said + [f"Left out: {run.directory}: {run.reason}." for run in left_out]


def behind_baselines(table: pd.DataFrame) -> list[str]:
    """Name the scores on which every trained encoder is worse than one without training, or than the features.

    Parameters
    ----------
    table : pandas.DataFrame
        What :func:`compare` returned.

    Returns
    -------
    list of str
        A sentence for each of the two of which that is so.
    """
    said = []
    gain = table["mean"] * np.where(table["higher_is_better"], 1, -1)
    known = table.assign(gain=gain)[gain.notna() & ~table["score"].isin(P_VALUES)]
    models = known[known["representation"] == "model"].groupby("score", sort=False)["gain"].max()
    for kind, name in (("untrained", "the untrained encoder"), ("features", "the features as recorded")):
        least = known[known["representation"] == kind].groupby("score")["gain"].min().reindex(models.index)
        if (behind := models < least).any():
            n = several(int(least.notna().sum()), "score")
            said.append(
                f"Every strategy is worse than {name} on {int(behind.sum())} of {n} (means, not tested): "
                f"{listed(models.index[behind])}."
            )
    return said


def scored_otherwise(arms: Sequence[Arm], reference: str, scores: Sequence[str]) -> list[str]:
    """Name each strategy of which some score is over other cells or labels than that of the reference.

    Parameters
    ----------
    arms : sequence of Arm
    reference : str
        Strategy or name of the arm that others are compared with.
    scores : sequence of str
        Those that are compared.

    Returns
    -------
    list of str
    """
    said = []
    for arm in arms:
        beside = reference_of(arm, arms, reference)
        pairs = [] if beside is None else [(arm.runs[at], beside.runs[at]) for at in arm.runs if at in beside.runs]
        found: dict[str, str] = {}
        for own, other in pairs:
            here, there = _scored(own), _scored(other)
            for name in scores:
                if name in here and name in there and here[name] != there[name]:
                    found.setdefault(
                        name, f"{own.directory.name} on {here[name]}, {other.directory.name} on {there[name]}"
                    )
        for name in [*found][:1]:
            others = f" So too {listed([*found][1:], 5)}." if len(found) > 1 else ""
            said.append(
                f"{arm.name} is not scored on the same cells or labels as {reference}, so that a difference may be one "
                f"of these: {name} of {found[name]}.{others}"
            )
    return said


def _scored(run: FinishedRun) -> dict[str, str]:
    """Return how many cells each score of a run is of, and what was left out, of those that have a value."""
    own = run.scores[(run.scores["representation"] == "model") & run.scores["value"].notna()]
    left_out = own["note"].fillna("").str.extract(r"(?:^|; )(left out: .*)", expand=False)
    return {
        str(name): several(int(n), "cell") + ("" if pd.isna(lost) else f" ({lost})")
        for name, n, lost in zip(own["score"], own["n"], left_out, strict=True)
    }


def coverage_of_intervals(runs: Sequence[FinishedRun]) -> str:
    """Describe what the intervals over runs cover, and what they do not.

    Parameters
    ----------
    runs : sequence of FinishedRun
        Runs that are compared.

    Returns
    -------
    str
        Empty where the runs are too few for intervals.
    """
    folds = sorted({run.fold for run in runs if run.fold >= 0})
    seeds, splits = sorted({run.seed for run in runs}), sorted({run.split_seed for run in runs})
    if len({run.pairing for run in runs}) < FEWEST:
        return ""
    if folds:
        by = {" x ".join(names_of([run.options.get("split.by")])) for run in runs}
        return (
            f"Intervals cover {several(len(folds), 'fold')} (held out: groups of {joined(sorted(by))}), each the mean "
            f"of {several(len(seeds), 'seed')} of the training: other held-out data, and the noise of training that is "
            "left in such a mean. The training parts of folds overlap, so that intervals are somewhat too narrow."
        )
    if len(splits) == 1:
        return (
            f"All runs share one split of the cells (split.seed={splits[0]}): intervals cover what the seed of a "
            "training changes, and not which cells were held out. To cover both, sweep split.seed=0,1,2 as well."
        )
    return (
        f"Intervals cover the seeds of the training and {len(splits)} splits of the cells together; runs of different "
        "strategies are paired by both."
    )


def number(value: float) -> str:
    """Four significant figures, without an exponent where one can do without."""
    return "-" if np.isnan(value) else f"{value:.4g}" if abs(value) >= 0.001 or value == 0 else f"{value:.1e}"


def interval(mean: float, low: float, high: float, sign: str = "") -> str:
    """``mean [low, high]``, to the digit that the interval makes sense of."""
    if np.isnan(mean):
        return "-"
    digits = 3 if np.isnan(low) or high == low else int(np.clip(1 - np.floor(np.log10(high - low)), 0, 6))
    form = f"{sign}z.{digits}f"  # z: no -0.00
    ends = "" if np.isnan(low) else f" [{low:{form}}, {high:{form}}]"
    return f"{mean:{form}}{ends}"


def head(reference: str) -> tuple[str, ...]:
    """Titles of the columns."""
    return tuple(title.format(reference=reference) for title in HEAD)


def cells(row: pd.Series) -> list[str]:
    """Return the columns of a row of a comparison, the verdict second."""
    return [
        str(row["strategy"]),
        "reference" if row["strategy"] == row["reference"] else str(row["verdict"]),
        interval(row["mean"], row["low"], row["high"]),
        interval(row["difference"], row["difference_low"], row["difference_high"], "+"),
        number(row["p_holm"]),
        "-" if row["representation"] == "features" and not row["n"] else _n_of(row),
        str(row["steps"]) if row["representation"] != "features" else "-",
    ]


def _n_of(row: pd.Series) -> str:
    return str(row["n"]) if row["unit"] == "seed" else several(int(row["n"]), str(row["unit"]))


def notes(rows: pd.DataFrame) -> list[str]:
    """Return what evaluation said of a score, once, with the strategies that it is said of where it is not all."""
    said: dict[str, list[str]] = {}
    for row in rows.itertuples():
        if row.note:
            said.setdefault(str(row.note), []).append(str(row.strategy))
    everyone = len(rows)
    return [note + ("" if len(who) == everyone else f" ({', '.join(who)})") for note, who in said.items()]
