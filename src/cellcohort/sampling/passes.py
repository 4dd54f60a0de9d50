"""The place in the sequence of batches at which the next pass of a sampler begins."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Self

import numpy as np

from cellcohort.messages import several, whole_number
from cellcohort.sampling.batch import Batch


class Passes(ABC):
    """Passes over the batches of one epoch after another, each from its first batch or from a loaded place on.

    Parameters
    ----------
    fixed : bool
        Yield the batches of epoch 0 in every pass.

    Attributes
    ----------
    epoch : int
        That of the pass that goes on, or of the next one after :meth:`set_epoch` or :meth:`load_state_dict`.
    num_batches : int
        Batches of an epoch, set by the sampler.
    """

    num_batches: int

    def __init__(self, fixed: bool) -> None:
        self.fixed = fixed
        self.epoch, self._first, self._fresh = 0, 0, True  # fresh until the pass of this epoch begins
        self._reached: tuple[int, int] | None = None  # epoch and next step of the pass that goes on

    @abstractmethod
    def _draw(self, epoch: int, step: int) -> np.ndarray:
        """Draw one batch."""

    @property
    def sampler(self) -> Self:
        """The sampler itself: where Lightning looks for :meth:`set_epoch`."""
        return self

    @property
    def batch_sampler(self) -> Self:
        """The sampler itself: where the Trainer of transformers looks for :meth:`set_epoch`."""
        return self

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches of the epoch; a pass moves on by one epoch unless :meth:`set_epoch` was called.

        A pass begins when its first batch is asked for: loaders make iterators that they do not use.
        """
        epoch, first = self._begin()
        for step in range(first, self.num_batches):
            batch = Batch(self._draw(epoch, step).tolist(), epoch, step)
            self._reached = epoch, step + 1
            yield batch
        self._end()

    @property
    def next_pass(self) -> tuple[int, int]:
        """Epoch and first step of the next pass."""
        return (self.epoch, self._first) if self._fresh or self.fixed else (self.epoch + 1, 0)

    def _begin(self) -> tuple[int, int]:
        """Begin a pass: its epoch and first step."""
        self.epoch, first = self._reached = self.next_pass
        self._first, self._fresh = 0, False
        return self.epoch, first

    def _end(self) -> None:
        """End a pass after its last batch."""
        self._reached = None

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass. A fixed sampler stays at epoch 0.

        Parameters
        ----------
        epoch : int
            The epoch, >= 0.

        Warns
        -----
        UserWarning
            Batches of the epoch of a loaded state are left out.
        """
        epoch = whole_number("epoch", epoch, 0)
        if self.fixed:
            return
        if epoch != self.epoch:
            if self._fresh and 0 < self._first < self.num_batches:
                warnings.warn(
                    f"{self.num_batches - self._first} of {self.num_batches} batches of epoch {self.epoch} are left "
                    f"out: training stopped there at batch {self._first}, as at an end, and goes on with epoch "
                    f"{epoch}. Stop by whole epochs (trainer.max_epochs) to leave none out.",
                    stacklevel=2,
                )
            self._first = 0
        self.epoch, self._fresh = epoch, True

    def state_dict(self) -> dict[str, int]:
        """Return the place to continue from: after `k` batches of a pass step `k`, after its end the next epoch.

        A loader that takes batches ahead of those it hands out, as one with worker processes does, must keep the state
        of the batch that it hands out: :class:`cellcohort.loading.rows.BatchLoader` and torchdata's
        ``StatefulDataLoader`` do. With any other loader, take the place from the last batch that arrived, as
        ``Batch.epoch`` and ``Batch.step`` say it, and load ``{"epoch": epoch, "step": step + 1}``.

        Returns
        -------
        dict
            ``{"epoch": int, "step": int}``.
        """
        epoch, step = self.next_pass if self._fresh or self._reached is None else self._reached
        return {"epoch": epoch, "step": step}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Begin the next pass at the epoch and step of `state`.

        Parameters
        ----------
        state : dict of str to int
            What :meth:`state_dict` returned.

        Raises
        ------
        ValueError
            The keys are others, or an epoch has fewer steps.
        """
        if set(state) != {"epoch", "step"}:
            raise ValueError(f"state has the keys {sorted(state)}; a sampler's state has 'epoch' and 'step'.")
        step = whole_number("step", state["step"], 0)
        if step > self.num_batches:
            raise ValueError(
                f"state is at step {step}, but an epoch has {several(self.num_batches, 'batch')}; was it another run's?"
            )
        self.epoch, self._first, self._fresh = whole_number("epoch", state["epoch"], 0), step, True
        self._reached = None


@contextmanager
def naming_validation(fixed: bool, n_cells: int) -> Iterator[None]:
    """Let an error of fixed batches, which are those of validation, name these, their cells and their options."""
    try:
        yield
    except ValueError as error:
        if fixed:
            message = str(error).replace("batch_sampler.", "validation_sampler.")
            error.args = (
                f"validation batches, drawn from {several(n_cells, 'held-out cell')}: {message} Change options "
                "of validation_sampler, which training does not use, or hold out more cells (split.fraction, "
                "split.held_out).",
            )
        raise
