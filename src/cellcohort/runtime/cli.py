"""A script's command line: what is wrong with it, in a few words, and what to type instead."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TextIO

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import (
    CompactHydraException,
    ConfigCompositionException,
    InstantiationException,
    MissingConfigException,
)
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    ConfigAttributeError,
    InterpolationResolutionError,
    MissingMandatoryValue,
    OmegaConfBaseException,
)

from cellcohort.files import NAMED, NO_SPACE, REFUSED
from cellcohort.runtime import signals
from cellcohort.runtime.distributed import Launch
from cellcohort.runtime.stored_config import AXES_OF_0_1

_PACKAGE = Path(__file__).parents[1]
_WRAPPED = re.compile(
    r"Error in [^\n]*'?cellcohort\.[^\n]*\n(?P<kind>ValueError|FileNotFoundError)\((?P<text>.*)\)(\nfull_key: .*)?",
    re.DOTALL,
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
    sweeps = any(a in ("-m", "--multirun") or a.startswith("sweep=") for a in sys.argv[1:])
    if launch.world_size > 1 and sweeps and "hydra.mode=RUN" not in sys.argv:
        own = [*sys.argv, "hydra/launcher=torchrun", f"hydra.launcher.nproc_per_node={launch.world_size}"]
        sys.exit(
            f"a sweep starts its jobs itself, but torchrun started {launch.world_size} processes. "
            f"Let the sweep start each job by torchrun: {shlex.join(['python', *own])}"
        )
    with _errors_raised() as full, _options_not_repeated(), _plain_warnings(), signals.stoppable():
        try:
            main()
            sys.stdout.flush()
        except signals.Stopped as stopped:
            _tell_stopped(stopped, launch)
            raise
        except BrokenPipeError:
            if not {"--help", "-h", "--cfg", "-c"} & set(sys.argv):
                raise
            # who reads has seen enough, as in `train.py --help | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
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
        if error.options:
            name = Path(error.missing_cfg_file).stem
            near = get_close_matches(name, error.options, 1)
            meant = f" Did you mean {group}={near[0]}?" if near else ""
            return f"{group} has no choice {name}.{meant} The choices of {group} are: {', '.join(error.options)}."
        return f"{error}\nThe choices of {group} are: {', '.join(_options_of(config_dir / group)) or 'none'}."
    if told := _of_the_disk(error):
        return f"error: {told}"
    if isinstance(error, InstantiationException):
        cause = bare(error)
        if cause is not error:
            return f"error: {cause}"
        cause = _root(error)
        return str(error) if str(cause) in str(error) else f"{error}\n{type(cause).__name__}: {cause}"
    if isinstance(error, ConfigCompositionException):
        return _not_in_config(error, config_dir) or f"{error}\n{error.__cause__ or ''}".rstrip()
    if isinstance(error, CompactHydraException):
        return str(error)
    if isinstance(error, ConfigAttributeError) and (config_dir / str(error.full_key)).is_dir():  # as trainer=[]
        there = ", ".join(_options_of(config_dir / str(error.full_key)))
        return f"error: {error.full_key} is left out, but is needed. The choices of {error.full_key} are: {there}."
    if isinstance(error, InterpolationResolutionError | MissingMandatoryValue) or _is_of_hydra(error):
        return f"error: {error}"
    if isinstance(error, ValueError | FileNotFoundError) and _is_ours(error):
        return f"error: {error}"
    return None


def _of_the_disk(error: BaseException | None) -> str:
    """Return what was told of a full disk, or that a path is refused, be it the cause of other errors; else "" ."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in NO_SPACE and NAMED in str(error.strerror):
            return str(error.strerror)
        if isinstance(error, OSError) and error.errno in REFUSED and error.filename:
            path = Path(os.fsdecode(error.filename)).absolute()
            return (
                f"{error.strerror}: {path}. Change the rights of that place, or name another: "
                "hydra.run.dir=<directory> for a run, data.path for simulated data, prepare.out for a store."
            )
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return ""


def bare(error: BaseException) -> BaseException:
    """Return the error of this package that Hydra wrapped in another, with its target and key; others as they are.

    Where a process handed the error on and the cause was lost, it is read from the text.
    """
    if not isinstance(error, InstantiationException):
        return error
    cause = _root(error)
    if isinstance(cause, ValueError | FileNotFoundError) and _is_ours(cause):
        return cause
    wrapped = _WRAPPED.fullmatch(str(error)) if cause is error else None
    if wrapped is None:
        return error
    try:
        text = ast.literal_eval(wrapped["text"])
    except (SyntaxError, ValueError):
        return error
    return {"ValueError": ValueError, "FileNotFoundError": FileNotFoundError}[wrapped["kind"]](text)


