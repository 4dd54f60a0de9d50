"""What run directories say: whether a job came to its end, with which options, and what earlier starts left."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from cellcohort.files import fingerprint, read_yaml, short_name

FINISHED = "finished"  # file in a run directory whose job came to its end; holds the digest of its options
STOPPED = "stopped"  # file in a run directory whose job a signal stopped; holds how to go on
DIGITS = 64  # of that digest
LONGEST_NAME = 150  # bytes of a run name; that of a file has 255 at most, and others are made of it
OF_THE_LAUNCH = ("resume", "continues", "run_name", "trainer.devices", "trainer.num_nodes")  # may differ in a restart


def digest(config: DictConfig) -> str:
    """Return what is equal for jobs that would do the same: a digest of the options, as they are before resolving them.

    The name of the run does not count, but the version of the package does.
    """
    options: Any = OmegaConf.to_container(config, resolve=False)
    text = OmegaConf.to_yaml({key: value for key, value in options.items() if key != "run_name"}, sort_keys=True)
    return fingerprint(f"{version('cellcohort')}\n{text}".encode(), digits=DIGITS)


def check_name(name: Any) -> None:
    """Refuse a run name that is no name of a directory.

    Raises
    ------
    ValueError
        It is empty, too long, or holds a slash or what cannot be printed.
    """
    text = "" if name is None else str(name)
    size = len(text.encode("utf-8", "replace"))
    if not 0 < size <= LONGEST_NAME or text in (".", "..") or {"/", "\0"} & set(text) or not text.isprintable():
        raise ValueError(
            f"run_name={short_name(text, 60)!r} cannot be a part of the name of a directory: use 1 to {LONGEST_NAME} "
            "bytes of printable text without a slash. Another place for the run is hydra.run.dir=<directory>, for a "
            "sweep hydra.sweep.dir=<directory>."
        )


def set_aside(directory: Path) -> Path:
    """Move what a job left unfinished to ``unfinished/`` beside its directory, so that it can be done again there.

    Returns
    -------
    pathlib.Path
        Where it is now.
    """
    aside = directory.parent / "unfinished"
    aside.mkdir(exist_ok=True)
    place = aside / f"{directory.name}-{len(set_aside_before(directory)) + 1}"
    directory.rename(place)
    return place


def set_aside_before(directory: Path) -> list[Path]:
    """Return what earlier starts of a job left, the newest last."""
    aside = directory.parent / "unfinished"
    every = aside.iterdir() if aside.is_dir() else ()
    own = [path for path in every if path.name.rpartition("-")[0] == directory.name]
    return sorted(own, key=lambda path: int(path.name.rpartition("-")[2]))


def finished(directory: Path) -> str:
    """Return the digest of the options of a job that came to its end; empty if it did not, or the file was cut."""
    file = directory / FINISHED
    text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    return text.strip() if re.fullmatch(rf"[0-9a-f]{{{DIGITS}}}\s*", text) else ""


def unfinished(directory: Path) -> bool:
    """Whether a job was begun in a directory and did not come to its end."""
    return (directory / "config.yaml").is_file() and not finished(directory)


def written_config(directory: Path) -> Any:
    """Return the config of a run, or what there is of it."""
    file = directory / "config.yaml"
    try:
        return read_yaml(file) if file.is_file() else None
    except (OSError, ValueError, yaml.YAMLError):
        return None


def same_options(directory: Path, config: DictConfig) -> bool | None:
    """Whether the run of a directory has the options of this one, save those that a restart may change.

    None where its config was not written to the end.
    """
    stored = written_config(directory)
    if not isinstance(stored, dict):
        return None
    before = DictConfig(stored)
    now = DictConfig(OmegaConf.to_container(config, resolve=True))
    for key in OF_THE_LAUNCH:
        for each in (before, now):
            OmegaConf.update(each, key, None, force_add=True)
    return bool(before == now)


def rest_of(checkpoint: Path) -> dict[str, Any]:
    """Of which run a run is the rest: its name, the id of its W&B run, and the step that it goes on from."""
    from cellcohort.runtime.checkpoint_files import read_checkpoint  # here, since it imports torch

    run = checkpoint.absolute().parents[1]
    ids = [path.name.rpartition("-")[2] for path in sorted(run.glob("wandb/*run-*-*")) if path.is_dir()]
    return {
        "run": run.name,
        "wandb": ids[-1] if ids else None,
        "step": int(read_checkpoint(checkpoint)["global_step"]),
    }
