"""From positions to tensors: the loader that feeds a model the batches that a sampler decides."""

from __future__ import annotations

import atexit
import multiprocessing
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from monai.data import ThreadBuffer, ThreadDataLoader
from torch.utils.data import default_convert

from cellcohort.datasets.protocol import Samples
from cellcohort.messages import changes
from cellcohort.runtime.signals import leave_process_group
from cellcohort.sampling.protocol import Sampler

if TYPE_CHECKING:
    from pydantic import NonNegativeInt, PositiveInt

__all__ = ["BatchLoader", "make_loader"]

StartMethod = Literal["forkserver", "spawn"]


class BatchLoader(ThreadDataLoader):
    """MONAI's loader on a thread, with every pass either complete or stopped by an error.

    An error of the loading thread or of a worker process is raised where the batches are consumed.
    A pass begins at its first batch, so the epoch that is set before it counts. A pass may be given
    up at any batch, and :meth:`state_dict` says where to go on. With worker processes, which one
    pass at a time can use, a new pass ends an earlier one that is still open, which then raises if
    it is asked for more. Make one with :func:`make_loader`.
    """

    batch_sampler: Sampler
    _open: ThreadBuffer | None = None
    _next: dict[str, int] | None = None  # the batch after the last one that was consumed

    def __iter__(self) -> Iterator[dict[str, Any]]:  # type: ignore[override]
        if self.num_workers and self._open is not None:
            self._open.stop()
        self._open = buffer = ThreadBuffer(_outcomes(self._batches()), self.buffer_size, self.buffer_timeout)
        atexit.register(buffer.stop)  # a thread that still runs when the interpreter ends would abort it
        try:
            for what, value in buffer:
                if what == "end":
                    if self._next is None or self._next["step"] < len(self):
                        raise RuntimeError(
                            f"this pass ended before its {len(self)} batches, at {self._next or 'the first'}; "
                            "the dataset or the sampler raised StopIteration or yielded too few."
                        )
                    return
                if what == "error":
                    if isinstance(value, (ConnectionError, EOFError)) and self.num_workers:
                        value.add_note(
                            "A worker may have ended while it sent a batch, for want of memory for instance."
                        )
                    raise value
                self._next = {"epoch": value["meta"]["epoch"], "step": value["meta"]["step"] + 1}
                yield value
        finally:
            atexit.unregister(buffer.stop)
        raise RuntimeError(
            "this pass over the loader was ended by a new one before its last batch; with num_workers > 0 "
            "go through one pass at a time, or use num_workers=0."
        )

    def _batches(self) -> Iterator[dict[str, Any]]:
        """Return the batches of one pass, which begins when the first is asked for."""
        return super(ThreadDataLoader, self).__iter__()

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch and step of the batch that comes next, whatever was loaded ahead, and of which batches.

        Returns
        -------
        dict
            "epoch", "step" and "sampler", the signature of the batch sampler.
        """
        state = self._next or self.batch_sampler.state_dict()
        over = state["step"] == len(self)
        place = {"epoch": state["epoch"] + 1, "step": 0} if over else dict(state)
        return {**place, "sampler": self.batch_sampler.signature}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin the next pass at the epoch and step of `state`; its other batches follow unchanged.

        Parameters
        ----------
        state : dict
            What :meth:`state_dict` returned.

        Raises
        ------
        ValueError
            The state is of other batches than those of this loader.
        """
        if changed := changes(state["sampler"], self.batch_sampler.signature):
            raise ValueError(
                f"the checkpoint was made with other batches than this run has, so they would not go on: {changed} "
                "(then -> now). Give the options of that run again (see its config.yaml)."
            )
        self.batch_sampler.load_state_dict({"epoch": state["epoch"], "step": state["step"]})
        self._next = None


def _outcomes(batches: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Batches, then how they ended: the thread that draws them has no other way to say it."""
    source = iter(batches)
    while True:
        try:
            batch = next(source)
        except StopIteration:
            yield "end", None
            return
        except BaseException as error:
            yield "error", error
            return
        yield "batch", batch


def make_loader(
    dataset: Samples,
    batch_sampler: Sampler,
    num_workers: NonNegativeInt = 0,
    persistent_workers: bool = True,
    buffer_size: PositiveInt = 1,
    start_method: StartMethod = "forkserver",
) -> BatchLoader:
    """Make the loader of one process, which reads the batches of a sampler ahead of their use.

    Parameters
    ----------
    dataset : Samples
        Its class is what worker processes import.
    batch_sampler : Sampler
        Yields positions of `dataset`; reachable as ``loader.batch_sampler``.
    num_workers : int
        Worker processes; 0 loads in a thread of this process.
    persistent_workers : bool
        Whether worker processes stay for the life of the loader, or start anew for every epoch and
        free their memory after it. The batches are the same.
    buffer_size : int
        Batches that the thread holds ready.
    start_method : {"forkserver", "spawn"}
        How workers start. Neither copies the threads of this process, which can hang a fork.

    Returns
    -------
    BatchLoader

    Raises
    ------
    ValueError
        An option is out of range, or the sampler was made for another number of cells.
    """
    if num_workers < 0 or buffer_size < 1:
        raise ValueError(f"num_workers={num_workers}, buffer_size={buffer_size}: use at least 0 and at least 1.")
    if start_method not in get_args(StartMethod):
        raise ValueError(f"start_method={start_method!r} is not a choice; use {' or '.join(get_args(StartMethod))}.")
    if len(batch_sampler.cells) != len(dataset):
        raise ValueError(
            f"the sampler was made for {len(batch_sampler.cells)} cells and the dataset has {len(dataset)}; "
            "make it from dataset.cells."
        )
    workers: dict[str, Any] = {}
    if num_workers:
        context = multiprocessing.get_context(start_method)
        if start_method == "forkserver":
            context.set_forkserver_preload([type(dataset).__module__])  # imported once, not by every worker
        workers = {"multiprocessing_context": context, "persistent_workers": persistent_workers}
    return BatchLoader(
        dataset,  # type: ignore[arg-type]  # any dataset of torch will do
        buffer_size=buffer_size,
        batch_sampler=batch_sampler,
        num_workers=num_workers,
        collate_fn=default_convert,  # what the dataset makes of a list of positions is a batch already
        worker_init_fn=leave_process_group,  # the main process ends its workers, after the step in hand
        generator=torch.Generator(),  # MONAI and torch draw from it; the global one stays as it was
        **workers,
    )
