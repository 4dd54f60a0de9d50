"""A run: its directory, its loggers, and a clean end whatever happens."""

from __future__ import annotations

import hashlib
import os
import secrets
import sys
import traceback
import warnings
from collections.abc import Mapping
from datetime import datetime
from importlib.metadata import version
from inspect import signature
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf

from cellcohort.runtime.cli import refuse_unread
from cellcohort.runtime.distributed import Launch
from cellcohort.runtime.wandb import finish_wandb, wandb_mode

if TYPE_CHECKING:
    from lightning import Callback
    from lightning.pytorch.loggers import Logger


FINISHED = "finished"  # file in a run directory whose job came to its end; holds the digest of its options


def digest(config: DictConfig) -> str:
    """What is equal for jobs that would do the same: a digest of the options, as they are before resolving them.

    The name of the run does not count, but the version of the package does.
    """
    options: Any = OmegaConf.to_container(config, resolve=False)
    text = OmegaConf.to_yaml({key: value for key, value in options.items() if key != "run_name"}, sort_keys=True)
    return hashlib.sha256(f"{version('cellcohort')}\n{text}".encode()).hexdigest()


SHORT = {"experiment_aware": "experiment", "track_capped": "track"}  # axes in the names of runs and strategies


def strategy(axes: Mapping[str, Any]) -> str:
    """The name of a sampling strategy: its axes in alphabetical order, or "random" if there is none."""
    return "-".join(sorted(SHORT.get(name, name) for name in axes)) or "random"


def set_aside(directory: Path) -> None:
    """Move what a job left unfinished to ``unfinished/`` beside its directory, so that it can be done again there."""
    aside = directory.parent / "unfinished"
    aside.mkdir(exist_ok=True)
    before = sum(path.name.rpartition("-")[0] == directory.name for path in aside.iterdir())
    directory.rename(aside / f"{directory.name}-{before + 1}")


def requeued() -> bool:
    """Whether this is a job of a sweep that SLURM stopped, as it does to let others go first, and now begins again."""
    return HydraConfig.get().mode == RunMode.MULTIRUN and int(os.environ.get("SLURM_RESTART_COUNT", "0")) > 0


def stamp() -> str:
    """A name that no other launch has and all ranks of this one share: ``<day>/<time>-<four characters>``."""
    return Launch.here().agree(lambda: f"{datetime.now():%Y-%m-%d/%H-%M-%S}-{secrets.token_hex(2)}")


OmegaConf.register_new_resolver("strategy", strategy, replace=True)
OmegaConf.register_new_resolver("stamp", stamp, use_cache=True, replace=True)
OmegaConf.register_new_resolver("wandb_mode", wandb_mode, replace=True)
OmegaConf.register_new_resolver("version", lambda: version("cellcohort"), replace=True)


