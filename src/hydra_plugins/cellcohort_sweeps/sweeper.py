"""A sweep that can be started again: it skips what is finished, and names what failed."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import CompactHydraException, ConfigCompositionException
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

from cellcohort.files import locked, short_name
from cellcohort.messages import listed, several
from cellcohort.runtime import signals
from cellcohort.runtime.outcomes import Checked, FreeMemory, NotStartedError, Outcomes, cause_of, said, tracebacks
from cellcohort.runtime.restart import command
from cellcohort.runtime.run_directory import FINISHED, LONGEST_NAME, check_name, digest, finished, set_aside

NAMED_ANYWAY = ("sampler", "batch_sampler", "seed", "run_name")  # a run name tells them without being asked
LONGEST_VALUE = 40  # bytes


class Job(NamedTuple):  # no dataclass: Hydra runs this module without entering it in sys.modules
    """A job of a sweep: its name, which is also that of its directory, its overrides and the digest of its options."""

    name: str
    overrides: list[str]
    digest: str


class ResumableSweeper(Sweeper):
    """All combinations of choices, as Hydra's own sweeper takes them, over a directory that can be gone on with.

    Jobs are called by their run name and the options that vary, and their directories likewise.
    Started again with the same ``hydra.sweep.dir``, a sweep skips the jobs that are finished there,
    whatever their place in it; what another start left unfinished is moved to ``unfinished/`` and
    done again. All jobs are one W&B group, by ``WANDB_RUN_GROUP`` unless that is set. A job that
    fails does not keep others from running, unless two in a row fail for one cause that the others would meet too
    (see :class:`~cellcohort.runtime.outcomes.Outcomes`); at the end all that
    failed are named and the exit code is 1. A signal stops the job in hand, and no other begins.

    Parameters
    ----------
    params : mapping of str to object, optional
        Choices to sweep over, as on the command line.
    """

    def __init__(self, params: Mapping[str, Any] | None = None) -> None:
        self.params = dict(params or {})
        self.config: Any = None
        self.launcher: Any = None
        self.hydra_context: Any = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Take what Hydra gives, and make the launcher."""
        self.hydra_context, self.config = hydra_context, config
        hydra_context.callbacks.callbacks.insert(0, FreeMemory())  # after those of the user, as the last is asked first
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=Checked(task_function), config=config
        )

    def sweep(self, arguments: list[str]) -> list[Sequence[JobReturn]]:
        """Run the jobs that are not finished.

        Raises
        ------
        CompactHydraException
            Jobs failed; jobs would share a directory, or have one that holds a finished job of other options;
            finished jobs ran in another number of processes; the launcher would start each job several times; or
            the sweep is running already.
        """
        _refuse_several_tasks(self.config)
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        params = [f"{key}={value}" for key, value in self.params.items()]
        jobs = self._jobs(combinations(parser.parse_overrides([*params, *arguments])))
        directory = Path(self.config.hydra.sweep.dir)
        directory.mkdir(parents=True, exist_ok=True)
        with _alone(directory), _wandb_group(directory.name):
            OmegaConf.save(self.config, directory / "multirun.yaml")
            waiting = _unfinished(jobs, directory, getattr(self.launcher, "world_size", 1))
            print(
                f"sweep: {directory} ({several(len(jobs), 'job')}, {len(jobs) - len(waiting)} finished before)",
                flush=True,
            )
            if not waiting:
                print(_end(directory, len(jobs), {}))
                return []
            outcomes = Outcomes(directory)
            outcomes.forget()
            try:
                results, failed = launched(self.launcher, waiting, directory)
            except signals.Stopped as stopped:
                stopped.how_to_go_on = f"To go on: {command(**{'hydra.sweep.dir': directory})}"
                raise
            finally:
                outcomes.forget()
        print(_end(directory, len(jobs), failed), flush=True)
        if failed:
            raise CompactHydraException(_report(failed, directory, len(waiting)))
        return [results]

    def _jobs(self, choices: Sequence[Sequence[str]]) -> list[Job]:
        """Name the jobs; this composes their configs, so that a wrong option is told before anything runs."""
        loader = self.hydra_context.config_loader
        told = [dict(override.split("=", 1) for override in choice) for choice in choices]
        differ = [key for key in told[0] if len({each[key] for each in told}) > 1]
        varying = [key for key in differ if key not in NAMED_ANYWAY]
        jobs: list[Job] = []
        for choice, values in zip(choices, told, strict=True):
            try:
                config = loader.load_sweep_config(self.config, list(choice))
            except Exception as error:
                wrong = ConfigCompositionException(str(error))
                if differ:
                    wrong.add_note(_of_job({key: values[key] for key in differ}))
                raise wrong from error.__cause__ or error
            check_name(config.run_name)
            parts = [str(config.run_name), *(f"{key.split('.')[-1]}{_safe(values[key])}" for key in varying)]
            name = short_name("-".join(parts), LONGEST_NAME)
            with open_dict(config):
                del config["hydra"]
            own = [*(override for override in choice if not override.startswith("run_name=")), f"run_name={name}"]
            jobs.append(Job(name, [*own, f"hydra.sweep.subdir={name}"], digest(config)))
        names = [job.name for job in jobs]
        if doubled := sorted({name for name in names if names.count(name) > 1}):
            raise CompactHydraException(
                f"several jobs of the sweep are called {', '.join(doubled)}, and would share a directory; give "
                "run_name what tells them apart, such as 'run_name=\"${strategy:${sampler}}-s${seed}-again\"'."
            )
        return jobs


