"""Whether all ranks of a training go on: one that died or hangs is named, and the others end."""

from __future__ import annotations

import itertools
import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NamedTuple, override

import lightning
from lightning.pytorch.callbacks import Checkpoint
from pydantic import Field

from cellcohort.messages import listed
from cellcohort.runtime import signals
from cellcohort.runtime.cli import tell_torchrun
from cellcohort.runtime.distributed import Launch, launch_store
from cellcohort.runtime.restart import how_to_go_on

PATIENCE = 10  # the first step, validations and checkpoints may take so many times as long as the rest
QUICK = 4  # looks without a sign of life after which a rank is lost where a collective operation has failed
OF_A_COLLECTIVE = re.compile(r"gloo|NCCL|[Cc]onnection (closed|reset)|Broken pipe|ProcessGroup")


class Sign(NamedTuple):
    """What a rank tells the others of itself.

    Attributes
    ----------
    number : int
        Counts the signs of the rank; -1 where it needs no watch any more.
    marks : int
        Counts the places of the training loop that it passed, which are the same for all ranks.
    step : int
        Steps of the optimizer that it has done.
    doing : str
        What it began to do at the last mark.
    patient : bool
        Whether this may take long.
    where : str
        Its process and its node.
    """

    number: int = 0
    marks: int = 0
    step: int = 0
    doing: str = ""
    patient: bool = True
    where: str = ""


class Lost(NamedTuple):
    """Ranks that do not go on, and why that is known."""

    ranks: Sequence[int]
    why: str

    @property
    def teller(self) -> int:
        """The lowest of the other ranks, which tells it for all."""
        return next(rank for rank in itertools.count() if rank not in self.ranks)


