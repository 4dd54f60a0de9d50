"""Views of image patches: turned, moved, and as another exposure might have given them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import isfinite
from typing import Literal, get_args

import torch
from kornia.filters import gaussian_blur2d
from kornia.geometry.transform import get_affine_matrix2d, warp_affine
from torch import Tensor

from cellcohort.sampling.rng import key_of

Rotate = Literal["any", "right", "none"]


@dataclass(frozen=True)
class ImageViews:
    """Make views of a batch of image patches, each patch by draws of its own.

    Flip, rotation, shift and zoom are one resampling (kornia) of the plane, the same for all channels and
    slices of a patch; what it reaches outside the patch is mirrored. The intensities of every channel
    then change in units of that channel's spread within the patch, so that inputs of any unit are treated alike.

    Parameters
    ----------
    flip : bool
        Mirror every other patch.
    rotate : {"any", "right", "none"}
        By any angle, by right angles, or not.
    shift : float
        Greatest move along y and along x, in pixels.
    zoom : float
        Greatest zoom: a factor between ``1 / (1 + zoom)`` and ``1 + zoom``.
    brightness : float
        Standard deviation of what is added to a channel, in units of its spread.
    contrast : float
        Standard deviation of the log of the factor on a channel's deviation from its mean.
    noise : float
        Standard deviation of gaussian noise on every pixel, in units of the channel's spread.
    blur : float
        Greatest standard deviation of a gaussian blur of the plane, in pixels; at most 3.

    Raises
    ------
    ValueError
        A value is negative, not finite, or not a choice.
    """

    flip: bool = True
    rotate: Rotate = "any"
    shift: float = 2.0
    zoom: float = 0.1
    brightness: float = 0.2
    contrast: float = 0.2
    noise: float = 0.1
    blur: float = 0.8

    def __post_init__(self) -> None:
        if self.rotate not in get_args(Rotate):
            raise ValueError(f"augment.rotate={self.rotate!r} is not a choice; use {', '.join(get_args(Rotate))}.")
        for name in (field.name for field in fields(self) if field.name != "rotate"):
            value = getattr(self, name)
            if not isfinite(value) or value < 0 or (name == "blur" and value > 3):
                bounds = "0 to 3" if name == "blur" else "0 or more"
                raise ValueError(f"augment.{name}={value} must be {bounds}; 0 turns it off.")

    @property
    def changes(self) -> bool:
        """Whether a view can differ from the patch it is made of."""
        return self._moves or any((self.brightness, self.contrast, self.noise, self.blur))

    @property
    def _moves(self) -> bool:
        return bool(self.flip or self.rotate != "none" or self.shift or self.zoom)

    @torch.no_grad()
    def __call__(self, inputs: Tensor, key: tuple[int, ...]) -> Tensor:
        """One view of every patch.

        Parameters
        ----------
        inputs : torch.Tensor of float32, shape (batch, channels, slices, height, width)
        key : tuple of int
            What the draws are keyed by. They are the same on every device, but for those of the noise.

        Returns
        -------
        torch.Tensor
            Of the same shape; `inputs` stay as they are.

        Raises
        ------
        ValueError
            `inputs` are no batch of patches.
        """
        if inputs.ndim != 5:
            raise ValueError(
                f"inputs have shape {tuple(inputs.shape)}; image views take (batch, channels, slices, height, width)."
            )
        n, channels, _, height, width = inputs.shape
        draws = torch.Generator().manual_seed(int(key_of(*key)))
        place = torch.rand(6, n, generator=draws).to(inputs.device)
        tone = torch.randn(2, n, channels, 1, 1, 1, generator=draws).to(inputs.device)
        planes = inputs.flatten(1, 2)
        if self._moves:
            matrix = self._matrix(place[:5], height, width)
            planes = warp_affine(planes, matrix, (height, width), padding_mode="reflection")
        if self.blur:
            sigma = (self.blur * place[5]).clamp(min=0.05)[:, None].expand(-1, 2)
            size = 2 * int(2 * self.blur + 1) + 1
            planes = gaussian_blur2d(planes, size, sigma, border_type="replicate")
        views = planes.view(inputs.shape)
        if self.brightness or self.contrast or self.noise:
            spread, mean = torch.std_mean(inputs, dim=(2, 3, 4), correction=0, keepdim=True)
            factor = torch.exp(self.contrast * tone[0])
            views = views * factor + (mean * (1 - factor) + self.brightness * spread * tone[1])
        if self.noise:
            generator = torch.Generator(inputs.device).manual_seed(int(key_of(*key, 1)))
            grain = torch.empty_like(views).normal_(generator=generator)
            views = views.addcmul_(grain, self.noise * spread)
        return views

    def _matrix(self, draws: Tensor, height: int, width: int) -> Tensor:
        """Where the pixels of each patch go, from uniform draws of shape (5, batch); shape (batch, 2, 3)."""
        turn = {"any": draws[0], "right": (4 * draws[0]).floor() / 4, "none": 0 * draws[0]}[self.rotate]
        shift = self.shift * (2 * draws[1:3].T - 1)
        zoom = (1 + self.zoom) ** (2 * draws[3] - 1)
        mirror = torch.where(draws[4] < 0.5, -1.0, 1.0) if self.flip else torch.ones_like(zoom)
        centre = zoom.new_tensor([(width - 1) / 2, (height - 1) / 2]).expand(len(zoom), 2)
        return get_affine_matrix2d(shift, centre, torch.stack([zoom * mirror, zoom], dim=1), 360 * turn)[:, :2]
