"""The contact sheet shows the cells of the batches that training gets, under their labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure

from cellcohort.cells import CellTable
from cellcohort.preview.contact_sheet import CELLS, sheet
from cellcohort.sampling import BatchSampler, ExperimentAware

N, SHAPE = 60, (2, 3, 4, 5)


class Numbered:
    """Images whose every pixel is the number of the cell, plus 1000 for positives, plus 100,000 a channel and slice."""

    def __init__(self, shape: tuple[int, ...] = SHAPE, views: Any = None, hours: bool = True) -> None:
        frame = pd.DataFrame({"experiment": np.arange(N) % 2, "condition": [f"c{i}" for i in range(N)]})
        frame["hours_post_infection"] = np.arange(N) / 2
        self.cells = CellTable.from_frame(frame, hours="hours_post_infection" if hours else None)
        self.shape, self.views = shape, views

    def __len__(self) -> int:
        return N

    def __getitems__(self, positions: Sequence[int]) -> dict[str, Any]:
        of = torch.tensor(positions, dtype=torch.float32).view(-1, *[1] * len(self.shape))
        place = 1e5 * torch.arange(6.0).view(2, 3, 1, 1)
        anchor = (of + place).expand(len(positions), *self.shape).clone()
        tau = torch.tensor([1.5 if position % 3 else np.nan for position in positions])
        return {"anchor": anchor, "positive": anchor + 1000, "meta": {"tau_hours": tau}}


def made(samples: Any, **options: Any) -> tuple[Figure, BatchSampler]:
    axes = {"experiment": ExperimentAware(leaky=0.25)}
    sampler = BatchSampler(samples.cells, axes, batch_size=20, rank=1, world_size=2)
    return sheet(samples, sampler, **options), sampler


def pixels(figure: Figure, panel: int) -> np.ndarray:
    """One number for every patch of a panel, which is one throughout, shape (n_rows, n_cells)."""
    image = np.asarray(figure.axes[panel].images[0].get_array())
    patches = image.reshape(-1, SHAPE[2], CELLS, SHAPE[3]).swapaxes(1, 2)
    assert (patches == patches[:, :, :1, :1]).all()
    return patches[:, :, 0, 0]


def test_anchors_stand_over_their_positives_in_every_channel_and_batch() -> None:
    figure, sampler = made(Numbered(), steps=(0, 2))
    assert len(figure.axes) == 4
    for panel, (step, channel) in enumerate([(0, 0), (0, 1), (2, 0), (2, 1)]):
        rows = pixels(figure, panel)
        assert np.array_equal(rows[1], rows[0] + 1000) and len(rows) == 2
        positions = rows[0] - 1e5 * (3 * channel + 1)  # of the middle slice
        batch = sampler.batch(0, step)
        assert positions[0] == batch[0] and positions[-1] == batch[-1] and np.isin(positions, batch).all()
        assert figure.axes[panel].get_ylabel() == f"batch {step}, channel {channel}"


def test_channels_are_called_by_their_names() -> None:
    samples: Any = Numbered()
    samples.channels = ("GFP", "a channel that has a very long name")
    figure, _ = made(samples, steps=[1])
    assert [axes.get_ylabel() for axes in figure.axes] == ["batch 1, GFP", "batch 1, a channel t… long name"]


def test_labels_are_those_of_the_cell_with_the_hours_to_its_positive() -> None:
    figure, _ = made(Numbered())
    said = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    for cell, text in zip((pixels(figure, 0)[0] - 1e5).astype(int), said, strict=True):
        later = " + 1.5" if cell % 3 else ""
        assert text == f"{cell % 2}\nc{cell}\n{cell / 2:g} h{later}"
    without = made(Numbered(hours=False))[0].axes[0].get_xticklabels()
    assert all(label.get_text().count("\n") == 1 for label in without)


def test_the_rows_below_are_what_the_model_sees() -> None:
    keys = []

    def views(inputs: torch.Tensor, key: tuple[int, ...]) -> torch.Tensor:
        keys.append(key)
        return inputs + 10 * key[-1]

    rows = pixels(made(Numbered(views=views), steps=[3], seed=7)[0], 0)
    assert np.array_equal(rows[2], rows[0] + 10) and np.array_equal(rows[3], rows[1] + 20)
    assert keys == [(7, 0, 3, 1, 1), (7, 0, 3, 1, 2)], "those of ContrastiveModule: seed, epoch, step, rank, which"


def test_a_channel_has_the_same_greys_in_every_batch() -> None:
    figure, _ = made(Numbered(), steps=(0, 1))
    limits = [axes.images[0].get_clim() for axes in figure.axes]
    assert limits[0] == limits[2] != limits[1] == limits[3]


def test_what_is_no_image_or_of_other_cells_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the inputs have shape \(3, 4\)"):
        made(Numbered(shape=(3, 4)))
    other = Numbered()
    sampler = BatchSampler(other.cells.take(np.arange(30)), {}, batch_size=10)
    with pytest.raises(ValueError, match=r"of 30 cells; .* the dataset's 60 cells"):
        sheet(other, sampler)