class RankWatch:
    """The signs that ranks give each other in the store of their launch, and who is lost by them.

    Rank 0 looks at all other ranks. These look at rank 0, and at what it found.

    Time is counted in looks, so that a pause of this process itself does not count.

    Parameters
    ----------
    launch : Launch
    store : torch.distributed.Store
    seconds : float
        How long all may wait for a rank; without a sign of life, half of it.
    every : float
        Seconds from one look to the next.
    """

    def __init__(self, launch: Launch, store: Any, seconds: float, every: float) -> None:
        self._rank, self._start, self._store, self._every = launch.rank, launch.start, store, every
        self.most = round(seconds / every)
        self._number, self._own = 0, Sign(where=f"process {os.getpid()} on {socket.gethostname()}")
        others = range(1, launch.world_size) if launch.rank == 0 else [0]
        self._seen = dict.fromkeys(others, Sign())
        self._silent, self._waited = dict.fromkeys(others, 0), dict.fromkeys(others, 0)  # looks

    def mark(self, doing: str, step: int, patient: bool = False) -> None:
        """Put down that this rank passed one more place of the training loop."""
        self._own = self._own._replace(marks=self._own.marks + 1, doing=doing, step=step, patient=patient)

    def sign(self, last: bool = False) -> None:
        """Tell the others that this process lives, and how far it is."""
        self._number += 1
        self._store.set(self._key(self._rank), json.dumps(self._own._replace(number=-1 if last else self._number)))

    def look(self, silent: int | None = None) -> Lost | None:
        """Look at the signs of other ranks once.

        Parameters
        ----------
        silent : int, optional
            Looks without a sign of life after which a rank is lost.

        Returns
        -------
        Lost or None
            The ranks that do not go on, if any. All ranks find the same, unless rank 0 is lost.
        """
        if self._rank and self._store.check([self._key("lost")]):
            ranks, why = json.loads(self._store.get(self._key("lost")))
            return Lost(ranks, why)
        for rank, now in self._signs().items():
            before = self._seen[rank]
            self._silent[rank] = 0 if now.number != before.number else self._silent[rank] + 1
            waiting = before.marks == now.marks < self._own.marks
            self._waited[rank] = self._waited[rank] + 1 if waiting else 0
            self._seen[rank] = now
        lost = self._without_sign(silent or self.most // 2) or self._behind()
        if lost and self._rank == 0:
            self._store.set(self._key("lost"), json.dumps(lost))
        return lost

    def _signs(self) -> dict[int, Sign]:
        keys = {rank: self._key(rank) for rank in self._seen}
        if not self._store.check(list(keys.values())):  # some have not begun
            keys = {rank: key for rank, key in keys.items() if self._store.check([key])}
        found = self._store.multi_get(list(keys.values())) if keys else []
        return {**self._seen, **{rank: Sign(*json.loads(text)) for rank, text in zip(keys, found, strict=True)}}

    def _without_sign(self, most: int) -> Lost | None:
        allowed = {rank: most * (1 if at.number else PATIENCE) for rank, at in self._seen.items() if at.number >= 0}
        ranks = [rank for rank, looks in allowed.items() if self._silent[rank] >= looks]
        seconds = self._every * max((allowed[rank] for rank in ranks), default=0)
        why = "a process died or was stopped, or a node cannot be reached."
        return self._lost(ranks, f"Nothing is heard of {{}} for {seconds:.0f} seconds: {why}")

    def _behind(self) -> Lost | None:
        """Those that all others wait for. Where all wait, none is known to be at fault, and that is left to others."""
        there = {rank: at for rank, at in self._seen.items() if at.number > 0}
        least = min((at.marks for at in there.values()), default=0)
        allowed = {rank: self.most * (PATIENCE if at.patient else 1) for rank, at in there.items() if at.marks == least}
        ranks = [rank for rank, looks in allowed.items() if self._waited[rank] >= looks]
        seconds = self._every * max((allowed[rank] for rank in ranks), default=0)
        slow = "If nothing hangs there, raise callbacks.ranks.hang_seconds."
        return self._lost(ranks, f"The others wait for {{}} for {seconds:.0f} seconds. {slow}")

    def _lost(self, ranks: list[int], why: str) -> Lost | None:
        told = (f"rank {rank} ({self._seen[rank].where or 'not started'}{self._did(rank)})" for rank in ranks)
        return Lost(ranks, why.format(listed(told, 8))) if ranks else None

    def _did(self, rank: int) -> str:
        sign = self._seen[rank]
        return f"; after step {sign.step} it began to {sign.doing}" if sign.doing else ""

    def _key(self, of: int | str) -> str:
        return f"cellcohort/{self._start}/sign/{of}"


class WatchRanks(Checkpoint):  # which is called after all callbacks that are none
    """End a training in several processes when one of them died or hangs, and name it.

    Without this, ranks that wait for another one do so for half an hour. A thread of every rank tells the others that
    it lives, and the last place of the training loop that the rank passed. It ends the process, whatever that waits
    for, when a rank gives no sign of life or does not go on while others wait for it. torchrun then ends the launch,
    or starts it again (``--max-restarts``).

    Parameters
    ----------
    run_dir : path
        The run directory.
    hang_seconds : float, optional
        How long all may wait for one rank within a step; ten times as long in the first step, in a validation and for
        a checkpoint. null: do not watch.

    Notes
    -----
    A mark tells that all other callbacks have done their part, so that one that hangs is found too. Where all ranks
    wait in the same operation, none is known to be at fault; the time-out of the process group ends that.
    """

    def __init__(
        self, run_dir: str | os.PathLike[str], hang_seconds: Annotated[float, Field(gt=0)] | None = 45.0
    ) -> None:
        self._directory, self._seconds = Path(run_dir), hang_seconds
        self._watch: RankWatch | None = None

    @override
    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Begin to watch."""
        self._launch = Launch.here()
        if self._launch.world_size == 1 or self._seconds is None:
            return
        self._every, self._first = min(1.0, self._seconds / 15), trainer.global_step
        self._watch = RankWatch(self._launch, launch_store(), self._seconds, self._every)
        self._mark(trainer, "train", patient=True)
        self._over, self._thread = threading.Event(), threading.Thread(target=self._look, name="ranks", daemon=True)
        self._thread.start()

    @override
    def on_train_batch_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Mark that a batch was read."""
        self._mark(trainer, "compute the loss")

    @override
    def on_before_backward(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, loss: Any) -> None:
        """Mark that the loss is computed."""
        self._mark(trainer, "compute gradients")

    @override
    def on_before_optimizer_step(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, optimizer: Any
    ) -> None:
        """Mark that the gradients are those of all ranks."""
        self._mark(trainer, "change the weights")

    @override
    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Mark that the step is done; at the end of an epoch others than the next batch may follow."""
        self._mark(trainer, "read the next batch", patient=trainer.is_last_batch)

    @override
    def on_validation_batch_start(
        self,
        trainer: lightning.Trainer,
        pl_module: lightning.LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Mark that a batch of a validation was read."""
        self._mark(trainer, "validate", patient=True)

    @override
    def on_validation_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Mark the end of a validation."""
        self._mark(trainer, "end a validation", patient=True)

    @override
    def on_save_checkpoint(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Mark that a checkpoint is written."""
        self._mark(trainer, "write a checkpoint", patient=True)

    @override
    def on_fit_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """End the watch: what follows, rank 0 does alone."""
        self._leave()

    def tell(self, exception: BaseException) -> None:
        """End the watch after an error; where an operation of all ranks failed, put down which rank was lost."""
        if isinstance(exception, signals.Stopped):
            self._leave()
        if self._watch is None or self._over.is_set():
            return
        self._stop()
        said = f"{type(exception).__name__} {exception}"
        if not isinstance(exception, RuntimeError) or not OF_A_COLLECTIVE.search(said):
            return
        with suppress(RuntimeError):  # of the store, which ends with torchrun
            for _ in range(2 * QUICK):
                time.sleep(self._every)
                self._watch.sign()
                if lost := self._watch.look(QUICK):
                    exception.lost_ranks = self._text(lost)  # type: ignore[attr-defined]
                    exception.tells = self._launch.rank == lost.teller  # type: ignore[attr-defined]
                    return

    def _leave(self) -> None:
        """End the watch, and tell others not to wait for a sign."""
        if self._watch is not None and not self._over.is_set():
            self._stop()
            with suppress(RuntimeError):  # of the store, which ends with torchrun
                self._watch.sign(last=True)

    def _mark(self, trainer: lightning.Trainer, doing: str, patient: bool = False) -> None:
        if self._watch is not None and not trainer.sanity_checking:
            step = trainer.global_step
            self._watch.mark(doing, step, patient or step == self._first)

    def _stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        """Give a sign and look for those of others, again and again, until a rank is lost; the thread does this."""
        watch, lost, unreachable = self._watch, None, 0
        while watch is not None and lost is None:
            if self._over.wait(self._every):
                return
            try:
                watch.sign()
                lost, unreachable = watch.look(), 0
            except RuntimeError:  # of the store, which torchrun keeps where rank 0 runs
                unreachable += 1
                if unreachable >= watch.most:
                    lost = Lost((0,), "The node of rank 0 cannot be reached.")
        if lost is not None:
            self._end(lost)

    def _end(self, lost: Lost) -> None:
        """Tell what is lost, and end this process, whose main thread waits in an operation that cannot be stopped."""
        text = self._text(lost)
        if self._launch.rank == lost.teller:
            print(f"error: {text}", file=sys.stderr, flush=True)
        with suppress(OSError):
            (self._directory / f"error-rank{self._launch.rank}.txt").write_text(text, encoding="utf-8")
            tell_torchrun(text)
        if self._launch.rank == 0:
            time.sleep(3 * self._every)  # so that others find what this rank found before torchrun ends them
        os._exit(1)

    def _text(self, lost: Lost) -> str:
        return f"{lost.why} Run directory: {self._directory}. {how_to_go_on(self._directory)}"
