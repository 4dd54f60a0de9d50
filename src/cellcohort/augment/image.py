"""Views of image patches: turned, moved, and as another exposure might have given them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import isfinite
from typing import Literal, get_args

import torch
from kornia.filters import gaussian_blur2d
from kornia.geometry.transform import get_affine_matrix2d, warp_affine
from torch import Tensor

from cellcohort.augment._crop import middle, seen
from cellcohort.sampling.rng import key_of

Rotate = Literal["any", "right", "none"]
Place = Literal["random", "centre"]


@dataclass(frozen=True)
class ImageViews:
    """Make views of a batch of image patches, each patch by draws of its own.

    Flip, rotation, shift and zoom are one resampling (kornia) of the plane, the same for all channels and
    slices of a patch; what it reaches outside the patch is mirrored. A `crop` of it is what the network sees: with a
    larger patch, rotation shows what lies around instead of mirroring. The intensities of every channel
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
    channel_dropout : float
        Share of the channels of a patch that are set to 0, the value that normalisation gives to the mean; one always
        stays.
    crop : (int, int), optional
        Lines and columns that are cut out of a larger patch, at a place drawn for each; None leaves it whole.
    place : {"random", "centre"}
        Where: as :attr:`centred` has it, in the middle.

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
    channel_dropout: float = 0.0
    crop: Sequence[int] | None = None
    place: Place = "random"

    def __post_init__(self) -> None:
        if self.place not in get_args(Place):
            raise ValueError(f"augment.place={self.place!r} is not a choice; use {', '.join(get_args(Place))}.")
        if self.crop is not None and (len(self.crop) != 2 or not all(isinstance(n, int) and n >= 1 for n in self.crop)):
            raise ValueError(f"augment.crop={list(self.crop)} must be lines and columns, such as [64, 64], or null.")
        if self.crop is not None:  # no list of a config, which loaders that look through a dataset never come out of
            object.__setattr__(self, "crop", tuple(self.crop))
        if self.rotate not in get_args(Rotate):
            raise ValueError(f"augment.rotate={self.rotate!r} is not a choice; use {', '.join(get_args(Rotate))}.")
        for name in (field.name for field in fields(self) if field.name not in ("rotate", "crop", "place")):
            value, most = getattr(self, name), {"blur": 3, "channel_dropout": 1}.get(name)
            if not isfinite(value) or value < 0 or (most is not None and value > most):
                bounds = "0 or more" if most is None else f"0 to {most}"
                raise ValueError(f"augment.{name}={value} must be {bounds}; 0 turns it off.")

    @property
    def changes(self) -> bool:
        """Whether a view can differ from the patch it is made of."""
        tones = (self.brightness, self.contrast, self.noise, self.blur, self.channel_dropout)
        return self._moves or any(tones) or (self.crop is not None and self.place == "random")

    @property
    def centred(self) -> ImageViews:
        """The same views with the crop in the middle, for validation."""
        return replace(self, place="centre")

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
            Of the same shape, or cropped; `inputs` stay as they are.

        Raises
        ------
        ValueError
            `inputs` are no batch of patches, smaller than the crop, or of one channel that is to be dropped.
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
        if self._moves and min(height, width) > 1:  # a line of pixels cannot be turned
            matrix = self._matrix(place[:5], height, width)
            planes = warp_affine(planes, matrix, (height, width), padding_mode="reflection")
        if self.blur:
            sigma = (self.blur * place[5]).clamp(min=0.05)[:, None].expand(-1, 2)
            size = 2 * int(2 * self.blur + 1) + 1
            planes = gaussian_blur2d(planes, size, sigma, border_type="replicate")
        views = planes.view(inputs.shape)
        if self.crop is not None:
            views = self._cropped(views, torch.rand(2, n, generator=draws).to(inputs.device))
        if self.brightness or self.contrast or self.noise:
            spread, mean = torch.std_mean(inputs, dim=(2, 3, 4), correction=0, keepdim=True)
            factor = torch.exp(self.contrast * tone[0])
            views = views * factor + (mean * (1 - factor) + self.brightness * spread * tone[1])
        if self.noise:
            generator = torch.Generator(inputs.device).manual_seed(int(key_of(*key, 1)))
            grain = torch.empty_like(views).normal_(generator=generator)
            views = views.addcmul_(grain, self.noise * spread)
        if self.channel_dropout:
            views = self._with_fewer_channels(views, torch.rand(n, channels, generator=draws).to(inputs.device))
        return views

    def _cropped(self, views: Tensor, draws: Tensor) -> Tensor:
        """Cut out a part of each patch, at places by uniform draws of shape (2, batch)."""
        size = views.shape[3:]
        lines, columns = seen(views.shape[1:], self)[2:]
        if self.place == "centre":
            return middle(views, (lines, columns))
        first = (draws * draws.new_tensor([[size[0] - lines + 1], [size[1] - columns + 1]])).long()
        y = first[0][:, None] + torch.arange(lines, device=views.device)
        x = first[1][:, None] + torch.arange(columns, device=views.device)
        of = torch.arange(len(views), device=views.device)
        cut = views.permute(0, 3, 4, 1, 2)[of[:, None, None], y[:, :, None], x[:, None]]
        return cut.permute(0, 3, 4, 1, 2).contiguous()

    def _with_fewer_channels(self, views: Tensor, draws: Tensor) -> Tensor:
        """Set channels to 0 by uniform draws of shape (batch, channels); that of the greatest draw stays."""
        if views.shape[1] == 1:
            raise ValueError(
                f"augment.channel_dropout={self.channel_dropout} would leave nothing of inputs of one channel; set it "
                "to 0."
            )
        kept = (draws >= self.channel_dropout) | (draws == draws.amax(dim=1, keepdim=True))
        return views * kept[:, :, None, None, None]

    def _matrix(self, draws: Tensor, height: int, width: int) -> Tensor:
        """Where the pixels of each patch go, from uniform draws of shape (5, batch); shape (batch, 2, 3)."""
        turn = {"any": draws[0], "right": (4 * draws[0]).floor() / 4, "none": 0 * draws[0]}[self.rotate]
        shift = self.shift * (2 * draws[1:3].T - 1)
        zoom = (1 + self.zoom) ** (2 * draws[3] - 1)
        mirror = torch.where(draws[4] < 0.5, -1.0, 1.0) if self.flip else torch.ones_like(zoom)
        centre = zoom.new_tensor([(width - 1) / 2, (height - 1) / 2]).expand(len(zoom), 2)
        return get_affine_matrix2d(shift, centre, torch.stack([zoom * mirror, zoom], dim=1), 360 * turn)[:, :2]
