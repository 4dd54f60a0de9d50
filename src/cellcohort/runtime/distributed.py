"""Where this process stands among those that torchrun started, and what must hold before they train."""

from __future__ import annotations

import itertools
import os
import shlex
import socket
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from cellcohort.messages import listed, meant

_agreements = itertools.count()


@dataclass(frozen=True)
class Launch:
    """The place of this process in its launch.

    Attributes
    ----------
    rank, world_size : int
        This process and the number of processes that train together.
    """

    rank: int = 0
    world_size: int = 1

    @classmethod
    def here(cls) -> Launch:
        """Return the place that torchrun gave this process; the only process without torchrun."""
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            return cls()
        return cls(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))

    @property
    def nodes(self) -> int:
        """How many nodes torchrun started processes on."""
        return int(os.environ.get("GROUP_WORLD_SIZE", "1"))

    @property
    def restarts(self) -> int:
        """How often torchrun or SLURM started this launch again after it was stopped or had failed."""
        return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) + int(os.environ.get("SLURM_RESTART_COUNT", "0"))

    def agree(self, value: Callable[[], str], keep: str = "") -> str:
        """Return what `value` gives on rank 0, told to every rank; all ranks must call this equally often.

        Parameters
        ----------
        value : callable
        keep : str
            A name under which it is kept, so that a launch that torchrun restarts finds the same value.
        """
        if "TORCHELASTIC_RUN_ID" not in os.environ or (self.world_size == 1 and not keep):
            return value()
        key = f"cellcohort/{keep or self.start}/{next(_agreements)}"
        if self.rank == 0 and not (keep and launch_store().check([key])):
            launch_store().set(key, value())
        return str(launch_store().get(key).decode())

    def last_step(self, step: int | None) -> int | None:
        """Return the step after which all ranks stop, None if they go on; `step` is that of this rank, if it stops."""
        key = f"cellcohort/{self.start}/stop"
        if step is not None and not launch_store().check([key]):
            launch_store().set(key, str(step))
        return int(launch_store().get(key).decode()) if launch_store().check([key]) else None

    def renew_store(self) -> None:
        """Let the process group of a launch that torchrun restarted use a store of its own; all ranks must call this.

        torchrun keeps one store over its restarts. It still has the addresses of the processes that ended, and a rank
        that reads one of these waits for it without end.
        """
        if self.start != "0" and self.world_size > 1:
            port = self.agree(_free_port)
            os.environ.update(MASTER_PORT=port, TORCHELASTIC_USE_AGENT_STORE=str(False))

    @property
    def start(self) -> str:
        """Which start of the launch by torchrun this is, from "0"."""
        return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


@cache
def launch_store() -> Any:
    """Return the key-value store that torchrun keeps for its processes."""
    from torch.distributed.rendezvous import rendezvous  # here, so that a mistyped command line is told at once

    return next(rendezvous("env://"))[0]


def _free_port() -> str:
    with socket.create_server(("", 0)) as server:
        return str(server.getsockname()[1])


