"""Trackers of experiments without surprises: W&B asks no question and is offline without a key; one run per job."""

from __future__ import annotations

import netrc
import os
import sys
from urllib.parse import urlsplit


def wandb_mode() -> str | None:
    """Return the mode of the W&B run: ``WANDB_MODE`` if set, else "offline" without a key, else None (W&B decides).

    Raises
    ------
    ValueError
        ``WANDB_MODE`` is "online" but there is no key, so that W&B would ask for one and wait.
    """
    mode = os.environ.get("WANDB_MODE")
    if mode == "online" and not has_key():
        raise ValueError(
            "WANDB_MODE=online but there is no key: WANDB_API_KEY is not set and the netrc file has no entry for "
            f"{_host()}. Run `wandb login` once, unset WANDB_MODE to log offline, or use logger=csv."
        )
    return mode or (None if has_key() else "offline")


def finish_trackers(exit_code: int) -> None:
    """End the runs of W&B and Trackio of this process, if any: all rows are written, and the next job gets its own."""
    wandb = sys.modules.get("wandb")
    if wandb is not None and wandb.run is not None:
        wandb.finish(exit_code=exit_code)
    trackio = sys.modules.get("trackio")
    if trackio is not None and trackio.context_vars.current_run.get() is not None:
        trackio.finish()


def has_key() -> bool:
    """Whether W&B has a key to log in with, in the environment or the netrc file."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(_host()) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _host() -> str:
    return urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).netloc
