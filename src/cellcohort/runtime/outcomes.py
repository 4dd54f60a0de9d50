"""How the jobs of a sweep ended, kept where all of them can read it, and whether another is worth starting."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, override

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from cellcohort.runtime.cli import bare

ENOUGH = 2  # jobs in a row that failed for one cause


class NotStartedError(RuntimeError):
    """A job was not started, since those before it failed for one cause that it would meet too."""


class Outcomes:
    """How the jobs of a sweep ended, in the order in which they did.

    Jobs run one after the other or beside each other, in other processes and on other machines that share the
    directory; each appends a line when it ends.

    Parameters
    ----------
    sweep : pathlib.Path
        The directory of the sweep.
    """

    def __init__(self, sweep: Path) -> None:
        self._file = sweep / ".outcomes"

    def forget(self) -> None:
        """Begin anew."""
        self._file.unlink(missing_ok=True)

    def add(self, options: Sequence[str], cause: str = "") -> None:
        """Keep how a job ended.

        Parameters
        ----------
        options : sequence of str
            What was typed for it, as ``key=value``.
        cause : str
            Why it failed, equal for jobs that failed for one cause; empty where it did not fail.
        """
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"options": list(options), "cause": cause}) + "\n")

    def check(self, options: Sequence[str]) -> None:
        """Refuse a job that would fail as those before it did.

        That is so where the last two or more jobs failed for one cause, and no job succeeded, or the new job has all
        options that those have in common.

        Parameters
        ----------
        options : sequence of str
            What was typed for it.

        Raises
        ------
        NotStartedError
            The options that the failed jobs have in common.
        """
        ended = [json.loads(line) for line in self._lines()]
        row: list[dict[str, Any]] = []
        for each in reversed(ended):
            if not each["cause"] or (row and each["cause"] != row[0]["cause"]):
                break
            row.append(each)
        if len(row) < ENOUGH:
            return
        common = [option for option in row[0]["options"] if all(option in each["options"] for each in row)]
        if all(each["cause"] for each in ended):
            raise NotStartedError("all jobs before it failed")
        if set(common) <= set(options):
            telling = [option for option in common if not all(option in each["options"] for each in ended)]
            raise NotStartedError(f"the last {len(row)} jobs{' with ' * bool(telling)}{' '.join(telling)} failed")

    def _lines(self) -> list[str]:
        try:
            return self._file.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []


class Checked:
    """What a job of a sweep runs, which is not begun where those before it failed for one cause.

    Parameters
    ----------
    task : callable
        The function of the script, which takes the config.
    """

    def __init__(self, task: Callable[[DictConfig], Any]) -> None:
        self._task = task

    def __call__(self, config: DictConfig) -> Any:
        """Run the job that Hydra has set up, and keep how it ended.

        Raises
        ------
        NotStartedError
            It would fail as those before it.
        """
        hydra = HydraConfig.get()
        outcomes, options = Outcomes(Path(hydra.sweep.dir)), typed(hydra.overrides.task)
        outcomes.check(options)
        try:
            result = self._task(config)
        except Exception as error:
            outcomes.add(options, cause_of(error, Path(hydra.runtime.output_dir)))
            raise
        outcomes.add(options)
        return result


class FreeMemory(Callback):
    """Free what a job of a sweep held, so that the next begins as it did.

    Hydra keeps the configs of every job, and the error of one that failed, to the end of the sweep. Trainer, module
    and data refer to each other, so that only a garbage collection frees them; Python would start one after dozens of
    jobs.
    """

    @override
    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        """Leave of the job its overrides, and how it ended."""
        job_return.cfg = job_return.hydra_cfg = None
        error = job_return._return_value if job_return.status is JobStatus.FAILED else None
        while error is not None and error.__traceback__ is not None:
            error.__traceback__ = None  # which refers to all local variables, such as cells and module
            error = error.__cause__ or error.__context__
        gc.collect()


def typed(overrides: Sequence[str]) -> list[str]:
    """Return the overrides of a job but for its name, which no other job has."""
    return [override for override in overrides if not override.startswith("run_name=")]


def said(error: BaseException) -> str:
    """Return the kind and the text of an error, in one line; of one of this package without what Hydra adds."""
    error = bare(error)
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def cause_of(error: BaseException, job: Path) -> str:
    """Return what is equal for jobs that failed for one cause: the error, and the end of the first traceback kept.

    Parameters
    ----------
    error : BaseException
    job : pathlib.Path
        The directory of the job.
    """
    end = ""
    if kept := tracebacks(job):
        end = kept[0].read_text(encoding="utf-8").rstrip().rpartition("\n")[2]
    return f"{said(error)} {end}".replace(job.name, "<job>")


def tracebacks(job: Path) -> list[Path]:
    """Return the tracebacks that the ranks of a job kept, the first, which is the cause, before others."""
    return sorted(filter(Path.is_file, job.glob("error-rank*.txt")), key=os.path.getmtime)
