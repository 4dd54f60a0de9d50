from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from cellcohort.figure_files import write_png


class Counting(Figure):
    drawn = 0

    def draw(self, renderer: Any) -> None:
        self.drawn += 1
        super().draw(renderer)


@pytest.mark.parametrize("layout", ["tight", "constrained"])
@pytest.mark.parametrize("dpi", [None, 70])
def test_a_figure_is_drawn_once_and_looks_as_matplotlib_saves_it(tmp_path: Path, layout: Any, dpi: int | None) -> None:
    made = []
    for _ in range(2):
        figure = Counting(figsize=(3, 2), dpi=50, layout=layout)
        axes = figure.add_subplot(xlabel="hours", title="a title")
        axes.plot([0, 1], label="a line")
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
        made.append(figure)
    write_png(made[0], tmp_path / "once.png", dpi)
    made[1].savefig(tmp_path / "saved.png", **({"dpi": dpi} if dpi else {}))
    assert made[0].drawn == 1 and made[0].dpi == 50
    assert np.array_equal(imread(tmp_path / "once.png"), imread(tmp_path / "saved.png"))