def combinations(overrides: Sequence[Override]) -> list[list[str]]:
    """Every combination of the choices of a command line, each as a list of overrides.

    Raises
    ------
    CompactHydraException
        An option is an interval, which has no list of values.
    """
    choices: dict[str, list[str]] = {}
    for override in overrides:
        key = override.get_key_element()
        if not override.is_sweep_override():
            choices[key] = [f"{key}={override.get_value_element_as_str()}"]
        elif override.is_discrete_sweep():
            choices[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
        else:
            raise CompactHydraException(
                f"{override.input_line} is an interval; give the values to sweep over: {key}=<value>,<value>."
            )
    return [list(each) for each in itertools.product(*choices.values())]


def _of_job(values: Mapping[str, str]) -> str:
    """Return which job of a sweep a wrong option was told of, and what to do where only some strategies have it."""
    said = f"This is said of the job {shlex.join(f'{key}={value}' for key, value in values.items())}."
    if not {"sampler", "batch_sampler"} & set(values):
        return said
    return (
        f"{said} An option is given to every job of a sweep; for one that only some strategies have, start two sweeps, "
        "with and without it, and compare both: scripts/compare.py <sweep> <sweep>."
    )


def _refuse_several_tasks(config: DictConfig) -> None:
    """Refuse a launcher that would start each job several times, all in one directory."""
    nodes, tasks = (OmegaConf.select(config, f"hydra.launcher.{name}") or 1 for name in ("nodes", "tasks_per_node"))
    if nodes * tasks > 1:
        raise CompactHydraException(
            f"hydra.launcher.nodes={nodes} and hydra.launcher.tasks_per_node={tasks} would start each job "
            f"{nodes * tasks} times in one directory, and not as the ranks of one training. Leave both at 1; for a "
            f"training in {tasks} processes use hydra/launcher=torchrun hydra.launcher.nproc_per_node={tasks}."
        )


@contextmanager
def _signals_forwarded(launcher: Any) -> Iterator[None]:
    """Let processes that a launcher started save what they do when a signal stops the sweep, and wait for them."""
    waits = any(name in type(launcher).__module__ for name in ("joblib", "cellcohort_sweeps"))
    with signals.deferred(_to_children) if waits else nullcontext():
        yield


def _to_children(number: int) -> None:
    import psutil  # here, since Hydra reads this file at every start

    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            child.send_signal(number)


def launched(
    launcher: Any, jobs: Sequence[Job], directory: Path
) -> tuple[list[JobReturn], dict[str, BaseException]]:  # fmt: skip
    """Run jobs; where a process dies and takes others with it, these are given to the launcher again.

    Jobs that had not begun are run as before. Of several that ran when it happened none is known to
    be at fault, so that each is done again by itself.

    Returns
    -------
    results : list of JobReturn
    failed : dict of str to BaseException
        The errors of the jobs that failed, by name.
    """
    results: list[JobReturn] = []
    failed: dict[str, BaseException] = {}
    try:
        with _lost_jobs_returned(), _signals_forwarded(launcher):
            results = list(launcher.launch([job.overrides for job in jobs], initial_job_idx=0))
    except Exception as error:
        begun = [job for job in jobs if (directory / job.name / "config.yaml").exists()]
        lost = [job for job in begun if not finished(directory / job.name)]
        if not begun or len(jobs) == 1:
            return results, {job.name: error for job in jobs}
        if len(lost) == 1:
            failed[lost.pop().name] = error
        for job in lost:
            set_aside(directory / job.name)
        for group in filter(None, [[job for job in jobs if job not in begun], *([job] for job in lost)]):
            done, worse = launched(launcher, group, directory)
            results, failed = results + done, failed | worse
        return results, failed
    for job, result in zip(jobs, results, strict=True):
        if result.status is JobStatus.FAILED:
            failed[job.name] = result._return_value  # `return_value` would print all overrides, and raise it
            if isinstance(result._return_value, NotStartedError):
                with suppress(OSError):
                    (directory / job.name).rmdir()  # which Hydra made
    return results, failed


@contextmanager
def _lost_jobs_returned() -> Iterator[None]:
    """Let submitit return the error of a job that a cluster killed, where it would raise it.

    Hydra's launcher asks one job after the other for its result, so that the first error would end
    the sweep while later jobs still run.
    """
    if not find_spec("submitit"):  # it comes with the extra for clusters
        yield
        return
    import submitit  # here, since Hydra reads this file at every start

    raising = submitit.Job.results

    def results(job: Any) -> list[Any]:
        try:
            return list(raising(job))
        except Exception as error:
            return [JobReturn(status=JobStatus.FAILED, _return_value=error)]

    submitit.Job.results = results  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        submitit.Job.results = raising  # type: ignore[method-assign]


def _safe(value: str) -> str:
    """Return a value as part of a file name and a command line; a long one is cut and ends in a digest."""
    return short_name(re.sub(r"[^A-Za-z0-9.+-]+", "_", value).strip("_"), LONGEST_VALUE, value)


def _unfinished(jobs: Sequence[Job], directory: Path, world_size: int) -> list[Job]:
    """Return the jobs that have still to be run; their directories are cleared of what an earlier start left."""
    ended = {found: path.parent.name for path in directory.glob(f"*/{FINISHED}") if (found := finished(path.parent))}
    waiting = [job for job in jobs if job.digest not in ended]
    taken = [job.name for job in waiting if job.name in ended.values()]
    if taken:
        raise CompactHydraException(
            f"{directory} holds finished jobs of the same name but other options, or of another version: "
            f"{', '.join(taken)}; choose another hydra.sweep.dir."
        )
    if waiting:
        _refuse_other_world_size(directory, sorted(ended.values()), world_size)
    for job in waiting:
        if (directory / job.name / "config.yaml").exists():
            set_aside(directory / job.name)
    return waiting


def _refuse_other_world_size(directory: Path, finished: Sequence[str], world_size: int) -> None:
    """Keep jobs of other numbers of processes out of one sweep: their steps hold other numbers of cells."""
    from cellcohort.composition.log import read_about  # here, since Hydra reads this file at every start

    by_size: dict[int, list[str]] = {}
    for name in finished:
        with suppress(FileNotFoundError):  # a job whose composition was not kept
            by_size.setdefault(read_about(directory / name)["world_size"], []).append(name)
    for size, names in by_size.items():
        if size != world_size:
            torchrun = f"hydra/launcher=torchrun hydra.launcher.nproc_per_node={size}"
            as_before = f"with {torchrun}" if size > 1 else "without hydra/launcher=torchrun"
            raise CompactHydraException(
                f"{directory} holds finished jobs of world size {size} ({listed(names, 5)}), and this would add some "
                f"of world size {world_size}, whose steps hold another number of cells: the two cannot be compared. "
                f"Go on as it was begun, {as_before}, or choose another hydra.sweep.dir."
            )


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Keep a sweep from being started again while it runs; the system lets go of the lock however it ends."""
    with locked(directory / ".lock") as alone:
        if not alone:
            raise CompactHydraException(
                f"the sweep in {directory} is running already; wait for its end, or choose another hydra.sweep.dir."
            )
        yield


@contextmanager
def _wandb_group(name: str) -> Iterator[None]:
    """Let W&B runs of this process, and of those that it starts, be of one group."""
    before = os.environ.get("WANDB_RUN_GROUP")
    os.environ["WANDB_RUN_GROUP"] = before or name
    try:
        yield
    finally:
        if before is None:
            del os.environ["WANDB_RUN_GROUP"]


def _by_cause(failed: Mapping[str, BaseException], directory: Path) -> list[list[str]]:
    """Return the names of failed jobs, those that failed for one cause together."""
    found: dict[str, list[str]] = {}
    for name, error in failed.items():
        found.setdefault(cause_of(error, directory / name), []).append(name)
    return list(found.values())


def _end(directory: Path, n_jobs: int, failed: Mapping[str, BaseException]) -> str:
    """Return the last line of a sweep: where it is, how its jobs ended, and what compares those that have scores."""
    skipped = sum(isinstance(error, NotStartedError) for error in failed.values())
    numbers = {"failed": len(failed) - skipped, "not started": skipped}
    ends = [f"{n_jobs - len(failed)} of {several(n_jobs, 'job')} finished"]
    ends += [f"{n} {how}" for how, n in numbers.items() if n]
    compare = ["python", str(Path(sys.argv[0]).with_name("compare.py")), str(directory)]
    remedy = f"; to compare them: {shlex.join(compare)}" if any(directory.glob("*/scores.csv")) else ""
    return f"sweep: {directory} ({', '.join(ends)}){remedy}"


def _report(failed: Mapping[str, BaseException], directory: Path, n_jobs: int) -> str:
    skipped = {name: str(error) for name, error in failed.items() if isinstance(error, NotStartedError)}
    failed = {name: error for name, error in failed.items() if name not in skipped}
    causes = _by_cause(failed, directory)
    tell = []
    for names in causes:
        tell.append(f"  {listed(names, 5)}: {said(failed[names[0]])}")
        tell += [f"    traceback: {kept}" for kept in tracebacks(directory / names[0])[:1]]
    if len(causes) == 1 and len(failed) > 1 and len(failed) == n_jobs - len(skipped):
        rest = f" The other {several(len(skipped), 'job')} were not started." if skipped else ""
        return "\n".join([f"all {several(len(failed), 'job')} that were run failed for one cause.{rest}", *tell])
    for reason in dict.fromkeys(skipped.values()):
        names = [name for name in skipped if skipped[name] == reason]
        tell.append(f"{several(len(names), 'job')} not started, since {reason} for one cause: {listed(names, 5)}")
    again = f"To run only these again: {command(**{'hydra.sweep.dir': directory})}"
    return "\n".join([f"{len(failed)} of {several(n_jobs, 'job')} failed:", *tell, again])
