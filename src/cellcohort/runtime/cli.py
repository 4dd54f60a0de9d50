"""A script's command line: what is wrong with it, in a few words, and what to type instead."""

from __future__ import annotations

import ast
import builtins
import gc
import json
import os
import re
import select
import shlex
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TextIO

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import (
    CompactHydraException,
    ConfigCompositionException,
    HydraException,
    InstantiationException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf.errors import (
    ConfigAttributeError,
    InterpolationResolutionError,
    MissingMandatoryValue,
)

from cellcohort.files import FORBIDDEN, NAMED, NO_SPACE, is_refused
from cellcohort.runtime import signals
from cellcohort.runtime.distributed import Launch
from cellcohort.runtime.unknown_keys import choices_of, not_in_config

QUOTES = (
    "Close every bracket, and put names that hold spaces, brackets, colons or commas in double quotes, within single "
    "ones for the shell: 'data.columns.features=[\"Area (px)\",speed]'. In the key of a mapping, write a backslash "
    "before each of these instead: 'data.merge_labels={condition:{drug\\ A:drug}}'."
)
_PACKAGE = Path(__file__).parents[1]
TOLD = (ValueError, OSError, RuntimeError)  # errors that are told in their own words where this package raised them
_WRAPPED = re.compile(
    r"Error in [^\n]*'?cellcohort\.[^\n]*\n(?P<kind>\w+)\((?P<given>.*)\)(\nfull_key: .*)?", re.DOTALL
)  # what Hydra makes of an error of a target of this package
FULL_ERROR, OURS = "HYDRA_FULL_ERROR", "CELLCOHORT_EXPLAINS_ERRORS"


def run_command(main: Callable[[], None], config_dir: Path) -> None:
    """Run a script's Hydra `main`; report a wrong command line, or a wrong input, in a few words.

    With ``HYDRA_FULL_ERROR=1`` the error is raised as it is.

    Parameters
    ----------
    main : callable
        What ``hydra.main`` makes of the script's function.
    config_dir : pathlib.Path
        The folder of the config groups.
    """
    launch = Launch.here()
    _put_flags_first()
    sweeps = any(a in ("-m", "--multirun") or a.startswith("sweep=") for a in sys.argv[1:])
    if launch.world_size > 1 and sweeps and "hydra.mode=RUN" not in sys.argv:
        own = [*sys.argv, "hydra/launcher=torchrun", f"hydra.launcher.nproc_per_node={launch.world_size}"]
        sys.exit(
            f"a sweep starts its jobs itself, but torchrun started {launch.world_size} processes. "
            f"Let the sweep start each job by torchrun: {shlex.join(['python', *own])}"
        )
    if sweeps:
        sys.argv[1:] = _of_each_job(sys.argv[1:])
    with _errors_raised() as full, _options_not_repeated(), _plain_warnings(), _rare_collections(), signals.stoppable():
        try:
            main()
            sys.stdout.flush()
        except signals.Stopped as stopped:
            _tell_stopped(stopped, launch)
            raise
        except BrokenPipeError:
            if not _nobody_reads():
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what is still in the buffer
            if not {"--help", "-h", "--cfg", "-c"} & set(sys.argv):
                print(
                    "stopped: nothing reads the output any more, as after `| head`. Write it to a file instead.",
                    file=sys.stderr,
                )
                sys.exit(1)
        except Exception as error:
            if lost := getattr(error, "lost_ranks", ""):  # this rank failed, or was stopped, since another one did
                tell_torchrun(lost)
                if getattr(error, "tells", False):
                    print(f"error: {lost}", *_notes(error), sep="\n", file=sys.stderr)
                sys.exit(1)
            if (signal := signals.received()) is not None:  # a library caught what the signal raised, and went on
                caught = signals.Stopped(signal)
                _tell_stopped(caught, launch)
                raise caught from error
            said = explain(error, config_dir)
            tell_torchrun(said or f"{type(error).__name__}: {error}")
            if full:
                raise
            if said is None:
                traceback.print_exception(error)
            else:
                print(said, *_notes(error), sep="\n", file=sys.stderr)
            sys.exit(1)


def _put_flags_first() -> None:
    """Let overrides stand on both sides of a flag: Hydra's parser would take only ``a=1`` of ``a=1 -m b=1,2``."""
    given = get_args_parser().parse_intermixed_args()
    flags = [word for word in sys.argv[1:] if word not in given.overrides]
    if flags[-1:] in (["--info"], ["-i"]):  # which would take the first override as its value
        flags.append(given.info)
    sys.argv[1:] = [*flags, *given.overrides]


def _of_each_job(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a sweep, in which options of a group that is swept are applied to each job alone.

    Hydra first composes a config without what is swept, where the default choice of a group may lack such an option.
    A value that is one of one choices is swept too. Hydra knows no choice of null, and takes quotes from a text in one.
    """
    parser = OverridesParser.create()
    parsed: dict[str, Override] = {}
    for argument in arguments:
        with suppress(HydraException):  # a flag, or what Hydra will refuse
            parsed[argument] = parser.parse_override(argument)
    groups = tuple(f"{one.key_or_group}." for one in parsed.values() if one.is_sweep_override())
    own = [name for name, one in parsed.items() if not one.is_sweep_override() and one.type is OverrideType.CHANGE]
    own = [name for name in own if name.startswith(groups) and not re.search("""=$|=null$|['"]""", name)]
    return [re.sub("=(.*)", r"=choice(\1)", name, count=1) if name in own else name for name in arguments]


def _nobody_reads() -> bool:
    """Whether the standard output is a pipe whose reader has closed it, as `head` does when it has seen enough."""
    poll = select.poll()
    poll.register(1, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _tell_stopped(stopped: signals.Stopped, launch: Launch) -> None:
    if launch.rank == 0:
        print(f"{stopped}. {stopped.how_to_go_on}", file=sys.stderr, flush=True)


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Print warnings of this package once and as a sentence, without the file and the line that issued them."""
    with warnings.catch_warnings():
        before, seen = warnings.showwarning, set[str]()

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            ours = category.__module__.startswith("cellcohort") or _PACKAGE in Path(filename).parents
            if file is not None or not ours or not issubclass(category, UserWarning):
                before(message, category, filename, lineno, file, line)
            elif str(message) not in seen:
                seen.add(str(message))
                print(f"warning: {message}", file=sys.stderr)

        warnings.showwarning = show
        yield


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Look for unreachable objects less often: imports make many objects that stay, and are a tenth faster so."""
    before = gc.get_threshold()
    gc.set_threshold(20_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def _errors_raised() -> Iterator[bool]:
    """Let Hydra raise errors, which it would print and end the process; gives whether the user asked for that too."""
    before = {name: os.environ.get(name) for name in (FULL_ERROR, OURS)}
    asked = before[FULL_ERROR] == "1" and before[OURS] is None  # not where a sweep handed its environment to a job
    os.environ[FULL_ERROR] = "1"
    if not asked:
        os.environ[OURS] = "1"
    try:
        yield asked
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _options_not_repeated() -> Iterator[None]:
    """Let Hydra raise the error of a job without printing all options, which were just typed."""
    printing: Any = JobReturn.return_value

    def value(job: JobReturn) -> Any:
        if job.status is JobStatus.FAILED:
            raise job._return_value
        return printing.fget(job)

    JobReturn.return_value = property(value, printing.fset)  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        JobReturn.return_value = printing  # type: ignore[method-assign]


def tell_torchrun(text: str) -> None:
    """Leave an error where torchrun looks for it, so that it ends with that instead of a page without it."""
    if file := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        more = {"py_callstack": text, "timestamp": str(int(time.time()))}
        Path(file).write_text(json.dumps({"message": {"message": text, "extraInfo": more}}), encoding="utf-8")


def explain(error: Exception, config_dir: Path) -> str | None:
    """Return an error of the user's in few words, and what there is instead; None where its traceback is needed."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group = Path(error.missing_cfg_file).parent
        if options := error.options or choices_of(
            config_dir / group
        ):  # Hydra gives none where one of a list is missing
            name = Path(error.missing_cfg_file).stem
            near = get_close_matches(name, options, 1)
            meant = f" Did you mean {group}={near[0]}?" if near else ""
            return f"{group} has no choice {name}.{meant} The choices of {group} are: {', '.join(options)}."
        return str(error)
    if told := _of_the_disk(error):
        return f"error: {told}"
    if isinstance(error, InstantiationException):
        cause = bare(error)
        if cause is not error:
            return f"error: {_text(cause)}"
        cause = _root(error)
        return str(error) if str(cause) in str(error) else f"{error}\n{type(cause).__name__}: {cause}"
    if isinstance(error, ConfigCompositionException):
        return not_in_config(error, config_dir) or f"{error}\n{error.__cause__ or ''}".rstrip()
    if isinstance(error, OverrideParseException):
        return f"error: Hydra cannot read the option {error.override}. {QUOTES}"
    if isinstance(error, CompactHydraException):
        return str(error)
    if isinstance(error, ConfigAttributeError) and (config_dir / str(error.full_key)).is_dir():  # as trainer=[]
        there = ", ".join(choices_of(config_dir / str(error.full_key)))
        return f"error: {error.full_key} is left out, but is needed. The choices of {error.full_key} are: {there}."
    if isinstance(error, InterpolationResolutionError | MissingMandatoryValue) or _is_of_hydra(error):
        return f"error: {error}"
    if _is_ours(error):
        return f"error: {_text(error)}"
    return None


def _of_the_disk(error: BaseException | None) -> str:
    """Return what was told of a full disk, or that a path is refused, be it the cause of other errors; else "" ."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in NO_SPACE and NAMED in str(error.strerror):
            return str(error.strerror)
        if isinstance(error, OSError) and is_refused(error):
            path = Path(os.fsdecode(error.filename)).absolute()
            remedy = "Change the rights of that place, or name" if error.errno in FORBIDDEN else "Name"
            return (
                f"{error.strerror}: {path}. {remedy} another: hydra.run.dir=<directory> for a run, data.path for "
                "simulated data, prepare.out for a store."
            )
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return ""


def bare(error: BaseException) -> BaseException:
    """Return the error of this package that Hydra wrapped in another, with its target and key; others as they are.

    Where a process handed the error on and the cause was lost, it is read from the text.
    """
    if not isinstance(error, InstantiationException):
        return error
    cause = error.__cause__
    while cause is not None:  # an error of this package may name one of a library as its cause
        if _is_ours(cause):
            return cause
        cause = cause.__cause__
    wrapped = _WRAPPED.fullmatch(str(error)) if error.__cause__ is None else None
    if wrapped is None:
        return error
    kind: Any = getattr(builtins, wrapped["kind"], None)
    try:
        given = ast.literal_eval(f"({wrapped['given']},)")
    except (SyntaxError, ValueError):
        return error
    return kind(*given) if isinstance(kind, type) and issubclass(kind, TOLD) else error


def _text(error: BaseException) -> str:
    """Return what an error says, without the number of one of the system whose text names its file."""
    own = isinstance(error, OSError) and error.filename is None and error.strerror
    return str(own or error)


def _root(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _is_ours(error: BaseException) -> bool:
    """Whether a line of this package or of a script raised it, not one of a library that they call."""
    return isinstance(error, TOLD) and _raised_by(error) in ("cellcohort", "__main__")


def _is_of_hydra(error: Exception) -> bool:
    """Whether Hydra refused what was typed in an error that is not one of its own."""
    return isinstance(error, ValueError) and _raised_by(error) == "hydra"


def _raised_by(error: BaseException) -> str:
    """Return the package of the line that raised an error; "" for one that was not raised."""
    frames = list(traceback.walk_tb(error.__traceback__))
    return str(frames[-1][0].f_globals["__name__"]).split(".")[0] if frames else ""


def _notes(error: BaseException | None) -> list[str]:
    """Return the notes of an error and of those that led to it."""
    if error is None:
        return []
    return [*getattr(error, "__notes__", []), *_notes(error.__cause__)]
