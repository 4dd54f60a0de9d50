"""The checkpoint that a run goes on from: whether there is one, and whether anything is left to train."""

from __future__ import annotations

import pickle
from pathlib import Path


def check_checkpoint(path: str, max_epochs: int | None) -> None:
    """Refuse a checkpoint that cannot be gone on from, before data are read.

    Parameters
    ----------
    path : str
        What `resume` says.
    max_epochs : int, optional
        What ``trainer.max_epochs`` says; None or -1 is no limit.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    ValueError
        It is not a checkpoint of a training, or of a later epoch than the last one asked for.
    """
    there = sorted(str(file) for file in Path(path).parent.glob("*.ckpt") if file != Path(path))
    beside = f"beside it are: {', '.join(there) or 'no checkpoints'}. Give <run directory>/checkpoints/last.ckpt."
    if not Path(path).is_file():
        raise FileNotFoundError(f"resume={path} is no file; {beside}")
    begun = _epochs_begun(path, beside)
    if max_epochs is not None and 0 <= max_epochs < begun:
        raise ValueError(
            f"trainer.max_epochs={max_epochs} leaves nothing to train: resume={path} is a checkpoint of epoch {begun}. "
            f"Epochs are counted from the beginning of the first run; raise trainer.max_epochs above {begun}."
        )


def _epochs_begun(path: str, beside: str) -> int:
    import torch  # here, so that a mistyped command line is told at once

    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        return int(state["loops"]["fit_loop"]["epoch_progress"]["current"]["started"])
    except (RuntimeError, EOFError, OSError, KeyError, TypeError, pickle.UnpicklingError) as error:
        raise ValueError(
            f"resume={path} is not a checkpoint of a training, or is cut off ({type(error).__name__}: "
            f"{str(error).partition('. ')[0]}); {beside}"
        ) from error
