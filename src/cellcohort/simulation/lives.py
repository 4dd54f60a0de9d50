"""How simulated cells live in one field of view: they move, grow, divide in two and fall ill."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

ONSET_HOURS = {"mock": np.nan, "infected": 10.0, "rare_drug": 18.0}
RESPONDING = {"mock": 0.0, "infected": 0.7, "rare_drug": 0.8}  # share of the families that respond at all
HOURS = 48.0
RADIUS = 9.5  # pixels, of a newborn cell in focus
EDGE = 4.0  # pixels that a centre keeps from the border of the field
CYCLE_HOURS = (28.0, 4.0)  # mean and standard deviation
MISSED = 0.01  # share of the cell-frames that the tracking does not find


@dataclass
class _Cells:
    """The cells that are alive, as arrays over cells."""

    track: np.ndarray
    mother: np.ndarray
    family: np.ndarray
    y: np.ndarray
    x: np.ndarray
    angle: np.ndarray
    phase: np.ndarray  # of the cell cycle, 0 to 1
    cycle: np.ndarray  # hours
    size: np.ndarray  # factor on the radius
    expression: np.ndarray  # factor on the marker
    look: np.ndarray  # number that a cell's outline and texture are drawn from
    onset: np.ndarray  # hours; NaN if it never responds

    def __len__(self) -> int:
        return len(self.track)

    def take(self, which: np.ndarray) -> _Cells:
        return _Cells(**{name: values[which] for name, values in vars(self).items()})

    def join(self, other: _Cells) -> _Cells:
        return _Cells(**{name: np.concatenate([values, vars(other)[name]]) for name, values in vars(self).items()})


def live(rng: np.random.Generator, condition: str, founders: int, shape: tuple[int, int], frames: int) -> pd.DataFrame:
    """Simulate the cells of one field over 48 hours.

    Cells wander, push each other apart, and divide about every 28 hours; daughters inherit size and
    expression from their mother, and its fate. A family that responds does so from an onset of
    its own, each cell a little earlier or later, growing to a full response within some ten hours;
    cells that respond move less and no longer divide.

    Parameters
    ----------
    rng : numpy.random.Generator
    condition : str
        One of :data:`ONSET_HOURS`.
    founders : int
        Cells in the first frame.
    shape : (int, int)
        Height and width of the field in pixels.
    frames : int
        Frames from 0 to 48 hours.

    Returns
    -------
    pandas.DataFrame
        One row per cell and frame, sorted by "t" and "track_id": "t", "track_id" (from 1),
        "parent_track_id" (-1 for founders), "family" (track of the founder), "y", "x" (pixels, of the
        centre), "angle" (radians), "phase", "radius" (pixels), "expression", "look", "onset_hours"
        (NaN where it never responds), "response" (0 to 1) and "tracked" (whether a tracking finds it).
    """
    step = HOURS / (frames - 1)
    cells, born = _founders(rng, condition, founders, shape), founders
    parts = []
    for t in range(frames):
        since = np.nan_to_num(t * step - cells.onset, nan=-1.0)
        response = 1 - np.exp(-np.maximum(since, 0) / 5)
        parts.append(_rows(cells, t, response))
        divides = (cells.phase >= 1) & (response < 0.2)
        daughters = _divide(rng, cells.take(divides), born)
        born += len(daughters)
        calm = np.concatenate([1 - 0.7 * response[~divides], np.ones(len(daughters))])
        cells = cells.take(~divides).join(daughters)
        cells.phase = np.minimum(cells.phase + step / cells.cycle, 1.0)
        _move(rng, cells, 2.5 * np.sqrt(step) * calm, shape)
    rows = pd.concat(parts, ignore_index=True)
    rows["tracked"] = rng.random(len(rows)) >= MISSED
    return rows


def _founders(rng: np.random.Generator, condition: str, n: int, shape: tuple[int, int]) -> _Cells:
    track = np.arange(1, n + 1)
    onset = rng.normal(ONSET_HOURS[condition], 3.0, n).clip(4.0)
    return _Cells(
        track=track,
        mother=np.full(n, -1),
        family=track,
        y=rng.uniform(EDGE, shape[0] - EDGE, n),
        x=rng.uniform(EDGE, shape[1] - EDGE, n),
        angle=rng.uniform(0, 2 * np.pi, n),
        phase=rng.uniform(0, 0.9, n),
        cycle=rng.normal(*CYCLE_HOURS, n),
        size=np.exp(rng.normal(0, 0.08, n)),
        expression=np.exp(rng.normal(0, 0.3, n)),
        look=rng.integers(2**31, size=n),
        onset=np.where(rng.random(n) < RESPONDING[condition], onset, np.nan),
    )


def _divide(rng: np.random.Generator, mothers: _Cells, born: int) -> _Cells:
    """Return the two daughters of every mother, on both sides of it."""
    cells = mothers.take(np.repeat(np.arange(len(mothers)), 2))
    n = len(cells)
    side = np.tile([1.0, -1.0], n // 2) * 0.8 * RADIUS
    cells.mother, cells.track = cells.track, born + np.arange(1, n + 1)
    cells.y, cells.x = cells.y + side * np.sin(cells.angle), cells.x + side * np.cos(cells.angle)
    cells.angle = cells.angle + rng.normal(0, 0.6, n)
    cells.phase, cells.cycle = np.zeros(n), rng.normal(*CYCLE_HOURS, n)
    cells.size = cells.size**0.7 * np.exp(rng.normal(0, 0.05, n))
    cells.expression = cells.expression**0.8 * np.exp(rng.normal(0, 0.15, n))
    cells.look = rng.integers(2**31, size=n)
    cells.onset = cells.onset + rng.normal(0, 1.0, n)
    return cells


def _rows(cells: _Cells, t: int, response: np.ndarray) -> pd.DataFrame:
    radius = RADIUS * cells.size * np.sqrt(1 + cells.phase)
    return pd.DataFrame(
        {
            "t": t,
            "track_id": cells.track,
            "parent_track_id": cells.mother,
            "family": cells.family,
            "y": cells.y,
            "x": cells.x,
            "angle": cells.angle,
            "phase": cells.phase,
            "radius": radius,
            "expression": cells.expression,
            "look": cells.look,
            "onset_hours": cells.onset,
            "response": response,
        }
    )


def _move(rng: np.random.Generator, cells: _Cells, pixels: np.ndarray, shape: tuple[int, int]) -> None:
    """Walk on, turn a little, make room for each other, and stay in the field."""
    cells.angle = cells.angle + rng.normal(0, 0.5, len(cells))
    walked = pixels * rng.gamma(2.0, 0.5, len(cells))
    place = np.stack([cells.y + walked * np.sin(cells.angle), cells.x + walked * np.cos(cells.angle)], axis=1)
    radius = RADIUS * cells.size * np.sqrt(1 + cells.phase)
    near = 0.85 * (radius[:, None] + radius)
    for _ in range(6):
        apart = place[:, None] - place
        distance = np.hypot(apart[..., 0], apart[..., 1]) + 1e-6
        push = np.maximum(near - distance, 0) / 2
        np.fill_diagonal(push, 0)
        place = place + 0.5 * (apart * (push / distance)[..., None]).sum(axis=1)
        place = place.clip(EDGE, np.array(shape) - EDGE)
    inward = np.array(shape) / 2 - place
    at_border = (np.abs(inward) >= np.array(shape) / 2 - EDGE).any(axis=1)
    cells.angle = np.where(at_border, np.arctan2(inward[:, 0], inward[:, 1]), cells.angle)
    cells.y, cells.x = place[:, 0], place[:, 1]
