"""A run: its directory, its loggers, and a clean end whatever happens."""

from __future__ import annotations

import sys
import traceback
import warnings
from contextlib import ExitStack
from inspect import signature
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf, open_dict

from cellcohort.extras import LIBRARIES, require
from cellcohort.files import full_disk_named, whole
from cellcohort.runtime import resolvers, signals
from cellcohort.runtime.distributed import Launch, check_choices, check_length
from cellcohort.runtime.options import check_input, check_kinds
from cellcohort.runtime.restart import how_to_go_on
from cellcohort.runtime.run_directory import (
    FINISHED,
    STOPPED,
    check_name,
    digest,
    rest_of,
    same_options,
    set_aside,
    set_aside_before,
    unfinished,
    written_config,
)
from cellcohort.runtime.trackers import finish_trackers
from cellcohort.runtime.unknown_keys import refuse_unread

if TYPE_CHECKING:
    from lightning import Callback
    from lightning.pytorch.loggers import Logger

resolvers.register()


class Run:
    """One job of a script, from its composed config to the line that says where its results are.

    Entering it writes ``config.yaml``, resolved, into the run directory. Leaving it finishes the W&B
    run with the right exit code, ends the process group and, if all went well, leaves the file
    ``finished`` and prints ``run: <directory>``; an error is kept in ``error-rank<rank>.txt``. Nothing
    is left over, so that jobs can follow each other in one process.

    A launch that torchrun or SLURM starts again, and a job of a sweep that a signal stopped, moves what the
    start before left to ``unfinished/`` beside its directory and goes on from the newest checkpoint there.

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
        An option is of the wrong kind or out of range, a table lacks a column, the directory holds a run already, or
        `resume` names no checkpoint of a run that can go on.
    FileNotFoundError
        `data.path` or `resume` names no file.
    """

    def __init__(self, config: DictConfig) -> None:
        launch, hydra = Launch.here(), HydraConfig.get()
        # Lightning 2.6 says this of itself with torch 2.15 and later; there is nothing to do for the user of a script
        warnings.filterwarnings("ignore", r".isinstance\(treespec, LeafSpec\)", FutureWarning)
        refuse_unread(config, hydra.overrides.task)
        check_name(config.run_name)
        self._config, self._digest = config, digest(config)  # here, since making objects resolves some of the config
        check_kinds(config)
        if "trainer" in config:
            check_length(config.trainer)
            check_choices(config.trainer)
        instantiate(config.get("sampler") or {})
        if "data" in config:
            check_input(config.data)
        if config.get("schedule") and "schedule" not in config.batch_sampler:
            raise ValueError(
                "schedule changes options of axes, which samplers of other libraries do not have; leave it out, or use "
                "batch_sampler=default."
            )
        if (resume := config.get("resume")) is not None:
            from cellcohort.runtime.checkpoints import check_checkpoint  # here, since it imports torch

            check_checkpoint(resume, config.trainer.get("max_epochs"))
        self.rank, self.world_size = launch.rank, launch.world_size
        self.directory = Path(hydra.runtime.output_dir)

    def __enter__(self) -> Run:
        with ExitStack() as stack:
            stack.enter_context(signals.stoppable(forget=False))  # a worker of a sweep has no handlers yet
            with full_disk_named(self.directory, "the run was not begun."):
                resume = Launch.here().agree(self._begin)
            Launch.here().renew_store()
            if resume:
                self._config.resume = resume
            self._stack = stack.pop_all()
        return self

    def _begin(self) -> str:
        """Write the config into the directory, on rank 0; gives the checkpoint that the run goes on from, or "" ."""
        launch, config = Launch.here(), self._config
        begun = launch.restarts and unfinished(self.directory)
        if begun and same_options(self.directory, config) is not False:
            set_aside(self.directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        before = set_aside_before(self.directory)[-1:]
        if before and (launch.restarts or (before[0] / STOPPED).exists()) and same_options(before[0], config):
            from cellcohort.runtime.checkpoint_files import newest_whole  # here, since it imports torch

            if newest := newest_whole(before[0] / "checkpoints"):
                config.resume = str(newest)
                print(f"{self.directory} was begun before and goes on from {newest}.", flush=True)
            else:  # it may itself have gone on from another
                config.resume = written_config(before[0]).get("resume")
        if config.get("resume"):
            with open_dict(config):
                config.continues = rest_of(Path(config.resume))
        try:
            with open(self.directory / "config.yaml", "x", encoding="utf-8") as file:
                file.write(OmegaConf.to_yaml(config, resolve=True))
        except FileExistsError:
            raise ValueError(
                f"{self.directory} holds a run already; choose another hydra.run.dir, or leave it out: then every "
                "run has a directory of its own."
            ) from None
        return str(config.get("resume") or "")

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
        for name in nodes:
            if name in LIBRARIES:  # the extra of a logger has its name
                require(name)
        others: list[Logger] = [_made(node, save_dir=str(self.directory)) for node in nodes.values()]
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
        from cellcohort.runtime.ranks import WatchRanks
        from cellcohort.runtime.stop_on_signal import StopOnSignal

        offered = {"sampler": sampler, "run_dir": self.directory, "dirpath": self.directory / "checkpoints"}
        made: list[Callback] = [StopOnSignal()]
        made += [_made(node, **offered) for node in self._config.callbacks.values()]
        made.sort(key=lambda one: isinstance(one, WatchRanks))  # last: it marks what all others have done
        shows = self._config.trainer.get("enable_progress_bar", True)
        return made if not shows or any(isinstance(one, ProgressBar) for one in made) else [*made, EpochProgress()]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        code = 128 + error.signal if isinstance(error, signals.Stopped) else int(kind is not None)
        finish_trackers(exit_code=code)
        alone = self.world_size == 1
        distributed = sys.modules.get("torch.distributed")  # not imported by a job that trains nothing
        if distributed and distributed.is_available() and distributed.is_initialized() and (kind is None or alone):
            distributed.destroy_process_group()  # after an error, other ranks may still wait for this one: just leave
        self._stack.close()
        if isinstance(error, signals.Stopped):
            self._leave(error)
        elif error is not None:
            text = "".join(traceback.format_exception(error))
            kept = self.directory / f"error-rank{self.rank}.txt"
            try:
                if (batch := getattr(error, "batch", None)) is not None:
                    torch = sys.modules["torch"]
                    torch.save(batch, self.directory / f"batch-rank{self.rank}.pt")
                    error.add_note(f"The batch is kept: {self.directory / f'batch-rank{self.rank}.pt'}")
                kept.write_text(text, encoding="utf-8")
                error.add_note(f"traceback: {kept}")
            except OSError as worse:  # a full disk, which may be the error itself
                error.add_note(f"The traceback was not kept: {worse.strerror}. HYDRA_FULL_ERROR=1 prints it.")
            if isinstance(error, OSError):
                with full_disk_named(self.directory, "the run could not go on."):
                    raise error
        elif self.rank == 0:
            with whole(self.directory / FINISHED) as file:
                file.write_text(self._digest, encoding="utf-8")
            print(f"run: {self.directory}", flush=True)

    def _leave(self, stopped: signals.Stopped) -> None:
        """Tell how to go on after a signal; a worker of a sweep, whose process lives on, ends its job with an error."""
        stopped.how_to_go_on = how_to_go_on(self.directory)
        if self.rank == 0:
            with whole(self.directory / STOPPED) as file:
                file.write_text(stopped.how_to_go_on, encoding="utf-8")
        if not signals.handled():
            raise RuntimeError(f"{stopped}. {stopped.how_to_go_on}") from None


def _made(node: DictConfig, **offered: Any) -> Any:
    """Make the object of a config, which also gets those of the arguments offered that it takes by name."""
    taken = signature(get_object(node._target_)).parameters
    return instantiate(node, **{name: value for name, value in offered.items() if name in taken})