class Run:
    """One job of a script, from its composed config to the line that says where its results are.

    Entering it writes ``config.yaml``, resolved, into the run directory. Leaving it finishes the W&B
    run with the right exit code, ends the process group and, if all went well, leaves the file
    ``finished`` and prints ``run: <directory>``; an error is kept in ``error-rank<rank>.txt``. Nothing
    is left over, so that jobs can follow each other in one process. A job of a sweep that SLURM stopped
    and begins again moves what it left to ``unfinished/`` of the sweep.

    Parameters
    ----------
    config : DictConfig
        The composed config of a job that Hydra runs.

    Attributes
    ----------
    directory : pathlib.Path
        Where everything goes; the same on every rank.
    rank, world_size : int
        The place of this process in its launch.

    Raises
    ------
    ValueError
        The directory holds a run already, or `resume` names no checkpoint of a run that can go on.
    FileNotFoundError
        `resume` names no file.
    """

    def __init__(self, config: DictConfig) -> None:
        launch, hydra = Launch.here(), HydraConfig.get()
        # Lightning 2.6 says this of itself with torch 2.15 and later; there is nothing to do for the user of a script
        warnings.filterwarnings("ignore", r".isinstance\(treespec, LeafSpec\)", FutureWarning)
        refuse_unread(config, hydra.overrides.task)
        if (resume := config.get("resume")) is not None:
            from cellcohort.runtime.checkpoints import check_checkpoint  # here, since it imports torch

            check_checkpoint(resume, config.trainer.get("max_epochs"))
        self.rank, self.world_size = launch.rank, launch.world_size
        self.directory = Path(hydra.runtime.output_dir)
        self._config, self._digest = config, digest(config)  # here, since making objects resolves some of the config

    def __enter__(self) -> Run:
        if self.rank == 0:
            if requeued() and not (self.directory / FINISHED).exists() and (self.directory / "config.yaml").exists():
                set_aside(self.directory)
                self.directory.mkdir()
            try:
                with open(self.directory / "config.yaml", "x", encoding="utf-8") as file:
                    file.write(OmegaConf.to_yaml(self._config, resolve=True))
            except FileExistsError:
                raise ValueError(
                    f"{self.directory} holds a run already; choose another hydra.run.dir, or leave it out: then every "
                    "run has a directory of its own."
                ) from None
        return self

    def loggers(self) -> list[Logger]:
        """Make the CSV logger, which writes ``metrics.csv``, and those of the config's `logger` group.

        The latter are told the resolved config and, as "strategy", the run name less the seed, to group runs by.
        """
        from lightning.pytorch.loggers import CSVLogger  # here, so that a mistyped command line is told at once

        nodes = dict(self._config.logger)
        with warnings.catch_warnings():  # the directory holds the config, and nothing that will be deleted
            warnings.filterwarnings("ignore", "Experiment logs directory")
            own = nodes.pop("csv", {"_target_": f"{CSVLogger.__module__}.CSVLogger", "name": None, "version": ""})
            csv = instantiate(own, save_dir=str(self.directory))
            _ = csv.experiment
        others: list[Logger] = [instantiate(node, save_dir=str(self.directory)) for node in nodes.values()]
        resolved: Any = OmegaConf.to_container(self._config, resolve=True)
        group = str(self._config.run_name).replace(f"-s{self._config.seed}", "")
        for logger in others:
            logger.log_hyperparams({**resolved, "strategy": group})
        return [csv, *others]

    def callbacks(self, sampler: Any) -> list[Callback]:
        """Make the callbacks of the config's `callbacks` group, which also get those of these that they take by name.

        ``sampler`` (the batch sampler of the training), ``run_dir`` (the directory), ``dirpath`` (of its checkpoints).
        """
        from lightning.pytorch.callbacks import ProgressBar  # here, since a preview needs no Lightning

        from cellcohort.runtime.progress import EpochProgress

        offered = {"sampler": sampler, "run_dir": self.directory, "dirpath": self.directory / "checkpoints"}
        made: list[Callback] = []
        for node in self._config.callbacks.values():
            taken = signature(get_object(node._target_)).parameters
            made.append(instantiate(node, **{name: value for name, value in offered.items() if name in taken}))
        shows = self._config.trainer.get("enable_progress_bar", True)
        return made if not shows or any(isinstance(one, ProgressBar) for one in made) else [*made, EpochProgress()]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        finish_wandb(exit_code=int(kind is not None))
        alone = self.world_size == 1
        distributed = sys.modules.get("torch.distributed")  # not imported by a job that trains nothing
        if distributed and distributed.is_available() and distributed.is_initialized() and (kind is None or alone):
            distributed.destroy_process_group()  # after an error, other ranks may still wait for this one: just leave
        if error is not None:
            text = "".join(traceback.format_exception(error))
            kept = self.directory / f"error-rank{self.rank}.txt"
            kept.write_text(text, encoding="utf-8")
            error.add_note(f"traceback: {kept}")
        elif self.rank == 0:
            (self.directory / FINISHED).write_text(self._digest, encoding="utf-8")
            print(f"run: {self.directory}", flush=True)
