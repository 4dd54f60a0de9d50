"""A script's command line: what Hydra says of a wrong one, and what to type instead."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from hydra.errors import InstantiationException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from cellcohort.launch import Launch


def run_command(main: Callable[[], None], config_dir: Path) -> None:
    """Run a script's Hydra `main`; where Hydra refuses the command line, add what it could have been.

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
        main()
    except SystemExit as stop:
        hint = explain(stop.__context__, config_dir)
        if hint and launch.rank == 0:
            print(hint, file=sys.stderr)
        raise


def explain(error: BaseException | None, config_dir: Path) -> str | None:
    """What was available where a name is not there, or the cause that an error hides; None if neither is so."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and not error.options:
        group = Path(error.missing_cfg_file).parent
        return f"The choices of {group} are: {', '.join(_options(config_dir / group)) or 'none'}."
    cause = error.__cause__ if error is not None else None
    if isinstance(error, InstantiationException) and cause is not None:
        while cause.__cause__ is not None:
            cause = cause.__cause__
        return f"{type(cause).__name__}: {cause}" if str(cause) not in str(error) else None
    if isinstance(cause, OmegaConfBaseException) and cause.full_key and isinstance(cause.parent_node, DictConfig):
        path, _, key = cause.full_key.rpartition(".")
        there = [str(name) for name in cause.parent_node if not str(name).startswith("_")]
        hint = f"The keys of {path or 'the config'} are: {', '.join(there) or 'none'}."
        owners = [option for option, keys in _options(config_dir / path).items() if key in keys]
        if owners and "." not in path:
            hint += f" {key} comes with {path}={owners[0]}: choose it"
            hint += f", alone or in a list ('{path}=[{owners[0]},...]')." if path == "sampler" else "."
        return hint
    return None


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


def _options(group: Path) -> dict[str, list[str]]:
    """The options of a config group, and the keys that each brings."""
    return {file.stem: [str(key) for key in OmegaConf.load(file)] for file in sorted(group.glob("*.yaml"))}