def go_on_alone() -> bool:
    """End the process group, and say whether this is rank 0: it goes on by itself, and others need not wait for it.

    All ranks must call this. A rank that leaves while another still works in the same group may hang,
    or be ended by the timeout of the group.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
    return Launch.here().rank == 0


def check(trainer: Any, module: Any, loader: Any) -> None:
    """Refuse, before the first batch, what would change the sequence of batches or train on none.

    Parameters
    ----------
    trainer : lightning.Trainer
        The trainer that is about to fit.
    module : ContrastiveModule
        What it is to fit.
    loader : torch.utils.data.DataLoader
        The training loader, whose `batch_sampler` is a :class:`cellcohort.sampling.BatchSampler`.

    Raises
    ------
    ValueError
        The option at fault, its value, and what to do.

    Warns
    -----
    UserWarning
        Negatives are gathered across ranks whose batches are built apart.
    """
    launch, asked = Launch.here(), trainer.num_devices * trainer.num_nodes
    if asked != launch.world_size:
        command = shlex.join(["torchrun", "--standalone", f"--nproc-per-node={trainer.num_devices}", *sys.argv])
        raise ValueError(
            f"trainer.devices={trainer.num_devices} and trainer.num_nodes={trainer.num_nodes} ask for {asked} "
            f"processes, but {launch.world_size} was started. Start them by torchrun, which sets both: {command}"
        )
    if trainer._accelerator_connector.use_distributed_sampler:
        raise ValueError(
            "trainer.use_distributed_sampler=true lets Lightning replace the batch sampler and lose what its axes ask; "
            "leave it false: the sampler gives each rank its own batches."
        )
    check_length(trainer)
    if not len(loader):
        raise ValueError(
            "no batch to train on: 0 batches per epoch. Use a smaller batch_sampler.batch_size or fewer processes."
        )
    check_place(trainer, loader)
    sampler = loader.batch_sampler
    gathers = getattr(module.objective, "gather", False) and trainer.world_size > 1
    if gathers and sampler.axes and sampler.scope == "rank":
        from cellcohort.sampling.baselines.base import Baseline  # here, since the launch needs no sampler

        remedy = "batch_sampler.scope=global lets them rule the union"
        if isinstance(sampler, Baseline):
            remedy = "with a sampler of another library only objective.gather=false keeps them apart"
        warnings.warn(
            "objective.gather=true takes negatives from all ranks, but with batch_sampler.scope=rank the axes rule "
            f"each rank's batch by itself; {remedy}.",
            stacklevel=2,
        )


def check_length(trainer: Any) -> None:
    """Refuse a training without a batch, and one that would repeat batches.

    Parameters
    ----------
    trainer : lightning.Trainer or DictConfig
        The trainer, or its options.

    Raises
    ------
    ValueError
        The option at fault, its value, and what to do.
    """
    if overfit := getattr(trainer, "overfit_batches", 0):
        raise ValueError(
            f"trainer.overfit_batches={overfit} would not repeat the same batches, since every epoch draws its own; "
            "leave it 0 and set trainer.limit_train_batches for short epochs."
        )
    for name in ("limit_train_batches", "max_epochs", "max_steps"):
        if getattr(trainer, name, None) == 0:
            raise ValueError(
                f"no batch to train on: trainer.{name}=0; it must be above 0"
                f"{', or -1 for no limit' if name != 'limit_train_batches' else ''}."
            )


def check_choices(trainer: Any) -> None:
    """Refuse an accelerator or a strategy that Lightning does not know.

    Parameters
    ----------
    trainer : DictConfig
        Options of the trainer.

    Raises
    ------
    ValueError
        The option, its value, and the choices.
    """
    usual = {"accelerator": ("auto", "cpu", "gpu", "cuda"), "strategy": ("auto", "ddp")}
    asked = {name: trainer.get(name) for name in usual}
    if not (rare := [name for name, value in asked.items() if isinstance(value, str) and value not in usual[name]]):
        return
    from lightning.pytorch.accelerators import AcceleratorRegistry  # here, since it takes seconds
    from lightning.pytorch.strategies import StrategyRegistry

    accelerators, strategies = AcceleratorRegistry.available_accelerators(), StrategyRegistry.available_strategies()
    for name in rare:
        known = sorted({"auto", *(("gpu", *accelerators) if name == "accelerator" else strategies)})
        typed = asked[name].lower() if name == "strategy" else asked[name]  # as Lightning takes them
        if typed not in known:
            hint = meant([asked[name]], known)
            raise ValueError(f"trainer.{name}={asked[name]!r} is not a choice. {hint}Use one of {listed(known)}.")


def check_place(trainer: Any, loader: Any) -> None:
    """Refuse a batch sampler that was made for another process than this one.

    Raises
    ------
    ValueError
        The place of the process, and the one that the sampler was made for.
    """
    sampler = loader.batch_sampler
    place = (trainer.global_rank, trainer.world_size)
    built = (getattr(sampler, "rank", None), getattr(sampler, "world_size", None))
    if place != built:
        raise ValueError(
            f"the batch sampler is a {type(sampler).__name__} for rank={built[0]} of world_size={built[1]}, but this "
            f"process is rank {place[0]} of {place[1]}; make it with rank={place[0]}, world_size={place[1]}."
        )
