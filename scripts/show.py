"""Show what one batch of a run held: its cells, their positives, what was asked, and its loss where it was recorded.

The batch is drawn again from the config of the run, since batches are pure. A table of its cells, and for images a
contact sheet, are written to ``batches/`` in the run directory.
"""

from __future__ import annotations

from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from cellcohort.runtime.cli import run_command
from cellcohort.runtime.unknown_keys import refuse_unread


@hydra.main(config_path="../conf", config_name="show", version_base="1.3")
def main(config: DictConfig) -> None:
    refuse_unread(config, HydraConfig.get().overrides.task)
    if OmegaConf.is_missing(config, "run"):
        raise ValueError("say which run: python scripts/show.py run=<the directory that train.py printed as run:>")
    from cellcohort.evaluation.batches import StoredBatches, outstanding  # here, so that a wrong line is told at once

    if config.step is None:
        print(outstanding(config.run))
        return
    batch = StoredBatches(config.run, config.packages).batch(config.step, config.rank)
    print(batch.text(config.cells))
    for path in batch.write(Path(config.run) / "batches"):
        print(f"batch: {path}", flush=True)


if __name__ == "__main__":
    run_command(main, Path(__file__).parents[1] / "conf")
