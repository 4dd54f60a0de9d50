"""The checkpoint that a run goes on from: whether there is one, and whether anything is left to train."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

from cellcohort.runtime.distributed import Launch


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

    Warns
    -----
    UserWarning
        Its run stopped within an epoch, whose other batches do not come any more.
    """
    there = sorted(str(file) for file in Path(path).parent.glob("*.ckpt") if file != Path(path))
    beside = f"beside it are: {', '.join(there) or 'no checkpoints'}. Give <run directory>/checkpoints/last.ckpt."
    if not Path(path).is_file():
        raise FileNotFoundError(f"resume={path} is no file; {beside}")
    progress, batches = _progress(path, beside)
    begun = int(progress["started"])
    if max_epochs is not None and 0 <= max_epochs < begun:
        raise ValueError(
            f"trainer.max_epochs={max_epochs} leaves nothing to train: resume={path} is a checkpoint of epoch {begun}. "
            f"Epochs are counted from the beginning of the first run; raise trainer.max_epochs above {begun}."
        )
    if progress["processed"] == begun and not batches["is_last_batch"] and Launch.here().rank == 0:
        warnings.warn(
            f"resume={path}: its run stopped after {batches['current']['completed']} batches of epoch {begun}, as at "
            "an end: the other batches of that epoch are left out. To leave none out, stop by whole epochs "
            "(trainer.max_epochs) or save by steps (+checkpoint.every_n_train_steps=100 checkpoint.monitor=null).",
            stacklevel=2,
        )


def _progress(path: str, beside: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """How many epochs were begun and gone through, and batches of the last of them."""
    import torch  # here, so that a mistyped command line is told at once

    try:
        loop = torch.load(path, map_location="cpu", weights_only=True, mmap=True)["loops"]["fit_loop"]
        return loop["epoch_progress"]["current"], loop["epoch_loop.batch_progress"]
    except (RuntimeError, EOFError, OSError, KeyError, TypeError, pickle.UnpicklingError) as error:
        raise ValueError(
            f"resume={path} is not a checkpoint of a training, or is cut off ({type(error).__name__}: "
            f"{str(error).partition('. ')[0]}); {beside}"
        ) from error
