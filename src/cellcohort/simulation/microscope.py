"""What a microscope sees of simulated cells: one phase contrast and one fluorescence image of a frame.

Phase contrast follows Zernike's own account: the light that passes straight through (the blurred part
of the field, since the ring and plate are not points) is dimmed and shifted by a quarter wave
before it meets the light that cells scatter; that gives cells their halo without drawing one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from scipy import fft, ndimage

REACH = 27  # pixels around a centre that a cell may fill; the field is drawn with so much margin
STRAIGHT = 0.6  # amplitude that the plate lets through
_Y, _X = np.mgrid[-REACH : REACH + 1, -REACH : REACH + 1].astype(np.float32)


@dataclass(frozen=True)
class Microscope:
    """How one experiment was imaged.

    Parameters
    ----------
    light : float
        Photons of the phase contrast background, per pixel.
    gain : float
        Photons of the marker of an average cell, per pixel.
    glow : float
        Photons of the fluorescence background, per pixel.
    blur : float
        Standard deviation of the defocus, in pixels.
    halo : float
        Width of the halo, in pixels.
    contrast : float
        Factor on the optical thickness of cells.
    vignette, tilt : float
        How much darker the corners are, and how much one side is than the other, as shares.
    direction : float
        Where the light comes from, in radians.
    offset : int
        What the camera reads in the dark.
    """

    light: float
    gain: float
    glow: float
    blur: float
    halo: float
    contrast: float
    vignette: float
    tilt: float
    direction: float
    offset: int = 100

    def image(self, rng: np.random.Generator, cells: pd.DataFrame, condition: str, dust: np.ndarray) -> np.ndarray:
        """One frame.

        Parameters
        ----------
        rng : numpy.random.Generator
            Of the noise.
        cells : pandas.DataFrame
            The rows of one frame as :func:`cellcohort.simulation.lives.live` gives them.
        condition : str
            Which look a response has.
        dust : numpy.ndarray of float32, shape (height, width)
            Share of the light that passes, see :func:`dust`.

        Returns
        -------
        numpy.ndarray of uint16, shape (2, height, width)
            Phase contrast, and the marker.
        """
        height, width = dust.shape
        thickness = np.zeros((height + 2 * REACH, width + 2 * REACH), np.float32)
        marker = np.zeros_like(thickness)
        rows: Any = cells.itertuples()
        for cell in rows:
            y, x = round(cell.y), round(cell.x)
            window = np.s_[y : y + 2 * REACH + 1, x : x + 2 * REACH + 1]
            of_cell = _draw(cell, condition)
            thickness[window] += of_cell[0]
            marker[window] += of_cell[1]
        field = np.s_[REACH : REACH + height, REACH : REACH + width]
        phase = self.light * self._phase_contrast(thickness)[field] * self._flat(height, width) * dust
        lit = self.glow + self.gain * ndimage.gaussian_filter(marker, 0.8 + self.blur, truncate=3.0)[field]
        lit *= 0.5 + 0.5 * self._flat(height, width)
        photons = np.stack([phase, lit])
        photons += np.sqrt(photons) * rng.standard_normal(photons.shape, np.float32)
        return (self.offset + photons).clip(0, 2**16 - 1).astype(np.uint16)

    def _phase_contrast(self, thickness: np.ndarray) -> np.ndarray:
        light = np.exp(1j * self.contrast * thickness)
        seen = fft.fft2(light.astype(np.complex64))
        straight, focus = _low_pass(thickness.shape, self.halo), _low_pass(thickness.shape, self.blur)
        light = fft.ifft2(seen * focus * (1 - (1 + 1j * STRAIGHT) * straight))
        return (np.abs(light) / STRAIGHT) ** 2

    def _flat(self, height: int, width: int) -> np.ndarray:
        return _uneven(height, width, self.vignette, self.tilt, self.direction)


@lru_cache
def _uneven(height: int, width: int, vignette: float, tilt: float, direction: float) -> np.ndarray:
    y, x = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
    light = 1 - vignette * (y**2 + x**2) / 2 + tilt * (y * np.sin(direction) + x * np.cos(direction)) / 2
    return light.astype(np.float32)


@lru_cache
def _low_pass(shape: tuple[int, int], sigma: float) -> np.ndarray:
    """Return a gaussian blur of `sigma` pixels as a factor on the Fourier transform."""
    y, x = fft.fftfreq(shape[0])[:, None], fft.fftfreq(shape[1])
    return np.exp(-2 * (np.pi * sigma) ** 2 * (y**2 + x**2)).astype(np.float32)


def dust(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Share of the light that passes at every pixel: a few specks that stay where they are."""
    passes = np.ones((height, width), np.float32)
    y, x = np.mgrid[:height, :width]
    for _ in range(rng.integers(2, 6)):
        at, size = rng.uniform(0, 1, 2) * (height, width), rng.uniform(1.0, 2.5)
        distance = np.hypot(y - at[0], x - at[1]) / size
        passes -= rng.uniform(0.1, 0.4) * np.exp(-(distance**2)) - 0.06 * np.exp(-((distance - 2.5) ** 2))
    return passes


