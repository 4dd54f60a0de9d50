"""A script's command line: what Hydra says of a wrong one, and what to type instead."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra._internal import utils as hydra_utils
from hydra.errors import (
    CompactHydraException,
    ConfigCompositionException,
    InstantiationException,
    MissingConfigException,
)
from omegaconf import DictConfig, OmegaConf

from cellcohort.runtime.distributed import Launch
from cellcohort.runtime.misnamed import not_in_config, options_of


def run_command(main: Callable[[], None], config_dir: Path) -> None:
    """Run a script's Hydra `main`; tell a wrong command line, or a wrong input, in a few words.

    With ``HYDRA_FULL_ERROR=1`` there is the whole traceback besides.

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
    try:
        with _refusals_explained(config_dir):
            main()
    except SystemExit as stop:
        for note in _notes(stop.__context__) if isinstance(stop.__context__, CompactHydraException) else []:
            print(note, file=sys.stderr)  # Hydra leaves the notes of these out
        raise


@contextmanager
def _refusals_explained(config_dir: Path) -> Iterator[None]:
    """Let Hydra print what :func:`explain` says of an error, where it says anything, instead of the error."""
    reporting = hydra_utils.run_and_report

    def run_and_report(func: Any) -> Any:
        def explained() -> Any:
            try:
                return func()
            except Exception as error:
                said = explain(error, config_dir)
                _tell_torchrun(said or f"{type(error).__name__}: {error}")
                if said is None:
                    raise
                raise CompactHydraException(said) from error

        return reporting(explained)

    hydra_utils.run_and_report = run_and_report
    try:
        yield
    finally:
        hydra_utils.run_and_report = reporting


def _tell_torchrun(text: str) -> None:
    """Leave an error where torchrun looks for it, so that it ends with that instead of a page that does not say it."""
    if file := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        more = {"py_callstack": text, "timestamp": str(int(time.time()))}
        Path(file).write_text(json.dumps({"message": {"message": text, "extraInfo": more}}), encoding="utf-8")


def explain(error: Exception, config_dir: Path) -> str | None:
    """An error of the user's in few words, and what there is instead; None where its traceback is needed."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and not error.options:
        group = Path(error.missing_cfg_file).parent
        return f"{error}\nThe choices of {group} are: {', '.join(options_of(config_dir / group)) or 'none'}."
    if isinstance(error, InstantiationException):
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        return str(error) if str(cause) in str(error) else f"{error}\n{type(cause).__name__}: {cause}"
    if isinstance(error, ConfigCompositionException):
        return not_in_config(error, config_dir)
    if isinstance(error, ValueError | FileNotFoundError) and _is_ours(error):
        return f"error: {error}"
    return None


def _is_ours(error: Exception) -> bool:
    """Whether a line of this package or of a script raised it, not one of a library that they call."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals["__name__"]).split(".")[0] in ("cellcohort", "__main__")


def _notes(error: BaseException | None) -> list[str]:
    """The notes of an error and of those that led to it."""
    if error is None:
        return []
    return [*getattr(error, "__notes__", []), *_notes(error.__cause__)]


def refuse_unread(config: DictConfig, overrides: Iterable[str]) -> None:
    """Refuse keys added by ``+key=value`` that nothing reads.

    A key is read where its node is made into an object (``_target_``), which judges its arguments
    itself, or where another value refers to it.

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
        root = key.split(".")[0].split("@")[0]
        node = config.get(root)
        made = isinstance(node, DictConfig) and ("_target_" in node or root == "logger")
        if not made and f"${{{key}}}" not in text:
            keys = [str(name) for name in (node if isinstance(node, DictConfig) and "." in key else config)]
            raise ValueError(f"{override!r} adds a key that nothing reads; there are: {', '.join(keys)}.")
