"""All pictures of a comparison, each with its name, its group and what it says in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from cellcohort.comparison import maps, plots
from cellcohort.comparison.table import Arm, rows_of
from cellcohort.comparison.text import better, interval
from cellcohort.figure_files import write_png
from cellcohort.files import fingerprint, short_name, whole

LONGEST_NAME = 150  # bytes of the name of a picture; that of a file has 255 at most


class Picture(NamedTuple):
    """A picture: `group` is the part of the report that it stands in, `words` what it says to whoever cannot see it."""

    group: str
    name: str
    words: str
    figure: Figure


def pictures(
    arms: Sequence[Arm], table: pd.DataFrame, contents: pd.DataFrame, reference: str, with_umap: bool = True
) -> list[Picture]:
    """Draw everything there is data for.

    Parameters
    ----------
    arms, table, contents
        What :func:`arms_of`, :func:`compare` and :func:`cellcohort.comparison.composition.held` gave.
    reference : str
        The strategy that others were compared with.
    with_umap : bool
        Whether to draw UMAP beside principal components, where it is installed.
    """
    with plots.styled():
        return list(_pictures(arms, table, contents, reference, with_umap))


def _pictures(
    arms: Sequence[Arm], table: pd.DataFrame, contents: pd.DataFrame, reference: str, with_umap: bool
) -> Iterator[Picture]:
    overview = plots.overview_plot(table, reference)
    if overview is not None:
        words = f"Differences of every strategy from {reference} in every score; the numbers are in the tables."
        yield Picture("overview", "differences", words, overview)
    for arm in arms:
        own = plots.composition_plot(contents[contents["strategy"] == arm.name], arm.name)
        if own is not None:
            yield Picture("held", arm.name, f"Shares that batches of {arm.name} held, beside those asked.", own)
    for score, rows in table.groupby("score", sort=False):
        if rows["mean"].isna().all():
            continue
        yield Picture("scores", str(score), _in_words(rows), plots.score_plot(rows, reference))
    for title, figure in plots.knob_plots(arms, table):
        yield Picture("curves", title, f"{title}; the numbers are in the table.", figure)
    for name in plots.measured(arms):
        steps = plots.step_plot(arms, name)
        if steps is not None:
            yield Picture("steps", name, f"{name} of every strategy against the step.", steps)
    for arm in arms:
        yield from _maps(arm, with_umap)


def save(drawn: Sequence[Picture], directory: Path) -> None:
    """Write the pictures as PNG files, named after their group and what they show."""
    directory.mkdir(exist_ok=True)
    taken: set[str] = set()
    with plots.styled():
        for picture in drawn:
            safe = "".join(letter if letter.isalnum() or letter in "-._=" else "_" for letter in picture.name)
            name = short_name(f"{picture.group}-{safe}", LONGEST_NAME, picture.name)
            if name in taken:
                name += f"_{fingerprint(picture.name, digits=8)}"
            taken.add(name)
            with whole(directory / f"{name}.png") as file:
                write_png(picture.figure, file, dpi=130)


def _maps(arm: Arm, with_umap: bool) -> Iterator[Picture]:
    run = arm.runs[min(arm.runs)]
    seed, cells = run.seed, maps.some_cells(run)
    if cells is None:
        return
    embeddings = np.stack(cells["embedding"].to_list()).astype(np.float64)
    ways = {"PCA": maps.principal_components(embeddings)}
    found = maps.umap(embeddings) if with_umap else None
    if found is not None:
        ways["UMAP"] = found
    for way, places in ways.items():
        for label in maps.LABELS:
            if label in cells and cells[label].notna().any():
                title = f"{arm.name}, seed {seed}: {way} by {label}"
                words = (
                    f"{len(cells)} held-out cells of {arm.name}, seed {seed}, in two dimensions by {way}, by {label}."
                )
                yield Picture("maps", title, words, plots.map_plot(places, cells[label].reset_index(drop=True), title))


def _in_words(rows: pd.DataFrame) -> str:
    said = [f"{row.strategy} {interval(row.mean, row.low, row.high)}" for row in rows_of(rows)]
    return f"{rows['score'].iloc[0]}, {better(rows)}: {'; '.join(said)}."
