"""Something worth knowing before training."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """Something that is not as it should be, its reasons, what to change, and what to type for it."""

    problem: str
    change: str
    reasons: tuple[str, ...] = ()
    typed: str = ""