def _draw(cell: Any, condition: str) -> np.ndarray:
    """Optical thickness (radians) and marker (1 is average) of one cell around its centre, shape (2, n, n)."""
    rng = np.random.default_rng(cell.look)  # the same numbers in every frame: a cell keeps its face
    infected = cell.response if condition == "infected" else 0.0
    drugged = cell.response if condition == "rare_drug" else 0.0
    round_up = float(np.clip((cell.phase - 0.9) / 0.1, 0, 1)) * (1 - cell.response)  # before it divides

    # outline, in the frame of the cell: `rho` is 0 in the centre and 1 at the edge
    radius = cell.radius * (1 - 0.28 * round_up - 0.18 * infected + 0.12 * drugged)
    long = 1 + (rng.uniform(0.02, 0.22) + 0.16 * drugged) * (1 - round_up) * (1 - 0.6 * infected)
    y, x = _Y - (cell.y - round(cell.y)), _X - (cell.x - round(cell.x))
    along, across = np.cos(cell.angle) * x + np.sin(cell.angle) * y, np.cos(cell.angle) * y - np.sin(cell.angle) * x
    u, v = along / (radius * long), across * long / radius
    theta = np.arctan2(v, u)
    ragged = rng.normal(0, (0.07, 0.07, 0.05, 0.04, 0.02, 0.02)) * (1 - round_up) * (1 + 0.8 * drugged)
    turn = rng.uniform(0, 2 * np.pi, 6) + 0.12 * cell.t
    outline = 1 + sum(a * np.cos(k * theta + p) for k, (a, p) in enumerate(zip(ragged, turn, strict=True), start=2))
    rho = np.hypot(u, v) / outline
    inside = 1 / (1 + np.exp((rho - 1) * radius / 0.7))

    # what is in it, at places of its own
    place = rng.uniform(-0.15, 0.15, 2)
    nucleus = 1 / (1 + np.exp((np.hypot((u - place[0]) * 1.1, v - place[1]) - 0.42) * radius / 0.9)) * (1 - round_up)
    nucleoli = nucleus * _spots(u, v, place + rng.normal(0, 0.14, (3, 2)), 1.3 / radius)
    grains = _spots(u, v, rng.normal(0, 0.42, (12, 2)), 1.0 / radius)
    waves = _texture(rng, along, across, cell.t) * (1 - round_up)
    puncta = infected * _spots(u, v, place + _ring(rng, 9, 0.55), 1.2 / radius) if infected else 0.0
    holes = drugged * inside * _spots(u, v, place + _ring(rng, 5, 0.62), 1.9 / radius) if drugged else 0.0

    dome = 0.35 + 0.65 * np.clip(1 - rho**2, 0, 1)
    body = inside * dome * (1 + (0.14 + 0.1 * infected) * waves)
    thickness = 0.42 * (1 + 7.0 * round_up + 0.5 * infected - 0.2 * drugged) * body - 0.22 * holes
    thickness += inside * (0.10 * nucleus + 0.16 * nucleoli + (0.10 + 0.14 * infected) * grains)
    thickness += 0.06 * np.exp(-(((rho - 0.95) * radius / 1.2) ** 2))

    reticular = inside * dome * (1 + 0.3 * waves) * (1 - (0.75 - 1.1 * drugged) * nucleus)
    signal = reticular * (1 - 0.45 * infected) + 1.6 * inside * puncta - 0.5 * holes
    return np.stack([thickness, cell.expression * np.maximum(signal, 0)]).astype(np.float32)


def _texture(rng: np.random.Generator, along: np.ndarray, across: np.ndarray, t: int) -> np.ndarray:
    """Plane waves of many lengths and directions that drift slowly; variance about 1."""
    n = 7
    length, angle = np.geomspace(3.5, 14, n), rng.uniform(0, np.pi) + np.arange(n) * 2.4 + rng.normal(0, 0.3, n)
    start = rng.uniform(0, 2 * np.pi, n) + 0.25 * t
    total = np.zeros_like(along)
    for a, b, c in zip(2 * np.pi / length * np.cos(angle), 2 * np.pi / length * np.sin(angle), start, strict=True):
        total += np.cos(np.float32(a) * along + np.float32(b) * across + np.float32(c))
    return total * np.float32(np.sqrt(2 / n))


def _ring(rng: np.random.Generator, n: int, radius: float) -> np.ndarray:
    angle, away = rng.uniform(0, 2 * np.pi, n), radius * rng.uniform(0.75, 1.2, n)
    return np.stack([away * np.cos(angle), away * np.sin(angle)], axis=1)


def _spots(u: np.ndarray, v: np.ndarray, at: np.ndarray, size: float) -> np.ndarray:
    """Gaussian spots of height 1 at places (n, 2), of standard deviation `size` in units of the radius."""
    total = np.zeros_like(u)
    for a, b in at:
        total += np.exp(((u - np.float32(a)) ** 2 + (v - np.float32(b)) ** 2) * np.float32(-0.5 / size**2))
    return total
