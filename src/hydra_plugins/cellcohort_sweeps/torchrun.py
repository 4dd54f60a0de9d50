"""A launcher that starts each job of a sweep in several processes, by torchrun."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, override

from hydra.core.utils import JobReturn, JobStatus, setup_globals
from hydra.errors import CompactHydraException
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

from cellcohort.messages import quoted
from cellcohort.runtime import signals
from cellcohort.runtime.outcomes import NotStartedError, Outcomes, cause_of, typed

OF_THE_SWEEP = ("hydra/launcher", "hydra.launcher", "hydra/sweeper", "hydra.sweeper", "hydra.sweep", "hydra.mode")


class TorchrunLauncher(Launcher):
    """Run the jobs of a sweep one after the other, each under a torchrun of its own.

    Every job is a new launch with a port of its own, and all its processes have ended before the
    next begins, also if one of them failed.

    Parameters
    ----------
    nproc_per_node : int or str
        Processes of a job, as torchrun takes it: a number, or "gpu" for one per GPU.

    Raises
    ------
    ValueError
        `nproc_per_node` is less than 1.
    """

    def __init__(self, nproc_per_node: int | str = 2) -> None:
        if isinstance(nproc_per_node, int) and nproc_per_node < 1:
            raise ValueError(f"nproc_per_node={nproc_per_node} starts no process; use 1 or more, or 'gpu'.")
        self.nproc_per_node = nproc_per_node
        self.config: Any = None
        self.hydra_context: Any = None

    @property
    def world_size(self) -> int:
        """Processes of a job, as a number.

        Raises
        ------
        CompactHydraException
            `nproc_per_node` is no number that torchrun can tell here.
        """
        if isinstance(self.nproc_per_node, int):
            return self.nproc_per_node
        from torch.distributed.run import determine_local_world_size  # here, since Hydra reads this file at every start

        try:
            return int(determine_local_world_size(self.nproc_per_node))
        except ValueError as error:
            raise CompactHydraException(
                f"hydra.launcher.nproc_per_node={self.nproc_per_node}: {error} Give a number."
            ) from error

    @override
    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Take what Hydra gives; the task itself is what the script runs when torchrun starts it."""
        self.config, self.hydra_context = config, hydra_context

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> list[JobReturn]:
        """Run the jobs; a job whose processes end with an error is returned as failed."""
        setup_globals()
        results = []
        for i, overrides in enumerate(job_overrides):
            if signals.received() is None:
                results.append(self._run(list(overrides), initial_job_idx + i))
        return results

    def _run(self, overrides: list[str], number: int) -> JobReturn:
        config = self.hydra_context.config_loader.load_sweep_config(self.config, overrides)
        with open_dict(config):
            config.hydra.job.id = config.hydra.job.num = number
        directory = Path(config.hydra.sweep.dir) / str(OmegaConf.select(config, "hydra.sweep.subdir"))
        mine = [override for override in config.hydra.overrides.hydra if not override.startswith(OF_THE_SWEEP)]
        outcomes, options = Outcomes(Path(config.hydra.sweep.dir)), typed(config.hydra.overrides.task)
        result = JobReturn(list(config.hydra.overrides.task), status=JobStatus.COMPLETED)
        try:
            outcomes.check(options)
        except NotStartedError as refused:
            result.status, result.return_value = JobStatus.FAILED, refused
            return result
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={self.nproc_per_node}", sys.argv[0], *config.hydra.overrides.task, *mine]
        command += [f"hydra.run.dir={quoted(directory)}", "hydra.mode=RUN"]
        code = subprocess.run(command, start_new_session=True).returncode  # Ctrl-C reaches it by the sweeper alone
        cause = ""
        if code:
            error = RuntimeError(f"torchrun ended with exit code {code}")
            result.status, result.return_value, cause = JobStatus.FAILED, error, cause_of(error, directory)
        outcomes.add(options, cause)
        return result
