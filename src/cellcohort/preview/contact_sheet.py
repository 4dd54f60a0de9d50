"""A contact sheet: the images that some batches hold, anchors over positives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from cellcohort.augment._crop import middle
from cellcohort.datasets.protocol import Samples
from cellcohort.preview.tables import short
from cellcohort.sampling.batch import Batch
from cellcohort.sampling.protocol import Sampler

CELLS = 14  # of a batch that are shown
_INCH, _LABELS, _MARGIN = 0.9, 0.75, 1.3  # of a patch, of the labels over it, and to its left


@dataclass(frozen=True)
class _Strip:
    """Some cells of one batch: float32 (n_rows, n_cells, channels, lines, columns) and what they are called.

    `shown` names the channel of every image where they are of one channel each, (n_rows, n_cells).
    """

    step: int
    images: np.ndarray
    rows: list[str]
    columns: list[str]
    shown: np.ndarray | None = None


def sheet(samples: Samples, sampler: Sampler, steps: Iterable[int] = (0, 1), seed: int = 0, epoch: int = 0) -> Figure:
    """Draw cells of some batches of an epoch, evenly spread over each.

    For every batch and channel there are the anchors, under them their positives and, where the dataset
    leaves augmentation to the model, both as the model sees them. A channel has the same greys throughout. Where a
    cell is one channel of it, its label names the channel and its marker, and the channel of its positive if it is
    another.

    Parameters
    ----------
    samples : Samples
        Of images: inputs (channels, slices, lines, columns), of which the middle slice is shown. Names of the
        channels are in its attribute ``channels``, if it has one.
    sampler : Sampler
        Of the cells of `samples`; the batches shown are those of its rank.
    steps : iterable of int
        Which batches.
    seed : int
        That of the module, by which the views are keyed.
    epoch : int
        The epoch of the batches.

    Raises
    ------
    ValueError
        The inputs are no images, or the sampler is of other cells.
    """
    if len(samples.shape) != 4 or len(sampler.cells) != len(samples):
        raise ValueError(
            f"the inputs have shape {samples.shape}, and the sampler is of {len(sampler.cells)} cells; a contact sheet "
            f"takes images (channels, slices, lines, columns) and a sampler of the dataset's {len(samples)} cells."
        )
    strips = [_strip(samples, sampler, (epoch, step), seed) for step in steps]
    channels = samples.shape[0]
    n_rows, n_cells = strips[0].images.shape[:2]
    lines, columns = samples.shape[2:]
    panel = n_rows * _INCH * lines / columns + _LABELS
    width, height = n_cells * _INCH + _MARGIN + 0.1, len(strips) * channels * panel + 0.1
    figure = Figure(figsize=(width, height), dpi=110)
    names = getattr(samples, "channels", [f"channel {c}" for c in range(channels)])
    if strips[0].shown is not None:
        strips, names = _in_greys_of_channels(strips), ["one channel each"]
    greys = [np.percentile([strip.images[:, :, c] for strip in strips], (0.5, 99.5)) for c in range(channels)]
    panels = [(strip, c) for strip in strips for c in range(channels)]
    for number, (strip, c) in enumerate(panels):
        bottom = height - (number + 1) * panel
        axes = figure.add_axes((_MARGIN / width, bottom / height, n_cells * _INCH / width, (panel - _LABELS) / height))
        mosaic = strip.images[:, :, c].swapaxes(1, 2).reshape(n_rows * lines, n_cells * columns)
        axes.imshow(mosaic, cmap="gray", vmin=greys[c][0], vmax=greys[c][1], aspect="auto", interpolation="nearest")
        axes.hlines(np.arange(1, n_rows) * lines - 0.5, -0.5, n_cells * columns - 0.5, color="white", lw=1.5)
        axes.vlines(np.arange(1, n_cells) * columns - 0.5, -0.5, n_rows * lines - 0.5, color="white", lw=1.5)
        axes.set_yticks((np.arange(n_rows) + 0.5) * lines, strip.rows, fontsize=8)
        axes.set_xticks((np.arange(n_cells) + 0.5) * columns, strip.columns, fontsize=6.5)
        axes.set_ylabel(f"batch {strip.step}, {short(names[c], 22)}", fontsize=8, fontweight="bold")
        axes.tick_params(length=0, top=False, labeltop=True, labelbottom=False)
        axes.spines[:].set_visible(False)
    return figure


def _strip(samples: Samples, sampler: Sampler, place: tuple[int, int], seed: int) -> _Strip:
    positions = Batch(sampler.batch(*place).tolist(), *place)
    batch = samples.__getitems__(positions)
    shown = np.unique(np.linspace(0, len(positions) - 1, CELLS).astype(int))
    made = {name: middle(batch[name], samples.shape[2:]) for name in ("anchor", "positive")}
    if samples.views is not None:
        for i, name in enumerate(("anchor", "positive"), start=1):
            made[f"{name},\nas seen"] = samples.views(batch[name], (seed, *place, sampler.rank, i))
    images = torch.stack([of[shown, :, of.shape[2] // 2] for of in made.values()]).numpy()
    labels = list(_labels(samples, np.array(positions)[shown], batch["meta"], shown))
    if not (hasattr(samples, "channel_of") and samples.cells.in_channels):
        return _Strip(place[1], images, list(made), labels)
    of = {name: samples.channel_of(batch["meta"][name].numpy()[shown]) for name in ("row", "positive_row")}
    marker = samples.cells.column("marker")
    markers = [str(marker.labels[code]) for code in marker.codes[np.array(positions)[shown]]]
    labels = [
        f"{short(one, 14)}\n{'' if one == shows else short(shows, 14)}\n"
        f"{'' if one == other else f'> {short(other, 12)}'}\n{label}"
        for one, other, shows, label in zip(*of.values(), markers, labels, strict=True)
    ]
    return _Strip(place[1], images, list(made), labels, np.array([*of.values()] * (len(made) // 2)))


def _in_greys_of_channels(strips: list[_Strip]) -> list[_Strip]:
    """Bring the images of every channel to the same greys, from 0 to 1."""
    images = [strip.images.copy() for strip in strips]
    names = [np.empty(0, str) if strip.shown is None else strip.shown for strip in strips]
    for name in np.unique(np.concatenate([of.ravel() for of in names])):
        pixels = np.concatenate([own[of == name].ravel() for own, of in zip(images, names, strict=True)])
        low, high = np.percentile(pixels, (0.5, 99.5))
        for own, of in zip(images, names, strict=True):
            own[of == name] = (own[of == name] - low) / max(high - low, 1e-6)
    return [replace(strip, images=own.clip(0, 1)) for strip, own in zip(strips, images, strict=True)]


def _labels(samples: Samples, positions: np.ndarray, meta: Mapping[str, Any], shown: np.ndarray) -> Iterator[str]:
    """Experiment, condition and hours of each cell, as far as known, with the hours to its positive."""
    cells = samples.cells
    named = [cells.column(role) for role in ("experiment", "condition") if cells.has(role)]
    for position, of_batch in zip(positions, shown, strict=True):
        lines = [short(str(column.labels[column.codes[position]]), 14) for column in named]
        if cells.hours is not None:
            later = float(meta["tau_hours"][of_batch]) if "tau_hours" in meta else np.nan
            lines.append(f"{cells.hours[position]:.4g} h" + (f" + {later:.3g}" if np.isfinite(later) else ""))
        yield "\n".join(lines)
