"""A survey as a picture."""

from __future__ import annotations

import textwrap

from matplotlib.figure import Figure

from cellcohort.preview import panels
from cellcohort.preview.describe import asked_lines, table_line
from cellcohort.preview.survey import Survey

WIDTH = 13.0  # inches
_ROW, _LABEL = 1.1, 0.21  # inches of a panel, and of each label in it


def picture(survey: Survey, title: str = "") -> Figure:
    """Draw what batches were asked to hold and what they hold.

    Parameters
    ----------
    survey : Survey
    title : str
        Name of the sampling strategy.
    """
    held = list(survey.label_shares)
    heights = [_ROW + _LABEL * max(6, len(panels.shown(of)[0])) for of in held]
    strata = len(panels.strata(survey)[0])
    last = [_ROW + _LABEL * max(6, min(strata, 12))]
    beside = [of for of in held if of.rule != "group" and of.by_primary is not None]
    middle = [_ROW + _LABEL * max(6, len(panels.shown(survey.group)[0]))] if survey.group and beside else []
    figure = Figure(figsize=(WIDTH, 1.0 + sum(heights + middle + last)), dpi=110, layout="constrained")
    rows = figure.add_gridspec(len(heights + middle + last), 2, height_ratios=heights + middle + last)
    for row, of in enumerate(held):
        panels.shares(figure.add_subplot(rows[row, 0]), of)
        panels.first_batches(figure.add_subplot(rows[row, 1]), survey, of, row)
    if middle and survey.group is not None:
        panels.by_primary(figure.add_subplot(rows[len(held), 0]), survey.group, beside[0])
        panels.ranks(figure.add_subplot(rows[len(held), 1]), survey)
    panels.coverage(figure.add_subplot(rows[-1, 0]), survey)
    panels.times(figure.add_subplot(rows[-1, 1]), survey)
    lines = [f"{title}   {table_line(survey.sampler.cells)}".strip(), *asked_lines(survey.sampler)]
    text = "\n".join(line for one in lines for line in textwrap.wrap(one, 165))
    figure.suptitle(text, x=0.01, ha="left", fontsize=10)
    return figure
