"""Prepare a store for training on data that do not fit into memory: cells of any source, laid out for sampling."""

from __future__ import annotations

import warnings
from pathlib import Path

import hydra
from hydra.utils import instantiate
from omegaconf import DictConfig

from cellcohort.runtime.cli import run_command
from cellcohort.runtime.run import Run


@hydra.main(config_path="../conf", config_name="prepare", version_base="1.3")
def main(config: DictConfig) -> None:
    with Run(config) as run:
        if run.world_size > 1:
            raise ValueError("a preparation is one process; start it without torchrun, and set prepare.threads.")
        source = instantiate(config.source)
        store = instantiate(config.prepare, source)
        print(f"store: {store.path}")


if __name__ == "__main__":
    # what anndata and zarr say of themselves; there is nothing to do for the user of a script
    warnings.filterwarnings("ignore", "The '.*' option is deprecated")
    warnings.filterwarnings("ignore", "Consolidated metadata is currently not part")
    run_command(main, Path(__file__).parents[1] / "conf")
