"""A run: its directory, its loggers, and a clean end whatever happens."""

from __future__ import annotations

import secrets
import sys
import traceback
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import datetime
from importlib.metadata import version
from inspect import signature
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf, open_dict

from cellcohort.extras import LIBRARIES, require
from cellcohort.files import fingerprint, full_disk_named, whole
from cellcohort.runtime import signals
from cellcohort.runtime.compilation import told
from cellcohort.runtime.distributed import Launch, check_choices, check_length
from cellcohort.runtime.options import check_input, check_kinds
from cellcohort.runtime.restart import how_to_go_on
from cellcohort.runtime.trackers import finish_trackers, wandb_mode
from cellcohort.runtime.unknown_keys import refuse_unread

if TYPE_CHECKING:
    from lightning import Callback
    from lightning.pytorch.loggers import Logger


FINISHED = "finished"  # file in a run directory whose job came to its end; holds the digest of its options
STOPPED = "stopped"  # file in a run directory whose job a signal stopped; holds how to go on
OF_THE_LAUNCH = ("resume", "continues", "run_name", "trainer.devices", "trainer.num_nodes")  # may differ in a restart


def digest(config: DictConfig) -> str:
    """Return what is equal for jobs that would do the same: a digest of the options, as they are before resolving them.

    The name of the run does not count, but the version of the package does.
    """
    options: Any = OmegaConf.to_container(config, resolve=False)
    text = OmegaConf.to_yaml({key: value for key, value in options.items() if key != "run_name"}, sort_keys=True)
    return fingerprint(f"{version('cellcohort')}\n{text}".encode(), digits=64)


SHORT = {"experiment_aware": "experiment", "track_capped": "track"}  # axes in the names of runs and strategies


BASELINES = "cellcohort.sampling.baselines."


def strategy(axes: Mapping[str, Any], sampler: str = "") -> str:
    """Return the name of a sampling strategy.

    Parameters
    ----------
    axes : mapping
        The axes, by name.
    sampler : str
        The class of the batch sampler, as ``_target_`` names it.

    Returns
    -------
    str
        The axes in alphabetical order, or "random" if there is none; for a sampler of another library the choice of
        ``batch_sampler``.
    """
    if sampler.startswith(BASELINES):
        return sampler.removeprefix(BASELINES).partition(".")[0]
    return "-".join(sorted(SHORT.get(name, name) for name in axes)) or "random"


def set_aside(directory: Path) -> Path:
    """Move what a job left unfinished to ``unfinished/`` beside its directory, so that it can be done again there.

    Returns
    -------
    pathlib.Path
        Where it is now.
    """
    aside = directory.parent / "unfinished"
    aside.mkdir(exist_ok=True)
    place = aside / f"{directory.name}-{len(_set_aside_before(directory)) + 1}"
    directory.rename(place)
    return place


def _set_aside_before(directory: Path) -> list[Path]:
    """Return what earlier starts of a job left, the newest last."""
    aside = directory.parent / "unfinished"
    every = aside.iterdir() if aside.is_dir() else ()
    own = [path for path in every if path.name.rpartition("-")[0] == directory.name]
    return sorted(own, key=lambda path: int(path.name.rpartition("-")[2]))


def stamp() -> str:
    """Return a name that no other launch has and all ranks of this one share: ``<day>/<time>-<four characters>``.

    A launch that torchrun restarts has the name of its first start.
    """
    return Launch.here().agree(lambda: f"{datetime.now():%Y-%m-%d/%H-%M-%S}-{secrets.token_hex(2)}", keep="stamp")


def each_fold(folds: Any) -> str:
    """Return the choices of a sweep over all folds, ``0,1,2,...``.

    Raises
    ------
    ValueError
        `folds` is not an integer of at least 2.
    """
    if not isinstance(folds, int) or folds < 2:
        raise ValueError(
            f"split.folds={folds} is not a number of folds; give as many as the data have experiments, such as "
            "split.folds=9."
        )
    return ",".join(map(str, range(folds)))


OmegaConf.register_new_resolver("each_fold", each_fold, replace=True)
OmegaConf.register_new_resolver("strategy", strategy, replace=True)
OmegaConf.register_new_resolver("stamp", stamp, use_cache=True, replace=True)
OmegaConf.register_new_resolver("wandb_mode", wandb_mode, replace=True)
OmegaConf.register_new_resolver("version", lambda: version("cellcohort"), replace=True)


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
            if self.rank == 0 and "batch_sampler" in self._config:
                stack.enter_context(told())
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
        begun = launch.restarts and _unfinished_run(self.directory)
        if begun and _same_options(self.directory, config) is not False:
            set_aside(self.directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        before = _set_aside_before(self.directory)[-1:]
        if before and (launch.restarts or (before[0] / STOPPED).exists()) and _same_options(before[0], config):
            from cellcohort.runtime.checkpoints import newest_whole  # here, since it imports torch

            if newest := newest_whole(before[0] / "checkpoints"):
                config.resume = str(newest)
                print(f"{self.directory} was begun before and goes on from {newest}.", flush=True)
            else:  # it may itself have gone on from another
                config.resume = _stored(before[0]).get("resume")
        if config.get("resume"):
            with open_dict(config):
                config.continues = _continued(Path(config.resume))
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

        from cellcohort.runtime.checkpoints import StopOnSignal
        from cellcohort.runtime.progress import EpochProgress
        from cellcohort.runtime.ranks import WatchRanks

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


def _unfinished_run(directory: Path) -> bool:
    return (directory / "config.yaml").exists() and not (directory / FINISHED).exists()


def _stored(directory: Path) -> Any:
    """Return the config of a run, or what there is of it."""
    try:
        return yaml.safe_load((directory / "config.yaml").read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return None


def _same_options(directory: Path, config: DictConfig) -> bool | None:
    """Whether the run of a directory has the options of this one, save those that a restart may change.

    None where its config was not written to the end.
    """
    stored = _stored(directory)
    if not isinstance(stored, dict):
        return None
    before = DictConfig(stored)
    now = DictConfig(OmegaConf.to_container(config, resolve=True))
    for key in OF_THE_LAUNCH:
        for each in (before, now):
            OmegaConf.update(each, key, None, force_add=True)
    return bool(before == now)


def _continued(checkpoint: Path) -> dict[str, Any]:
    """Of which run a run is the rest: its name, the id of its W&B run, and the step that it goes on from."""
    from cellcohort.runtime.checkpoints import read_checkpoint  # here, since it imports torch

    run = checkpoint.absolute().parents[1]
    ids = [path.name.rpartition("-")[2] for path in sorted(run.glob("wandb/*run-*-*")) if path.is_dir()]
    return {
        "run": run.name,
        "wandb": ids[-1] if ids else None,
        "step": int(read_checkpoint(checkpoint)["global_step"]),
    }