def _root(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _is_ours(error: BaseException) -> bool:
    """Whether a line of this package or of a script raised it, not one of a library that they call."""
    frames = list(traceback.walk_tb(error.__traceback__))
    if not frames:
        return False
    frame, _ = frames[-1]
    return str(frame.f_globals["__name__"]).split(".")[0] in ("cellcohort", "__main__")


def _is_of_hydra(error: Exception) -> bool:
    """Whether Hydra refused what was typed in an error that is not one of its own."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return isinstance(error, ValueError) and str(frame.f_globals["__name__"]).startswith("hydra.")


def _notes(error: BaseException | None) -> list[str]:
    """Return the notes of an error and of those that led to it."""
    if error is None:
        return []
    return [*getattr(error, "__notes__", []), *_notes(error.__cause__)]


def refuse_unread(config: DictConfig, overrides: Iterable[str]) -> None:
    """Refuse keys added by ``+key=value`` that nothing reads.

    A key is read where its node, or one above it, is made into an object (``_target_``), which judges
    its arguments itself, or where another value refers to it.

    Raises
    ------
    ValueError
        The key, and what is there.
    """
    text = OmegaConf.to_yaml(config)
    for override in overrides:
        if not override.startswith("+"):
            continue
        key = override.lstrip("+").split("=")[0]
        root, *below = key.split("@")[0].split(".")
        node, made = config.get(root), False
        for name in [*below, None]:
            made = made or (isinstance(node, DictConfig) and "_target_" in node)
            node = node.get(name) if name is not None and isinstance(node, DictConfig) else None
        if made or f"${{{key}}}" in text:
            continue
        if root == "sampler":
            (conf,) = (Path(it.path) for it in HydraConfig.get().runtime.config_sources if it.provider == "main")
            hint = _renamed(key, _choices_of_axes(conf), chosen=map(str, config.sampler))
            raise ValueError(f"{override!r} adds a key that nothing reads. {hint}")
        there = config.get(root)
        keys = [str(name) for name in (there if isinstance(there, DictConfig) and below else config)]
        raise ValueError(f"{override!r} adds a key that nothing reads; there are: {', '.join(keys)}.")


def _not_in_config(error: ConfigCompositionException, config_dir: Path) -> str | None:
    """Return what is not in the config, and what may have been meant; None if the error is of another kind."""
    if group := re.match(r"Could not override '(.+?)'\. No match in the defaults list", str(error)):
        script = Path(sys.argv[0])
        there = ", ".join(_groups(config_dir, script.stem)) or "none"
        return f"{script.name} has no group {group[1]}; its groups are: {there}."
    cause = error.__cause__
    if not (isinstance(cause, OmegaConfBaseException) and cause.full_key and isinstance(cause.parent_node, DictConfig)):
        return None
    node, (path, _, key) = cause.parent_node, str(cause.full_key).rpartition(".")
    keys = [str(name) for name in node if not str(name).startswith("_")]
    what = path or "the config"
    if path == "sampler":
        hints = [_renamed(_typed(f"sampler.{key}", error), _choices_of_axes(config_dir), chosen=keys)]
    else:
        below = _typed(str(cause.full_key), error).removeprefix(str(cause.full_key))
        hints = _meant(path, key, below, node, config_dir)
    return " ".join(
        [
            f"{what} has no key {key}.",
            *hints,
            f"The {'axes' if path == 'sampler' else 'keys'} of {what} are: {', '.join(keys) or 'none'}.",
            *_additional(cause.full_key, node),
        ]
    )


def _typed(key: str, error: ConfigCompositionException) -> str:
    """Return the key as it was typed, of which `key` is the first part that is not there."""
    found = re.search(rf"{re.escape(key)}[\w.]*", str(error))
    return found[0] if found else key


def _renamed(key: str, axes: dict[str, list[str]], chosen: Iterable[str] = ()) -> str:
    """Return what to type instead of a key of `sampler`: that of an axis, of which `axes` gives the knobs.

    Version 0.1.0 had all knobs flat in `sampler`, and the axes, under other names, in ``sampler.axes``.
    """
    names = [name for name in key.split(".")[1:] if name != "axes"]
    if names and names[0] in AXES_OF_0_1 and names[0] not in axes:
        names[0] = AXES_OF_0_1[names[0]]
    if not names:
        return f"The axes are the keys of sampler itself: {_keys(axes)}."
    first, *below = names
    if first in axes:
        if first not in chosen and "axes" not in key:
            return f"{first} is the axis of sampler={first}: choose it, alone or in a list ('sampler=[{first},...]')."
        return f"Use {'.'.join(['sampler', *names])}, with sampler={first}."
    owners = [axis for axis, knobs in axes.items() if first in knobs]
    if not owners:
        near = get_close_matches(first, {*axes, *(knob for knobs in axes.values() for knob in knobs)}, 1, 0.75)
        owners = [axis for axis, knobs in axes.items() if near and near[0] in knobs]
        if not near:
            return f"There are: {_keys(axes)}."
        if not owners:
            return f"Did you mean {'.'.join(['sampler', near[0], *below])}?"
        first = near[0]
    keys = " or ".join(f"sampler.{axis}.{first}" for axis in owners)
    away = [axis for axis in owners if axis not in chosen]
    remedy = f" It comes with sampler={away[0]}, alone or in a list ('sampler=[{away[0]},...]')." if away else ""
    return f"Did you mean {keys}?{remedy if len(owners) == 1 else ''}"


def _keys(axes: dict[str, list[str]]) -> str:
    return ", ".join(f"sampler.{axis}.{knob}" for axis, knobs in axes.items() for knob in knobs) or "none"


def _knobs(axes: DictConfig) -> dict[str, list[str]]:
    """Return the knobs of axes, by the name of the axis."""
    return {
        str(name): [str(knob) for knob in axis if not str(knob).startswith("_")]
        for name, axis in axes.items()
        if isinstance(axis, DictConfig)
    }


def _choices_of_axes(config_dir: Path) -> dict[str, list[str]]:
    """Return the knobs of every axis that can be chosen."""
    found: dict[str, list[str]] = {}
    for file in sorted((config_dir / "sampler").glob("*.yaml")):
        found |= _knobs(DictConfig(OmegaConf.load(file)))
    return found


def _options_of(group: Path) -> dict[str, list[str]]:
    """Return the options of a config group, and the keys that each brings."""
    return {file.stem: [str(key) for key in OmegaConf.load(file)] for file in sorted(group.glob("*.yaml"))}


def _meant(path: str, key: str, below: str, node: DictConfig, config_dir: Path) -> list[str]:
    """Options that bring the key; or else the keys of that very name elsewhere, or those of nearly that name.

    `below` is what was typed after the key, such as ``.monitor``.
    """
    keys = [str(name) for name in node if not str(name).startswith("_")]
    options = {} if not path or "." in path else _options_of(config_dir / path)
    brought = {name for names in options.values() for name in names if not name.startswith("_")}
    near = get_close_matches(key, {*keys, *brought}, cutoff=0.75)
    for name in [key] if key in brought else near[:1]:
        owners = [option for option, names in options.items() if name in names]
        if name not in keys and owners:
            word = "" if name == key else f"Did you mean {path}.{name}? "
            return [f"{word}{name} comes with {path}={owners[0]}: choose it."]
    if near:
        return [f"Did you mean {', '.join(f'{path}.{name}'.lstrip('.') for name in near)}?"]
    root = node._get_root()  # OmegaConf gives an error the node at fault and has no public way from there to the whole
    places = list(_places(root)) if isinstance(root, DictConfig) else []
    names = {place.rpartition(".")[2] for place in places}
    wanted = [key] if key in names else get_close_matches(key, names, cutoff=0.75)
    found = [place for place in places if place.rpartition(".")[2] in wanted]
    return [f"Did you mean {', '.join(place + below for place in found)}?"] if found else []


def _places(node: DictConfig, path: str = "") -> Iterator[str]:
    """Return the full names of all keys that can be set, from a node on."""
    for name in map(str, node):
        if name == "hydra" or name.startswith("_"):
            continue
        yield f"{path}{name}"
        if OmegaConf.is_missing(node, name) or OmegaConf.is_interpolation(node, name):
            continue
        if isinstance(child := node.get(name), DictConfig):
            yield from _places(child, f"{path}{name}.")


def _additional(key: str, node: DictConfig) -> list[str]:
    """How to give an argument that is not in the config to a class of another package, which may take more."""
    target = str(node.get("_target_", "cellcohort"))
    return [] if target.startswith("cellcohort") else [f"Other arguments of {target} are added by +{key}=<value>."]


def _groups(config_dir: Path, name: str) -> Iterator[str]:
    """Return the groups in the defaults of a config, and of those that it is built on."""
    for entry in OmegaConf.load(config_dir / f"{name}.yaml").defaults:
        if isinstance(entry, DictConfig):
            yield from (str(key) for key in entry if not str(key).startswith("override "))
        elif entry != "_self_":
            yield from _groups(config_dir, entry)
