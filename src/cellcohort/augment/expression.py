"""Views of expression profiles: some features unseen, and all of them with noise."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from cellcohort.sampling.rng import key_of


@dataclass(frozen=True)
class ExpressionViews:
    """Make views of a batch of expression profiles, each profile by draws of its own.

    Noise is added first, then features are dropped to 0, as a transcript that was not captured is. The
    two together are what contrastive models of single cells commonly use (CLEAR, Han et al.,
    Briefings in Bioinformatics 2022).

    Parameters
    ----------
    dropout : float
        Probability in [0, 1) that a feature of a profile is set to 0.
    noise : float
        Standard deviation of gaussian noise on every feature, in units of that feature's spread over the batch.

    Raises
    ------
    ValueError
        A value is negative or not finite, or `dropout` is 1 or more.
    """

    dropout: float = 0.2
    noise: float = 0.2

    def __post_init__(self) -> None:
        for name, value, bounds in (("dropout", self.dropout, "in [0, 1)"), ("noise", self.noise, "0 or more")):
            if not isfinite(value) or value < 0 or (name == "dropout" and value >= 1):
                raise ValueError(f"augment.{name}={value} must be {bounds}; 0 turns it off.")

    @property
    def changes(self) -> bool:
        """Whether a view can differ from the profile it is made of."""
        return bool(self.dropout or self.noise)

    @torch.no_grad()
    def __call__(self, inputs: Tensor, key: tuple[int, ...]) -> Tensor:
        """One view of every profile.

        Parameters
        ----------
        inputs : torch.Tensor of float32, shape (batch, n_features)
        key : tuple of int
            What the draws are keyed by; they repeat on devices of one kind.

        Returns
        -------
        torch.Tensor
            Of the same shape; `inputs` stay as they are.

        Raises
        ------
        ValueError
            `inputs` are no batch of profiles.
        """
        if inputs.ndim != 2:
            raise ValueError(f"inputs have shape {tuple(inputs.shape)}; expression views take (batch, n_features).")
        draws = torch.Generator(inputs.device).manual_seed(int(key_of(*key)))
        views = inputs
        if self.noise:
            spread = inputs.std(dim=0, correction=0)
            noise = torch.randn(inputs.shape, generator=draws, device=inputs.device, dtype=inputs.dtype)
            views = inputs + self.noise * spread * noise
        if self.dropout:
            kept = torch.rand(inputs.shape, generator=draws, device=inputs.device) >= self.dropout
            views = views * kept
        return views
