"""What to type to go on with a run."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

from cellcohort.messages import typed_option
from cellcohort.runtime.distributed import Launch


def how_to_go_on(directory: Path) -> str:
    """Return the command that goes on with a run from its newest checkpoint that is whole."""
    if (directory / "checkpoints").is_dir():
        from cellcohort.runtime.checkpoint_files import newest_whole  # here, since it imports torch

        if newest := newest_whole(directory / "checkpoints"):
            return f"To go on: {command(resume=newest)}"
    return "Start the same command again."


def command(**options: Any) -> str:
    """Return the command that was typed, with other values of some options and no run directory of its own."""
    leave = ("hydra.run.dir=", *(f"{name}=" for name in options))
    typed = [argument for argument in sys.argv if not argument.startswith(leave)]
    launch = Launch.here()
    start = ["python"]
    if launch.nodes > 1:  # how they meet is known to torchrun alone
        per_node = os.environ["LOCAL_WORLD_SIZE"]
        start = ["torchrun", f"--nnodes={launch.nodes}", f"--nproc-per-node={per_node}", "--rdzv-backend=c10d"]
        start.append("--rdzv-endpoint=HOST:PORT")
    elif launch.world_size > 1:
        start = ["torchrun", "--standalone", f"--nproc-per-node={launch.world_size}"]
    return " ".join([shlex.join([*start, *typed]), *(typed_option(name, value) for name, value in options.items())])
